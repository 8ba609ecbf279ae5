//! Traffic that goes on while `lasthop run` is replaced: its flows come back, though `ovs-vswitchd` believes that they are there.

use super::*;
use lasthop_tests_process::Station;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// Every packet of it went through `ovs-vswitchd` from then on.
#[test]
fn flows_of_steady_traffic_come_back_after_another_lasthop_run() {
    let mut site = Site::new();
    for name in ["eth1", "eth2"] {
        site.netns.ip(&format!("link add {name} type veth peer name {name}p"));
        site.netns.ip(&format!("link set {name} up"));
        site.netns.ip(&format!("link set {name}p up"));
        site.vsctl(&format!("add-port br0 {name}"));
    }
    let [from, to] = ["eth1p", "eth2p"].map(|name| Station::on(&site.netns, name));
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Relaxed) {
                from.send(&numbered(mac(7), mac(8), 7, 60));
                std::thread::sleep(Duration::from_millis(20));
            }
        });
        let end = End(&is_over);
        for round in 0..3 {
            // Packets meet it, and no more of them go to Open vSwitch.
            let is_there = || site.appctl(&["dpctl/dump-flows"]).contains("02:00:00:00:00:07");
            wait_for(&format!("the flow, after {round} others"), 3 * PATIENCE, is_there);
            site.start_lasthop_again(false, || ());
        }
        to.recv("the traffic", |frame| number_of(frame) == Some(7));
        drop(end);
    });
    site.lasthop.check_sums();
}

/// Ends the traffic, also when something is not as expected.
struct End<'a>(&'a AtomicBool);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}
