//! `lasthop run` ends, or is killed, and another takes its place, under an `ovs-vswitchd` that lives on: nothing has to be told to it.

use super::away::deciders;
use super::*;
use lasthop_tests_process::{connect, proc};
use rustix::process::Signal;
use serde_json::json;

impl Site {
    /// Another `lasthop run` with the same directories.
    pub(crate) fn start_lasthop_again(&mut self, killed: bool, between: impl FnOnce()) {
        if killed {
            proc::signal(self.lasthop.pid(), Signal::KILL);
        }
        let ports = ["vm1", "vm2"].map(|name| Port::listen(name, self.dir.path()));
        let lasthop = std::mem::replace(&mut self.lasthop, Lasthop::start(&[]));
        self.lasthop = lasthop.start_again(Some(&self.netns), &ports, &["--control", "ovs", "--no-bpf"], between);
    }

    fn guests_come_back(&mut self) {
        for (guest, name) in self.guests.iter_mut().zip(["vm1", "vm2"]) {
            wait_for("the end of the connection", PATIENCE, || guest.is_disconnected());
            let front = connect(&self.dir.path().join(format!("{name}.sock")));
            guest.reattach(front, None).expect("the next switch takes it");
            self.lasthop.wait_for_state(name, "up");
        }
    }
}

#[test]
fn open_vswitch_goes_on_with_the_next_lasthop_run() {
    let mut site = Site::new();
    let pid = deciders(&site)["processes"].clone();
    site.vsctl("add-port br0 in0 -- set interface in0 type=internal ofport_request=11");
    site.vsctl("set interface vm1 ingress_policing_rate=800000 ingress_policing_burst=8000");
    site.ofctl13(&["add-meter", "meter=1,pktps,burst,band=type=drop,rate=1000,burst_size=1000"]);
    site.ofctl(&["add-flow", "priority=9,dl_src=02:00:00:00:00:11,actions=drop"]);
    for round in 0..3u32 {
        site.start_lasthop_again(round == 1, || ());
        site.guests_come_back();
        // What was known, what is new, and what is not let through.
        let new = mac(20 + round as u8);
        let [a, b] = &mut site.guests;
        pass_at_last(a, b, &numbered(mac(1), MacAddr::BROADCAST, 100 + round, 60));
        pass_at_last(b, a, &numbered(mac(2), mac(1), 200 + round, 600));
        pass_at_last(a, b, &numbered(new, mac(2), 300 + round, 600));
        pass_at_last(b, a, &numbered(mac(2), new, 400 + round, 600));
        a.send(&numbered(MacAddr([2, 0, 0, 0, 0, 0x11]), mac(2), 500 + round, 60));
        pass_at_last(a, b, &numbered(mac(1), mac(2), 600 + round, 600));
        assert!(b.drain().iter().all(|frame| number_of(frame) != Some(500 + round)));
        // The same process takes what is new, and nothing is left over.
        wait_for("ovs-vswitchd", PATIENCE, || deciders(&site)["processes"] == pid);
        assert_eq!(deciders(&site)["left_over"], json!([]));
        let show = site.appctl(&["dpctl/show"]);
        for port in ["br0", "vm1", "vm2", "in0"] {
            assert!(show.contains(&format!(": {port} ")) || show.contains(&format!(": {port}\n")), "{port}: {show}");
        }
        wait_for("the rate", PATIENCE, || {
            site.lasthop.log().contains("port vm1: Open vSwitch sets 800000000 bits a second")
        });
        let meters = site.ofctl13(&["dump-meters"]);
        assert!(meters.contains("rate=1000"), "{meters}");
        // Ports still come and go.
        site.vsctl("del-port vm2");
        site.vsctl("add-port br0 vm2 -- set interface vm2 ofport_request=2");
        let [a, b] = &mut site.guests;
        pass_at_last(a, b, &numbered(mac(1), MacAddr::BROADCAST, 700 + round, 60));
    }
    assert!(site.vswitchd.try_wait().expect("it is ours").is_none(), "ovs-vswitchd runs");
    site.lasthop.check_sums();
}

impl Site {
    /// What OpenFlow's rules, and the host, know of ports by.
    fn known_by(&self) -> Vec<String> {
        let number = |port| self.vsctl(&format!("get interface {port} ofport")).trim().to_owned();
        let numbers = ["vm1", "vm2", "in0"].map(number);
        let address = |device: &str| {
            let said = self.netns.shell(&format!("ip -o addr show dev {device}"));
            said.split_whitespace().find(|word| word.contains("10.9.")).map(str::to_owned).unwrap_or_default()
        };
        let mac = |device: &str| {
            let said = self.netns.shell(&format!("ip -o link show dev {device}"));
            said.split("link/ether ").nth(1).map(|rest| rest.chars().take(17).collect()).unwrap_or_default()
        };
        numbers.into_iter().chain(["in0", "br0"].into_iter().flat_map(|of| [address(of), mac(of)])).collect()
    }
}

/// Open vSwitch took ports out of its bridges while lasthop was away, and put them in again under other numbers, which no rule of before knew: what was to be
/// dropped passed. An interface that the host has an address on was made anew without it.
#[test]
fn ports_keep_their_numbers_and_addresses_however_long_lasthop_is_away() {
    let mut site = Site::new();
    site.vsctl("add-port br0 in0 -- set interface in0 type=internal");
    ["vm1", "vm2"].iter().for_each(|port| drop(site.vsctl(&format!("clear interface {port} ofport_request"))));
    for (device, address) in [("in0", "10.9.0.1/24"), ("br0", "10.9.1.1/24")] {
        site.netns.ip(&format!("addr add {address} dev {device}"));
        site.netns.ip(&format!("link set {device} up"));
    }
    site.ofctl(&["add-flow", "priority=9,in_port=1,dl_src=02:00:00:00:00:11,actions=drop"]);
    let before = site.known_by();
    assert!(before.iter().all(|known| !known.is_empty()), "{before:?}");
    for round in 0..2u32 {
        let dir = site.dir.path().to_owned();
        // It looks at all its ports meanwhile.
        site.start_lasthop_again(round == 1, || {
            let set = format!("other-config:round={round}");
            vswitch::run(&dir, &["ovs-vsctl", "--no-wait", "set", "bridge", "br0", &set]);
            std::thread::sleep(Duration::from_millis(1500));
        });
        site.guests_come_back();
        let [a, b] = &mut site.guests;
        pass_at_last(a, b, &numbered(mac(1), MacAddr::BROADCAST, 100 + round, 60));
        a.send(&numbered(MacAddr([2, 0, 0, 0, 0, 0x11]), MacAddr::BROADCAST, 500 + round, 60));
        pass_at_last(a, b, &numbered(mac(1), mac(2), 600 + round, 600));
        assert!(b.drain().iter().all(|frame| number_of(frame) != Some(500 + round)));
        assert_eq!(site.known_by(), before);
    }
}

/// Another `ovs-vswitchd` finds what the one before has made, as with the kernel's datapath.
#[test]
fn another_open_vswitch_takes_over_what_the_next_lasthop_run_has() {
    let mut site = Site::new();
    site.vswitchd.kill().expect("it is ours");
    let _ = site.vswitchd.wait();
    site.start_lasthop_again(false, || ());
    site.vsctl("--no-wait del-port vm2 -- add-port br0 vm2 -- set interface vm2 ofport_request=7");
    site.vswitchd = vswitch::daemon(&site.netns, site.dir.path(), &site.lasthop);
    site.guests_come_back();
    site.wait_for_bridge();
    let show = site.appctl(&["dpif/show"]);
    assert!(show.contains("vm2 7/"), "{show}");
    site.lasthop.check_sums();
}

/// While it waits for lasthop it answers nobody, but it can be ended as always.
#[test]
fn open_vswitch_ends_when_it_is_told_to_while_lasthop_is_away() {
    let mut site = Site::new();
    let (pid, dir) = (site.vswitchd.id(), site.dir.path().to_owned());
    site.start_lasthop_again(false, || {
        vswitch::run(&dir, &["ovs-vsctl", "--no-wait", "set", "bridge", "br0", "other-config:looks=again"]);
        std::thread::sleep(Duration::from_millis(1500));
        proc::signal(pid, Signal::TERM);
        wait_for("ovs-vswitchd to end", PATIENCE, || !proc::alive(pid));
    });
}
