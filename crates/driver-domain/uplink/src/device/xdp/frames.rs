//! What becomes of frames from the network: taken from the queues, and written to the ring to the switch.

use super::*;

/// Drops frames that are more than the queue [keeps](Lane::bound), of each of its rings the oldest first. It returns their slots, which
/// [`Inboxes::fill`] gives back.
pub(super) fn drop_surplus(inboxes: &mut Inboxes, pair: &mut Pair, lane: &Lane) -> Result<(), DeviceError> {
    let Some(bound) = lane.bound() else { return Ok(()) };
    let surplus = inboxes.waiting().saturating_sub(bound.into());
    if surplus == 0 {
        return Ok(());
    }
    let (mut left, count, first) = (surplus, inboxes.all.len(), inboxes.first);
    for i in 0..count {
        let Some(inbox) = inboxes.all.get_mut((first + i) % count) else { break };
        while left > 0 {
            let Some((offset, len)) = inbox.take() else { break };
            let (slot, _) = pair.from_network.slot_of(offset, len).ok_or(DeviceError::Io(Errno::FAULT))?;
            pair.from_network.put_back(slot);
            left -= 1;
        }
        inbox.receiver.taken();
    }
    inboxes.taken += surplus - left;
    lane.drop_surplus(surplus - left);
    Ok(())
}

/// How many frames the switch may get at once of a queue that keeps no more than it is told. After [`Inboxes::fill`]: what the switch has
/// given back counts no more, or nobody would say when there is room.
pub(super) fn room_of(inboxes: &Inboxes, lane: Option<&Lane>) -> usize {
    let bound = lane.and_then(Lane::bound).map(u64::from);
    let room = bound.and_then(|bound| usize::try_from(bound.saturating_sub(inboxes.held())).ok());
    room.map_or(BURST, |room| room.min(BURST))
}

/// Takes `most` frames from the queues in turn: how many, and whether more are there and have no room.
pub(super) fn take_frames(
    inboxes: &mut Inboxes,
    burst: &mut ArrayVec<Frame, BURST>,
    pair: &mut Pair,
    (most, ledger): (usize, Option<&Ledger>),
    counters: &Counters,
) -> Result<(usize, bool), DeviceError> {
    let (mut room, mut taken, mut stalled) = (usize::from(pair.from_network.ring.free()), 0, false);
    let (count, first) = (inboxes.all.len(), inboxes.first);
    inboxes.first = (first + 1) % count.max(1);
    for i in 0..count {
        let Some(inbox) = inboxes.all.get_mut((first + i) % count) else { break };
        while taken < BURST {
            if room == 0 || taken == most || (count > 1 && inbox.is_full()) {
                stalled |= inbox.receiver.waiting() > 0;
                break;
            }
            let Some((offset, len)) = inbox.take() else { break };
            taken += 1;
            let Some((slot, in_slot)) = pair.from_network.slot_of(offset, len).filter(|(_, at)| *at >= VNET) else {
                // The kernel speaks of memory that it was not given: nothing of this is right any more.
                return Err(DeviceError::Io(Errno::FAULT));
            };
            note(ledger, pair.from_network.slot(slot).0, Holder::Us);
            if len < SHORTEST {
                counters.dropped(Reason::TooShort);
                pair.from_network.put_back(slot);
                continue;
            }
            if pair.sieve.keeps(&pair.bytes((offset, len)), counters) {
                pair.from_network.put_back(slot);
                continue;
            }
            room -= 1;
            let _ = burst.try_push(Frame { at: (offset, len), slot, in_slot });
        }
    }
    Ok((taken, stalled))
}

/// Gives the switch a frame as it is.
pub(super) fn deliver(pair: &mut Pair, frame: &Frame) {
    let (offset, len) = frame.at;
    let header = open_checksum(&pair.bytes(frame.at));
    pair.bytes((offset - VNET, VNET)).write_array(0, &header.to_bytes());
    pair.from_network.add(frame.slot, frame.in_slot - VNET, VNET + len);
}

/// Gives the switch the frames of a burst, those of a flow as one packet; how many packets that were.
pub(super) fn deliver_merged(pair: &mut Pair, burst: &[Frame], merger: &mut Merger) -> usize {
    merger.clear();
    let mut read = |frame: usize, to: &mut [u8]| burst.get(frame).map_or(0, |f| pair.bytes(f.at).read(0, to));
    for frame in burst {
        merger.add(frame.at.1, &mut read);
    }
    for packet in 0..merger.packets() {
        let Some((first, more)) = merger.first(packet) else { continue };
        let Some(frame) = burst.get(first) else { continue };
        let mut headers = [0; SNAPSHOT];
        let merged = if more == 0 {
            None
        } else {
            let len = pair.bytes(frame.at).read(0, &mut headers);
            headers.get_mut(..len).and_then(|headers| merger.finish(packet, headers))
        };
        let Some((header, len)) = merged else {
            deliver(pair, frame);
            merger.rest(packet).filter_map(|(number, ..)| burst.get(number)).for_each(|f| deliver(pair, f));
            continue;
        };
        let hdr_len = usize::from(header.hdr_len);
        pair.bytes(frame.at).write(0, headers.get(..hdr_len).unwrap_or_default());
        pair.bytes((frame.at.0 - VNET, VNET)).write_array(0, &header.to_bytes());
        let mut pieces = ArrayVec::<_, BURST>::new();
        let _ = pieces.try_push((frame.slot, frame.in_slot - VNET, VNET + len));
        for (number, from, len) in merger.rest(packet) {
            if let Some(next) = burst.get(number) {
                let _ = pieces.try_push((next.slot, next.in_slot + from, len));
            }
        }
        pair.from_network.add_pieces(&pieces);
    }
    merger.packets()
}

/// The header for a received frame. A veth's other end leaves checksums open and XDP has no word for that; but then the field
/// holds the sum over the pseudo header, which is easily known. (One in 65 536 finished checksums looks the same; to have it
/// summed once more does no harm.)
pub(super) fn open_checksum(frame: &GuestSlice<'_>) -> VnetHdr {
    partial(frame).unwrap_or_default()
}

fn partial(frame: &GuestSlice<'_>) -> Option<VnetHdr> {
    let mut bytes = [0; 14 + 40 + 20];
    let len = frame.read(0, &mut bytes);
    let bytes = bytes.get(..len)?;
    let word = |at: usize| Some(u16::from_be_bytes([*bytes.get(at)?, *bytes.get(at + 1)?]));
    let (l4, proto, pseudo) = match word(12)? {
        0x0800 => {
            let (header, total) = (usize::from(bytes.get(14)? & 15) * 4, word(16)?);
            // A fragment's checksum is not its own.
            if word(20)? & 0x3fff != 0 {
                return None;
            }
            let [src, dst] = [bytes.get(26..30)?, bytes.get(30..34)?].map(<[u8; 4]>::try_from);
            let len = total.checked_sub(header as u16)?;
            (14 + header, *bytes.get(23)?, sum::pseudo_v4(src.ok()?, dst.ok()?, *bytes.get(23)?, len))
        }
        0x86dd => {
            let [src, dst] = [bytes.get(22..38)?, bytes.get(38..54)?].map(<[u8; 16]>::try_from);
            (54, *bytes.get(20)?, sum::pseudo_v6(src.ok()?, dst.ok()?, *bytes.get(20)?, word(18)?.into()))
        }
        _ => return None,
    };
    let offset = match proto {
        6 => 16,
        17 => 6,
        _ => return None,
    };
    let open = word(l4 + offset)? == sum::fold(pseudo);
    let (flags, start, offset) = (VnetHdr::F_NEEDS_CSUM, l4 as u16, offset as u16);
    open.then(|| VnetHdr { flags, csum_start: start, csum_offset: offset, ..VnetHdr::default() })
}
