//! Linux VMs whose own IOMMU stands between lasthop and their memory, and VMs that bounce all they send and receive.

use lasthop_harness::checks::{self, Depth};
use lasthop_harness::{Lasthop, Nic, Port, Vm, VmConfig, scratch, wait_for};
use std::time::Duration;

/// VIRTIO_F_ACCESS_PLATFORM.
const ACCESS_PLATFORM: u64 = 1 << 33;

/// Two VMs, made from cards, with ping and TCP both ways, whose content is checked. Returns the ports as they are afterwards.
fn pass(a: impl Fn(Nic) -> VmConfig, b: impl Fn(Nic) -> VmConfig) -> [serde_json::Value; 2] {
    let dir = scratch();
    let ports = ["a", "b"].map(|n| Port::listen(n, dir.path()));
    let lasthop = Lasthop::start(&ports);
    let nic = |i: usize| Nic::vhost_user(&ports[i].socket, i as u8 + 1);
    let vms = Vm::boot_all([a(nic(0)), b(nic(1))]);
    vms.iter().for_each(Vm::serve);
    for (from, to) in [(&vms[0], &vms[1]), (&vms[1], &vms[0])] {
        checks::ping(from, to);
        checks::tcp(from, to, Depth::Quick);
    }
    lasthop.check_sums();
    for vm in &vms {
        let faults = vm.run("dmesg | grep -c 'DMAR:.*fault' || true");
        assert_eq!(faults.trim(), "0", "the IOMMU has seen accesses to what is not mapped: {}", vm.run("dmesg | tail"));
    }
    ["a", "b"].map(|name| lasthop.port(name))
}

/// What is known of a port's I/O addresses: updates, invalidations, refused pages.
fn translated(port: &serde_json::Value) -> (u64, u64, u64) {
    let features =
        port["features"].as_str().and_then(|text| u64::from_str_radix(text.trim_start_matches("0x"), 16).ok());
    assert_ne!(features.expect("features") & ACCESS_PLATFORM, 0, "{port}");
    let count = |name: &str| port["translation"][name].as_u64().unwrap_or_else(|| panic!("{name}: {port}"));
    (count("updates"), count("invalidations"), count("refused"))
}

#[test]
fn strict_mappings_and_those_of_all_memory() {
    let [a, b] = pass(
        |nic| VmConfig::new("a", [nic]).iommu("iommu.strict=1"),
        |nic| VmConfig::new("b", [nic.with("packed=on")]).iommu("iommu.passthrough=1"),
    );
    let (updates, invalidations, refused) = translated(&a);
    assert!(updates > 100 && invalidations > 100 && refused == 0, "{a}");
    let (updates, _, refused) = translated(&b);
    assert!(updates > 10 && refused == 0, "{b}");
}

#[test]
fn an_iommu_that_does_not_translate_and_bounce_buffers() {
    let platform = |nic: Nic| nic.with("disable-legacy=on,iommu_platform=on");
    let [a, b] = pass(
        |nic| VmConfig::new("a", [platform(nic)]).kernel("swiotlb=force"),
        |nic| VmConfig::new("b", [platform(nic)]),
    );
    assert!(a["translation"].is_null() && b["translation"].is_null(), "addresses are the guests' own");
}

/// Mappings that Linux takes back together, with all others and the rings: the default where a guest has an IOMMU.
#[test]
#[ignore = "rarely breaks, and takes long; `cargo xtask test --long` runs it"]
fn lazy_mappings_on_both_sides() {
    let lazy = |name: &str, nic: Nic| VmConfig::new(name, [nic]).iommu("iommu.strict=0");
    let [a, b] = pass(|nic| lazy("a", nic), |nic| lazy("b", nic.with("packed=on")));
    for port in [a, b] {
        let (updates, invalidations, refused) = translated(&port);
        assert!(updates > 100 && invalidations > 10 && refused == 0, "{port}");
    }
}

/// Two settings that QEMU and Linux take without a word: lazy mappings of a card without ATS, which are taken back without its front-end's knowledge, and rings
/// whose parts are longer than a page, of which Linux takes page by page.
#[test]
#[ignore = "rarely breaks, and takes long; `cargo xtask test --long` runs it"]
fn mistakes_that_nobody_else_names() {
    let dir = scratch();
    let ports = ["stale", "long"].map(|n| Port::listen(n, dir.path()));
    let lasthop = Lasthop::start_with(&ports, &["--no-bpf"]);
    let nic = |i: usize| Nic::vhost_user(&ports[i].socket, i as u8 + 1);
    let stale = VmConfig::new("stale", [nic(0)]).iommu("iommu.strict=0").without_ats();
    let long = VmConfig::new("long", [nic(1).with("rx_queue_size=1024")]).iommu("iommu.strict=1");
    let [stale, _long] = Vm::boot_all([stale, long]);
    let finds = |port: &str| {
        let out = lasthop.try_command(&["doctor", port, "--since-start", "--json"]);
        let report: serde_json::Value = serde_json::from_slice(&out.stdout).unwrap_or_else(|e| panic!("{e}: {out:?}"));
        let of_port = |finding: &&serde_json::Value| finding["port"] == port;
        report["findings"].as_array().into_iter().flatten().find(of_port).cloned().unwrap_or_default()
    };
    wait_for("the long ring to be found", Duration::from_secs(20), || finds("long")["kind"] == "broken");
    let text = |finding: &serde_json::Value, name: &str| finding[name].to_string();
    let found = finds("long");
    assert!(
        text(&found, "evidence").contains("do not lie together")
            && text(&found, "remedy").contains("rx_queue_size=256"),
        "{found}"
    );
    let pings = stale.spawn("ping -i 0.05 -w 30 -q 10.9.0.9");
    wait_for("stale pages to be found", Duration::from_secs(30), || finds("stale")["kind"] == "stale-pages");
    let found = finds("stale");
    assert!(text(&found, "remedy").contains("ats=on"), "{found}");
    drop(pings);
}

#[test]
#[ignore = "takes minutes; `cargo xtask test --long` runs it"]
fn strict_on_both_sides_without_merged_buffers_and_with_several_queues() {
    let strict = |name: &str, nic: Nic| VmConfig::new(name, [nic]).iommu("iommu.strict=1");
    let [a, b] = pass(|nic| strict("a", nic.plain()), |nic| strict("b", nic.queues(2)).cpus(2));
    assert!(translated(&a).1 > 100 && translated(&b).1 > 100, "{a} {b}");
}
