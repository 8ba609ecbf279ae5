//! Two real VMs where the distribution's Open vSwitch decides.

use lasthop_harness::{Lasthop, Netns, Nic, Port, Vm, VmConfig, on_device, scratch, spawn, vswitch};

#[test]
fn two_machines_talk_over_a_bridge_of_open_vswitch() {
    if on_device::skips("Open vSwitch is in charge of the host's ports alone") {
        return;
    }
    let (dir, netns) = (scratch(), Netns::new());
    let ports = ["a", "b"].map(|name| Port::listen(name, dir.path()));
    let lasthop = Lasthop::start_in(Some(&netns), &ports, &["--control", "ovs", "--no-bpf"]);
    let mut servers = [vswitch::database(&netns, dir.path()), vswitch::daemon(&netns, dir.path(), &lasthop)];
    vswitch::shell(dir.path(), "ovs-vsctl --timeout=30 add-br br0 -- add-port br0 a -- add-port br0 b");
    let card = |n: usize| Nic::vhost_user(&ports[n].socket, n as u8 + 1);
    let [a, b] = Vm::boot_all([0, 1].map(|n| VmConfig::new(&ports[n].name, [card(n)])));
    let nic = &b.config.nics[0];
    for (family, address) in [("-4", nic.ip4().to_string()), ("-6", nic.ip6())] {
        a.run(&format!("ping {family} -c 20 -i 0.05 -w 20 -q {address}"));
    }
    b.serve();
    a.run(&format!("lasthop-guest tcp-check {}:7000 1000000 4001", nic.ip4()));
    a.run(&format!("lasthop-guest udp-check {}:7000 1400 401", nic.ip4()));
    // They talk by a few flows of the switch's, and not packet by packet.
    let through = lasthop.port("ovs-packets")["to_guest"]["packets"].as_u64().expect("a counter");
    let carried = lasthop.port("b")["to_guest"]["packets"].as_u64().expect("a counter");
    assert!(
        through * 5 < carried,
        "{through} packets of {carried} went by Open vSwitch\n{}",
        lasthop.command(&["flow", "list"])
    );
    let flows = vswitch::shell(
        dir.path(),
        &format!("ovs-appctl -t {}/ovs-vswitchd.ctl dpctl/dump-flows", dir.path().display()),
    );
    assert!(flows.contains("eth(src=52:54:00:00:00:01,dst=52:54:00:00:00:02)"), "{flows}");
    lasthop.check_sums();
    servers.iter_mut().rev().for_each(|server| {
        spawn::end(server);
    });
}
