//! Linux VMs on lasthop, with every feature QEMU lets a card have. Each test boots two VMs that differ in some feature and
//! runs the same checks between them, both ways.

use lasthop_harness::checks::{self, Depth};
use lasthop_harness::{Lasthop, Nic, Port, Vm, VmConfig, scratch};
use serde_json::json;
use std::time::Duration;

/// Two VMs on a lasthop of their own.
struct Pair {
    a: Vm,
    b: Vm,
    lasthop: Lasthop,
    _dir: tempfile::TempDir,
}

impl Pair {
    /// VM a with the card `a` makes of the usual one, VM b with that of `b`.
    fn start(a: impl Fn(Nic) -> Nic, b: impl Fn(Nic) -> Nic) -> Self {
        Self::boot(|nic| VmConfig::new("a", [a(nic)]), |nic| VmConfig::new("b", [b(nic)]))
    }

    fn boot(a: impl Fn(Nic) -> VmConfig, b: impl Fn(Nic) -> VmConfig) -> Self {
        let dir = scratch();
        let ports = ["a", "b"].map(|n| Port::listen(n, dir.path()));
        let lasthop = Lasthop::start(&ports);
        let nic = |i: usize| Nic::vhost_user(&ports[i].socket, i as u8 + 1);
        let [a, b] = Vm::boot_all([a(nic(0)), b(nic(1))]);
        for vm in [&a, &b] {
            vm.serve();
        }
        Self { a, b, lasthop, _dir: dir }
    }

    /// All checks both ways; then the counters must add up, and nothing that the checks sent may have been dropped.
    fn check(&self, depth: Depth) {
        let before = self.drops();
        checks::all(&self.a, &self.b, depth);
        self.lasthop.check_sums();
        assert_eq!(self.drops(), before, "{}", self.lasthop.command(&["stats"]));
    }

    /// Packets dropped so far, by port, direction and reason. Both ports must be up.
    fn drops(&self) -> Vec<String> {
        let of = |name: &str| {
            let port = self.lasthop.port(name);
            assert_eq!(port["state"], "up", "{port}");
            ["from_guest", "to_guest"].map(|way| format!("{name} {way} {}", port[way]["drops"]))
        };
        ["a", "b"].iter().flat_map(|p| of(p)).collect()
    }

    /// The negotiated virtio features of a port.
    fn features(&self, port: &str) -> u64 {
        let text = self.lasthop.port(port)["features"].as_str().map(|s| s.trim_start_matches("0x").to_owned());
        text.and_then(|t| u64::from_str_radix(&t, 16).ok()).expect("features in hexadecimal")
    }
}

/// Virtio feature bits (virtio 1.2 §5.1.3 and §6).
mod bit {
    pub const CSUM: u64 = 1 << 0;
    pub const GUEST_TSO4: u64 = 1 << 7;
    pub const HOST_TSO4: u64 = 1 << 11;
    pub const MRG_RXBUF: u64 = 1 << 15;
    pub const MQ: u64 = 1 << 22;
    pub const INDIRECT_DESC: u64 = 1 << 28;
    pub const EVENT_IDX: u64 = 1 << 29;
    pub const VERSION_1: u64 = 1 << 32;
    pub const RING_PACKED: u64 = 1 << 34;
}

#[test]
fn every_offload_on_both_sides() {
    let pair = Pair::start(|nic| nic, |nic| nic);
    let all = bit::VERSION_1 | bit::CSUM | bit::GUEST_TSO4 | bit::HOST_TSO4 | bit::MRG_RXBUF;
    let all = all | bit::INDIRECT_DESC | bit::EVENT_IDX;
    assert_eq!(pair.features("a") & all, all);
    pair.check(Depth::Quick);
    checks::group(&pair.a, &[&pair.b], "255.255.255.255");
    checks::group(&pair.b, &[&pair.a], "239.1.2.3");
    checks::group(&pair.a, &[&pair.b], "ff02::4242");
    // Neighbour discovery from nothing, both ways.
    for (from, to) in [(&pair.a, &pair.b), (&pair.b, &pair.a)] {
        from.run("ip -6 neigh flush dev eth0; ip -4 neigh flush dev eth0");
        checks::ping(from, to);
    }
    // Segments of up to 64 KiB travel whole.
    let to_b = || pair.lasthop.port("b")["to_guest"].clone();
    let before = to_b();
    pair.a.run(&format!("lasthop-guest tcp-push {}:7000 1", pair.b.config.nics[0].ip4()));
    let after = to_b();
    let [bytes, packets] =
        ["bytes", "packets"].map(|what| after[what].as_u64().unwrap_or(0) - before[what].as_u64().unwrap_or(0));
    assert!(bytes / packets.max(1) > 3000, "{packets} packets of {bytes} bytes: {after}");
    assert_eq!(after["segments"], 0, "{after}");
}

#[test]
#[ignore = "three times as many sizes; `cargo xtask test --long` runs it"]
fn every_offload_on_both_sides_with_many_sizes() {
    Pair::start(|nic| nic, |nic| nic).check(Depth::Thorough);
}

#[test]
#[ignore = "one more combination of features; `cargo xtask test --long` runs it"]
fn tso_on_one_side_and_nothing_on_the_other() {
    let pair = Pair::start(|nic| nic, Nic::plain);
    assert_eq!(pair.features("b") & (bit::CSUM | bit::GUEST_TSO4 | bit::HOST_TSO4 | bit::MRG_RXBUF), 0);
    pair.check(Depth::Thorough);
    let to_b = pair.lasthop.port("b")["to_guest"].clone();
    assert!(to_b["segments"].as_u64() > Some(0) && to_b["checksums"].as_u64() > Some(0), "{to_b}");
}

#[test]
#[ignore = "one more combination of features; `cargo xtask test --long` runs it"]
fn checksum_offload_and_merged_buffers_but_no_tso() {
    Pair::start(|nic| nic, Nic::without_tso).check(Depth::Quick);
}

#[test]
#[ignore = "one more combination of features; `cargo xtask test --long` runs it"]
fn nothing_on_either_side() {
    Pair::start(Nic::plain, Nic::plain).check(Depth::Quick);
}

#[test]
#[ignore = "one more combination of features; `cargo xtask test --long` runs it"]
fn mtu_9000_on_both_sides() {
    let pair = Pair::start(|nic| nic.mtu(9000), |nic| nic.mtu(9000));
    pair.check(Depth::Thorough);
}

#[test]
#[ignore = "one more combination of features; `cargo xtask test --long` runs it"]
fn mtu_9000_without_tso_or_merged_buffers() {
    // Without merged buffers a card takes jumbo frames only if it is told so before its driver starts.
    let jumbo = |nic: Nic| nic.mtu(9000).with("host_mtu=9000");
    Pair::start(jumbo, |nic| jumbo(nic).without_tso()).check(Depth::Quick);
}

#[test]
#[ignore = "one more combination of features; `cargo xtask test --long` runs it"]
fn packed_rings_on_one_side() {
    let pair = Pair::start(|nic| nic.with("packed=on"), |nic| nic);
    assert_ne!(pair.features("a") & bit::RING_PACKED, 0);
    assert_eq!(pair.features("b") & bit::RING_PACKED, 0);
    pair.check(Depth::Thorough);
}

#[test]
#[ignore = "one more combination of features; `cargo xtask test --long` runs it"]
fn packed_rings_without_events_or_indirect_descriptors() {
    let pair = Pair::start(|nic| nic.with("packed=on,event_idx=off"), |nic| nic.with("packed=on,indirect_desc=off"));
    assert_eq!(pair.features("a") & bit::EVENT_IDX, 0);
    assert_eq!(pair.features("b") & bit::INDIRECT_DESC, 0);
    pair.check(Depth::Quick);
}

#[test]
#[ignore = "one more combination of features; `cargo xtask test --long` runs it"]
fn split_rings_without_events_or_indirect_descriptors() {
    // Without both, a buffer takes 19 descriptors. The usual ring of 256 has 13 buffers then, and the largest datagram 45 fragments: it
    // would take an emulated driver that comes back for more, again and again, within the switch's patience.
    let few = "indirect_desc=off,mrg_rxbuf=off,rx_queue_size=1024";
    let pair = Pair::start(|nic| nic.with("event_idx=off"), |nic| nic.with(few));
    assert_eq!(pair.features("a") & bit::EVENT_IDX, 0);
    assert_eq!(pair.features("b") & bit::INDIRECT_DESC, 0);
    pair.check(Depth::Quick);
}

#[test]
#[ignore = "rarely breaks, and takes long; `cargo xtask test --long` runs it"]
fn legacy_driver() {
    // Virtio 0.9: a ten-byte header unless buffers are merged, native byte order.
    let pair = Pair::start(|nic| nic.with("disable-modern=on"), |nic| nic.with("disable-modern=on,mrg_rxbuf=off"));
    assert_eq!(pair.features("a") & bit::VERSION_1, 0);
    pair.check(Depth::Quick);
}

#[test]
fn four_queue_pairs_and_two_with_packed_rings() {
    let pair = Pair::boot(
        |nic| VmConfig::new("a", [nic.queues(4)]).cpus(4),
        |nic| VmConfig::new("b", [nic.queues(2).with("packed=on")]).cpus(2),
    );
    assert_ne!(pair.features("a") & bit::MQ, 0);
    assert_eq!(pair.a.run("ls -d /sys/class/net/eth0/queues/rx-* | wc -l").trim(), "4");
    pair.check(Depth::Quick);
    // Several streams at once, so that several queues work at once.
    let streams: Vec<_> = (0..4)
        .map(|_| pair.a.spawn(&format!("lasthop-guest tcp-push {}:7000 2", pair.b.config.nics[0].ip4())))
        .collect();
    for stream in streams {
        stream.success(Duration::from_secs(60));
    }
    let queues = pair.lasthop.port("a")["queues"].as_array().map(Vec::len);
    assert!(queues >= Some(8), "{queues:?} rings");
    pair.lasthop.check_sums();
}

#[test]
fn memory_of_huge_pages() {
    let pair = Pair::boot(
        |nic| VmConfig::new("a", [nic]).huge(),
        |nic| VmConfig::new("b", [nic.plain().with("packed=on")]).huge(),
    );
    pair.check(Depth::Quick);
    the_guests_restart_their_drivers(&pair);
}

/// Rings that were in use are made anew, at other places.
fn the_guests_restart_their_drivers(pair: &Pair) {
    for _ in 0..3 {
        let again = [&pair.a, &pair.b].map(|vm| vm.spawn("rmmod virtio_net; insmod /modules/virtio_net.ko; sleep 0.2"));
        again.into_iter().for_each(|done| drop(done.success(Duration::from_secs(65))));
        [&pair.a, &pair.b].into_iter().for_each(Vm::bring_up);
    }
    pair.check(Depth::Quick);
}

#[test]
fn memory_plugged_in_while_packets_flow() {
    let slots = 10;
    let pair = Pair::boot(|nic| VmConfig::new("a", [nic]).memory_slots(slots), |nic| VmConfig::new("b", [nic]));
    let stream = checks::stream(&pair.a, &format!("{}:7000", pair.b.config.nics[0].ip4()));
    let regions = |pair: &Pair| pair.lasthop.port("a")["memory_regions"].as_u64().unwrap_or(0);
    let before = regions(&pair);
    // More than the eight regions that one message can carry.
    for i in 0..slots {
        let (id, device) = (format!("more{i}"), format!("dimm{i}"));
        pair.a
            .qmp("object-add", json!({"qom-type": "memory-backend-memfd", "id": id, "size": 128 << 20, "share": true}));
        pair.a.qmp("device_add", json!({"driver": "pc-dimm", "id": device, "memdev": id}));
    }
    lasthop_harness::wait_for("ten more regions", Duration::from_secs(10), || {
        regions(&pair) >= before + u64::from(slots)
    });
    stream.end();
    // Make the guest use the new memory and send from it: a file in RAM larger than what it had at first.
    pair.a.run("for m in /sys/devices/system/memory/memory*; do echo online_movable >$m/state; done 2>/dev/null; true");
    let total = pair.a.run("awk '/MemTotal/ { print $2 }' /proc/meminfo");
    assert!(total.trim().parse::<u64>().is_ok_and(|kib| kib > 1_000_000), "the guest has {total} KiB");
    pair.a.run(
        "mkdir -p /big; mount -t tmpfs -o size=900m big /big; dd if=/dev/zero of=/big/x bs=1M count=400 2>/dev/null",
    );
    pair.check(Depth::Quick);
}
