//! Policing and QoS that are set in Open vSwitch's database.

use super::*;

/// Bytes of a frame here, so that a segment's worth, which passes at once, is 65 of them. A port that may not go on may send what it has begun with, 64
/// frames more.
const LEN: usize = 1000;
const SENT: u32 = 200;
const AT_ONCE: usize = 65;

/// Sends what is more than passes at once. What has come when the switch has taken or dropped what it will for now.
fn send_many(site: &mut Site, from: MacAddr, first: u32) -> usize {
    let [a, b] = &mut site.guests;
    // There is a flow, and all behind it is alike.
    pass_at_last(a, b, &numbered(from, mac(2), first, 60));
    (1..=SENT).for_each(|n| a.send(&numbered(from, mac(2), first + n, LEN)));
    let mut came = 0;
    wait_for("what passes at once", PATIENCE, || {
        came += arrived(b);
        came >= AT_ONCE
    });
    came
}

fn arrived(guest: &mut Guest) -> usize {
    guest.drain().iter().filter(|frame| frame.len() == LEN && number_of(frame).is_some()).count()
}

/// The rest arrives as well, once nothing limits it.
fn wait_for_rest(site: &mut Site, mut came: usize) {
    let b = &mut site.guests[1];
    wait_for("the rest", PATIENCE, || {
        came += arrived(b);
        came == SENT as usize
    });
}

#[test]
fn what_a_port_sends_is_policed_as_the_database_says() {
    let mut site = Site::new();
    site.vsctl("set interface vm1 ingress_policing_rate=8 ingress_policing_burst=8");
    wait_for("the rate", PATIENCE, || site.lasthop.log().contains("port vm1: Open vSwitch sets 8000 bits a second"));
    let came = send_many(&mut site, mac(1), 1000);
    assert!(came < SENT as usize - 10, "a kilobyte a second: {came}");
    wait_for("the port to be held", PATIENCE, || {
        site.lasthop.command(&["port", "list"]).contains("held")
            && site.lasthop.command(&["port", "list"]).contains("rate-from")
    });
    // The other port is not, and neither is this one when lasthop-ovs has died and the rate is taken back.
    let [a, b] = &mut site.guests;
    (0..SENT).for_each(|n| pass(b, a, &numbered(mac(2), mac(1), n, LEN)));
    site.lasthop.kill("lasthop-ovs");
    site.vsctl("set interface vm1 ingress_policing_rate=0");
    wait_for_rest(&mut site, came);
    let log = site.logs();
    assert!(!log.contains("policing failed") && !log.contains("policing action failed"), "{log}");
    site.lasthop.check_sums();
}

#[test]
fn what_a_port_gets_is_limited_as_the_database_says() {
    let mut site = Site::new();
    site.vsctl("set port vm2 qos=@q -- --id=@q create qos type=linux-htb other-config:max-rate=16000");
    wait_for("the rate", PATIENCE, || {
        site.lasthop.log().contains("port vm2: Open vSwitch sets no limit for what comes from there, and 16000 bits")
    });
    let came = send_many(&mut site, mac(1), 1000);
    assert!(came < SENT as usize - 10, "two kilobytes a second: {came}");
    let show = site.appctl(&["qos/show", "vm2"]);
    assert!(show.contains("linux-htb") && show.contains("max-rate: 16000"), "{show}");
    site.vsctl("clear port vm2 qos");
    wait_for("no rate", PATIENCE, || site.lasthop.log().contains("and no limit for what goes there"));
    let [a, b] = &mut site.guests;
    b.drain();
    (2000..2000 + SENT).for_each(|n| {
        a.send(&numbered(mac(1), mac(2), n, LEN));
        b.recv("what is sent now", |_, frame| number_of(frame) == Some(n));
    });

    site.vsctl("set port vm1 qos=@q -- --id=@q create qos type=linux-hfsc other-config:max-rate=16000");
    wait_for("a word", PATIENCE, || {
        site.lasthop.log().contains("vm1: Open vSwitch wants \"hfsc\" there, which lasthop has not")
    });
}

#[test]
fn queues_of_a_port_have_rates_of_their_own_and_count() {
    let mut site = Site::new();
    site.vsctl(
        "set port vm2 qos=@q -- --id=@q create qos type=linux-htb other-config:max-rate=1000000000 queues:1=@a queues:2=@b -- \
         --id=@a create queue other-config:max-rate=12000 -- --id=@b create queue other-config:max-rate=900000000",
    );
    site.ofctl(&["add-flow", "priority=9,in_port=1,dl_src=02:00:00:00:00:11,actions=set_queue:1,output:2"]);
    site.ofctl(&["add-flow", "priority=9,in_port=1,dl_src=02:00:00:00:00:12,actions=set_queue:2,output:2"]);
    let counted = |site: &Site, queue: &str| {
        let told = site.ofctl(&["queue-stats", "2", queue]);
        let number = |name: &str| {
            let rest = told.split(name).nth(1).unwrap_or_else(|| panic!("no {name} in {told}"));
            let digits: String = rest.chars().take_while(char::is_ascii_digit).collect();
            digits.parse::<usize>().unwrap_or_else(|_| panic!("no number behind {name} in {told}"))
        };
        [number("pkts="), number("errors=")]
    };
    let from = MacAddr([2, 0, 0, 0, 0, 0x11]);
    let mut came = send_many(&mut site, from, 1000);
    wait_for("all at the queue", PATIENCE, || {
        let [passed, dropped] = counted(&site, "1");
        passed + dropped > SENT as usize
    });
    let [passed, dropped] = counted(&site, "1");
    assert!(dropped > 10 && passed + dropped >= SENT as usize, "{passed} passed, {dropped} dropped");
    wait_for("what has passed", PATIENCE, || {
        came += arrived(&mut site.guests[1]);
        came + dropped >= SENT as usize
    });
    assert_eq!(came + dropped, SENT as usize, "what is told is true");
    // Another queue's packets do not wait for it, nor do those of none; after the death of lasthop-ovs as before.
    let other = MacAddr([2, 0, 0, 0, 0, 0x12]);
    for round in 0..2u32 {
        wait_for("the other queue to count", PATIENCE, || {
            let [a, b] = &mut site.guests;
            pass_at_last(a, b, &numbered(other, mac(2), 1, 60));
            counted(&site, "2")[0] > 0
        });
        for from in [other, mac(1)] {
            let [a, b] = &mut site.guests;
            pass_at_last(a, b, &numbered(from, mac(2), 1, 60));
            (0..SENT).for_each(|n| pass(a, b, &numbered(from, mac(2), 5000 + 500 * round + n, LEN)));
        }
        let [passed, dropped] = counted(&site, "2");
        assert!(passed > SENT as usize && dropped == 0, "round {round}: {passed} passed, {dropped} dropped");
        site.lasthop.kill("lasthop-ovs");
    }
    wait_for("what decides", PATIENCE, || site.lasthop.try_command(&["conntrack", "stats"]).status.success());
    let came = send_many(&mut site, from, 9000);
    assert!(came < SENT as usize - 10, "{came}");
    site.lasthop.check_sums();
}

/// A queue that is to have more than a greatest rate was taken, and had no more.
#[test]
fn least_rates_and_priorities_of_queues_are_refused_in_open_vswitchs_log() {
    let mut site = Site::new();
    site.vsctl(
        "set port vm2 qos=@q -- --id=@q create qos type=linux-htb other-config:max-rate=1000000000 queues:1=@a queues:2=@b queues:3=@c -- \
         --id=@a create queue other-config:min-rate=500000000 other-config:max-rate=900000000 -- --id=@b create queue other-config:priority=2 -- \
         --id=@c create queue other-config:max-rate=900000000",
    );
    // A queue's class is the next one's number, and they hang from 1:fffe.
    for (class, queue) in [("1:2", "queue 1 is refused"), ("1:3", "queue 2 is refused")] {
        let said = format!("failed to replace vm2 class {class}, parent 1:65534");
        wait_for("both to say so", PATIENCE, || {
            let log = site.logs();
            log.lines().any(|line| line.contains(&said) && line.contains("Operation not supported"))
                && log.contains(&format!("vm2: {queue}: lasthop keeps nothing free"))
        });
    }
    // The third is there, and the packets of those that are not pass as those of none.
    let told = site.ofctl(&["queue-stats", "2"]);
    assert!(told.contains("queue 3") && !told.contains("queue 1") && !told.contains("queue 2"), "{told}");
    site.ofctl(&["add-flow", "priority=9,in_port=1,actions=set_queue:1,output:2"]);
    let [a, b] = &mut site.guests;
    pass_at_last(a, b, &numbered(mac(1), mac(2), 1, 60));
    (0..SENT).for_each(|n| pass(a, b, &numbered(mac(1), mac(2), 100 + n, LEN)));
    site.lasthop.check_sums();
}

/// What Open vSwitch has set was to be found in the log alone.
#[test]
fn a_rate_that_open_vswitch_has_set_is_shown_at_its_port() {
    let site = Site::new();
    let list = |site: &Site| site.lasthop.command(&["port", "list"]);
    assert!(!list(&site).contains("Open vSwitch sets"), "{}", list(&site));
    site.vsctl("set interface vm1 ingress_policing_rate=8000 ingress_policing_burst=800");
    let said = "vm1: Open vSwitch sets 8000000 bits a second from there, which goes before";
    wait_for("the rate", PATIENCE, || list(&site).contains(said));
    // The same beside what the port is told, which has no effect meanwhile.
    let told = site.lasthop.command(&["port", "set", "vm1", "--rate-from", "5M"]);
    assert!(told.contains(said), "{told}");
    let shown = site.lasthop.command(&["show", "vm1"]);
    assert!(shown.contains("Open vSwitch sets 8000000 bits a second from there"), "{shown}");
    assert_eq!(site.lasthop.json(&["port", "list"])["rates"][0]["port"], "vm1");
    site.vsctl("set interface vm1 ingress_policing_kpkts_rate=1 ingress_policing_kpkts_burst=1");
    let both = "8000000 bits and 1000 packets a second from there";
    wait_for("both rates", PATIENCE, || list(&site).contains(both));
    site.vsctl("set interface vm1 ingress_policing_kpkts_rate=0");
    site.vsctl("set interface vm1 ingress_policing_rate=0");
    wait_for("none", PATIENCE, || !list(&site).contains("Open vSwitch sets"));
}
