//! Lists against their definition: parsed text means what it says, first match wins, and a flow's mask is enough.

use super::*;
use crate::testutil::{Bench, Op, compare};
use crate::{Limits, PortLists};
use lasthop_frame::{FlowKey, FlowMask};
use lasthop_types::{MacAddr, PortId};
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;
use zerocopy::IntoBytes;

const TCP: u8 = 6;
const UDP: u8 = 17;

/// A frame of `proto` from and to these addresses (of one IP version) and ports.
pub(super) fn frame(src: &str, dst: &str, proto: u8, sport: u16, dport: u16) -> FlowKey {
    let mut key = FlowKey { in_port: 1, ip_proto: proto, l4_src: sport, l4_dst: dport, ..FlowKey::default() };
    (key.eth_src, key.eth_dst) = ([0x52, 0x54, 0, 0, 0, 1], [0x52, 0x54, 0, 0, 0, 2]);
    for (text, field) in [(src, &mut key.ip_src), (dst, &mut key.ip_dst)] {
        match text.parse().unwrap() {
            IpAddr::V4(a) => {
                field[12..].copy_from_slice(&a.octets());
                key.eth_type = 0x0800;
            }
            IpAddr::V6(a) => {
                *field = a.octets();
                key.eth_type = 0x86dd;
            }
        }
    }
    key
}

fn list(text: &str) -> List {
    let mut lists = read(text, None).unwrap_or_else(|e| panic!("{e}"));
    List::new(lists.take(Direction::FromGuest).unwrap())
}

fn permits(text: &str, key: &FlowKey) -> bool {
    list(text).decide(key).permits()
}

#[test]
fn first_match_wins() {
    let text = "permit tcp to 10.0.0.2 port 22\ndeny tcp to any port 22,80-90\ndeny udp # all of it\n";
    let to = |dst, proto, port| permits(text, &frame("10.0.0.1", dst, proto, 40_000, port));
    assert!(to("10.0.0.2", TCP, 22));
    assert!(!to("10.0.0.3", TCP, 22));
    assert!(!to("10.0.0.2", TCP, 80) && !to("10.0.0.2", TCP, 90) && to("10.0.0.2", TCP, 91));
    assert!(!to("10.0.0.2", UDP, 22));
    assert!(permits(text, &frame("fd00::1", "fd00::2", TCP, 1, 23)));
    assert!(!permits(text, &frame("fd00::1", "fd00::2", TCP, 1, 22)));
    assert!(!permits("default deny\npermit arp", &frame("10.0.0.1", "10.0.0.2", TCP, 1, 2)));
}

#[test]
fn each_condition_tells_frames_apart() {
    let tcp = frame("10.1.2.3", "10.4.5.6", TCP, 1000, 80);
    let v6 = frame("fd00:1::1", "fd00:2::1", UDP, 1000, 53);
    let echo = frame("10.1.2.3", "10.4.5.6", 1, 8, 0);
    let arp = FlowKey { eth_type: 0x0806, ip_proto: 1, l4_src: 0, l4_dst: 0, ..tcp };
    let tagged = FlowKey { vlan_tci: FlowKey::VLAN_PRESENT | 7, vlan_tpid: 0x8100, ..tcp };
    let all = [tcp, v6, echo, arp, tagged];
    for (what, matching) in [
        ("any", &[0, 1, 2, 3, 4][..]),
        ("ip", &[0, 1, 2, 4]),
        ("ipv4", &[0, 2, 4]),
        ("ipv6", &[1]),
        ("arp", &[3]),
        ("ethertype 0x0806", &[3]),
        ("arp from 10.1.0.0/16", &[3]),
        ("arp from 10.2.0.0/16", &[]),
        ("tcp", &[0, 4]),
        ("ipv6 udp", &[1]),
        ("icmp", &[2]),
        ("icmp type 8", &[2]),
        ("icmp type 8 code 0", &[2]),
        ("icmp type 0,3-7 code 0", &[]),
        ("icmpv6", &[]),
        ("proto 17", &[1]),
        ("from 10.1.2.0/24", &[0, 2, 4]),
        ("from 10.1.3.0/24", &[]),
        ("ip from 0.0.0.0/0", &[0, 2, 4]),
        ("to fd00:2::/32", &[1]),
        ("from any port 1000", &[0, 1, 4]),
        ("ip from any port 1000 to any port 53", &[1]),
        ("tcp to any port 79,81-90", &[]),
        ("vlan 7", &[4]),
        ("vlan none", &[0, 1, 2, 3]),
        ("any vlan 8", &[]),
        ("from-mac 52:54:00:00:00:01", &[0, 1, 2, 3, 4]),
        ("from-mac 52:54:00:00:00:02", &[]),
        ("to-mac 52:54:00:ff:ff:ff/ff:ff:ff:00:00:00", &[0, 1, 2, 3, 4]),
        ("to-mac 52:55:00:ff:ff:ff/ff:ff:ff:00:00:00", &[]),
    ] {
        let text = format!("deny {what}");
        let found: Vec<_> = (0..all.len()).filter(|i| !permits(&text, &all[*i])).collect();
        assert_eq!(found, matching, "{what}");
    }
}

#[test]
fn later_fragments_pass_where_their_datagram_may_and_are_never_denied_by_ports() {
    let later = |mut key: FlowKey| {
        (key.l4_src, key.l4_dst, key.ip_frag) = (0, 0, FlowKey::FRAG_ANY | FlowKey::FRAG_LATER);
        key
    };
    let udp = later(frame("10.0.0.1", "10.0.0.2", UDP, 0, 0));
    assert!(permits("default deny\npermit udp to 10.0.0.2 port 53", &udp));
    assert!(!permits("default deny\npermit udp to 10.0.0.3 port 53", &udp));
    assert!(!permits("default deny\npermit tcp to 10.0.0.2 port 53", &udp));
    assert!(permits("deny udp to 10.0.0.2 port 0", &udp), "its ports are not 0: it has none");
    assert!(!permits("deny udp to 10.0.0.2", &udp));
    let icmp = later(frame("10.0.0.1", "10.0.0.2", 1, 0, 0));
    assert!(permits("deny icmp type 0", &icmp) && permits("default deny\npermit icmp type 8", &icmp));
}

#[test]
fn malformed_headers_are_dropped_by_lists_that_look_at_headers() {
    let good = frame("10.0.0.1", "10.0.0.2", TCP, 1, 2);
    for anomaly in [FlowKey::MALFORMED_L3, FlowKey::MALFORMED_L4, FlowKey::DEEP_VLAN, FlowKey::DEEP_EXTENSIONS] {
        let bad = FlowKey { anomalies: anomaly, ..good };
        assert_eq!(list("permit any\ndeny udp").decide(&bad), Decision::Malformed);
        assert!(permits("deny vlan 9", &bad), "a list of link-layer rules does not care");
    }
}

#[test]
fn errors_say_where_and_what() {
    for (text, only, error) in [
        ("permit any\n\n  allow tcp", None, "line 3, column 3: \"allow\": expected permit, deny, default or for"),
        ("deny tcp portt 5", None, "line 1, column 10: \"portt\": expected any, ip,"),
        ("deny tcp port 5", None, "line 1, column 10: port needs from or to before it"),
        ("deny tcp to any port 5-", None, "line 1, column 22: \"5-\": expected numbers up to 65535"),
        ("deny tcp to any port 9-5", None, "line 1, column 22: 9-5 is upside down; write 5-9"),
        ("deny tcp to any port 70000", None, "\"70000\": expected numbers up to 65535"),
        ("deny tcp to", None, "line 1, column 12: the line ends here; expected an address"),
        ("deny tcp to 10.0.0.0/33", None, "line 1, column 13: \"10.0.0.0/33\": expected a prefix length"),
        ("deny tcp to 10.0.0", None, "expected an IPv4 or IPv6 address"),
        ("deny tcp udp", None, "line 1, column 10: \"udp\" after \"tcp\" in the same rule"),
        ("deny icmp to any port 5", None, "only tcp, udp and sctp have ports"),
        ("deny tcp type 5", None, "type needs icmp"),
        ("deny icmp code 5", None, "a code means nothing without its type"),
        ("deny from 10.0.0.1 to fd00::1", None, "line 1, column 20: \"to\" has an address of another version"),
        ("deny icmp from fd00::1", None, "another version"),
        ("deny ipv6 icmp", None, "\"icmp\" is IPv4's"),
        ("deny arp tcp", None, "could never match"),
        ("deny arp from fd00::1", None, "ARP is IPv4's"),
        ("deny ethertype 0x8100", None, "not a VLAN tag's"),
        ("deny vlan 4095", None, "a VLAN id from 1 to 4094"),
        ("deny from-mac 52:54", None, "an address such as 52:54:00:12:34:56"),
        ("deny tcp from-guest", None, "a direction stands right behind permit or deny"),
        ("deny to-guest tcp", Some(Direction::FromGuest), "this line is for to-guest, but only from-guest is loaded"),
        ("default deny\ndefault permit", None, "line 2, column 1: a second default"),
        ("permit any\npermit", None, "line 2, column 7: the line ends here; expected any, ip,"),
        ("deny to-guest # all", None, "line 1, column 14: the line ends here; expected any, ip,"),
        ("default drop", None, "\"drop\": expected permit or deny"),
        ("default", None, "line 1, column 8: the line ends here; expected permit or deny"),
        ("default deny all", None, "line 1, column 14: \"all\": expected nothing more"),
        ("ü ü", None, "line 1, column 1: \"ü\""),
        ("deny ü x", None, "line 1, column 6:"),
        ("deny\0any", None, "not a text file"),
    ] {
        let e = read(text, only).unwrap_err().to_string();
        assert!(e.contains(error), "{text:?}: {e}");
    }
    assert!(read(&"deny any\n".repeat(MAX_RULES), None).is_ok());
    let e = read(&"deny any\n".repeat(MAX_RULES + 1), None).unwrap_err();
    assert_eq!((e.line, e.column), (MAX_RULES + 1, 1));
    assert!(read(&"#".repeat(MAX_TEXT + 1), None).is_err());
    assert!(read(&format!("permit any\ndeny {}", "tcp ".repeat(1000)), None).unwrap_err().message.contains("over"));
}

#[test]
fn directions_and_defaults() {
    let both = "default deny\npermit any\npermit to-guest arp\n";
    let mut lists = read(both, None).unwrap();
    let (from, to) = (lists.take(Direction::FromGuest).unwrap(), lists.take(Direction::ToGuest).unwrap());
    assert_eq!((from.rules.len(), to.rules.len()), (1, 1));
    assert_eq!((from.default, to.default), (Action::Deny, Action::Deny));
    let mut lists = read("default to-guest deny\npermit any", None).unwrap();
    assert_eq!(lists.take(Direction::FromGuest).unwrap().default, Action::Permit);
    assert_eq!(lists.take(Direction::ToGuest).unwrap().default, Action::Deny);
    let mut lists = read("permit any", Some(Direction::ToGuest)).unwrap();
    assert_eq!(lists.take(Direction::FromGuest), None);
    assert_eq!(lists.take(Direction::ToGuest).unwrap().rules.len(), 1);
    assert_eq!(read("# nothing", None).unwrap().take(Direction::FromGuest).unwrap().default, Action::Permit);
    assert_eq!(read("default deny", None).unwrap().take(Direction::FromGuest).unwrap().default, Action::Deny);
    assert_eq!(read("default deny", None).unwrap().take(Direction::ToGuest), None);
}

#[test]
fn classbench_in_all_its_spellings() {
    let text = "# a comment\n\
        @192.151.11.17/32\t15.0.120.4/32\t10 : 655\t1221 : 1221\t0x06/0xff\t0x0000/0x0000\t\n\
        @192.0.0.0/8 0.0.0.0/0 0:65535 53:53 0x11/0xFF\n\
        @0.0.0.0/0\t0.0.0.0/0\t0 : 65535\t0 : 65535\t0x00/0x00\t0x1000/0x1000\n\
        @10.0.0.0/8\t0.0.0.0/0\t0 : 65535\t7 : 7\t0x2F/0xFF\n\
        @fd00::/16\t::/0\t0 : 65535\t80 : 80\t0x00/0x00\n";
    let set = read_classbench(text, Action::Deny).unwrap();
    assert_eq!((set.rules.len(), set.never, set.flags), (4, 1, 1));
    let text: Vec<_> = set.rules.iter().map(ToString::to_string).collect();
    assert_eq!(
        text,
        [
            "deny tcp from 192.151.11.17 port 10-655 to 15.0.120.4 port 1221",
            "deny udp from 192.0.0.0/8 to 0.0.0.0/0 port 53",
            "deny ip from 0.0.0.0/0 to 0.0.0.0/0",
            "deny ip from fd00::/16 to ::/0 port 80",
        ]
    );
    assert!(looks_like_classbench("\n# x\n @1.2.3.4/5") && !looks_like_classbench("permit any\n@"));
    for (bad, error) in [
        ("1.2.3.4/32", "line 1, column 1: \"1.2.3.4/32\": expected @"),
        ("@1.2.3.4 1.2.3.4/32", "column 2: \"1.2.3.4\": expected an address and its prefix length"),
        ("@1.2.3.4/32\t1.2.3.4/32\t5", "column 25: the line ends here; expected : between"),
        ("@1.2.3.4/32\t1.2.3.4/32\t5 : 4\t0 : 1\t0x06/0xff", "not below the first"),
        ("@1.2.3.4/32\t1.2.3.4/32\t0 : 4\t0 : 1\t0x06/0x0f", "0x00 or 0xFF"),
        ("@1.2.3.4/32\t1.2.3.4/32\t0 : 4\t0 : 65536\t0x06/0x0f", "column 34: \"65536\": expected a port"),
        ("@1.2.3.4/32\tfd00::/32\t0 : 4\t0 : 1\t0x06/0x0f", "same IP version"),
        ("@1.2.3.4/32\t1.2.3.4/32\t0 : 4\t0 : 1\t0x06/0xff\t0x0000/0x0000\tx", "the end of the line"),
        ("@1.2.3.4/32\t1.2.3.4/32\t0 : 4\t0 : 1", "the line ends here; expected the protocol"),
    ] {
        let e = read_classbench(bad, Action::Deny).unwrap_err().to_string();
        assert!(e.contains(error), "{bad:?}: {e}");
    }
}

#[test]
fn a_book_keeps_lists_and_ports_own_go_first() {
    let mut book = Book::default();
    let deny = read("default deny\npermit to-guest icmp", None).unwrap();
    let permit = read("permit any", None).unwrap();
    book.replace(&Scope::Guests, None, &deny).unwrap();
    let vm1 = Scope::Port("vm-1.a".into());
    book.replace(&vm1, Some(Direction::ToGuest), &read("permit any", Some(Direction::ToGuest)).unwrap()).unwrap();
    let scopes = |book: &Book, port: &str| book.of_port(port, false).map(|l| l.map(|(scope, _)| scope));
    assert_eq!(scopes(&book, "vm-1.a"), [None, Some(vm1.clone())]);
    assert_eq!(scopes(&book, "vm2"), [None, Some(Scope::Guests)]);
    let text = book.to_text();
    assert_eq!(Book::from_text(&text).unwrap(), book);
    for cut in 0..text.len() {
        assert!(Book::from_text(&text[..cut]).is_err() || cut + 1 == text.len(), "{:?}", &text[..cut]);
    }
    book.replace(&Scope::Guests, None, &permit).unwrap();
    assert_eq!(scopes(&book, "vm2"), [Some(Scope::Guests), None], "loading replaces both directions");
    book.replace(&vm1, None, &Lists::default()).unwrap();
    assert!(!book.has(&vm1, None) && book.has(&Scope::Guests, Some(Direction::FromGuest)));
}

#[test]
fn a_file_says_whom_it_is_for() {
    let port = |name: &str| vec![Scope::Port(name.into())];
    for (text, scopes) in [
        ("permit any", vec![]),
        ("for guests\npermit any", vec![Scope::Guests]),
        ("# whom\n\nfor uplinks # the network\ndefault deny", vec![Scope::Uplinks]),
        ("for all\ndefault deny", vec![Scope::Guests, Scope::Uplinks]),
        ("for port vm1\npermit any", port("vm1")),
        ("for port guests\npermit any", port("guests")),
    ] {
        assert_eq!(read(text, None).unwrap().scopes(), scopes, "{text}");
    }
    for (text, column, wrong) in [
        ("for", 4, "guests, uplinks, all, or port and a name"),
        ("for vm1", 5, "\"vm1\": expected guests, uplinks, all, or port and a name"),
        ("for port", 9, "a port's name"),
        ("for guests uplinks", 12, "nothing more"),
        ("for guests\nfor uplinks", 1, "second line"),
        ("permit any\nfor guests", 1, "move it to the top"),
        ("default deny\nfor guests", 1, "move it to the top"),
    ] {
        let error = read(text, None).unwrap_err();
        assert_eq!(error.column, column, "{text:?}: {error}");
        assert!(error.message.contains(wrong), "{text:?}: {error}");
    }
}

/// A file that was emptied by mistake would open what a general list closes.
#[test]
fn a_file_that_says_nothing_is_known() {
    for nothing in ["", "\n\n", "# permit any", "for guests"] {
        assert!(read(nothing, None).unwrap().says_nothing(), "{nothing:?}");
        assert!(read(nothing, Some(Direction::ToGuest)).unwrap().says_nothing(), "{nothing:?}");
    }
    for something in ["permit any", "default permit", "default to-guest deny"] {
        assert!(!read(something, None).unwrap().says_nothing(), "{something:?}");
    }
}

#[test]
fn guests_and_uplinks_have_lists_of_their_own() {
    let mut book = Book::default();
    book.replace(&Scope::Guests, None, &read("deny udp from any port 67", None).unwrap()).unwrap();
    let scope = |book: &Book, port: &str, uplink| book.of_port(port, uplink).map(|l| l.map(|(scope, _)| scope));
    assert_eq!(scope(&book, "vm1", false), [Some(Scope::Guests), None]);
    assert_eq!(scope(&book, "net", true), [None, None], "what guards against guests does not stop the network");
    book.replace(&Scope::Uplinks, None, &read("permit any", None).unwrap()).unwrap();
    assert_eq!(scope(&book, "net", true), [Some(Scope::Uplinks), None]);
    assert_eq!(Book::from_text(&book.to_text()).unwrap(), book);
}

/// Before, general lists held for uplinks too. A new version that reads them must not open what they closed.
#[test]
fn general_lists_of_before_hold_for_guests_and_uplinks() {
    let text = "# lasthop access lists, format 1. `lasthop acl load` writes this file.\n\
                list from-guest deny general\npermit any\nlist to-guest deny port vm1\nend 3\n";
    let book = Book::from_text(text).unwrap();
    assert!(Book::was_for_all(text));
    for (port, uplink, scope) in [("vm2", false, Scope::Guests), ("net", true, Scope::Uplinks)] {
        let [from, to] = book.of_port(port, uplink);
        assert_eq!((from.unwrap().0, to), (scope, None));
    }
    assert!(matches!(&book.of_port("vm1", false)[1], Some((Scope::Port(name), _)) if name == "vm1"));
    let new = book.to_text();
    assert!(new.starts_with("# lasthop access lists, format 2."), "{new}");
    assert_eq!(Book::from_text(&new).unwrap(), book);
    assert!(!Book::was_for_all(&new));
}

// ---- with learning --------------------------------------------------------------------------------------------------

fn lists(from: &str, to: &str) -> PortLists {
    let one = |text: &str| (!text.is_empty()).then(|| (Scope::Guests, Arc::new(list(text))));
    [one(from), one(to)]
}

fn everywhere(from: &str, to: &str) -> BTreeMap<PortId, PortLists> {
    let both = lists(from, to);
    (1..5).map(|n| (PortId(n), both.clone())).collect()
}

fn to(ports: &[u32]) -> Vec<lasthop_flow::Action> {
    ports.iter().map(|p| lasthop_flow::Action::Output(PortId(*p))).collect()
}

const DROP: [lasthop_flow::Action; 1] = [lasthop_flow::Action::Drop(lasthop_types::DropReason::Acl)];

fn from_port(port: u32, key: FlowKey) -> FlowKey {
    let mut key = FlowKey { in_port: port, ..key };
    key.eth_src[5] = port as u8;
    key
}

#[test]
fn one_flow_drops_a_whole_scan() {
    let mut b = Bench::new(Limits::default(), 2);
    b.load(everywhere("deny tcp to any port 0-1023", ""));
    b.packet(&from_port(2, frame("10.0.0.2", "10.0.0.1", TCP, 9, 2000)));
    let asked = b.next_id;
    for n in 0..1000u32 {
        let host = format!("10.0.{}.{}", n % 7, n % 250);
        assert_eq!(b.packet(&from_port(1, frame("10.0.0.1", &host, TCP, 1000 + n as u16, n as u16))), DROP);
    }
    assert_eq!(b.next_id, asked + 1, "one judgement for a thousand denied packets");
    assert_eq!(b.policy.mac_count(), 1, "what may not enter teaches nothing");
    assert_eq!(b.packet(&from_port(1, frame("10.0.0.1", "10.0.0.2", TCP, 9, 1024))), to(&[2]));
}

#[test]
fn receivers_lists_thin_out_a_flood() {
    let mut b = Bench::new(Limits::default(), 4);
    let mut own = everywhere("", "");
    own.insert(PortId(3), lists("", "deny icmp"));
    b.load(own);
    let echo = from_port(1, frame("10.0.0.1", "10.0.0.9", 1, 8, 0));
    let echo = FlowKey { eth_dst: [0xff; 6], ..echo };
    assert_eq!(b.packet(&echo), to(&[2, 4]));
    assert_eq!(b.packet(&FlowKey { ip_proto: UDP, ..echo }), to(&[2, 3, 4]));
    b.port(2, false);
    assert_eq!(b.packet(&echo), to(&[4]));
    b.port(4, false);
    assert_eq!(b.packet(&echo), DROP, "only the port that does not want it is left");
    b.port(3, false);
    let nowhere = [lasthop_flow::Action::Drop(lasthop_types::DropReason::NoOtherPort)];
    assert_eq!(b.packet(&echo), nowhere);
}

/// What was denied, as `lasthop stats` has it: port, rule, packets, milliseconds since the last.
fn denied(b: &Bench) -> Vec<(u32, Option<u32>, u64, u64)> {
    let of = |(port, why, denied): (PortId, &crate::Why, &crate::Denied)| {
        (port.0, why.1.as_ref().and_then(|by| by.rule), denied.packets, b.now_ms - denied.last_ms)
    };
    b.policy.denied().map(of).collect()
}

#[test]
fn what_a_rule_denied_is_counted_while_its_flows_come_and_go() {
    let mut b = Bench::new(Limits::default(), 3);
    let mut both = everywhere("deny icmp\ndefault deny", "");
    both.insert(PortId(3), lists("", "deny tcp"));
    b.load(both);
    let echo = from_port(1, frame("10.0.0.1", "10.0.0.2", 1, 8, 0));
    assert_eq!(b.packet(&echo), DROP);
    b.packet(&from_port(2, frame("10.0.0.2", "10.0.0.1", TCP, 9, 80)));
    assert_eq!(denied(&b), [], "the switch has not been asked");
    b.hits = 3;
    b.poll(1000);
    assert_eq!(denied(&b), [(1, Some(1), 3, 1000), (2, Some(0), 3, 1000)]);
    assert_eq!(b.policy.denied().next().unwrap().2.packet, echo);
    b.hits = 5;
    b.poll(1000);
    assert_eq!(denied(&b)[0], (1, Some(1), 5, 2000), "two more, and not five");
    // The flow is evicted, and comes again: the switch counts from 0.
    b.table.clear();
    b.poll(1000);
    assert_eq!(denied(&b)[0], (1, Some(1), 5, 3000));
    b.packet(&echo);
    b.hits = 1;
    b.poll(0);
    assert_eq!(denied(&b)[0], (1, Some(1), 6, 0));
    // Control is started anew: it counts what the flows that are there have carried.
    b.restart_control();
    assert_eq!(denied(&b), [(1, Some(1), 1, 0)]);
    // A receiver's list.
    b.packet(&from_port(3, frame("10.0.0.3", "10.0.0.1", TCP, 9, 80)));
    let to_3 = FlowKey { eth_dst: [0x52, 0x54, 0, 0, 0, 3], ..from_port(1, frame("10.0.0.1", "10.0.0.3", TCP, 9, 80)) };
    b.load(BTreeMap::from([(PortId(3), lists("", "permit udp\ndeny tcp"))]));
    assert_eq!(denied(&b), [], "other lists count anew");
    b.packet(&from_port(3, frame("10.0.0.3", "10.0.0.1", TCP, 9, 80)));
    assert_eq!(b.packet(&to_3), DROP);
    b.poll(0);
    let (port, why, _) = b.policy.denied().next().unwrap();
    let by = why.1.as_ref().unwrap();
    assert_eq!((port.0, by.direction, by.rule), (1, Direction::ToGuest, Some(2)));
    b.port_gone(1);
    assert_eq!(denied(&b), []);
}

#[test]
fn however_many_rules_deny_what_is_kept_is_bounded() {
    let mut b = Bench::new(Limits::default(), 2);
    let text: String = (0..500).map(|port| format!("deny udp to any port {port}\n")).collect();
    b.load(everywhere(&text, ""));
    for port in 0..500 {
        assert_eq!(b.packet(&from_port(1, frame("10.0.0.1", "10.0.0.2", UDP, 9, port))), DROP);
    }
    b.hits = 1;
    b.poll(0);
    let all = denied(&b);
    assert!(all.len() <= 65, "{}", all.len());
    assert_eq!(all.iter().map(|d| d.2).sum::<u64>(), b.table.len() as u64, "none is lost");
}

#[test]
fn a_change_of_lists_leaves_no_old_flow() {
    let mut b = Bench::new(Limits::default(), 2);
    b.packet(&from_port(2, frame("10.0.0.2", "10.0.0.1", TCP, 80, 9)));
    let web = FlowKey { eth_dst: [0x52, 0x54, 0, 0, 0, 2], ..from_port(1, frame("10.0.0.1", "10.0.0.2", TCP, 9, 80)) };
    assert_eq!(b.packet(&web), to(&[2]));
    let (old, asked) = (b.dump(), b.policy.asked());
    b.load(everywhere("", "deny tcp to any port 80"));
    assert!(b.table.is_empty());
    // An answer that was on its way does not bring back what was removed.
    let mut out = crate::Effects::default();
    b.policy.statistics(asked, &old, b.now_ms, &mut out);
    assert!(out.is_empty() && b.policy.flow_count() == 0, "{out:?}");
    assert_eq!(b.packet(&web), DROP);
    assert_eq!(b.policy.mac_count(), 2, "what was learned is kept");
    b.load(BTreeMap::new());
    assert_eq!(b.packet(&web), to(&[2]));
    assert_eq!(b.table[0].0.mask.depth(), lasthop_frame::Depth::L2, "without lists flows are shallow again");
}

#[test]
fn a_port_that_was_never_announced_gets_nothing_past_the_lists() {
    let mut b = Bench::new(Limits::default(), 2);
    b.load(everywhere("deny tcp", ""));
    assert_eq!(b.packet(&from_port(9, frame("10.0.0.1", "10.0.0.2", UDP, 9, 80))), []);
    assert_eq!(b.table.len(), 0);
}

#[test]
fn trace_names_the_rule() {
    let mut b = Bench::new(Limits::default(), 3);
    let own = BTreeMap::from([
        (PortId(1), lists("permit udp\ndeny tcp to any port 80\n", "")),
        (PortId(2), lists("", "default deny\npermit tcp to any port 22")),
    ]);
    b.load(own);
    let name = |p: PortId| format!("vm{p}");
    let explain = |key: FlowKey| b.policy.explain(&key, b.now_ms, name);
    let web = explain(from_port(1, frame("10.0.0.1", "10.0.0.2", TCP, 9, 80)));
    assert_eq!(web.lines, ["guests access list, from-guest at vm1: rule 2 decides: deny tcp to any port 80"]);
    assert!(web.outputs.is_empty());
    let other = explain(from_port(1, frame("10.0.0.1", "10.0.0.2", TCP, 9, 81)));
    assert_eq!(other.outputs, [PortId(3)]);
    assert_eq!(
        [&other.lines[0], other.lines.last().unwrap()],
        [
            "guests access list, from-guest at vm1: none of 2 rules matches, its default is permit",
            "guests access list, to-guest at vm2: none of 1 rules matches, its default is deny"
        ]
    );
}

fn text() -> impl Strategy<Value = String> {
    let default = prop_oneof![Just("default permit"), Just("default deny")];
    let rules = prop::collection::vec(rule(), 0..8);
    prop_oneof![1 => Just(String::new()), 2 => (default, rules).prop_map(|(d, r)| format!("{d}\n{}", r.join("\n")))]
}

fn op() -> impl Strategy<Value = Op> {
    let packet = (1u32..5, any_frame()).prop_map(|(in_port, key)| Op::Packet(FlowKey { in_port, ..key }));
    let load = prop::collection::vec((1u32..5, text(), text()), 0..4)
        .prop_map(|all| Op::Load(all.iter().map(|(p, from, to)| (PortId(*p), lists(from, to))).collect()));
    prop_oneof![
        30 => packet,
        2 => load,
        3 => (1u32..5, any::<bool>()).prop_map(|(p, up)| Op::Port(p, up)),
        1 => (1u32..5).prop_map(Op::PortGone),
        2 => prop_oneof![Just(10_000u64), Just(150_000)].prop_map(Op::Poll),
        1 => any::<usize>().prop_map(Op::Evict),
        1 => Just(Op::RestartControl),
        1 => Just(Op::RestartSwitch),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    /// Whatever is loaded, learned, restarted or forgotten: flows say what the lists and learning say.
    #[test]
    fn flows_say_what_lists_and_learning_say(
        ops in prop::collection::vec(op(), 1..120),
        probes in prop::collection::vec((1u32..5, any_frame()), 20),
        small in any::<bool>(),
    ) {
        let probes: Vec<_> = probes.into_iter().map(|(in_port, key)| FlowKey { in_port, ..key }).collect();
        compare(ops, &probes, small);
    }
}

// ---- the definition ------------------------------------------------------------------------------------------------

/// First match by definition: each condition asked for with plain numbers, independent of `judge.rs`.
fn reference(rules: &[Rule], default: Action, key: &FlowKey) -> bool {
    if rules.iter().any(|r| r.ether != Ether::Any) && key.anomalies & 15 != 0 {
        return false;
    }
    let first = rules.iter().find(|r| reference_matches(r, key));
    first.map_or(default, |r| r.action) == Action::Permit
}

fn reference_matches(r: &Rule, key: &FlowKey) -> bool {
    let in_prefix = |p: &Option<Prefix>, field: &[u8; 16]| {
        p.is_none_or(|p| {
            let (addr, field) = match p.addr() {
                IpAddr::V4(a) => (a.octets().to_vec(), field[12..].to_vec()),
                IpAddr::V6(a) => (a.octets().to_vec(), field.to_vec()),
            };
            (0..usize::from(p.bits())).all(|i| (addr[i / 8] ^ field[i / 8]) >> (7 - i % 8) & 1 == 0)
        })
    };
    let mac =
        |m: &Option<Mac>, field: &[u8; 6]| m.is_none_or(|m| (0..6).all(|i| field[i] & m.mask.0[i] == m.addr.0[i]));
    let ether = match r.ether {
        Ether::Any => true,
        Ether::Ip => key.eth_type == 0x0800 || key.eth_type == 0x86dd,
        Ether::Type(t) => key.eth_type == t,
    };
    let ports = !r.sport.is_empty() || !r.dport.is_empty();
    let proto = match r.proto {
        Some(p) => key.ip_proto == p,
        None => !ports || [6, 17, 132].contains(&key.ip_proto),
    };
    let one = |ranges: &[Range], port: u16| ranges.is_empty() || ranges.iter().any(|r| r.0 <= port && port <= r.1);
    let transport = if ports && key.ip_frag & FlowKey::FRAG_LATER != 0 {
        r.action == Action::Permit
    } else {
        one(&r.sport, key.l4_src) && one(&r.dport, key.l4_dst)
    };
    ether
        && proto
        && transport
        && in_prefix(&r.src, &key.ip_src)
        && in_prefix(&r.dst, &key.ip_dst)
        && mac(&r.src_mac, &key.eth_src)
        && mac(&r.dst_mac, &key.eth_dst)
        && r.vlan.is_none_or(|v| key.vlan_tci & 0xfff == v)
}

// ---- random rules and frames ---------------------------------------------------------------------------------------

fn v4() -> impl Strategy<Value = String> {
    prop_oneof![
        3 => (0u8..3, 0u8..3).prop_map(|(a, b)| format!("10.{a}.0.{b}")),
        1 => any::<[u8; 4]>().prop_map(|a| std::net::Ipv4Addr::from(a).to_string()),
    ]
}

fn v6() -> impl Strategy<Value = String> {
    prop_oneof![(0u16..3, 0u16..3).prop_map(|(a, b)| format!("fd00:{a}::{b}")), Just("::1".to_owned())]
}

fn port() -> impl Strategy<Value = u16> {
    prop_oneof![Just(0u16), Just(22), Just(80), Just(1023), Just(1024), Just(65_535), any::<u16>()]
}

fn ports() -> impl Strategy<Value = String> {
    let one = prop_oneof![
        2 => port().prop_map(|p| p.to_string()),
        1 => (port(), port()).prop_map(|(a, b)| format!("{}-{}", a.min(b), a.max(b))),
    ];
    prop_oneof![2 => Just(String::new()), 1 => prop::collection::vec(one, 1..3).prop_map(|r| format!(" port {}", r.join(",")))]
}

fn rule() -> impl Strategy<Value = String> {
    let action = prop_oneof![Just("permit"), Just("deny")];
    let sides = prop_oneof![
        2 => (v4(), 0u8..33, v4(), 0u8..33).prop_map(|(s, a, d, b)| (format!("{s}/{a}"), format!("{d}/{b}"))),
        1 => (v6(), 0u8..129, v6(), 0u8..129).prop_map(|(s, a, d, b)| (format!("{s}/{a}"), format!("{d}/{b}"))),
        1 => (v4(), 0u8..33).prop_map(|(s, a)| (format!("{s}/{a}"), "any".into())),
        1 => Just(("any".to_owned(), "any".to_owned())),
    ];
    let ported = (prop_oneof![Just("tcp"), Just("udp"), Just("sctp"), Just("ip")], sides.clone(), ports(), ports())
        .prop_map(|(p, (s, d), sp, dp)| format!("{p} from {s}{sp} to {d}{dp}"));
    let other = prop_oneof![
        Just("any".to_owned()),
        Just("arp".to_owned()),
        Just("arp from 10.0.0.0/16".to_owned()),
        Just("ethertype 0x88cc".to_owned()),
        Just("icmp type 8".to_owned()),
        Just("icmp type 3,8-10 code 0-1".to_owned()),
        Just("icmpv6 type 135".to_owned()),
        Just("proto 47".to_owned()),
        Just("vlan none".to_owned()),
        Just("vlan 5".to_owned()),
        Just("ipv6 vlan 5".to_owned()),
        (0u8..4).prop_map(|n| format!("from-mac 52:54:00:00:00:0{n}")),
        (0u8..4).prop_map(|n| format!("to-mac 52:54:00:00:00:0{n}/ff:ff:00:00:00:03")),
    ];
    (action, prop_oneof![4 => ported, 1 => other]).prop_map(|(a, r)| format!("{a} {r}"))
}

fn any_frame() -> impl Strategy<Value = FlowKey> {
    let addresses = prop_oneof![3 => (v4(), v4()), 1 => (v6(), v6())];
    let proto = prop_oneof![Just(6u8), Just(17), Just(132), Just(1), Just(58), Just(47)];
    let eth = prop_oneof![8 => Just(None), 1 => Just(Some(0x0806u16)), 1 => Just(Some(0x88cc))];
    let vlan = prop_oneof![3 => Just(0u16), 1 => Just(5), 1 => Just(6)];
    let frag = prop_oneof![6 => Just(0u8), 1 => Just(1), 1 => Just(3)];
    let anomalies = prop_oneof![12 => Just(0u16), 1 => prop_oneof![Just(1u16), Just(2), Just(4), Just(8)]];
    let macs = (0u8..4, 0u8..4);
    (addresses, proto, port(), port(), (eth, vlan, frag, anomalies), macs).prop_map(
        |((src, dst), proto, sport, dport, (eth, vlan, frag, anomalies), (m, n))| {
            let mut key = frame(&src, &dst, proto, sport, dport);
            (key.eth_src[5], key.eth_dst[5]) = (m, n);
            if vlan != 0 {
                (key.vlan_tci, key.vlan_tpid) = (FlowKey::VLAN_PRESENT | vlan, 0x8100);
            }
            (key.ip_frag, key.anomalies) = (frag, anomalies);
            if frag & FlowKey::FRAG_LATER != 0 {
                (key.l4_src, key.l4_dst) = (0, 0);
            }
            if let Some(eth) = eth {
                key.eth_type = eth;
                (key.l4_src, key.l4_dst, key.ip_frag) = (0, 0, 0);
                if eth != 0x0806 {
                    (key.ip_src, key.ip_dst, key.ip_proto) = ([0; 16], [0; 16], 0);
                }
            }
            key
        },
    )
}

/// `other`, made to agree with `key` in the bits of `mask`.
fn merge(key: &FlowKey, other: &FlowKey, mask: &FlowMask) -> FlowKey {
    let mut out = *other;
    for ((o, k), m) in out.as_mut_bytes().iter_mut().zip(key.as_bytes()).zip(mask.0.as_bytes()) {
        *o = *o & !m | k & m;
    }
    out
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, ..ProptestConfig::default() })]

    #[test]
    fn flows_say_what_the_first_match_says(
        rules in prop::collection::vec(rule(), 0..25),
        default in prop_oneof![Just("default permit"), Just("default deny")],
        frames in prop::collection::vec(any_frame(), 1..12),
        others in prop::collection::vec(any_frame(), 12),
        noise in prop::collection::vec(any::<[u8; 160]>(), 3),
    ) {
        let text = format!("{default}\n{}", rules.join("\n"));
        let list = list(&text);
        for key in &frames {
            let verdict = list.decide(key);
            prop_assert_eq!(verdict.permits(), reference(list.rules(), list.default(), key), "{} {:?}", text, key);
            let mut mask = FlowMask::default();
            prop_assert_eq!(list.judge(key, &mut mask), verdict);
            // Judging the flow itself, with what it has, needs nothing more: that is how flows are recognised later.
            let mut again = mask;
            prop_assert_eq!(list.judge(&key.masked(&mask), &mut again), verdict);
            prop_assert_eq!(again, mask);
            // Whatever agrees in the bits of the mask gets the same verdict.
            let random = noise.iter().map(|n| {
                let mut k = FlowKey::default();
                k.as_mut_bytes().copy_from_slice(n);
                k
            });
            for other in others.iter().copied().chain(random) {
                let same = merge(key, &other, &mask);
                prop_assert_eq!(list.decide(&same), verdict, "{} {:?} {:?} {:?}", text, key, same, mask);
                prop_assert_eq!(verdict.permits(), reference(list.rules(), list.default(), &same));
            }
        }
    }

    #[test]
    fn rules_read_back_as_written(rules in prop::collection::vec(rule(), 1..20)) {
        let list = list(&rules.join("\n"));
        let written: Vec<_> = list.rules().iter().map(ToString::to_string).collect();
        let again = self::list(&written.join("\n"));
        prop_assert_eq!(again.rules(), list.rules(), "{:?}", written);
        let mut book = Book::default();
        book.replace(&Scope::Port("p".into()), None, &read(&rules.join("\n"), None).unwrap()).unwrap();
        prop_assert_eq!(&Book::from_text(&book.to_text()).unwrap(), &book);
    }

    #[test]
    fn nothing_panics(text in prop_oneof![
        ".{0,80}",
        "((permit|deny|default|tcp|from|to|port|any|10.0.0.0/8|fd00::/8|22,80-90|type|8|vlan|ü|@|#|/|,|-|0x|\n) ?){0,30}",
        "(@|[0-9./:]{1,20}|\t|0x06/0xff| : ){0,12}",
    ]) {
        for only in [None, Some(Direction::ToGuest)] {
            if let Err(e) = read(&text, only) {
                let line = text.lines().nth(e.line - 1).unwrap_or_default();
                prop_assert!(e.column <= line.chars().count() + 1, "{:?} {}", text, e);
            }
        }
        let _ = read_classbench(&text, Action::Deny);
        let _ = Book::from_text(&text);
        let _ = looks_like_classbench(&text);
    }
}

#[test]
fn masks_are_prefixes_in_few_steps() {
    let list = list("deny tcp from 192.168.1.0/26 to any port 8000-9000\ndeny from-mac 02:00:00:00:00:09");
    let mut mask = FlowMask::default();
    assert!(list.judge(&frame("10.0.0.1", "10.0.0.2", TCP, 1, 2), &mut mask).permits());
    assert_eq!(mask.0.ip_src[12..], [0xff, 0, 0, 0], "10 and 192 differ in their first byte");
    assert_eq!((mask.0.ip_proto, mask.0.l4_dst, mask.0.l4_src, mask.0.ip_dst), (0, 0, 0, [0; 16]));
    assert_eq!(mask.0.eth_src, [0xff, 0, 0, 0, 0, 0]);
    let mut mask = FlowMask::default();
    assert!(list.judge(&frame("192.168.1.5", "10.0.0.2", TCP, 1, 2), &mut mask).permits());
    assert_eq!(mask.0.ip_src, [0; 16], "a few bits of the port are cheaper than most of the address");
    assert_eq!(mask.0.l4_dst, 0xfc00);
    assert_eq!(
        list.decide(&FlowKey { eth_src: MacAddr([2, 0, 0, 0, 0, 9]).0, ..FlowKey::default() }),
        Decision::Rule(1, Action::Deny)
    );
}
