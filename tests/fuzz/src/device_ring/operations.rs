//! What the input has the driver and the device do, one operation after another.

use super::*;

pub(super) fn scribble(model: &mut Model, memory: &GuestMemory, at: u64, bytes: &[u8]) {
    let bytes = &bytes[..bytes.len().min((END - at) as usize)];
    poke(memory, at, bytes);
    model.put(at, bytes);
}

/// One operation. An error means that device and model agree that the ring is broken.
pub(super) fn step<'m>(
    queue: &Queue,
    model: &mut Model,
    memory: &'m Arc<GuestMemory>,
    chains: &mut Chains<'m>,
    held: &mut Vec<Walked>,
    input: &mut Input<'_>,
) -> Result<(), Broken> {
    let (layout, packed) = (model.layout, model.layout.packed);
    let size = u64::from(layout.size);
    let bytes = RingLayout::bytes(layout.size, packed);
    let op = input.below(20);
    // The driver's part first: it needs no lock.
    match op {
        0 => {
            let at = u64::from(input.u16()) % bytes;
            let len = 1 + input.below(16);
            scribble(model, memory, at, input.bytes(len));
            return Ok(());
        }
        1 | 2 => {
            let index = u64::from(input.u8()) % size;
            let (addr, len) = buffer(input);
            let (flags, x) = (input.u8(), u16::from(input.u8()));
            let flags = u16::from(flags & 7) | u16::from(flags >> 6 & 1) << 7 | u16::from(flags >> 7) << 15;
            scribble(model, memory, layout.desc + 16 * index, &descriptor(packed, addr, len, flags, x));
            return Ok(());
        }
        3 if !packed => {
            let index = model.u16(layout.driver + 2).wrapping_add(input.u8() as i8 as u16);
            scribble(model, memory, layout.driver + 2, &index.to_le_bytes());
            return Ok(());
        }
        3..=6 => {
            offer(model, memory, input);
            return Ok(());
        }
        7 => {
            // What buffers and indirect tables hold.
            let at = BUFFERS + u64::from(input.u16()) % (END - BUFFERS);
            let (addr, len) = buffer(input);
            let (flags, x) = (u16::from(input.u8() & 7), u16::from(input.u8() & 15));
            scribble(model, memory, at & !15, &descriptor(packed, addr, len, flags, x));
            return Ok(());
        }
        _ => {}
    }
    let mut guard = queue.lock();
    let ring = &mut guard.started().expect("a started ring").ring;
    match op {
        8..=10 => {
            let most = input.below(BURST + 2);
            let before = chains.list.len();
            let pieces = chains.list.iter().map(|chain| chains.pieces(chain).len()).sum::<usize>();
            let popped = ring.pop(memory, chains, most);
            let (expected, broken) = model.pop(false, most, before, pieces);
            let got = &chains.list[before..];
            assert_eq!(got.len(), expected.len(), "{popped:?} {broken:?}");
            for (chain, expected) in got.iter().zip(&expected) {
                assert_eq!((chain.len(), chain.is_bad()), (expected.len, expected.bad));
                assert_eq!(read(chains, chain), model.content(expected));
            }
            assert_eq!(popped.is_err(), broken.is_some(), "{popped:?}");
            held.extend(expected);
            broken.map_or(Ok(()), Err)
        }
        11 => {
            let back = input.u8() as usize % (held.len() + 1);
            let keep = held.len() - back;
            ring.unpop(&chains.list[keep..]);
            model.unpop(&held[keep..]);
            // Pieces of chains given back stay in the list until it is cleared: as in a burst, nothing is taken after.
            complete(ring, model, chains, held, keep);
            *chains = Chains::default();
            held.clear();
            Ok(())
        }
        12 | 13 => {
            // What was taken is still what it was when it was taken, whatever the driver has done since.
            for (chain, expected) in chains.list.iter().zip(held.iter()) {
                assert_eq!(read(chains, chain), model.content(expected));
            }
            complete(ring, model, chains, held, held.len());
            *chains = Chains::default();
            held.clear();
            Ok(())
        }
        14 => {
            ring.publish();
            model.publish();
            Ok(())
        }
        15 => {
            let enabled = ring.enable_kicks(0);
            model.kicks(true);
            if packed {
                assert_eq!(enabled, Ok(model.is_available()));
                return Ok(());
            }
            let driver = model.u16(layout.driver + 2);
            let waiting = driver.wrapping_sub(model.next);
            if waiting > layout.size {
                assert!(enabled.is_err());
                return Err(Broken);
            }
            model.seen = driver;
            assert_eq!(enabled, Ok(waiting != 0));
            Ok(())
        }
        16 => {
            ring.disable_kicks();
            model.kicks(false);
            Ok(())
        }
        17 if held.is_empty() => {
            // A change of memory between two bursts: all that was taken has been shown.
            ring.publish();
            model.publish();
            drop(guard);
            queue.set_memory(memory.clone()).expect("the same memory");
            let kicks = model.image.clone();
            model.start(if packed { model.give.bits() } else { 0 });
            model.image = kicks;
            Ok(())
        }
        _ if held.is_empty() => reserve(ring, model, memory, input),
        _ => Ok(()),
    }
}

fn complete(ring: &mut Ring, model: &mut Model, chains: &Chains<'_>, held: &[Walked], count: usize) {
    for (chain, walked) in chains.list.iter().zip(held).take(count) {
        ring.stage_used(chain, 0);
        model.stage(walked, 0);
    }
}

fn read(chains: &Chains<'_>, chain: &lasthop_virtqueue::Chain) -> Vec<u8> {
    let mut out = Vec::new();
    for piece in &*chains.pieces(chain) {
        let at = out.len();
        out.resize(at + piece.len(), 0);
        piece.read(0, &mut out[at..]);
    }
    out
}

/// A driver that keeps the rules makes a chain available.
fn offer(model: &mut Model, memory: &GuestMemory, input: &mut Input<'_>) {
    let (layout, packed) = (model.layout, model.layout.packed);
    let kind = input.u8();
    let count = (u16::from(kind & 7) + 1).min(layout.size);
    let direction = if kind & 8 != 0 { DESC_WRITE } else { 0 };
    let head = model.driver_head;
    for i in 0..count {
        let (addr, len) = buffer(input);
        let more = if i + 1 < count { DESC_NEXT } else { 0 };
        let (at, flags, x) = if packed {
            let at = model.driver;
            model.driver = at.forth(1, layout.size.into());
            (at.0 as u16, direction | more | if at.1 { AVAIL } else { USED }, head)
        } else {
            let at = (head + i) % layout.size;
            (at, direction | more, (at + 1) % layout.size)
        };
        let bytes = descriptor(packed, addr, len, flags, x);
        scribble(model, memory, layout.desc + 16 * u64::from(at), &bytes);
    }
    model.driver_head = (head + count) % layout.size;
    if packed {
        // It may lose its place when others scribble; now and then it looks where the device is.
        if kind & 0x10 != 0 {
            model.driver = model.take;
        }
        return;
    }
    let index = model.u16(layout.driver + 2);
    let slot = u64::from(index) % u64::from(layout.size);
    scribble(model, memory, layout.driver + 4 + 2 * slot, &head.to_le_bytes());
    scribble(model, memory, layout.driver + 2, &index.wrapping_add(1).to_le_bytes());
}

/// Some frames are written to the ring, as a delivery does it.
fn reserve(ring: &mut Ring, model: &mut Model, memory: &Arc<GuestMemory>, input: &mut Input<'_>) -> Result<(), Broken> {
    let frames = 1 + input.below(4);
    let mut room = ReceiveBuffers::new();
    // The model's view of the room: chains taken, and where the next frame may begin.
    let (mut list, mut end): (Vec<Walked>, usize) = (Vec::new(), 0);
    let (mut broken, mut unfit) = (Ok(()), 0);
    for n in 0..frames {
        let kind = input.u8();
        let (join, ahead) = (kind & 1 != 0, usize::from(kind >> 1 & 7));
        let need = if kind & 0x80 != 0 { usize::from(input.u16()) } else { usize::from(input.u8()) };
        let got = room.reserve(ring, memory, need, join, ahead);
        let mut first = end;
        let mut held = 0;
        let expected = loop {
            if end == list.len() {
                if first == list.len() {
                    list.clear();
                    (first, end) = (0, 0);
                }
                let pieces = list.iter().map(|c| c.pieces.len()).sum::<usize>();
                if pieces + 1024 > MAX_PIECES || list.len() >= MAX_CHAINS {
                    // Rare, and how a full room starts anew is its own affair: begin with a new ring.
                    drop(room);
                    model.image = peek(memory);
                    return Err(Broken);
                }
                let before = list.len();
                let (more, error) = model.pop(true, ahead.max(1), before, pieces);
                list.extend(more);
                if list.len() == before {
                    end = first;
                    break if error.is_some() { Err(Broken) } else { Ok(Reserved::NoBuffers) };
                }
            }
            if list[end].bad {
                if end != first {
                    end = first;
                    break Ok(Reserved::TooSmall);
                }
                model.stage(&list[end], 0);
                end += 1;
                first = end;
                unfit += 1;
                // So many for each time that the ring is filled, and beyond that one for each frame.
                if unfit >= BURST {
                    break Ok(Reserved::TooSmall);
                }
                continue;
            }
            held += list[end].len as usize;
            end += 1;
            if held >= need {
                break Ok(Reserved::Enough);
            }
            if !join {
                end = first;
                break Ok(Reserved::TooSmall);
            }
        };
        match (got, expected) {
            (Ok(got), Ok(expected)) => assert_eq!(got, expected, "frame {n} of {need} bytes"),
            (Err(_), Err(Broken)) => {
                broken = Err(Broken);
                break;
            }
            (got, expected) => panic!("{got:?}, not {expected:?}"),
        }
        if expected_is_not(&got, Reserved::Enough) {
            continue;
        }
        assert_eq!(room.chains().len(), end - first);
        let bytes: Vec<u8> = (0..need).map(|i| (i * 7 + n + 1) as u8).collect();
        let mut done = 0;
        for piece in room.pieces() {
            done += piece.write(0, &bytes[done..]);
        }
        assert_eq!(done, need);
        let (mut at, mut left) = (0, need);
        for (at_address, len) in list[first..end].iter().flat_map(|c| c.pieces.clone()) {
            let here = len.min(need - at);
            model.put(at_address, &bytes[at..at + here]);
            at += here;
        }
        for (chain, walked) in room.chains().iter().zip(&list[first..end]) {
            let here = left.min(chain.len() as usize);
            assert_eq!(chain.len(), walked.len);
            ring.stage_used(chain, here as u32);
            model.stage(walked, here as u32);
            left -= here;
        }
    }
    room.give_back(ring);
    model.unpop(&list[end..]);
    ring.publish();
    model.publish();
    broken
}

fn expected_is_not<E>(got: &Result<Reserved, E>, wanted: Reserved) -> bool {
    !matches!(got, Ok(r) if *r == wanted)
}
