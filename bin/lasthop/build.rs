//! Which messages the programs of this build say to each other: a number of the text of the files that define them. Programs of two builds with the
//! same number understand each other. All programs' messages count: once new ones are installed, each that ends is followed by a new one.

use std::path::Path;

/// Files that define messages, or what is in them, from the root of the repository.
const FILES: &[&str] = &[
    "crates/management/ipc/src/engines.rs",
    "crates/management/ipc/src/lib.rs",
    "crates/management/ipc/src/near.rs",
    "crates/management/ipc/src/offload.rs",
    "crates/outside-switch/session-ipc/src/lib.rs",
    "crates/outside-switch/uplink-ipc/src/counters_page.rs",
    "crates/outside-switch/uplink-ipc/src/messages.rs",
    "crates/shared/ipc/src/channel.rs",
    "crates/shared/ipc/src/datapath.rs",
    "crates/shared/ipc/src/ring.rs",
    "crates/shared/ipc/src/rings.rs",
    "crates/shared/ipc/src/supervisor.rs",
    "crates/shared/sys/src/pulse.rs",
    "crates/shared/sys/src/sandbox.rs",
    "crates/shared/types/src/counter.rs",
    "crates/shared/types/src/drop.rs",
    "crates/shared/types/src/lib.rs",
    "crates/shared/types/src/line.rs",
    "crates/switch/connection/src/messages.rs",
    "crates/switch/flow/src/spec.rs",
    "crates/switch/frame/src/edit.rs",
    "crates/switch/frame/src/key.rs",
    "crates/switch/guestmem/src/translations.rs",
    "crates/switch/virtqueue/src/journal.rs",
];

/// FNV-1a, 64 bits (Fowler, Noll, Vo).
fn add(sum: u64, bytes: &[u8]) -> u64 {
    bytes.iter().fold(sum, |sum, byte| (sum ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3))
}

fn main() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut sum = 0xcbf2_9ce4_8422_2325;
    for file in FILES {
        let path = root.join(file);
        println!("cargo:rerun-if-changed={}", path.display());
        let text = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        // What is said of a message is not part of it.
        for line in text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with("//")) {
            sum = add(sum, line.as_bytes());
        }
    }
    println!("cargo:rustc-env=LASTHOP_MESSAGES={sum:016x}");
}
