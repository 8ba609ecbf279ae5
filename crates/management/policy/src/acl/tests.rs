//! Lists against their definition: parsed text means what it says, first match wins, and a flow's mask is enough.

use super::*;
use lasthop_frame::FlowKey;
use lasthop_text::MacAddr;
use lasthop_types::PortId;
use proptest::prelude::*;
use std::net::IpAddr;
use std::sync::Arc;

mod learning;
mod random;
mod reconcile;

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
    List::new(lists.take(Direction::FromGuest).unwrap(), &Default::default())
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
        (
            "permit any\n\n  allow tcp",
            None,
            "line 3, column 3: \"allow\": expected permit, deny, default, for, stateful, snat or dnat",
        ),
        ("stateful\nstateful", None, "line 2, column 1: a second line with stateful; it holds for the whole file"),
        (
            "stateful from-guest",
            None,
            "line 1, column 10: \"from-guest\": expected nothing more in this line: stateful stands alone in it",
        ),
        (
            "default deny stateful",
            None,
            "line 1, column 14: stateful stands alone in a line, and holds for the whole file",
        ),
        (
            "permit tcp stateful",
            None,
            "line 1, column 12: stateful stands alone in a line, and holds for the whole file",
        ),
        ("permit arp established", None, "line 1, column 12: only IP has connections; the rule could never match"),
        ("permit established established", None, "\"established\" after \"established\""),
        ("deny tcp portt 5", None, "line 1, column 10: \"portt\": expected any, ip,"),
        ("deny tcp port 5", None, "line 1, column 10: port needs from or to before it"),
        ("deny tcp to any port 5-", None, "line 1, column 22: \"5-\": expected numbers up to 65535"),
        ("deny tcp to any port 9-5", None, "line 1, column 22: 9-5 is upside down; write 5-9"),
        ("deny tcp to any port 70000", None, "\"70000\": expected numbers up to 65535"),
        ("deny tcp to", None, "line 1, column 12: the line ends here; expected an address"),
        ("deny tcp to 10.0.0.0/33", None, "line 1, column 13: \"10.0.0.0/33\": expected a prefix length"),
        ("deny tcp to 10.0.0", None, "expected an IPv4 or IPv6 address"),
        (
            "permit any\ndeny tcp from 10.0.0.1/24",
            None,
            "line 2, column 15: 10.0.0.1/24 has host bits; write 10.0.0.1 for this address, or 10.0.0.0/24 for all of them",
        ),
        ("deny tcp to fd00::1/64", None, "write fd00::1 for this address, or fd00::/64 for all of them"),
        ("snat from 10.0.0.1/24 -> 192.0.2.1", None, "10.0.0.1/24 has host bits"),
        ("permit arp from 10.0.0.1/31", None, "10.0.0.0/31 for all of them"),
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

/// Somebody has edited the text of all lists: the error says what to write.
#[test]
fn a_text_of_all_lists_that_was_edited_says_what_to_write() {
    let with = |rest: &str| Book::from_text(&format!("{}{rest}", &Book::default().to_text().replace("end 0\n", "")));
    let said = |rest: &str| with(rest).unwrap_err().to_string();
    let list = "list from-guest permit guests\ndeny udp\ndeny tcp\n";
    assert!(with(&format!("{list}end 3\n")).is_ok());
    for (end, word) in [
        ("end 2\n", "line 5, column 1: `end 2`, but 3 lines are above it: write `end 3`, if none is missing"),
        ("end x\n", "line 5, column 1: `end x`, but 3 lines are above it: write `end 3`"),
        ("end 3\ndeny icmp\n", "line 6, column 1: this follows after the end"),
        ("", "the last line must be `end 3`"),
    ] {
        let said = said(&format!("{list}{end}"));
        assert!(said.contains(word), "{said}");
    }
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

#[test]
fn translations_read_back_as_they_are_written() {
    for (line, kept) in [
        ("snat from 10.0.0.0/24 -> 192.0.2.1-192.0.2.9 port 1024-65535", ""),
        ("snat tcp from any  to 10.1.0.0/16 ->192.0.2.1 # masquerade", "snat tcp to 10.1.0.0/16 -> 192.0.2.1"),
        ("snat any -> fd00::9", "snat ipv6 -> fd00::9"),
        ("snat to 10.0.0.0/24 -> none", ""),
        ("dnat tcp to 192.0.2.1 port 80 -> 10.0.0.5 port 8080", ""),
        ("dnat to 2001:db8::1 -> fd00::5", ""),
        ("dnat udp vlan 7 from-mac 02:00:00:00:00:01 to 192.0.2.1 -> 10.0.0.5-10.0.0.6", ""),
    ] {
        let lists = read(&format!("stateful\n{line}\n"), None).unwrap_or_else(|e| panic!("{line}: {e}"));
        assert!(!lists.says_nothing());
        let mut book = Book::default();
        book.replace(&Scope::Guests, None, &lists).unwrap();
        let text = book.to_text();
        assert_eq!(Book::from_text(&text).unwrap(), book, "{text}");
        let all: Vec<_> = book.iter().flat_map(|(.., list)| list.translations()).map(ToString::to_string).collect();
        let again = read(&format!("stateful\n{}\n", all[0]), None).unwrap();
        assert_eq!((all.len(), again), (1, lists), "{text}");
        let kept = if kept.is_empty() { line } else { kept };
        assert_eq!(all[0], kept);
    }
}

#[test]
fn translations_that_mean_nothing_are_refused() {
    for (line, column, message) in [
        ("snat from 10.0.0.1", 1, "snat needs -> and"),
        ("snat -> 192.0.2.1", 1, "what does snat translate?"),
        ("snat any -> ", 12, "the line ends here"),
        ("snat any -> 10.0.0", 13, "\"10.0.0\": expected an address, a range"),
        ("snat any -> 10.0.0.9-10.0.0.1", 13, "upside down"),
        ("snat any -> 10.0.0.9-fd00::1", 13, "different IP versions"),
        ("snat any -> 224.0.0.1", 13, "no address of a station"),
        ("snat arp -> 10.0.0.1", 1, "only IP is translated"),
        ("snat from fd00::1 -> 10.0.0.1", 22, "another IP version"),
        ("snat icmp -> 10.0.0.1 port 5", 23, "only tcp and udp have ports"),
        ("snat sctp -> 10.0.0.1 port 5", 23, "SCTP's ports"),
        ("snat any -> 10.0.0.1 port 5,6", 27, "one port or one range"),
        ("snat any -> 10.0.0.1 port 0-6", 27, "from 1"),
        ("snat any -> 10.0.0.1 80", 22, "nothing more"),
        ("snat established -> 10.0.0.1", 1, "leave established out"),
        ("dnat tcp -> 10.0.0.1", 1, "dnat needs the address that is published"),
        ("dnat to 192.0.2.1 -> 10.0.0.1 port 80", 31, "which protocol's?"),
    ] {
        let e = read(&format!("stateful\n{line}\n"), None).unwrap_err();
        assert!(e.line == 2 && e.column == column && e.message.contains(message), "{line}: {e}");
    }
    let e = read("permit arp\nsnat any -> 10.0.0.1", None).unwrap_err();
    assert!(e.line == 2 && e.message.contains("add a line with stateful"), "{e}");
    let e = read("stateful\nsnat any -> 10.0.0.1", Some(Direction::ToGuest)).unwrap_err();
    assert!(e.message.contains("only to-guest is loaded"), "{e}");
}

fn prefix(text: &str) -> Prefix {
    read_member(text).unwrap()
}

#[test]
fn a_rule_asks_for_a_set_of_both_versions() {
    let mut book = Book::default();
    book.change_set("web", &["10.0.0.0/24", "10.0.7.1", "fd00::/64"].map(prefix), &[]).unwrap();
    let text = "default deny\npermit tcp from @web to any port 22\npermit arp from @web\npermit icmp to @web type 8";
    book.replace(&Scope::Guests, None, &read(text, None).unwrap()).unwrap();
    let permits = |book: &Book, key: &FlowKey| book.of_port("p", false)[0].as_ref().unwrap().1.decide(key).permits();
    for (src, passes) in [("10.0.0.9", true), ("10.0.7.1", true), ("10.0.7.2", false), ("10.0.1.0", false)] {
        assert_eq!(permits(&book, &frame(src, "10.0.0.2", TCP, 1, 22)), passes, "{src}");
        let arp = FlowKey { eth_type: 0x0806, ip_proto: 1, l4_src: 0, l4_dst: 0, ..frame(src, "1.2.3.4", TCP, 0, 0) };
        assert_eq!(permits(&book, &arp), passes, "ARP from {src}");
        assert_eq!(permits(&book, &frame("1.2.3.4", src, 1, 8, 0)), passes, "echo to {src}");
    }
    assert!(permits(&book, &frame("fd00::7", "fd00::2", TCP, 1, 22)));
    assert!(!permits(&book, &frame("fd00:0:0:1::7", "fd00::2", TCP, 1, 22)));
    let changed = book.change_set("web", &[prefix("10.0.7.2")], &[prefix("10.0.0.0/24")]).unwrap();
    assert!(permits(&book, &frame("10.0.7.2", "10.0.0.2", TCP, 1, 22)));
    assert!(!permits(&book, &frame("10.0.0.9", "10.0.0.2", TCP, 1, 22)));
    let number = |last: u8| u128::from(u32::from_be_bytes([10, 0, 7, last]));
    assert!(changed.touches(0x0800, (number(2), number(2))) && !changed.touches(0x0800, (number(1), number(1))));
}

#[test]
fn errors_about_sets_say_what_to_do() {
    let mut book = Book::default();
    let text = "permit any\npermit tcp from @web";
    let load =
        |book: &mut Book| book.replace(&Scope::Guests, None, &read(text, None).unwrap()).map_err(|e| e.to_string());
    let missing = load(&mut book.clone()).unwrap_err();
    assert!(missing.starts_with("rule 2 from-guest of guests names the set @web"), "{missing}");
    assert!(missing.contains("`lasthop set add web "), "{missing}");
    book.change_set("web", &[prefix("10.0.0.0/24")], &[]).unwrap();
    load(&mut book).unwrap();
    for (error, says) in [
        (book.remove_set("web"), "rule 2 from-guest of guests names @web; load lists without it first"),
        (book.remove_set("db"), "`lasthop set list`"),
        (book.change_set("web", &[], &[prefix("10.0.0.1")]).map(drop), "part of its member 10.0.0.0/24"),
        (book.change_set("web", &[], &[prefix("10.1.0.1")]).map(drop), "`lasthop set list web`"),
        (book.change_set("@web", &[], &[]).map(drop), "without @"),
        (book.change_set("", &[], &[]).map(drop), "1 to 63"),
        (book.change_set("a b", &[], &[]).map(drop), "letters"),
        (read_member("10.0.0.0/33").map(drop), "10.0.0.0/8"),
        (read_member("10.0.0.1/24").map(drop), "write 10.0.0.1 for this address, or 10.0.0.0/24"),
        (read_member("fd00::1/64").map(drop), "write fd00::1 for this address, or fd00::/64"),
    ] {
        let error = error.unwrap_err();
        assert!(error.contains(says), "{error}");
    }
    for (text, says) in [
        ("permit tcp from @", "1 to 63"),
        ("permit tcp from @we!b", "letters"),
        ("permit ethertype 0x88cc from @web", "never match"),
        ("stateful\nsnat from @web -> 192.0.2.1", "prefixes instead of @web"),
    ] {
        let error = read(text, None).unwrap_err().to_string();
        assert!(error.contains(says), "{error}");
    }
    book.replace(&Scope::Guests, None, &Lists::default()).unwrap();
    book.remove_set("web").unwrap();
    assert_eq!(book, Book::default());
}

#[test]
fn sets_are_bounded_and_a_full_book_reads_back() {
    let members: Vec<Prefix> =
        (0..MAX_MEMBERS as u32).map(|n| Prefix::new(IpAddr::from((n * 5).to_be_bytes()), 32).unwrap()).collect();
    let mut book = Book::default();
    book.change_set("all", &members, &[]).unwrap();
    let error = book.change_set("one", &[prefix("1.2.3.4")], &[]).unwrap_err();
    assert!(error.contains("65536 addresses") && error.contains("wider"), "{error}");
    assert!(book.to_text().len() < MAX_TEXT / 4);
    assert_eq!(Book::from_text(&book.to_text()).unwrap(), book);
    let mut book = Book::default();
    (0..MAX_SETS).for_each(|n| drop(book.change_set(&format!("s{n}"), &[], &[]).unwrap()));
    assert!(book.change_set("more", &[], &[]).unwrap_err().contains("lasthop set destroy"));
}
