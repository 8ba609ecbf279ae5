//! `lasthop run` becomes another program while Open vSwitch decides.

use super::Site;
use lasthop_tests_process::{PATIENCE, becomes, mac, numbered, release, under_load, wait_for};
use std::collections::BTreeSet;

/// Flows of the datapath as Open vSwitch shows them, without what they have carried.
fn flows(site: &Site) -> BTreeSet<String> {
    let shown = site.appctl(&["dpctl/dump-flows"]);
    let without_counts = |line: &str| line.split(", packets:").next().unwrap_or_default().to_owned();
    shown.lines().filter(|line| line.contains("in_port")).map(without_counts).collect()
}

/// Ports keep their numbers, known flows go on, and Open vSwitch is served as ever.
#[test]
fn ports_and_flows_hold_under_another_program() {
    let mut site = Site::new();
    let releases = ["one", "two"].map(|name| release(site.dir.path(), name));
    let [a, b] = &mut site.guests;
    a.greet(b, 1);
    // Lines of ports begin with their numbers in both datapaths.
    let ports = |site: &Site| {
        let (shown, datapath) = (site.appctl(&["dpif/show"]), site.appctl(&["dpctl/show"]));
        let of = |text: &str| text.lines().filter(|line| line.contains("vm")).map(str::to_owned).collect::<Vec<_>>();
        [of(&shown), of(&datapath)]
    };
    let before = ports(&site);
    assert!(before.iter().all(|ports| ports.len() == 2), "{before:?}");
    let pids = |site: &Site| lasthop_tests_process::children(&site.lasthop);
    for (number, new) in (1..).zip(&releases) {
        let processes = pids(&site);
        let Site { guests: [a, b], lasthop, .. } = &mut site;
        under_load(a, b, |flows| {
            becomes(lasthop, new);
            flows();
        });
        assert_eq!((ports(&site), pids(&site)), (before.clone(), processes));
        let known = flows(&site);
        let between = |from: u8, to: u8| format!("eth(src={},dst={}", mac(from), mac(to));
        for between in [between(1, 2), between(2, 1)] {
            assert!(known.iter().any(|flow| flow.contains(&between)), "{between}: {known:?}");
        }
        // A rule that is new holds, and so does a port that is.
        let rule = format!("priority=9,in_port=1,dl_dst=02:00:00:00:00:4{number}");
        site.ofctl(&["add-flow", &format!("{rule},actions=mod_dl_dst:02:00:00:00:00:02,output:2")]);
        let [a, b] = &mut site.guests;
        a.send(&numbered(mac(1), mac(0x40 + number), 70, 60));
        b.expect_number(70);
        let (name, interface) = (format!("q{number}"), format!("p{number}"));
        site.netns.ip(&format!("link add {name} type veth peer name {interface}"));
        site.vsctl(&format!("add-port br0 {name} -- set interface {name} ofport_request=1{number}"));
        let said = site.vsctl(&format!("get interface {name} error ofport"));
        assert_eq!(said.split_whitespace().collect::<Vec<_>>(), ["[]", &format!("1{number}")]);
    }
    // Who decides may die under the new program, and is back.
    site.lasthop.kill("lasthop-ovs");
    let Site { guests: [a, b], lasthop, .. } = &mut site;
    wait_for("another", PATIENCE, || lasthop.try_command(&["port", "list"]).status.success());
    a.greet_when_back(b, 5000);
}
