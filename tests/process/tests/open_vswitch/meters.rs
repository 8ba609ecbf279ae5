//! Meters of OpenFlow and limits of connections, by the distribution's Open vSwitch.

use super::*;

impl Site {
    pub(super) fn ofctl13(&self, words: &[&str]) -> String {
        let bridge = format!("unix:{}", self.dir.path().join("br0.mgmt").display());
        let (first, rest) = words.split_first().expect("a command");
        vswitch::run(self.dir.path(), &[&["ovs-ofctl", "-O", "OpenFlow13", first, &bridge], rest].concat())
    }

    /// What came to meter 1, and what its band dropped.
    pub(super) fn metered(&self) -> [u64; 2] {
        let told = self.ofctl13(&["meter-stats", "meter=1"]);
        let number = |name: &str| {
            let rest = told.split(name).nth(1).unwrap_or_else(|| panic!("no {name} in {told}"));
            let digits: String = rest.chars().take_while(char::is_ascii_digit).collect();
            digits.parse().unwrap_or_else(|_| panic!("no number behind {name} in {told}"))
        };
        [number("packet_in_count:"), number(" packet_count:")]
    }
}

#[test]
fn a_meter_drops_what_is_beyond_its_rate_and_counts_it() {
    let mut site = Site::new();
    site.ofctl13(&["add-meter", "meter=1,pktps,burst,band=type=drop,rate=1,burst_size=10"]);
    site.ofctl(&["del-flows"]);
    site.ofctl13(&["add-flow", "in_port=1,actions=meter:1,output:2"]);
    site.ofctl13(&["add-flow", "in_port=2,actions=output:1"]);
    site.appctl(&["revalidator/wait"]);
    const SENT: u64 = 100;
    // The first goes through Open vSwitch, and there is a flow behind it.
    let [a, b] = &mut site.guests;
    pass(a, b, &numbered(mac(1), mac(2), 0, 300));
    (1..SENT).for_each(|n| site.guests[0].send(&numbered(mac(1), mac(2), n as u32, 300)));
    wait_for("all at the meter", PATIENCE, || site.metered()[0] == SENT);
    let [_, dropped] = site.metered();
    let [a, b] = &mut site.guests;
    // What comes after all of them says that all have come that will.
    pass(b, a, &numbered(mac(2), mac(1), 1, 60));
    let mut came = 1;
    wait_for("what was let through", PATIENCE, || {
        came += b.drain().iter().filter(|frame| number_of(frame).is_some()).count() as u64;
        came >= SENT - dropped
    });
    assert_eq!(came, SENT - dropped, "what is told is true");
    assert!(came >= 10, "the burst passes, {came}");
    assert!(dropped >= 50, "one a second is less than {came} of {SENT}");
    let drops = site.lasthop.command(&["stats"]);
    assert!(drops.contains("meter"), "lasthop says so as well: {drops}");

    // Another rate, for flows that there are.
    site.ofctl13(&["mod-meter", "meter=1,kbps,burst,band=type=drop,rate=1000000,burst_size=1000000"]);
    let [a, b] = &mut site.guests;
    for n in 200..260 {
        pass(a, b, &numbered(mac(1), mac(2), n, 300));
    }
    site.ofctl13(&["del-meter", "meter=1"]);
    let told = site.ofctl13(&["meter-stats"]);
    assert!(!told.contains("meter:1"), "{told}");
}

#[test]
fn a_zone_takes_no_more_connections_than_it_may() {
    let site = Site::new();
    site.appctl(&["dpctl/ct-set-limits", "default=10", "zone=3,limit=2"]);
    let told = site.appctl(&["dpctl/ct-get-limits", "zone=3,4"]);
    assert_eq!(told, "default limit=10\nzone=3,limit=2,count=0\nzone=4,limit=10,count=0\n");
    site.ofctl(&["del-flows"]);
    site.ofctl(&["add-flow", "in_port=1,udp,actions=ct(commit,zone=3),2"]);
    for port in 1..=5u16 {
        let ip = "4500001c000000000011a4cd0a0101010a010102";
        let packet = format!("0200000000020200000000010800{ip}0001{port:04x}00080000");
        site.ofctl(&["packet-out", &format!("in_port=1,packet={packet},actions=resubmit(,0)")]);
    }
    let told = site.appctl(&["dpctl/ct-get-limits", "zone=3"]);
    assert_eq!(told, "default limit=10\nzone=3,limit=2,count=2\n");
    site.appctl(&["dpctl/ct-del-limits", "zone=3"]);
    let told = site.appctl(&["dpctl/ct-get-limits", "zone=3"]);
    assert_eq!(told, "default limit=10\nzone=3,limit=10,count=2\n");
}

#[test]
fn a_zone_has_time_outs_of_its_own() {
    let mut site = Site::new();
    let features = site.appctl(&["dpif/show-dp-features", "br0"]);
    let line = features.lines().find(|line| line.to_lowercase().contains("timeout"));
    assert!(line.is_some_and(|line| line.ends_with("Yes")), "{features}");
    site.vsctl("-- --id=@m create Datapath datapath_version=0 -- set Open_vSwitch . datapaths:system=@m");
    site.vsctl("add-zone-tp system zone=3 udp_single=2 udp_multiple=2");
    site.ofctl(&["del-flows"]);
    site.ofctl(&["add-flow", "in_port=1,udp,udp_dst=53,actions=ct(commit,zone=3),2"]);
    site.ofctl(&["add-flow", "in_port=1,udp,udp_dst=54,actions=ct(commit,zone=4),2"]);
    let [a, b] = &mut site.guests;
    for port in [53, 54] {
        let frame = lasthop_conntrack::testutil::Ends::v4(1000, port).udp(20);
        pass_at_last(a, b, &frame);
    }
    let zones = |site: &Site| {
        let all = site.appctl(&["dpctl/dump-conntrack"]);
        [3, 4].map(|zone| all.contains(&format!("zone={zone}")))
    };
    assert!(zones(&site)[1]);
    wait_for("the shorter to end", PATIENCE, || zones(&site) == [false, true]);
}
