//! What is written to a guest that is being moved is in its log: memory before and after, page by page, against the log's bits.

use super::*;
use lasthop_guestmem::RegionSpec;
use proptest::prelude::*;

const PAGE: usize = 4096;
/// What a guest takes undone (CSUM, TSO4 and UFO), beside what it leaves to others.
const OFFLOADS: u64 = 1 << 1 | 1 << 7 | 1 << 0 | 1 << 11;

/// A guest whose memory has a log.
struct Moved {
    guest: Guest,
    log: GuestMemory,
}

impl Moved {
    fn new(datapath: &Datapath, id: u32, config: NetConfig, features: u64) -> Self {
        let guest = Guest::new(datapath, id, config, features);
        let memory = guest.driver.memory();
        let region = memory.regions().next().unwrap();
        let size = (region.guest_addr + region.size).div_ceil(8 * PAGE as u64).next_multiple_of(8);
        let file = lasthop_sys::memfd("log", size).unwrap();
        let place = RegionSpec { guest_addr: 0, size, user_addr: 0, mmap_offset: 0 };
        let logged = Arc::new(memory.with_log(Some((place, &file))).unwrap());
        for queue in guest.port.queues.iter() {
            queue.set_memory(logged.clone()).unwrap();
        }
        let log = GuestMemory::empty().with_region(place, &file).unwrap();
        let this = Self { guest, log };
        this.marked();
        this
    }

    fn memory(&self) -> Vec<u8> {
        let region = self.guest.driver.memory().regions().next().unwrap();
        let mut bytes = vec![0; region.size as usize];
        self.guest.driver.memory().slice(region.guest_addr, bytes.len()).unwrap().read(0, &mut bytes);
        bytes
    }

    /// The pages whose bits are set, which no longer are, by number from the region's first on.
    fn marked(&self) -> Vec<usize> {
        let (first, size) = (self.first_page(), self.log.total_bytes() as usize);
        let slice = self.log.slice(0, size).unwrap();
        let mut bits = vec![0; size];
        slice.read(0, &mut bits);
        slice.write(0, &vec![0; size]);
        (0..8 * size).filter(|n| bits[n / 8] >> (n % 8) & 1 == 1).map(|n| n.checked_sub(first).unwrap()).collect()
    }

    fn first_page(&self) -> usize {
        self.guest.driver.memory().regions().next().unwrap().guest_addr as usize / PAGE
    }

    /// Pages that a ring lies in where the device writes to it.
    fn ring_pages(&self) -> Vec<usize> {
        let pages = |from: u64, len: u64| (from / PAGE as u64..(from + len).div_ceil(PAGE as u64)).map(|p| p as usize);
        let parts = self.guest.driver.queues().iter().flat_map(|queue| {
            let (layout, n) = (queue.layout, u64::from(queue.layout.size));
            let parts = if layout.packed {
                [(layout.desc, 16 * n), (layout.device, 4)]
            } else {
                [(layout.device, 6 + 8 * n); 2]
            };
            parts.into_iter().flat_map(move |(from, len)| pages(from, len))
        });
        parts.map(|page| page - self.first_page()).collect()
    }
}

fn changed(before: &[u8], after: &[u8]) -> Vec<usize> {
    let pages = before.chunks(PAGE).zip(after.chunks(PAGE)).enumerate();
    pages.filter(|(_, (before, after))| before != after).map(|(n, _)| n).collect()
}

/// What is done once: frames sent, of such a length and some of them large TCP packets; and whether the guests take theirs before.
type Step = (usize, usize, bool, bool);

fn frame(n: usize, len: usize, large: bool) -> (VnetHdr, Vec<u8>) {
    let payload: Vec<u8> = (0..len).map(|at| (n * 131 + at * 7) as u8 ^ (at >> 8) as u8).collect();
    let frame = Frame::new(1, 2).ipv4([10, 0, 0, 1], [10, 0, 0, 2]).tcp(1, 2).payload(payload);
    if large {
        let frame = frame.partial_checksum();
        (frame.vnet(VnetHdr::GSO_TCPV4, 1448), frame.build())
    } else {
        (VnetHdr::default(), frame.build())
    }
}

fn check_moved(config: NetConfig, features: u64, steps: &[Step]) -> Result<(), TestCaseError> {
    let (datapath, mut forwarder) = switch();
    let sender = NetConfig { tx_buffer: 20_000, size: 64, ..config };
    let mut a = Moved::new(&datapath, 1, sender, OFFLOADS);
    let mut b = Moved::new(&datapath, 2, config, features);
    datapath.flows().insert(flow(1, &[2]), 0).unwrap();
    let mut now = 5 * MS;
    for (n, (count, len, large, take)) in steps.iter().enumerate() {
        for i in 0..*count {
            let (header, frame) = frame(16 * n + i, *len, *large);
            // There may be no room.
            let _ = a.guest.driver.send(0, &header.to_bytes(), &frame).unwrap();
        }
        a.guest.driver.flush(0);
        if *take {
            b.guest.received();
        }
        let before = [a.memory(), b.memory()];
        now += MS;
        forwarder.carry(&a.guest.port, 1, now);
        forwarder.rearm_notifications(&a.guest.port, 1, 0, || true);
        for (moved, before) in [&a, &b].into_iter().zip(&before) {
            let (changed, marked, ring) = (changed(before, &moved.memory()), moved.marked(), moved.ring_pages());
            let missing: Vec<_> =
                changed.iter().filter(|page| !marked.contains(page) && !ring.contains(page)).collect();
            prop_assert!(missing.is_empty(), "{missing:?} changed, {marked:?} in the log");
        }
    }
    for moved in [&a, &b] {
        let before = moved.memory();
        for queue in moved.guest.port.queues.iter() {
            queue.stop();
        }
        let (changed, marked, ring) = (changed(&before, &moved.memory()), moved.marked(), moved.ring_pages());
        let missing: Vec<_> = changed.iter().chain(&ring).filter(|page| !marked.contains(page)).collect();
        prop_assert!(missing.is_empty(), "{missing:?} changed or a ring's, {marked:?} in the log at the end");
        let before = moved.memory();
        forwarder.carry(&a.guest.port, 1, now + MS);
        forwarder.rearm_notifications(&a.guest.port, 1, 0, || true);
        prop_assert!(before == moved.memory(), "touched after the end");
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(16))]

    #[test]
    fn every_page_that_changes_has_its_bit(
        layout in 0..layouts().count(),
        rx_buffer in prop_oneof![Just(256u32), Just(1526), Just(4096), Just(9000), Just(66_000)],
        mergeable in any::<bool>(),
        features in prop_oneof![Just(0), Just(OFFLOADS)],
        steps in proptest::collection::vec((1usize..20, 0usize..9000, any::<bool>(), any::<bool>()), 1..12),
    ) {
        let config = NetConfig { rx_buffer, mergeable, size: 64, ..layouts().nth(layout).unwrap() };
        check_moved(config, features, &steps)?;
    }
}

/// Of buffers of 64 KiB only the pages that something was written to, and not those of buffers that were taken and put back.
#[test]
fn nothing_is_in_the_log_that_was_not_written_to() {
    for config in layouts() {
        let (datapath, mut forwarder) = switch();
        let mut a = Guest::new(&datapath, 1, NetConfig { size: 64, ..config }, 0);
        let b = Moved::new(&datapath, 2, NetConfig { rx_buffer: 65_536, size: 64, ..config }, 0);
        datapath.flows().insert(flow(1, &[2]), 0).unwrap();
        for n in 0..3 {
            let (header, frame) = frame(n, 600, false);
            a.send(header, &frame);
        }
        let before = b.memory();
        forwarder.carry(&a.port, 1, 5 * MS);
        let mut expected = changed(&before, &b.memory());
        assert!(expected.len() >= 4, "three buffers and the ring");
        expected.extend(b.ring_pages());
        let marked = b.marked();
        assert!(marked.iter().all(|page| expected.contains(page)), "{marked:?} of {expected:?}, {config:?}");
    }
}

/// Without it packets that have overtaken others would be sent once more by whoever takes the ring over where it stopped.
#[test]
fn a_ring_that_stops_does_not_leave_what_it_has_done_to_the_next() {
    for packed in [false, true] {
        let (datapath, mut forwarder) = switch();
        let mut a = Moved::new(&datapath, 1, NetConfig { packed, ..NetConfig::default() }, 0);
        let _slow = Guest::new(&datapath, 2, NetConfig { size: 2, ..NetConfig::default() }, 0);
        let mut other = Guest::new(&datapath, 3, NetConfig::default(), 0);
        for port in [2, 3] {
            datapath.flows().insert(to_station(port), 0).unwrap();
        }
        for n in 0..21u8 {
            a.guest.send(VnetHdr::default(), &Frame::new(1, 2 + n % 2).payload([n; 64]).build());
        }
        assert_eq!(forwarder.carry(&a.guest.port, 1, 5 * MS).packets, 4);
        assert_eq!(other.received().len(), 10);
        let base = a.guest.port.queues[1].stop();
        let expected = if packed { 0x8014_8014 } else { 20 };
        assert_eq!(base, Some(expected), "the last of them has not overtaken any");
        assert_eq!(a.guest.port.totals().0.drops, [(DropReason::NoBuffers, 8)]);
        assert_eq!(a.guest.driver.unsent(0).unwrap(), 1, "the guest knows of what was done");
    }
}
