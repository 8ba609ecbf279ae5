//! Two hosts, each with lasthop and the distribution's `ovs-vswitchd`, and links between their bridges that Open vSwitch looks after itself, by packets that it
//! exchanges with the other: BFD, CFM, LLDP, bonds with LACP, spanning trees. Packets in, packets out.

use lasthop_tests_process::{Host, PATIENCE, Station, hosts, mac, number_of, numbered, wait_for};
use lasthop_text::{MacAddr, parse_mac};
use std::collections::BTreeSet;

/// Two hosts with cables between them of these names, which are no ports yet.
fn linked(cables: &[&str]) -> [Host; 2] {
    let hosts = hosts();
    let [a, b] = &hosts;
    for cable in cables {
        a.netns.ip(&format!("link add {cable} type veth peer name {cable} netns {}", b.netns.name()));
        hosts.iter().for_each(|host| host.netns.ip(&format!("link set {cable} up")));
    }
    hosts
}

/// From now on a cable carries nothing, and neither end is told: no packet is as short as what may go.
fn cut(hosts: &[Host; 2], cable: &str) {
    for host in hosts {
        host.netns.shell(&format!("tc qdisc add dev {cable} root tbf rate 8kbit burst 10 limit 10"));
    }
}

/// It carries again.
fn mend(hosts: &[Host; 2], cable: &str) {
    hosts.iter().for_each(|host| drop(host.netns.shell(&format!("tc qdisc del dev {cable} root"))));
}

/// What the database says at last of both.
fn both_say(hosts: &[Host; 2], words: &str, wanted: &str) {
    for host in hosts {
        let mut said = String::new();
        wait_for(&format!("{wanted} of {words} at host {}", host.number), PATIENCE, || {
            said = host.vsctl(words);
            said.trim() == wanted
        });
    }
}

#[test]
fn bfd_says_whether_a_link_carries() {
    let hosts = linked(&["l1"]);
    for host in &hosts {
        host.vsctl("add-port br0 l1 -- set interface l1 bfd:enable=true bfd:min_rx=200 bfd:min_tx=200");
    }
    both_say(&hosts, "get interface l1 bfd_status:state", "up");
    both_say(&hosts, "get interface l1 bfd_status:forwarding", "\"true\"");
    let [a, b] = &hosts;
    a.reaches(b);
    cut(&hosts, "l1");
    both_say(&hosts, "get interface l1 bfd_status:state", "down");
    both_say(&hosts, "get interface l1 bfd_status:forwarding", "\"false\"");
    mend(&hosts, "l1");
    both_say(&hosts, "get interface l1 bfd_status:forwarding", "\"true\"");
    a.reaches(b);
}

#[test]
fn cfm_finds_a_link_that_carries_nothing() {
    let hosts = linked(&["l1"]);
    let [a, b] = &hosts;
    for host in &hosts {
        let mpid = host.number;
        host.vsctl(&format!("add-port br0 l1 -- set interface l1 cfm_mpid={mpid} other_config:cfm_interval=100"));
    }
    let says = |host: &Host, what: &str, wanted: &str| {
        wait_for(&format!("{what} {wanted}"), PATIENCE, || {
            host.vsctl(&format!("get interface l1 {what}")).trim() == wanted
        });
    };
    says(a, "cfm_remote_mpids", "[2]");
    says(b, "cfm_remote_mpids", "[1]");
    // Most of two seconds' messages have come.
    for host in &hosts {
        wait_for("messages of CFM's", PATIENCE, || {
            host.vsctl("get interface l1 cfm_health").trim().parse::<u32>().is_ok_and(|health| health >= 70)
        });
        says(host, "cfm_fault", "false");
    }
    a.reaches(b);
    cut(&hosts, "l1");
    hosts.iter().for_each(|host| says(host, "cfm_fault", "true"));
}

/// What LLDP's messages consist of: type, length and value (IEEE 802.1AB, 8.4).
fn tlv(kind: u8, value: &[u8]) -> Vec<u8> {
    [&(u16::from(kind) << 9 | value.len() as u16).to_be_bytes(), value].concat()
}

/// Their types and values, up to the end.
fn tlvs(mut message: &[u8]) -> Vec<(u8, Vec<u8>)> {
    let mut read = Vec::new();
    while let Some((head, rest)) = message.split_first_chunk() {
        let head = u16::from_be_bytes(*head);
        let (value, rest) = rest.split_at(usize::from(head & 0x1ff));
        read.push(((head >> 9) as u8, value.to_vec()));
        message = if head == 0 { &[] } else { rest };
    }
    read
}

/// Each bridge learns of the other and of a machine at a port of its own, and that machine of the bridge.
#[test]
fn lldp_says_who_is_at_the_other_end() {
    const MESSAGE: [u8; 2] = [0x88, 0xcc];
    let nearest = MacAddr([1, 0x80, 0xc2, 0, 0, 0x0e]);
    let hosts = linked(&["l1"]);
    for host in &hosts {
        host.vsctl("add-port br0 l1 -- set interface l1 lldp:enable=true -- set interface p lldp:enable=true");
    }
    let station = Station::on(&hosts[0].guest, "g");
    let ours = [tlv(1, &[4, 2, 0, 0, 0, 0, 7]), tlv(2, b"\x05g"), tlv(3, &[0, 120]), tlv(0, &[])].concat();
    station.send(&[&nearest.0[..], &mac(7).0, &MESSAGE, &ours].concat());
    let theirs = loop {
        let frame = station.recv_within(PATIENCE).expect("a message of LLDP's");
        if frame.get(12..14) == Some(&MESSAGE) {
            break frame;
        }
    };
    assert_eq!(theirs[..6], nearest.0);
    let address = |host: &Host, of: &str| {
        host.vsctl(&format!("get interface {of} mac_in_use")).trim().trim_matches('"').to_owned()
    };
    let told = tlvs(&theirs[14..]);
    let chassis = [&[4][..], &parse_mac(&address(&hosts[0], "p")).expect("an address").0].concat();
    assert_eq!(told[..2], [(1, chassis), (2, b"\x05p".to_vec())]);
    assert!(told.iter().any(|(kind, name)| *kind == 6 && name.starts_with(b"openvswitch")), "{told:?}");
    let [a, b] = &hosts;
    for (host, other) in [(a, b), (b, a)] {
        let id = format!("Auto Attach Primary Server Id: {}", address(other, "l1"));
        wait_for(&id, PATIENCE, || host.appctl(&["autoattach/status", "br0"]).contains(&id));
    }
    // The machine's message was one, was in order, and told of somebody new.
    let statistics = a.appctl(&["autoattach/statistics", "br0"]);
    let of_p = statistics.split("Statistics: ").find(|of| of.starts_with("p\n")).expect("statistics of p");
    for line in ["rx cnt: 1\n", "rx discarded cnt: 0\n", "insert cnt: 1\n"] {
        assert!(of_p.contains(line), "{line}: {of_p}");
    }
}

/// A UDP packet of one of many connections, from host 1 to host 2.
fn of_connection(port: u16, number: u8) -> Vec<u8> {
    let mut frame = lasthop_conntrack::testutil::Ends::v4(port, 7).udp(20);
    *frame.last_mut().expect("a payload") = number;
    frame
}

/// Packets and bytes that two links of a host's have been given.
fn given(host: &Host) -> [u64; 2] {
    ["l1", "l2"].map(|link| host.carried(link, "to_guest").0)
}

/// Sends one packet of each of so many connections; those that come.
fn spread(from: &Station, to: &Station, connections: u16, number: u8) -> BTreeSet<u16> {
    let ports = 1000..1000 + connections;
    ports.clone().for_each(|port| from.send(&of_connection(port, number)));
    let mut came = BTreeSet::new();
    while came.len() < usize::from(connections) {
        // All, or what has come when nothing comes any more.
        let Some(frame) = to.recv_within(std::time::Duration::from_secs(1)) else { break };
        came.extend(ports.clone().filter(|port| frame == of_connection(*port, number)));
    }
    came
}

/// The bond of both links is made, and the hash spreads what goes over it; a link that carries nothing any more is left, when LACP finds it so.
fn bonds(mode: &str) {
    const CONNECTIONS: u16 = 64;
    let hosts = linked(&["l1", "l2"]);
    let [a, b] = &hosts;
    for host in &hosts {
        host.vsctl(&format!("add-bond br0 bond l1 l2 bond_mode={mode} lacp=active other_config:lacp-time=fast"));
    }
    for host in &hosts {
        wait_for("LACP", PATIENCE, || {
            let members = host.appctl(&["lacp/show", "bond"]);
            let attached = members.matches("current attached").count() == 2;
            let bond = host.appctl(&["bond/show", "bond"]);
            // A link that is attached is used a little later; who sends before has all on the other one.
            attached && bond.contains("lacp_status: negotiated") && bond.matches(": enabled").count() == 2
        });
    }
    a.reaches(b);
    let (from, to) = (Station::on(&a.guest, "g"), Station::on(&b.guest, "g"));
    // What goes over the bond while one link alone is used, as a packet of the host's own may before both are found well, has Open vSwitch put all
    // connections on that, until it balances them by their bytes. Another basis of the hash has it choose anew, among both.
    a.vsctl("set port bond other_config:bond-hash-basis=1");
    let before = given(a);
    let rounds = 4;
    for number in 0..rounds {
        let came = spread(&from, &to, CONNECTIONS, number);
        assert_eq!(came.len(), usize::from(CONNECTIONS), "round {number}");
    }
    let now = given(a);
    let [first, second] = [now[0] - before[0], now[1] - before[1]];
    eprintln!("{first} and {second} packets");
    assert!(first + second >= u64::from(CONNECTIONS) * u64::from(rounds), "{first} and {second}");
    if mode == "balance-tcp" {
        // With 64 connections and a fair hash fewer than 12 on one side are one in 10 000 000.
        assert!(first.min(second) >= 12 * u64::from(rounds), "spread: {first} and {second}");
        let flows = a.appctl(&["dpctl/dump-flows"]);
        assert!(flows.contains("hash(l4(1)),recirc("), "{flows}");
        assert!(flows.contains("dp_hash("), "{flows}");
    }

    cut(&hosts, "l1");
    wait_for("the other link alone", PATIENCE, || {
        a.appctl(&["lacp/show", "bond"]).matches("current attached").count() == 1
            && spread(&from, &to, CONNECTIONS, 100).len() == usize::from(CONNECTIONS)
    });
    let before = given(a);
    assert_eq!(spread(&from, &to, CONNECTIONS, 101).len(), usize::from(CONNECTIONS));
    let now = given(a);
    assert!(now[1] - before[1] >= CONNECTIONS.into(), "{before:?}, {now:?}");
    assert!(now[0] - before[0] < 10, "nothing but LACP's goes there: {before:?}, {now:?}");
    b.reaches(a);

    mend(&hosts, "l1");
    wait_for("both links", PATIENCE, || a.appctl(&["lacp/show", "bond"]).matches("current attached").count() == 2);
    assert_eq!(spread(&from, &to, CONNECTIONS, 102).len(), usize::from(CONNECTIONS));
}

#[test]
fn a_bond_spreads_connections_and_goes_on_over_one_link() {
    bonds("balance-tcp");
}

#[test]
fn a_bond_that_balances_by_address_goes_on_over_one_link() {
    bonds("balance-slb");
}

/// Two links between two bridges: one of them is in use, a frame for all comes once, and when that link carries nothing any more the other takes over.
fn trees(enable: &str, [column, received]: [&str; 2], show: &str) {
    let hosts = linked(&["l1", "l2"]);
    let [a, b] = &hosts;
    hosts.iter().for_each(|host| drop(host.vsctl(&format!("set bridge br0 {enable}"))));
    hosts.iter().for_each(|host| drop(host.vsctl("add-port br0 l1 -- add-port br0 l2")));
    let is_used = |link: &str| {
        hosts.iter().all(|host| {
            host.vsctl(&format!("--if-exists get port {link} {column}")).to_lowercase().contains("forwarding")
        })
    };
    let in_use = || ["l1", "l2"].into_iter().filter(|link| is_used(link)).collect::<Vec<_>>();
    let root_is_known = || {
        let roots = hosts.iter().filter(|host| host.appctl(&[show, "br0"]).contains("This bridge is the root"));
        roots.count() == 1
    };
    wait_for("one root and one link", 3 * PATIENCE, || root_is_known() && in_use().len() == 1);
    a.reaches(b);
    let (from, to) = (Station::on(&a.guest, "g"), Station::on(&b.guest, "g"));
    let once = |first: u32| {
        for number in first..first + 20 {
            from.send(&numbered(mac(9), MacAddr::BROADCAST, number, 300));
        }
        let mut came: Vec<_> = to.drain().iter().filter_map(|frame| number_of(frame)).collect();
        // The first come through two threads of Open vSwitch, which may be held up; here it is how often that counts.
        came.sort_unstable();
        assert_eq!(came, (first..first + 20).collect::<Vec<_>>(), "each once");
        let back = from.drain().iter().filter(|frame| number_of(frame).is_some()).count();
        assert_eq!(back, 0, "none came back");
    };
    // It stays so: one bridge goes on telling the other. What the database says is some seconds old.
    wait_for("messages of the tree's", PATIENCE, || {
        let of = |host: &Host, link: &str| {
            host.vsctl(&format!("--if-exists get port {link} {received}")).trim().parse::<u32>()
        };
        let all = hosts.iter().flat_map(|host| ["l1", "l2"].map(|link| of(host, link).unwrap_or_default()));
        all.sum::<u32>() >= 20
    });
    assert!(root_is_known());
    once(1);
    let used = in_use();
    assert_eq!(used.len(), 1, "the other is blocked");
    cut(&hosts, used[0]);
    wait_for("the other link", 3 * PATIENCE, || a.ping(b, ""));
    a.reaches(b);
    once(100);
}

#[test]
#[ignore = "a quarter of a minute of forward delays; `cargo xtask test --long` runs it"]
fn a_rapid_spanning_tree_uses_one_of_two_links() {
    trees(
        "rstp_enable=true other_config:rstp-hello-time=1",
        ["rstp_status:rstp_port_state", "rstp_statistics:rstp_rx_count"],
        "rstp/show",
    );
}

#[test]
#[ignore = "half a minute of forward delays; `cargo xtask test --long` runs it"]
fn a_spanning_tree_uses_one_of_two_links() {
    trees(
        "stp_enable=true other_config:stp-forward-delay=4 other_config:stp-hello-time=1 other_config:stp-max-age=6",
        ["status:stp_state", "statistics:stp_rx_count"],
        "stp/show",
    );
}
