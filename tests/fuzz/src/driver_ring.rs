//! The driver side of a ring against a device that writes whatever it likes, and now and then works as it should. The
//! driver never gives a buffer back that the device did not have, nor twice, nor with more bytes than it has room for, nor
//! out of order where order was agreed; it writes to none of the device's memory; an error stays.
//!
//! Input: size and features, then one operation after another.

use crate::Input;
use crate::rings::{BUFFERS, memory, peek, poke};
use lasthop_guestmem::GuestMemory;
use lasthop_virtqueue::driver::{
    DriverError, DriverRing, IndirectTables, NetConfig, NetDriver, Piece, RingLayout, VNET_HDR_LEN,
};
use lasthop_virtqueue::{Chains, DESC_WRITE, Queue, ReceiveBuffers, Reserved};
use std::collections::VecDeque;
use std::sync::Arc;

/// Operations in one input.
const MAX_OPS: usize = 200;

pub(crate) fn run(data: &[u8]) {
    let mut input = Input::new(data);
    match input.u8() {
        bits @ 0..=0xdf => ring(bits, &mut input),
        bits => net(bits, &mut input),
    }
}

/// A buffer with the device.
#[derive(Debug)]
struct Given {
    token: u32,
    room: u32,
    entries: u16,
    shown: bool,
}

fn ring(bits: u8, input: &mut Input<'_>) {
    let packed = bits & 1 != 0;
    let size = input.u8();
    let size = if packed { u16::from(size % 40) + 1 } else { 1 << (size % 6) };
    let mut layout = RingLayout::contiguous(0, size, packed);
    layout.event_idx = bits & 2 != 0;
    layout.in_order = bits & 4 != 0;
    layout.indirect = (bits & 8 != 0).then_some(IndirectTables { addr: BUFFERS, entries: 4 });
    let memory = memory();
    let mut driver = DriverRing::new(layout, memory.clone()).expect("a ring that lies in memory");
    let queue = Queue::new(0);
    queue.set_enabled(true);
    let (mut given, mut error): (VecDeque<Given>, Option<DriverError>) = (VecDeque::new(), None);
    let mut next = 0;
    // What only the device writes: the driver's calls must leave it as it is.
    let bytes = RingLayout::bytes(size, packed);
    let devices = layout.device as usize..bytes as usize;
    for _ in 0..MAX_OPS {
        if input.is_empty() {
            break;
        }
        match input.below(16) {
            0..=4 => {
                let shape = input.u8();
                let count = usize::from(shape & 7);
                let pieces: Vec<Piece> =
                    (0..count as u64).map(|i| (0x2000 + 64 * i, u32::from(shape >> 3) + i as u32)).collect();
                let (readable, writable) = pieces.split_at(input.below(count + 1));
                let before = peek(&memory);
                let free = driver.free();
                let entries = if layout.indirect.is_some() && (2..=4).contains(&count) { 1 } else { count as u16 };
                let added = driver.add(readable, writable, next);
                assert_eq!(added.is_ok(), entries > 0 && entries <= free);
                assert_eq!(peek(&memory)[devices.clone()], before[devices.clone()]);
                if added.is_ok() {
                    let room = writable.iter().map(|p| p.1).sum();
                    given.push_back(Given { token: next, room, entries, shown: false });
                    next += 1;
                }
            }
            5 | 6 => {
                let before = peek(&memory);
                driver.publish();
                assert_eq!(peek(&memory)[devices.clone()], before[devices.clone()]);
                given.iter_mut().for_each(|g| g.shown = true);
            }
            7..=9 => {
                for _ in 0..input.below(4) + 1 {
                    let got = driver.poll_used();
                    if let Some(error) = error {
                        assert_eq!(got, Err(error), "an error stays");
                    }
                    match got {
                        Err(e) => error = Some(e),
                        Ok(None) => break,
                        Ok(Some((token, len))) => {
                            let at = given.iter().position(|g| g.token == token && g.shown);
                            let at = at.expect("a buffer that the device has");
                            assert!(at == 0 || !layout.in_order, "out of order");
                            let buffer = given.remove(at).expect("there");
                            assert!(len <= buffer.room, "{len} bytes in {buffer:?}");
                        }
                    }
                }
            }
            10 => {
                let before = peek(&memory);
                if input.flag() {
                    driver.enable_calls();
                } else {
                    driver.disable_calls();
                }
                assert_eq!(peek(&memory)[devices.clone()], before[devices.clone()]);
            }
            11 => {
                // Anywhere in the ring and the indirect tables.
                let at = u64::from(input.u16()) % (BUFFERS + 0x800);
                let len = 1 + input.below(8);
                poke(&memory, at, input.bytes(len));
            }
            12 | 13 => {
                // A used entry, near the place where one is looked for.
                let (slot, id, len) = (u64::from(input.u8()) % u64::from(size), input.u8(), u32::from(input.u8()));
                // Often just about as long as some buffer is.
                let some = given.get(len as usize >> 2 & 3).map_or(0, |g| g.room);
                let len = if len & 0x80 != 0 { some + (len & 3) } else { len };
                if packed {
                    let flags = u16::from(id >> 7) << 7 | u16::from(id >> 6 & 1) << 15 | DESC_WRITE;
                    let word = u64::from(len) | u64::from(id & 63) << 32 | u64::from(flags) << 48;
                    poke(&memory, layout.desc + 16 * slot + 8, &word.to_le_bytes());
                } else {
                    let word = u64::from(id) | u64::from(len) << 32;
                    poke(&memory, layout.device + 4 + 8 * slot, &word.to_le_bytes());
                }
            }
            14 if !packed => {
                let now = peek(&memory);
                let at = layout.device as usize + 2;
                let index = u16::from_le_bytes([now[at], now[at + 1]]).wrapping_add(input.u8() as i8 as u16);
                poke(&memory, layout.device + 2, &index.to_le_bytes());
            }
            _ => serve(&queue, &driver, &layout, &memory, input),
        }
        let taken: u16 = given.iter().map(|g| g.entries).sum();
        assert_eq!(driver.free(), size - taken);
        assert_eq!(usize::from(driver.unpublished()), given.iter().filter(|g| !g.shown).count());
        assert_eq!(usize::from(driver.outstanding()), given.iter().filter(|g| g.shown).count());
    }
}

/// A device as it should be, as far as the ring still makes sense, uses what it finds where the driver stands.
fn serve(queue: &Queue, driver: &DriverRing, layout: &RingLayout, memory: &Arc<GuestMemory>, input: &mut Input<'_>) {
    let (most, writes) = (1 + input.below(4), input.flag());
    if queue.start(&layout.setup(driver.base(), 0), memory.clone()).is_err() {
        return;
    }
    let mut guard = queue.lock();
    let Some(started) = guard.started() else { return };
    let ring = &mut started.ring;
    if writes {
        let mut room = ReceiveBuffers::new();
        for _ in 0..most {
            if !matches!(room.reserve(ring, memory, 1, false, 1), Ok(Reserved::Enough)) {
                break;
            }
            room.chains().iter().for_each(|c| ring.stage_used(c, 1));
        }
        room.give_back(ring);
    } else {
        let mut chains = Chains::default();
        // Chains before a broken one are there whatever comes.
        let _ = ring.pop(memory, &mut chains, most);
        chains.list.iter().for_each(|c| ring.stage_used(c, 0));
    }
    ring.publish();
}

/// The network driver: frames are no longer than its buffers, whatever the device says.
fn net(bits: u8, input: &mut Input<'_>) {
    let config = NetConfig {
        size: 8,
        packed: bits & 1 != 0,
        in_order: bits & 2 != 0,
        mergeable: bits & 4 != 0,
        indirect: bits & 8 != 0,
        pieces: 1 + u16::from(bits >> 4 & 1) * 2,
        rx_buffer: 64,
        tx_buffer: 64,
        ..NetConfig::default()
    };
    let mut driver = NetDriver::new(config).expect("a driver");
    let memory = driver.memory().clone();
    let layouts: Vec<RingLayout> = driver.queues().iter().map(|q| q.layout).collect();
    let queues = [Queue::new(0), Queue::new(1)];
    queues.iter().for_each(|q| q.set_enabled(true));
    let mut broken = false;
    for _ in 0..MAX_OPS {
        if input.is_empty() {
            break;
        }
        match input.below(8) {
            0 => {
                let len = usize::from(input.u8()) % 60;
                let sent = driver.send(0, &[0; VNET_HDR_LEN], &[7; 60][..len]);
                broken |= sent.is_err();
            }
            1 => driver.flush(0),
            2 => {
                let unsent = driver.unsent(0);
                assert!(!broken || unsent.is_err(), "an error stays");
                broken |= unsent.is_err();
            }
            3 | 4 => {
                let mut frame = Vec::new();
                let got = driver.recv(0, &mut frame);
                let most = if config.mergeable { 8 } else { 1 };
                assert!(frame.len() <= most * 64 - VNET_HDR_LEN || got.is_err(), "{} bytes", frame.len());
            }
            5 => {
                let layout = layouts[input.below(2)];
                let at = layout.desc + u64::from(input.u16()) % RingLayout::bytes(8, config.packed);
                let len = 1 + input.below(8);
                memory.slice(at, len).expect("the ring").write(0, input.bytes(len));
            }
            _ => {
                let n = input.below(2);
                serve(&queues[n], &driver.queues()[n].ring, &layouts[n], &memory, input);
            }
        }
    }
}
