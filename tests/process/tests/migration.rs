//! A guest that moves from one port to another, with us in the role of the machine monitor: its memory is copied by the log alone.

use lasthop_guestmem::{GuestMemory, RegionSpec};
use lasthop_tests_process::{
    Guest, Lasthop, Options, PATIENCE, Port, connect, mac, number_of, numbered, scratch, wait_for,
};
use lasthop_vhostuser::{Features, ProtocolFeatures, Request};
use std::os::fd::{AsFd, OwnedFd};

const PAGE: usize = 4096;

/// What a machine monitor does with a guest that it moves: the copy, and the log that says what is to be copied again.
struct Mover {
    memory: RegionSpec,
    copy: Vec<u8>,
    log: GuestMemory,
    file: OwnedFd,
}

impl Mover {
    fn new(guest: &Guest) -> Self {
        let (memory, _) = guest.net.region();
        let size = (memory.guest_addr + memory.size).div_ceil(8 * PAGE as u64).next_multiple_of(8);
        let file = lasthop_sys::memfd("log", size).unwrap();
        let place = RegionSpec { guest_addr: 0, size, user_addr: 0, mmap_offset: 0 };
        let log = GuestMemory::empty().with_region(place, &file).unwrap();
        Self { memory, copy: Vec::new(), log, file }
    }

    /// From here on what is written is logged; all that is there is copied.
    fn begin(&mut self, guest: &Guest, features: Features) {
        guest.front.set_log(self.log.total_bytes(), 0, self.file.as_fd()).unwrap();
        guest.front.set_features(features | Features::LOG_ALL).unwrap();
        self.copy = self.memory_of(guest);
    }

    fn memory_of(&self, guest: &Guest) -> Vec<u8> {
        let mut bytes = vec![0; self.memory.size as usize];
        guest.net.memory().slice(self.memory.guest_addr, bytes.len()).unwrap().read(0, &mut bytes);
        bytes
    }

    /// Copies the pages whose bits are set, and says how many. Whoever sets a bit meanwhile does so for the next time: nobody does here.
    fn again(&mut self, guest: &Guest) -> usize {
        let log = self.log.slice(0, self.log.total_bytes() as usize).unwrap();
        let mut bits = vec![0; log.len()];
        log.read(0, &mut bits);
        log.write(0, &vec![0; log.len()]);
        let (now, first) = (self.memory_of(guest), self.memory.guest_addr as usize / PAGE);
        let dirty: Vec<_> = (0..8 * bits.len()).filter(|page| bits[page / 8] >> (page % 8) & 1 == 1).collect();
        for page in &dirty {
            let at = (page - first) * PAGE;
            self.copy[at..at + PAGE].copy_from_slice(&now[at..at + PAGE]);
        }
        dirty.len()
    }
}

fn check_moves(change: impl FnOnce(&mut lasthop_virtqueue::driver::NetConfig)) {
    let dir = scratch();
    let ports = ["a", "b", "c"].map(|name| Port::listen(name, dir.path()));
    let lasthop = Lasthop::start(&ports);
    let mut options = Options::net(change);
    options.protocol |= ProtocolFeatures::LOG_SHMFD;
    let features = Features::from_bits_retain(options.net.features()) | Features::PROTOCOL_FEATURES;
    let mut guest = Guest::connect(&dir.path().join("a.sock"), mac(1), options);
    let mut peer = Guest::connect(&dir.path().join("b.sock"), mac(2), Options::default());
    ["a", "b"].iter().for_each(|port| lasthop.wait_for_state(port, "up"));
    guest.greet(&mut peer, 1);

    let mut mover = Mover::new(&guest);
    mover.begin(&guest, features);
    // The guest stands still, so all that changes is the switch's doing. What the ring writes itself comes last.
    let frame = |n: u32| numbered(mac(2), mac(1), n, 60 + n as usize * 7 % 1400);
    let delivered = || lasthop.port("a")["to_guest"]["packets"].as_u64().unwrap();
    let before = delivered();
    for round in 0..4 {
        (0..20).for_each(|n| peer.send(&frame(100 + 20 * round + n)));
        wait_for("the frames to arrive", PATIENCE, || delivered() == before + u64::from(20 * (round + 1)));
        assert!(mover.again(&guest) >= 4, "20 frames of up to 1460 bytes lie in as many pages");
    }
    let bases = [0, 1].map(|ring| guest.front.stop(ring).unwrap());
    mover.again(&guest);
    let end = mover.memory_of(&guest);
    let wrong: Vec<_> =
        (0..end.len() / PAGE).filter(|n| end[n * PAGE..][..PAGE] != mover.copy[n * PAGE..][..PAGE]).collect();
    assert!(wrong.is_empty(), "pages {wrong:?} of {} were written to and are not in the log", end.len() / PAGE);

    // Standstill.
    (0..20).for_each(|n| peer.send(&frame(1000 + n)));
    peer.all_taken();
    assert!(mover.memory_of(&guest) == end, "touched after it stopped");
    assert_eq!(mover.again(&guest), 0);

    // Another machine monitor goes on at another port.
    guest.reattach(connect(&dir.path().join("c.sock")), Some(&bases)).unwrap();
    lasthop.wait_for_state("c", "up");
    for n in 0..80 {
        let (_, received) = guest.recv("what came before", |_, frame| number_of(frame).is_some());
        assert_eq!(number_of(&received), Some(100 + n), "once, and in order");
    }
    let mut address = [0; 8];
    address[..6].copy_from_slice(&mac(1).0);
    guest.front.set_u64(Request::SendRarp, u64::from_ne_bytes(address)).unwrap();
    peer.recv("the announcement", |_, frame| frame[6..12] == mac(1).0 && frame[12..14] == [0x80, 0x35]);
    wait_for("the address to move", PATIENCE, || {
        let macs = lasthop.command(&["mac", "list"]);
        macs.lines().any(|line| line.contains(&mac(1).to_string()) && line.split_whitespace().any(|word| word == "c"))
    });
    guest.greet(&mut peer, 2);
}

#[test]
fn a_guest_moves_with_what_the_log_says() {
    check_moves(|_| ());
}

#[test]
fn a_guest_with_packed_rings_moves() {
    check_moves(|net| net.packed = true);
}

#[test]
fn a_guest_moves_whose_buffers_are_small_and_in_pieces() {
    check_moves(|net| (net.rx_buffer, net.pieces, net.indirect) = (512, 3, true));
}
