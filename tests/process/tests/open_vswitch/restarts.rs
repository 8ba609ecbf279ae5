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
