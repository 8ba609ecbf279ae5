//! What a learning switch does: packets in, packets out.

use lasthop_frame::VnetHdr;
use lasthop_frame::testutil::Frame;
use lasthop_tests_process::{Guest, Lasthop, Options, PATIENCE, Port, mac, number_of, numbered, scratch, wait_for};
use lasthop_text::MacAddr;
use lasthop_vhostuser::Features;
use std::os::unix::net::UnixListener;
use std::time::Duration;

/// lasthop with guests 1, 2, … at its ports p1, p2, …
struct Net {
    lasthop: Lasthop,
    guests: Vec<Guest>,
    dir: tempfile::TempDir,
}

impl Net {
    fn new(options: &[Options]) -> Self {
        let dir = scratch();
        let names: Vec<String> = (1..=options.len()).map(|i| format!("p{i}")).collect();
        let ports: Vec<Port> = names.iter().map(|n| Port::listen(n, dir.path())).collect();
        let lasthop = Lasthop::start(&ports);
        let guest = |(i, o): (usize, &Options)| Guest::connect(&ports[i].socket, mac(i as u8 + 1), *o);
        let guests = options.iter().enumerate().map(guest).collect();
        Self { lasthop, guests, dir }
    }

    /// Sends a frame from one guest, by index, to wherever it goes.
    fn send(&mut self, from: usize, frame: &[u8]) {
        self.guests[from].send(frame);
    }

    /// The law of the counters, once everything has come to rest.
    fn adds_up(&self) {
        let mut sum = serde_json::Value::Null;
        wait_for("the counters to add up", PATIENCE, || {
            sum = self.lasthop.json(&["stats"])["sum"].clone();
            sum["waiting"] == 0
        });
        let number = |name: &str| sum[name].as_u64().unwrap();
        assert_eq!(number("from_guest") + number("replicated"), number("to_guest") + number("dropped"), "{sum}");
    }

    fn flows(&self) -> Vec<serde_json::Value> {
        self.lasthop.json(&["flow", "list"])["flows"].as_array().unwrap().clone()
    }
}

#[test]
fn unknown_goes_everywhere_known_goes_home() {
    let mut net = Net::new(&[Options::default(); 3]);
    // Nobody knows where 2 lives: everybody else gets it, the sender does not.
    net.send(0, &numbered(mac(1), mac(2), 1, 60));
    net.guests[1].expect_number(1);
    net.guests[2].expect_number(1);
    assert!(net.guests[0].drain().is_empty(), "a frame came back to its sender");
    // 2 answers; from now on both are known.
    net.send(1, &numbered(mac(2), mac(1), 2, 60));
    net.guests[0].expect_number(2);
    wait_for("1 to 2 not to be flooded", PATIENCE, || {
        net.send(0, &numbered(mac(1), mac(2), 3, 1500));
        net.guests[1].expect_number(3);
        net.guests[2].drain().is_empty()
    });
    for n in 4..50 {
        net.send(0, &numbered(mac(1), mac(2), n, 1500));
        net.guests[1].expect_number(n);
    }
    assert!(net.guests[2].drain().is_empty(), "a frame between 1 and 2 reached 3");
    let macs = net.lasthop.json(&["mac", "list"]);
    let known: Vec<_> =
        macs["macs"].as_array().unwrap().iter().map(|m| (m["mac"].clone(), m["port"].clone())).collect();
    assert!(known.contains(&(mac(1).to_string().into(), "p1".into())), "{known:?}");
    assert!(known.contains(&(mac(2).to_string().into(), "p2".into())), "{known:?}");
    net.adds_up();
}

#[test]
fn broadcast_and_multicast_go_everywhere_always() {
    let mut net = Net::new(&[Options::default(); 4]);
    for (number, dst) in [(1, MacAddr::BROADCAST), (2, MacAddr([1, 0, 0x5e, 0, 0, 1])), (3, MacAddr::BROADCAST)] {
        for from in 0..4 {
            net.send(from, &numbered(mac(from as u8 + 1), dst, number * 10 + from as u32, 300));
            for to in (0..4).filter(|to| *to != from) {
                net.guests[to].expect_number(number * 10 + from as u32);
            }
        }
    }
    assert!(net.guests.iter_mut().all(|g| g.drain().is_empty()), "more copies than receivers");
    net.adds_up();
}

#[test]
fn a_station_that_moves_is_found_again() {
    let mut net = Net::new(&[Options::default(); 3]);
    let [a, b, c] = &mut net.guests[..] else { panic!() };
    a.greet(b, 1);
    // Station 2 speaks from port 3 now.
    c.send(&numbered(mac(2), mac(1), 2, 60));
    a.expect_number(2);
    wait_for("the move to take effect", PATIENCE, || {
        a.send(&numbered(mac(1), mac(2), 3, 60));
        c.recv_within(Duration::from_millis(50)).is_some_and(|(_, f)| number_of(&f) == Some(3))
    });
    b.drain();
    a.send(&numbered(mac(1), mac(2), 4, 60));
    c.expect_number(4);
    assert!(b.drain().is_empty(), "the old port still gets it");
    net.adds_up();
}

/// Every kind of ring on one side against every kind on the other, sizes from one byte of payload to a whole buffer.
#[test]
fn all_rings_to_all_rings() {
    let kinds = (0..32u8).map(|bits| {
        Options::net(|n| {
            n.packed = bits & 1 != 0;
            n.event_idx = bits & 2 != 0;
            n.in_order = bits & 4 != 0;
            n.indirect = bits & 8 != 0;
            n.mergeable = bits & 16 != 0;
            n.pieces = 1 + u16::from(bits) % 3;
            // Small rings wrap, but three whole frames fit; some packed ones have odd lengths.
            n.size = if n.packed && n.event_idx { 75 } else { 64 };
            // Without mergeable buffers, one must hold a frame; with them, several small ones are joined.
            n.rx_buffer = if n.mergeable { 256 } else { 2048 };
        })
    });
    let kinds: Vec<Options> = kinds.collect();
    let mut net = Net::new(&kinds);
    for i in 0..kinds.len() {
        let j = (i * 7 + 11) % kinds.len();
        if i == j {
            continue;
        }
        let (src, dst) = (mac(i as u8 + 1), mac(j as u8 + 1));
        // The first frame each way finds its way through control.
        for (from, to, n) in [(i, j, 0), (j, i, 1)] {
            net.guests.iter_mut().for_each(|g| while g.try_recv().is_some() {});
            let (s, d) = (mac(from as u8 + 1), mac(to as u8 + 1));
            net.send(from, &numbered(s, d, n, 60));
            net.guests[to].expect_number(n);
        }
        for burst in 0..26 {
            let numbers = 2 + 3 * burst..5 + 3 * burst;
            // Until the flow is there, everybody gets a copy: nobody may run out of buffers.
            net.guests.iter_mut().for_each(|g| while g.try_recv().is_some() {});
            for n in numbers.clone() {
                net.send(i, &numbered(src, dst, n, 60 + (n as usize * 53) % 1440));
            }
            for n in numbers {
                net.guests[j].expect_number(n);
            }
        }
        net.guests[j].drain();
    }
    net.guests.iter_mut().for_each(|g| drop(g.drain()));
    net.adds_up();
}

#[test]
fn several_queue_pairs_and_lasthop_as_client() {
    let dir = scratch();
    let listeners = ["a", "b"].map(|n| UnixListener::bind(dir.path().join(format!("{n}.sock"))).unwrap());
    let lasthop = Lasthop::start(&["a", "b"].map(|n| Port::connect(n, dir.path())));
    let options = Options::net(|n| (n.pairs, n.packed) = (4, true));
    let mut a = Guest::accept(&listeners[0], mac(1), options);
    let mut b = Guest::accept(
        &listeners[1],
        mac(2),
        Options { net: lasthop_virtqueue::driver::NetConfig { packed: false, ..options.net }, ..options },
    );
    a.greet(&mut b, 1);
    for pair in 0..4u16 {
        let number = 10 + u32::from(pair);
        let frame = numbered(mac(1), mac(2), number, 700);
        a.net.send(pair, &[0; 12], &frame).unwrap().unwrap();
        a.net.flush(pair);
        b.expect_number(number);
    }
    let queues = lasthop.port("a")["queues"].as_array().unwrap().len();
    assert_eq!(queues, 8);
}

/// A 64 KiB TCP packet stays whole for a receiver that takes it, and is cut up, checksums and all, for one that does
/// not: payload equal, sequence numbers in step, every checksum right.
#[test]
fn large_packets_whole_or_cut() {
    let mut options = [Options::offloading(), Options::offloading(), Options::default()];
    options[2].net.size = 256;
    let mut net = Net::new(&options);
    let [a, b, c] = &mut net.guests[..] else { panic!() };
    a.greet(b, 1);
    a.greet(c, 2);
    let payload: Vec<u8> = (0..60_000u32).map(|i| (i * 7 + i / 251) as u8).collect();
    for v6 in [false, true] {
        let tcp = |dst: u8| {
            let frame = Frame::between(mac(1), mac(dst));
            let frame = if v6 { frame.ipv6([1; 16], [2; 16]) } else { frame.ipv4([10, 0, 0, 1], [10, 0, 0, 2]) };
            frame.tcp(1000, 2000).tcp_fields(0x18, 5000, &[]).payload(payload.clone()).partial_checksum()
        };
        let gso = if v6 { VnetHdr::GSO_TCPV6 } else { VnetHdr::GSO_TCPV4 };
        let whole = tcp(2);
        a.send_as(whole.vnet(gso, 1400), &whole.build());
        let (header, frame) = b.recv("the whole packet", |_, f| f.len() > 1000 && f[..6] == mac(2).0);
        assert!(frame == whole.build(), "changed on its way");
        assert_eq!((header.gso_type, header.gso_size, header.flags), (gso, 1400, VnetHdr::F_NEEDS_CSUM));

        let cut = tcp(3);
        a.send_as(cut.vnet(gso, 1400), &cut.build());
        let (l3, l4) = (14, if v6 { 54 } else { 34 });
        let mut got: Vec<u8> = Vec::new();
        while got.len() < payload.len() {
            let (header, frame) = c.recv("a segment", |_, f| f.len() > 100 && f[..6] == mac(3).0);
            assert_eq!((header.gso_type, header.flags & VnetHdr::F_NEEDS_CSUM), (0, 0));
            let seq = u32::from_be_bytes(frame[l4 + 4..l4 + 8].try_into().unwrap());
            assert_eq!(seq as usize, 5000 + got.len());
            assert_eq!(checksums(&frame, l3, l4), (0xffff, 0xffff), "segment at {}", got.len());
            assert!(frame.len() <= l4 + 20 + 1400);
            got.extend(&frame[l4 + 20..]);
        }
        assert!(got == payload, "changed on its way");
    }
    net.adds_up();
    let segments = net.lasthop.port("p3")["to_guest"]["segments"].as_u64().unwrap();
    // Two packets, and perhaps copies of others while flows were being installed.
    let each = 60_000u64.div_ceil(1400);
    assert!(segments >= 2 * each && segments.is_multiple_of(each), "{segments} segments");
}

/// The Internet checksums over the IP header (IPv4; IPv6 has none) and over the transport with its pseudo header:
/// 0xffff when right.
fn checksums(frame: &[u8], l3: usize, l4: usize) -> (u16, u16) {
    fn add(sum: u64, bytes: &[u8]) -> u64 {
        bytes.chunks(2).fold(sum, |s, c| s + u64::from(u16::from_be_bytes([c[0], *c.get(1).unwrap_or(&0)])))
    }
    fn fold(mut sum: u64) -> u16 {
        while sum > 0xffff {
            sum = (sum >> 16) + (sum & 0xffff);
        }
        sum as u16
    }
    let v6 = l4 - l3 == 40;
    let addresses = if v6 { &frame[l3 + 8..l3 + 40] } else { &frame[l3 + 12..l3 + 20] };
    let pseudo = add(6 + (frame.len() - l4) as u64, addresses);
    let ip = if v6 { 0xffff } else { fold(add(0, &frame[l3..l4])) };
    (ip, fold(add(pseudo, &frame[l4..])))
}

/// A checksum left to be done is done for a receiver that wants it done.
#[test]
fn checksum_completed_for_who_needs_it() {
    let sender = Options { features: Features::CSUM, ..Options::default() };
    let mut net = Net::new(&[sender, Options::default()]);
    let [a, b] = &mut net.guests[..] else { panic!() };
    a.greet(b, 1);
    for len in [0usize, 1, 2, 700, 1401] {
        let payload: Vec<u8> = (0..len).map(|i| i as u8).collect();
        let frame = Frame::new(1, 2).ipv4([1, 2, 3, 4], [5, 6, 7, 8]).tcp(1, 2).payload(payload).partial_checksum();
        a.send_as(frame.vnet(VnetHdr::GSO_NONE, 0), &frame.build());
        let (header, got) = b.recv("the frame", |_, f| f[12..14] == [8, 0]);
        assert_eq!(header.flags & VnetHdr::F_NEEDS_CSUM, 0);
        assert_eq!(checksums(&got, 14, 34), (0xffff, 0xffff), "{len} bytes");
    }
}

/// A thousand stations behind each port do not make a flow for every pair; and one flow serves whatever the packet
/// carries.
#[test]
fn flows_are_as_wide_as_they_may_be() {
    let mut net = Net::new(&[Options::default(); 2]);
    let [a, b] = &mut net.guests[..] else { panic!() };
    a.greet(b, 1);
    a.greet(b, 2);
    for port in 0..200u16 {
        let frame = Frame::new(1, 2).ipv4([10, 0, 0, (port % 250) as u8], [10, 0, 1, 1]).udp(port, 80).build();
        a.send(&frame);
        b.expect(&frame);
    }
    let flows = net.flows();
    assert!(flows.len() <= 8, "{} flows", flows.len());
}

#[test]
fn ports_come_and_go_while_traffic_flows() {
    let mut net = Net::new(&[Options::default(); 2]);
    let socket = net.dir.path().join("more.sock");
    for round in 0..5u32 {
        net.lasthop.command(&["port", "add", "more", socket.to_str().unwrap()]);
        let mut third = Guest::connect(&socket, mac(9), Options::default());
        let [a, b] = &mut net.guests[..] else { panic!() };
        for i in 0..20 {
            a.greet(b, 1000 * round + i);
            third.greet(a, 1000 * round + 500 + i);
        }
        net.lasthop.command(&["port", "del", "more"]);
        wait_for("the connection to end", PATIENCE, || third.is_disconnected());
        a.greet(b, 1000 * round + 999);
    }
    let macs = net.lasthop.json(&["mac", "list"]);
    assert!(!macs.to_string().contains(&mac(9).to_string()), "a removed port's address is still known: {macs}");
}
