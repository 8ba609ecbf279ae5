//! Random lists and frames against the definition of a list.

use super::*;
use lasthop_classifier::addresses;
use lasthop_frame::FlowMask;
use zerocopy::IntoBytes;

/// First match by definition: each condition asked for with plain numbers, independent of `list.rs`.
fn reference(rules: &[Rule], default: Action, key: &FlowKey, sets: &[(&str, Vec<Prefix>)]) -> bool {
    if rules.iter().any(|r| r.ether != Ether::Any) && key.anomalies & 15 != 0 {
        return false;
    }
    let first = rules.iter().find(|r| reference_matches(r, key, sets));
    first.map_or(default, |r| r.action) == Action::Permit
}

fn reference_matches(r: &Rule, key: &FlowKey, sets: &[(&str, Vec<Prefix>)]) -> bool {
    let agrees = |p: &Prefix, field: &[u8; 16]| {
        let (addr, field) = match p.addr() {
            IpAddr::V4(a) => (a.octets().to_vec(), field[12..].to_vec()),
            IpAddr::V6(a) => (a.octets().to_vec(), field.to_vec()),
        };
        (0..usize::from(p.bits())).all(|i| (addr[i / 8] ^ field[i / 8]) >> (7 - i % 8) & 1 == 0)
    };
    let in_prefix = |p: &Option<Place>, field: &[u8; 16]| match p {
        None => true,
        Some(Place::Prefix(p)) => agrees(p, field),
        Some(Place::Set(name)) => sets
            .iter()
            .filter(|(of, _)| of == name)
            .flat_map(|(_, members)| members)
            .any(|p| p.is_v6() == (key.eth_type == 0x86dd) && agrees(p, field)),
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

fn v4() -> impl Strategy<Value = String> {
    prop_oneof![
        3 => (0u8..3, 0u8..3).prop_map(|(a, b)| format!("10.{a}.0.{b}")),
        1 => any::<[u8; 4]>().prop_map(|a| std::net::Ipv4Addr::from(a).to_string()),
    ]
}

/// The network with so long a prefix that this address is in, as rules name it.
fn network(addr: &str, len: u8) -> String {
    Prefix::new(addr.parse().unwrap(), len).unwrap().to_string()
}

fn v6() -> impl Strategy<Value = String> {
    prop_oneof![(0u16..3, 0u16..3).prop_map(|(a, b)| format!("fd00:{a}::{b}")), Just("::1".to_owned())]
}

/// Names of the sets that rules ask for, and `any`.
fn set_or_any() -> impl Strategy<Value = String> {
    prop_oneof![2 => Just("@a".to_owned()), 2 => Just("@b".to_owned()), 1 => Just("any".to_owned())]
}

fn member() -> impl Strategy<Value = Prefix> {
    let v4 = (v4(), prop_oneof![Just(32u8), 0u8..33]).prop_map(|(a, len)| format!("{a}/{len}"));
    let v6 = (v6(), prop_oneof![Just(128u8), 0u8..129]).prop_map(|(a, len)| format!("{a}/{len}"));
    prop_oneof![3 => v4, 2 => v6].prop_map(|text| crate::acl::prefix(&text).unwrap())
}

pub(super) fn members() -> impl Strategy<Value = Vec<Prefix>> {
    prop::collection::vec(member(), 0..8)
}

/// A list of what comes from guests, and the sets that it may name.
fn list_with(text: &str, sets: &[(&str, Vec<Prefix>)]) -> Arc<List> {
    let mut book = Book::default();
    for (name, members) in sets {
        book.change_set(name, members, &[]).unwrap();
    }
    book.replace(&Scope::Guests, None, &read(text, None).unwrap_or_else(|e| panic!("{e}")))
        .unwrap_or_else(|e| panic!("{e}"));
    let (_, list) = book.of_port("p", false)[Direction::FromGuest as usize].clone().unwrap();
    list
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

pub(super) fn rule() -> impl Strategy<Value = String> {
    let action = prop_oneof![Just("permit"), Just("deny")];
    let sides = prop_oneof![
        2 => (v4(), 0u8..33, v4(), 0u8..33).prop_map(|(s, a, d, b)| (network(&s, a), network(&d, b))),
        1 => (v6(), 0u8..129, v6(), 0u8..129).prop_map(|(s, a, d, b)| (network(&s, a), network(&d, b))),
        1 => (v4(), 0u8..33).prop_map(|(s, a)| (network(&s, a), "any".into())),
        1 => Just(("any".to_owned(), "any".to_owned())),
        1 => (set_or_any(), set_or_any()),
        1 => (set_or_any(), v4(), 0u8..33).prop_map(|(s, d, b)| (s, network(&d, b))),
        1 => (v6(), 0u8..129, set_or_any()).prop_map(|(s, a, d)| (network(&s, a), d)),
    ];
    let ported = (prop_oneof![Just("tcp"), Just("udp"), Just("sctp"), Just("ip")], sides.clone(), ports(), ports())
        .prop_map(|(p, (s, d), sp, dp)| format!("{p} from {s}{sp} to {d}{dp}"));
    let other = prop_oneof![
        Just("any".to_owned()),
        Just("arp".to_owned()),
        Just("arp from 10.0.0.0/16".to_owned()),
        Just("arp from @a to @b".to_owned()),
        Just("icmp from @b type 8".to_owned()),
        Just("ipv6 from @a".to_owned()),
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

pub(super) fn any_frame() -> impl Strategy<Value = FlowKey> {
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
        a in members(),
        b in members(),
    ) {
        let text = format!("{default}\n{}", rules.join("\n"));
        let sets = [("a", a), ("b", b)];
        let list = list_with(&text, &sets);
        for key in &frames {
            let verdict = list.decide(key);
            prop_assert_eq!(verdict.permits(), reference(list.rules(), list.default(), key, &sets), "{} {:?}", text, key);
            let mut mask = FlowMask::default();
            prop_assert_eq!(list.first_match(key, &mut mask), verdict);
            // Judging the flow itself, with what it has, needs nothing more: that is how flows are recognised later.
            let mut again = mask;
            prop_assert_eq!(list.first_match(&key.masked(&mask), &mut again), verdict);
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
                prop_assert_eq!(verdict.permits(), reference(list.rules(), list.default(), &same, &sets));
            }
        }
    }

    #[test]
    fn rules_read_back_as_written(rules in prop::collection::vec(rule(), 1..20), a in members(), b in members()) {
        let sets = [("a", a), ("b", b)];
        let list = list_with(&rules.join("\n"), &sets);
        let written: Vec<_> = list.rules().iter().map(ToString::to_string).collect();
        let again = list_with(&written.join("\n"), &sets);
        prop_assert_eq!(again.rules(), list.rules(), "{:?}", written);
        let mut book = Book::default();
        for (name, members) in &sets {
            book.change_set(name, members, &[]).unwrap();
        }
        book.replace(&Scope::Port("p".into()), None, &read(&rules.join("\n"), None).unwrap()).unwrap();
        prop_assert_eq!(&Book::from_text(&book.to_text()).unwrap(), &book);
    }

    /// A set that changes makes of its lists what they would be if they had been loaded with it; and where the change touches neither
    /// address of a frame, what is said of the frame stays.
    #[test]
    fn sets_that_change_are_as_if_loaded_so(
        rules in prop::collection::vec(rule(), 1..12),
        before in members(),
        b in members(),
        add in members(),
        keep in any::<u8>(),
        frames in prop::collection::vec(any_frame(), 1..12),
    ) {
        let text = format!("default deny\n{}", rules.join("\n"));
        let mut book = Book::default();
        book.change_set("a", &before, &[]).unwrap();
        book.change_set("b", &b, &[]).unwrap();
        book.replace(&Scope::Guests, None, &read(&text, None).unwrap()).unwrap();
        let of = |book: &Book| book.of_port("p", false)[Direction::FromGuest as usize].clone().unwrap().1;
        let was = of(&book);
        let del: Vec<Prefix> = before.iter().enumerate().filter(|(n, _)| keep >> n & 1 == 0).map(|(_, p)| *p).collect();
        let changed = book.change_set("a", &add, &del).unwrap();
        let stay = before.iter().filter(|p| !del.contains(p)).chain(&add).copied().collect();
        let now = of(&book);
        prop_assert_eq!(&now, &list_with(&text, &[("a", stay), ("b", b)]));
        prop_assert_eq!(&Book::from_text(&book.to_text()).unwrap(), &book);
        for key in &frames {
            let touches = |field: [u8; 16]| changed.touches(key.eth_type, addresses::span(key.eth_type, u128::from_be_bytes(field), u128::MAX));
            if !touches(key.ip_src) && !touches(key.ip_dst) {
                prop_assert_eq!(was.decide(key), now.decide(key));
            }
            // A flow made under the old set, none of whose addresses the change touches, is right under the new.
            let mut mask = FlowMask::default();
            was.first_match(key, &mut mask);
            let span = |field: [u8; 16], mask: [u8; 16]| {
                addresses::span(key.eth_type, u128::from_be_bytes(field), u128::from_be_bytes(mask))
            };
            let spans = [span(key.ip_src, mask.0.ip_src), span(key.ip_dst, mask.0.ip_dst)];
            if mask.0.eth_type != 0 && !spans.iter().any(|span| changed.touches(key.eth_type, *span)) {
                for other in &frames {
                    let same = merge(key, other, &mask);
                    prop_assert_eq!(was.decide(&same), now.decide(&same), "{} {:?} {:?}", text, same, mask);
                }
            }
        }
    }

    #[test]
    fn nothing_panics(text in prop_oneof![
        ".{0,80}",
        "((permit|deny|default|tcp|from|to|port|any|10.0.0.0/8|fd00::/8|22,80-90|type|8|vlan|ü|@|@a|set a|#|/|,|-|0x|\n) ?){0,30}",
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
    assert!(list.first_match(&frame("10.0.0.1", "10.0.0.2", TCP, 1, 2), &mut mask).permits());
    assert_eq!(mask.0.ip_src[12..], [0xff, 0, 0, 0], "10 and 192 differ in their first byte");
    assert_eq!((mask.0.ip_proto, mask.0.l4_dst, mask.0.l4_src, mask.0.ip_dst), (0, 0, 0, [0; 16]));
    assert_eq!(mask.0.eth_src, [0xff, 0, 0, 0, 0, 0]);
    let mut mask = FlowMask::default();
    assert!(list.first_match(&frame("192.168.1.5", "10.0.0.2", TCP, 1, 2), &mut mask).permits());
    assert_eq!(mask.0.ip_src, [0; 16], "a few bits of the port are cheaper than most of the address");
    assert_eq!(mask.0.l4_dst, 0xfc00);
    assert_eq!(
        list.decide(&FlowKey { eth_src: MacAddr([2, 0, 0, 0, 0, 9]).0, ..FlowKey::default() }),
        Decision::Rule(1, Action::Deny)
    );
}
