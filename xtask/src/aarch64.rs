//! The data plane on a processor that reorders memory accesses: cross-compiled for aarch64, and the unit tests of what touches
//! shared memory or bytes run under qemu-user. A test that passes there shows that the code for another processor is right, not
//! that no reordering breaks it: qemu-user leaves the order of accesses to the machine it runs on.

use std::path::Path;

/// Rust's name of it.
const TARGET: &str = "aarch64-unknown-linux-gnu";
/// Debian's cross compiler, for linking, and its libraries.
const LINKER: &str = "aarch64-linux-gnu-gcc";
const LIBRARIES: &str = "/usr/aarch64-linux-gnu";
/// What runs foreign programs.
const RUNNERS: [&str; 2] = ["qemu-aarch64-static", "qemu-aarch64"];
/// What scripts/setup installs for it.
const REMEDY: &str = "scripts/setup installs what it needs";

/// The program that the data plane is: all its crates are checked with it.
const PROGRAM: &str = "lasthop-switch";
/// Whose unit tests run: rings, copies, headers, flows, and a packet's walk.
const TESTED: [&str; 5] = ["lasthop-guestmem", "lasthop-virtqueue", "lasthop-frame", "lasthop-flow", "lasthop-forward"];

/// Words for the tests: one of them starts itself again, which nobody emulates, and limits memory, which qemu needs itself.
pub const FOR_TESTS: [&str; 2] = ["--skip", "a_port_that_finds_no_memory_for_its_first_miss_finds_it_later"];

/// Arguments of cargo that check the whole data plane; needs the target's standard library alone.
pub fn check() -> Result<Vec<String>, String> {
    let sysroot =
        std::process::Command::new("rustc").args(["--print", "sysroot"]).output().map_err(|e| e.to_string())?;
    let libraries = Path::new(String::from_utf8_lossy(&sysroot.stdout).trim()).join("lib/rustlib").join(TARGET);
    if !libraries.is_dir() {
        return Err(format!("aarch64: rustup target add {TARGET} is missing; {REMEDY}"));
    }
    Ok(["check", "--quiet", "--target", TARGET, "--package", PROGRAM].map(String::from).to_vec())
}

/// What cargo is called with: arguments and environment.
pub struct Call {
    pub arguments: Vec<String>,
    pub environment: [(&'static str, String); 2],
}

/// How cargo runs the unit tests.
pub fn test() -> Result<Call, String> {
    check()?;
    let found = |program: &str| {
        let path = std::env::var_os("PATH").unwrap_or_default();
        std::env::split_paths(&path).any(|folder| folder.join(program).is_file())
    };
    let runner = RUNNERS.into_iter().find(|runner| found(runner));
    let runner = runner
        .filter(|_| found(LINKER))
        .ok_or_else(|| format!("aarch64: {LINKER} and {} are needed; {REMEDY}", RUNNERS.join(" or ")))?;
    let environment = [
        ("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER", LINKER.to_owned()),
        ("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER", format!("{runner} -L {LIBRARIES}")),
    ];
    let mut arguments: Vec<String> = ["test", "--no-fail-fast", "--lib", "--target", TARGET].map(String::from).to_vec();
    arguments.extend(TESTED.iter().flat_map(|package| ["--package".to_owned(), (*package).to_owned()]));
    Ok(Call { arguments, environment })
}
