//! One direction between two switches that are played here: what they see in memory, and what becomes of one that breaks the rules.

use crate::memory::{BUFFER, RING, SharedMemory};
use crate::way::{Way, WayError};
use lasthop_frame::VnetHdr;
use lasthop_guestmem::GuestMemory;
use lasthop_virtqueue::driver::{DriverError, RingLayout};
use proptest::prelude::*;
use std::sync::Arc;

/// The device side of a split ring (virtio 1.2 §2.7), written from the standard and not from ours.
struct Switch {
    memory: Arc<GuestMemory>,
    layout: RingLayout,
    taken: u16,
    used: u16,
}

impl Switch {
    fn new(memory: &Arc<GuestMemory>, layout: RingLayout) -> Self {
        Self { memory: memory.clone(), layout, taken: 0, used: 0 }
    }

    fn u16(&self, at: u64) -> u16 {
        self.memory.slice(at, 2).unwrap().load_u16(0)
    }

    fn available(&self) -> u16 {
        self.u16(self.layout.driver + 2).wrapping_sub(self.taken)
    }

    /// The next chain: its head, and address and length of each piece.
    fn take(&mut self) -> Option<(u16, Vec<(u64, u32)>)> {
        if self.available() == 0 {
            return None;
        }
        let head = self.u16(self.layout.driver + 4 + 2 * u64::from(self.taken % RING));
        self.taken = self.taken.wrapping_add(1);
        let (mut at, mut pieces) = (head, Vec::new());
        loop {
            let descriptor = self.memory.slice(self.layout.desc + 16 * u64::from(at), 16).unwrap();
            let bytes: [u8; 16] = descriptor.read_array(0).unwrap();
            let word = |n: usize| u32::from_le_bytes(bytes[n..n + 4].try_into().unwrap());
            pieces.push((u64::from_le_bytes(bytes[..8].try_into().unwrap()), word(8)));
            let (flags, next) = (word(12) as u16, (word(12) >> 16) as u16);
            if flags & 1 == 0 {
                return Some((head, pieces));
            }
            at = next;
        }
    }

    /// Gives a chain back.
    fn give_back(&mut self, head: u16, len: u32) {
        let entry = self.memory.slice(self.layout.device + 4 + 8 * u64::from(self.used % RING), 8).unwrap();
        entry.write(0, &[u32::from(head).to_le_bytes(), len.to_le_bytes()].concat());
        self.used = self.used.wrapping_add(1);
        self.memory.slice(self.layout.device + 2, 2).unwrap().store_u16_release(0, self.used);
    }

    /// Fills as many buffers as are named with so many bytes, the first of which begin with this header.
    fn deliver(&mut self, header: VnetHdr, lens: &[u32], filler: u8) -> Vec<u64> {
        let place = |(n, len): (usize, &u32)| {
            let (head, pieces) = self.take().expect("a buffer");
            let [(at, room)] = pieces[..] else { panic!("buffers of one piece: {pieces:?}") };
            assert_eq!(room, BUFFER);
            let slice = self.memory.slice(at, *len as usize).unwrap();
            slice.write(0, &vec![filler; *len as usize]);
            if n == 0 {
                slice.write(0, &header.to_bytes());
            }
            self.give_back(head, *len);
            at
        };
        lens.iter().enumerate().map(place).collect()
    }
}

/// A direction, and the switches at both ends.
fn way() -> (Way, Switch, Switch) {
    let (shared, [mut way, _]) = SharedMemory::new().unwrap();
    let (region, file) = shared.region();
    let memory = Arc::new(GuestMemory::empty().with_region(region, file).unwrap());
    way.fill().unwrap();
    let (near, far) = (Switch::new(&memory, way.receive.layout), Switch::new(&memory, way.send.layout));
    (way, near, far)
}

fn header(num_buffers: u16) -> VnetHdr {
    let flags = VnetHdr::F_NEEDS_CSUM | VnetHdr::F_DATA_VALID;
    VnetHdr {
        flags,
        gso_type: VnetHdr::GSO_TCPV4,
        gso_size: 1400,
        csum_start: 34,
        csum_offset: 16,
        hdr_len: 54,
        num_buffers,
    }
}

#[test]
fn a_packet_is_read_where_it_was_written() {
    let (mut way, mut near, mut far) = way();
    assert_eq!(near.available(), RING);
    let places = near.deliver(header(3), &[BUFFER, BUFFER, 100], 7);
    assert!(way.carry().unwrap());
    let (head, pieces) = far.take().expect("the packet");
    assert_eq!(pieces, [(places[0], BUFFER), (places[1], BUFFER), (places[2], 100)]);
    let bytes = far.memory.slice(places[0], VnetHdr::LEN).unwrap().read_array(0).unwrap();
    let came = VnetHdr::parse(&bytes);
    assert_eq!(came, VnetHdr { flags: VnetHdr::F_NEEDS_CSUM, num_buffers: 0, ..header(0) });
    // While the far switch has it, the near one does not.
    assert!(!way.carry().unwrap());
    assert_eq!(near.available(), RING - 3);
    far.give_back(head, 0);
    assert!(!way.carry().unwrap());
    assert_eq!(near.available(), RING);
}

#[test]
fn a_far_switch_that_takes_nothing_leaves_the_near_one_without_buffers() {
    let (mut way, mut near, mut far) = way();
    for _ in 0..RING {
        near.deliver(header(1), &[60], 1);
    }
    while way.carry().unwrap() {}
    assert_eq!((near.available(), far.available()), (0, RING));
    assert!(!way.prepare_to_sleep());
    let (head, _) = far.take().unwrap();
    far.give_back(head, 0);
    assert!(way.prepare_to_sleep(), "it is woken by the far switch then");
    assert!(!way.carry().unwrap());
    assert_eq!(near.available(), 1);
}

#[test]
fn a_switch_that_breaks_the_rules_is_found_out() {
    let broken = |break_it: &dyn Fn(&mut Switch, &mut Switch)| {
        let (mut way, mut near, mut far) = way();
        break_it(&mut near, &mut far);
        way.carry().unwrap_err()
    };
    let packet = |buffers: u16, lens: &[u32]| broken(&|near, _| drop(near.deliver(header(buffers), lens, 0)));
    assert_eq!(packet(0, &[60]), WayError::Buffers(0));
    assert_eq!(packet(2, &[60]), WayError::Buffers(2));
    assert_eq!(packet(41, &[60; 41]), WayError::Buffers(41));
    assert_eq!(packet(1, &[11]), WayError::Short(11));
    assert_eq!(packet(2, &[60, 0]), WayError::Short(0));
    assert!(matches!(broken(&|near, _| near.give_back(RING, 60)), WayError::Ring(DriverError::Id(_))));
    assert!(matches!(broken(&|_, far| far.give_back(5, 0)), WayError::Ring(DriverError::UsedJump { .. })));
}

proptest! {
    /// Whatever is carried, and in whatever bursts the far switch gives it back: bytes come in order, and no buffer is lost.
    #[test]
    fn buffers_go_round(packets in prop::collection::vec((1u16..=40, 12u32..=BUFFER, 0usize..80), 1..400)) {
        let (mut way, mut near, mut far) = way();
        let mut with_far = std::collections::VecDeque::new();
        for (n, (buffers, len, give)) in packets.into_iter().enumerate() {
            while near.available() < buffers {
                let (head, _) = with_far.pop_front().expect("the far switch has the rest");
                far.give_back(head, 0);
                way.carry().unwrap();
            }
            let places = near.deliver(header(buffers), &vec![len; buffers.into()], n as u8);
            way.carry().unwrap();
            let (head, pieces) = far.take().expect("the packet");
            prop_assert_eq!(&pieces, &places.iter().map(|at| (*at, len)).collect::<Vec<_>>());
            for (at, len) in &pieces[1..] {
                let mut bytes = vec![0; *len as usize];
                far.memory.slice(*at, bytes.len()).unwrap().read(0, &mut bytes);
                prop_assert!(bytes.iter().all(|byte| *byte == n as u8));
            }
            with_far.push_back((head, pieces));
            for (head, _) in with_far.drain(..give.min(with_far.len())) {
                far.give_back(head, 0);
            }
        }
        for (head, _) in with_far {
            far.give_back(head, 0);
        }
        way.carry().unwrap();
        prop_assert_eq!(near.available(), RING);
    }
}
