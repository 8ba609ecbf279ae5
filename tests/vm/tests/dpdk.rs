//! DPDK's virtio-user driver as guests: every ring layout and feature it knows, each with frames that are compared byte
//! for byte on the other side.

use lasthop_harness::{Lasthop, Loopback, Port, VirtioUser, proc, scratch};
use std::collections::HashMap;

/// Frames that guest `from` sends on queue `queue` to the other: lengths from 60 to 9014 bytes, IPv4 and IPv6 UDP, other
/// EtherTypes and VLAN tags, numbered so that no two are the same.
fn frames(from: u8, queue: usize, count: usize) -> Vec<Vec<u8>> {
    (0..count).map(|n| frame(from, queue, n, 60 + n * 997 % (9014 - 60 + 1))).collect()
}

fn frame(from: u8, queue: usize, number: usize, len: usize) -> Vec<u8> {
    let mac = |n: u8| [0x52, 0x54, 0, 0xd, 0xdc, n];
    let mut f = [mac(1 - from), mac(from)].concat();
    if number % 7 == 3 {
        f.extend([0x81, 0x00, 0x00, 0x2a]);
    }
    let rest = len - f.len() - 2;
    match number % 4 {
        0 => f.extend([0x88, 0xb5]),
        1 => {
            f.extend([0x86, 0xdd, 0x60, 0, 0, 0]);
            f.extend(((rest - 40) as u16).to_be_bytes());
            // Next header 59: none, the rest is content.
            f.extend([59, 64]);
            for end in [from, 1 - from] {
                f.extend([0xfd, 9, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, queue as u8, end]);
            }
        }
        _ => {
            f.extend([0x08, 0x00]);
            let start = f.len();
            f.extend([0x45, 0]);
            f.extend((rest as u16).to_be_bytes());
            f.extend([0, 0, 0x40, 0, 64, 17, 0, 0, 10, 9, queue as u8, from, 10, 9, queue as u8, 1 - from]);
            let sum = f[start..].chunks(2).map(|w| u32::from(w[0]) << 8 | u32::from(w[1])).sum::<u32>();
            let sum = !((sum & 0xffff) + (sum >> 16)) as u16;
            f[start + 10..start + 12].copy_from_slice(&sum.to_be_bytes());
            // UDP without a checksum, which IPv4 allows.
            f.extend([0x40, queue as u8, 0x40, queue as u8]);
            f.extend(((rest - 20) as u16).to_be_bytes());
            f.extend([0, 0]);
        }
    }
    let mut word = (number as u32) << 8 | (queue as u32) << 4 | u32::from(from);
    while f.len() < len {
        word = word.wrapping_mul(0x9e37_79b1).rotate_left(9) ^ number as u32;
        f.push((word >> 24) as u8);
    }
    f
}

/// One set-up of the two guests.
struct Cell {
    arguments: &'static str,
    mergeable: bool,
    queues: usize,
    /// The receive function DPDK must take, or the cell shows something else than it says.
    path: &'static str,
}

/// Arguments, merged buffers, DPDK's receive function.
type Kind = (&'static str, bool, &'static str);

const SPLIT: [Kind; 4] = [
    ("in_order=0", true, "mergeable buffer"),
    ("in_order=0", false, "standard"),
    ("in_order=1", true, "inorder"),
    ("in_order=1", false, "inorder"),
];
const PACKED: [Kind; 4] = [
    ("packed_vq=1,in_order=0", true, "packed ring mergeable buffer"),
    ("packed_vq=1,in_order=0", false, "packed ring standard"),
    ("packed_vq=1,in_order=1", true, "packed ring mergeable buffer"),
    ("packed_vq=1,in_order=1", false, "packed ring standard"),
];

/// Every kind with so many queue pairs each.
fn cells(kinds: &[Kind], queues: &[usize]) -> Vec<Cell> {
    let of = |(arguments, mergeable, path): Kind| {
        queues.iter().map(move |queues| Cell { arguments, mergeable, queues: *queues, path })
    };
    kinds.iter().flat_map(|kind| of(*kind)).collect()
}

/// Runs every cell on one lasthop, so that each also finds what the one before left behind; where `server` is true the
/// guests listen and lasthop connects. Fails with the list of cells that failed.
fn matrix(cells: &[Cell], server: bool) {
    let dir = scratch();
    let port = |n: &str| if server { Port::connect(n, dir.path()) } else { Port::listen(n, dir.path()) };
    let lasthop = Lasthop::start(&[port("a"), port("b")]);
    let switch = lasthop.switch();
    let mut descriptors = Vec::new();
    let failed: Vec<String> = cells
        .iter()
        .filter_map(|Cell { arguments, mergeable, queues, path }| {
            let name = format!("[{arguments} mergeable={mergeable} queues={queues}]");
            let devices = VirtioUser { queues: *queues, mergeable: *mergeable, arguments: (*arguments).into(), server };
            let outcome = passes(&Loopback::new(dir.path(), devices), path).err();
            lasthop.wait_for_state("a", "waiting");
            lasthop.wait_for_state("b", "waiting");
            descriptors.push(proc::descriptors(switch));
            outcome.map(|e| format!("{name}: {e}"))
        })
        .collect();
    let stats = lasthop.command(&["stats"]);
    assert!(failed.is_empty(), "{} of {} cells failed:\n{}\n{stats}", failed.len(), cells.len(), failed.join("\n"));
    assert_eq!(lasthop.switch(), switch, "the switch was restarted");
    lasthop.check_sums();
    let (first, last) = (descriptors.first(), descriptors.last());
    assert!(last <= first, "descriptors grew with every front-end that came and went: {descriptors:?}");
}

/// Plays a few frames both ways, twice, so that both addresses are learned and their flows are known; then as many as the
/// rings can hold, and compares those.
fn passes(guests: &Loopback, path: &str) -> Result<(), String> {
    let queues = guests.devices.queues;
    // 9014 bytes fill up to five merged buffers: no more frames at once than the receiver's ring has room for.
    let full = if guests.devices.mergeable { 200 } else { 900 };
    let sides =
        |count: usize| [0, 1].map(|from| (0..queues).map(|q| frames(from, q, count / queues)).collect::<Vec<_>>());
    let few = sides(8 * queues);
    let rounds = [few.clone(), few, sides(full)];
    let played = guests.play(&rounds)?;
    if played.path != path {
        return Err(format!("DPDK took the path {:?}, not {path:?}: the cell shows nothing", played.path));
    }
    for (receiver, got) in played.rounds[2].iter().enumerate() {
        let sent = &rounds[2][1 - receiver];
        for (queue, sent) in sent.iter().enumerate() {
            compare(sent, got).map_err(|e| format!("to guest {receiver} from queue {queue}: {e}"))?;
        }
        let (all, sent) = (got.iter().map(Vec::len).sum::<usize>(), sent.iter().map(Vec::len).sum::<usize>());
        if all != sent {
            return Err(format!("guest {receiver} got {all} frames of {sent}"));
        }
    }
    Ok(())
}

/// Every frame sent on one queue arrived once and unchanged; those of one flow that arrived on one queue came in order.
fn compare(sent: &[Vec<u8>], got: &[Vec<Vec<u8>>]) -> Result<(), String> {
    let index: HashMap<&[u8], usize> = sent.iter().enumerate().map(|(i, f)| (&f[..], i)).collect();
    let mut seen = vec![0; sent.len()];
    for frames in got {
        let order: Vec<usize> = frames.iter().filter_map(|f| index.get(&f[..]).copied()).collect();
        // Frames with and without a VLAN tag are different flows to a learning switch.
        for tagged in [false, true] {
            let flow: Vec<_> = order.iter().filter(|i| (sent[**i][12..14] == [0x81, 0x00]) == tagged).collect();
            if !flow.is_sorted() {
                return Err(format!("frames overtook each other: {flow:?}"));
            }
        }
        order.into_iter().for_each(|i| seen[i] += 1);
    }
    let wrong = seen.iter().enumerate().filter(|(_, n)| **n != 1);
    let wrong: Vec<_> = wrong.map(|(i, n)| format!("{i} ({} bytes) {n} times", sent[i].len())).collect();
    match wrong.len() {
        0 => Ok(()),
        n => {
            Err(format!("{n} of {} frames not received once and whole: {}", sent.len(), wrong[..n.min(12)].join(", ")))
        }
    }
}

#[test]
fn split_rings() {
    matrix(&cells(&SPLIT, &[1, 4]), true);
}

#[test]
fn packed_rings() {
    matrix(&cells(&PACKED, &[1, 4]), true);
}

#[test]
#[ignore = "one more number of queues; `cargo xtask test --long` runs it"]
fn both_kinds_of_rings_with_two_queue_pairs() {
    matrix(&cells(&[SPLIT, PACKED].concat(), &[2]), true);
}

/// DPDK's vector code wants split rings out of order, packed rings in order and AVX-512, and no merged buffers.
#[test]
#[ignore = "rarely breaks, and takes long; `cargo xtask test --long` runs it"]
fn vectorized_guests() {
    let mut kinds = vec![("in_order=0,vectorized=1", false, "vectorized")];
    if std::fs::read_to_string("/proc/cpuinfo").is_ok_and(|c| c.contains("avx512vl")) {
        kinds.push(("packed_vq=1,in_order=1,vectorized=1", false, "packed ring vectorized"));
    } else {
        eprintln!("no AVX-512 here: packed rings are not tried with vector code");
    }
    matrix(&cells(&kinds, &[1, 2, 4]), true);
}

/// The guests connect to sockets lasthop listens on.
#[test]
fn guests_that_connect() {
    let kinds = [("in_order=0", true, "mergeable buffer"), ("packed_vq=1", true, "packed ring mergeable buffer")];
    matrix(&cells(&kinds, &[2]), false);
}
