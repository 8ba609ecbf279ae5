use super::*;
use crate::testutil::{key, mac};
use proptest::prelude::*;
use std::net::{Ipv4Addr, Ipv6Addr};

fn settings(text: &str) -> PortSettings {
    text.to_owned().try_into().unwrap()
}

fn v4(addr: [u8; 4]) -> [u8; 16] {
    u128::from(Ipv4Addr::from(addr).to_bits()).to_be_bytes()
}

fn v6(text: &str) -> [u8; 16] {
    text.parse::<Ipv6Addr>().unwrap().octets()
}

const ADDR: [u8; 4] = [10, 0, 0, 1];
const OTHER: [u8; 4] = [10, 0, 0, 2];
const OWN: &str = "mac=52:54:00:00:00:01 addr=10.0.0.1,fd00::1";
/// Made of 52:54:00:00:00:01.
const LINK_LOCAL: &str = "fe80::5054:ff:fe00:1";

fn ipv4(src: [u8; 4], proto: u8, ports: (u16, u16)) -> FlowKey {
    let plain = key(1, mac(1), MacAddr::BROADCAST);
    FlowKey { ip_src: v4(src), ip_proto: proto, l4_src: ports.0, l4_dst: ports.1, ..plain }
}

fn arp(sha: u8, spa: [u8; 4], tpa: [u8; 4]) -> FlowKey {
    let plain = key(1, mac(1), MacAddr::BROADCAST);
    FlowKey { eth_type: ARP, arp_sha: mac(sha).0, ip_src: v4(spa), ip_dst: v4(tpa), ..plain }
}

fn ipv6(src: &str, proto: u8, ports: (u16, u16)) -> FlowKey {
    FlowKey { eth_type: IPV6, ip_src: v6(src), ..ipv4(ADDR, proto, ports) }.with(|key| key.ip_src = v6(src))
}

fn neighbour(src: &str, kind: u16, target: &str, said: Option<u8>) -> FlowKey {
    ipv6(src, ICMPV6, (kind, 0)).with(|key| {
        key.nd_target = v6(target);
        let link_layer = said.map_or([0; 6], |n| mac(n).0);
        if kind == NEIGHBOUR_ADVERTISEMENT { key.arp_tha = link_layer } else { key.arp_sha = link_layer }
    })
}

trait With: Sized {
    fn with(self, change: impl FnOnce(&mut Self)) -> Self;
}

impl With for FlowKey {
    fn with(mut self, change: impl FnOnce(&mut Self)) -> Self {
        change(&mut self);
        self
    }
}

fn said(settings: &PortSettings, key: &FlowKey) -> Option<Pretence> {
    pretends(settings, key, &mut FlowMask::default())
}

#[test]
fn a_station_sends_from_its_own_addresses() {
    let own = settings(OWN);
    let cases = [
        ("its own", ipv4(ADDR, UDP, (1, 2)), None),
        ("another station", ipv4(ADDR, UDP, (1, 2)).with(|key| key.eth_src = mac(2).0), Some(Pretence::Mac)),
        ("another IPv4 address", ipv4(OTHER, UDP, (1, 2)), Some(Pretence::Address)),
        ("asks for an address", ipv4([0; 4], UDP, (68, 67)), None),
        ("no address, and does not ask", ipv4([0; 4], UDP, (68, 69)), Some(Pretence::Address)),
        ("ARP of its own", arp(1, ADDR, OTHER), None),
        ("ARP probe for its own", arp(1, [0; 4], ADDR), None),
        ("ARP probe for another address", arp(1, [0; 4], OTHER), Some(Pretence::ClaimedAddress)),
        ("ARP for another address", arp(1, OTHER, ADDR), Some(Pretence::ClaimedAddress)),
        ("ARP for another station", arp(2, ADDR, OTHER), Some(Pretence::ClaimedMac)),
        ("IPv6 of its own", ipv6("fd00::1", UDP, (1, 2)), None),
        ("its link-local address", ipv6(LINK_LOCAL, UDP, (1, 2)), None),
        ("another link-local address", ipv6("fe80::1", UDP, (1, 2)), Some(Pretence::Address)),
        ("another IPv6 address", ipv6("fd00::2", UDP, (1, 2)), Some(Pretence::Address)),
        ("is fd00::1 free?", neighbour("::", NEIGHBOUR_SOLICITATION, "fd00::1", None), None),
        ("is another one free?", neighbour("::", NEIGHBOUR_SOLICITATION, "fd00::2", None), Some(Pretence::Address)),
        ("who has fd00::2?", neighbour("fd00::1", NEIGHBOUR_SOLICITATION, "fd00::2", Some(1)), None),
        (
            "who has it, tell another station",
            neighbour("fd00::1", NEIGHBOUR_SOLICITATION, "fd00::2", Some(2)),
            Some(Pretence::ClaimedMac),
        ),
        ("fd00::1 is mine", neighbour("fd00::1", NEIGHBOUR_ADVERTISEMENT, "fd00::1", Some(1)), None),
        (
            "fd00::2 is mine",
            neighbour("fd00::1", NEIGHBOUR_ADVERTISEMENT, "fd00::2", Some(1)),
            Some(Pretence::ClaimedAddress),
        ),
        (
            "fd00::1 is another station's",
            neighbour("fd00::1", NEIGHBOUR_ADVERTISEMENT, "fd00::1", Some(2)),
            Some(Pretence::ClaimedMac),
        ),
        ("asks for routers", ipv6("::", ICMPV6, (ROUTER_SOLICITATION, 0)), None),
        ("joins a group", ipv6("::", ICMPV6, (143, 0)), None),
        ("something else from no address", ipv6("::", ICMPV6, (128, 0)), Some(Pretence::Address)),
        ("neither IP nor ARP", key(1, mac(1), mac(2)).with(|key| key.eth_type = 0x88cc), None),
    ];
    for (what, key, expected) in cases {
        assert_eq!(said(&own, &key), expected, "{what}");
    }
}

#[test]
fn servers_and_routers_are_refused_where_they_do_not_belong() {
    let (dhcp, router) = (settings("no-dhcp-server=on"), settings("no-ra=on"));
    let later = |key: FlowKey| key.with(|key| (key.ip_frag, key.l4_src) = (FlowKey::FRAG_ANY | FlowKey::FRAG_LATER, 0));
    for (settings, key, expected) in [
        (&dhcp, ipv4(ADDR, UDP, (67, 68)), Some(Pretence::DhcpServer)),
        (&dhcp, ipv4(ADDR, UDP, (68, 67)), None),
        (&dhcp, ipv4(ADDR, UDP, (1067, 68)), Some(Pretence::DhcpServer)),
        (&dhcp, ipv4(ADDR, UDP, (68, 68)), Some(Pretence::DhcpServer)),
        (&dhcp, ipv4(ADDR, UDP, (67, 67)), Some(Pretence::DhcpServer)),
        (&dhcp, ipv4(ADDR, UDP, (69, 67)), None),
        (&dhcp, ipv4(ADDR, 6, (67, 68)), None),
        (&dhcp, ipv4(ADDR, 6, (1067, 68)), None),
        (&dhcp, later(ipv4(ADDR, UDP, (0, 0))), None),
        (&dhcp, ipv6("fd00::9", UDP, (547, 546)), Some(Pretence::DhcpServer)),
        (&dhcp, ipv6("fd00::9", UDP, (1547, 546)), Some(Pretence::DhcpServer)),
        (&dhcp, ipv6("fd00::9", UDP, (546, 546)), Some(Pretence::DhcpServer)),
        (&dhcp, ipv6("fd00::9", UDP, (547, 547)), Some(Pretence::DhcpServer)),
        (&dhcp, ipv6("fe80::9", UDP, (546, 547)), None),
        (&dhcp, ipv6("fe80::1", ICMPV6, (ROUTER_ADVERTISEMENT, 0)), None),
        (&router, ipv6("fe80::1", ICMPV6, (ROUTER_ADVERTISEMENT, 0)), Some(Pretence::Router)),
        (&router, ipv6("fe80::1", ICMPV6, (ROUTER_SOLICITATION, 0)), None),
        (&router, ipv4(ADDR, UDP, (67, 68)), None),
    ] {
        assert_eq!(said(settings, &key), expected, "{key:?}");
    }
}

/// A resolver's answers go to as many ports as it has clients, and need no flow for each.
#[test]
fn ports_far_from_those_of_dhcp_share_flows() {
    let settings = settings("no-dhcp-server=on");
    let mask = |key: FlowKey| {
        let mut mask = FlowMask::default();
        assert_eq!(pretends(&settings, &key, &mut mask), None);
        (mask.0.l4_src, mask.0.l4_dst)
    };
    assert_eq!(mask(ipv4(ADDR, UDP, (53, 40_000))), (u16::MAX, 0xfc00));
    assert_eq!(mask(ipv4(ADDR, UDP, (40_000, 443))), (0xfc00, u16::MAX));
    assert_eq!(mask(ipv6("fd00::1", UDP, (40_000, 50_000))), (0xfc00, 0xfc00));
}

#[test]
fn what_cannot_be_read_is_refused() {
    let bits = [FlowKey::MALFORMED_L3, FlowKey::MALFORMED_L4, FlowKey::DEEP_EXTENSIONS, FlowKey::DEEP_VLAN];
    for anomalies in bits {
        let odd = ipv6("fd00::1", UDP, (1, 2)).with(|key| key.anomalies = anomalies);
        for text in [OWN, "no-ra=on", "no-dhcp-server=on"] {
            assert_eq!(said(&settings(text), &odd), Some(Pretence::Unreadable), "{text} {anomalies}");
        }
        assert_eq!(said(&PortSettings::default(), &odd), None);
    }
}

#[test]
fn one_flow_refuses_most_that_somebody_makes_up() {
    let mut mask = FlowMask::default();
    let own = settings(OWN);
    let made_up = ipv4([192, 168, 3, 4], UDP, (1, 2));
    assert_eq!(pretends(&own, &made_up, &mut mask), Some(Pretence::Address));
    assert_eq!(mask.0.ip_src, v4([0xff, 0, 0, 0]));
    let mut mask = FlowMask::default();
    let made_up = made_up.with(|key| key.eth_src = [0xaa, 1, 2, 3, 4, 5]);
    assert_eq!(pretends(&own, &made_up, &mut mask), Some(Pretence::Mac));
    assert_eq!(mask.0.eth_src, [0xff, 0, 0, 0, 0, 0]);
}

fn any_key() -> impl Strategy<Value = FlowKey> {
    let kinds = prop::sample::select(vec![IPV4, IPV6, ARP, 0x88cc]);
    let addr =
        prop::sample::select(vec![v4(ADDR), v4(OTHER), v4([0; 4]), v6("fd00::1"), v6("fd00::2"), v6(LINK_LOCAL)]);
    let numbers =
        prop::sample::select(vec![0, 1, 64, 66, 67, 68, 69, 512, 1067, 40_000, 133, 134, 135, 136, 143, 546, 547]);
    let protos = prop::sample::select(vec![6, UDP, ICMPV6]);
    let rest = ((0u8..4), (0u8..4), (0u8..4), prop::sample::select(vec![0u16, 0, 0, 1, 2, 4, 8]), any::<bool>());
    (kinds, [addr.clone(), addr.clone(), addr], [numbers.clone(), numbers], protos, rest).prop_map(
        |(eth_type, [ip_src, ip_dst, nd_target], [l4_src, l4_dst], ip_proto, (src, sha, tha, anomalies, later))| {
            FlowKey {
                eth_type,
                ip_src,
                ip_dst,
                nd_target,
                ip_proto,
                l4_src: if later { 0 } else { l4_src },
                l4_dst: if later { 0 } else { l4_dst },
                ip_frag: if later { 3 } else { 0 },
                anomalies,
                arp_sha: if sha == 0 { [0; 6] } else { mac(sha).0 },
                arp_tha: if tha == 0 { [0; 6] } else { mac(tha).0 },
                ..key(1, mac(src), MacAddr::BROADCAST)
            }
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 3000, ..ProptestConfig::default() })]

    /// A flow says the same of every frame that it matches.
    #[test]
    fn whatever_has_the_same_bits_is_judged_alike(
        one in any_key(),
        other in any_key(),
        text in prop::sample::select(vec![
            OWN,
            "mac=52:54:00:00:00:01,52:54:00:00:00:02",
            "mac=52:54:00:00:00:01 addr=10.0.0.0,10.0.0.0/24 no-ra=on",
            "no-ra=on no-dhcp-server=on",
        ]),
    ) {
        let settings = settings(text);
        let mut mask = FlowMask::default();
        let found = pretends(&settings, &one, &mut mask);
        // As the other, but for the bits that were looked at.
        let words = zerocopy::IntoBytes::as_bytes(&one).iter().zip(zerocopy::IntoBytes::as_bytes(&other));
        let bits = zerocopy::IntoBytes::as_bytes(&mask);
        let mixed: Vec<u8> = words.zip(bits).map(|((a, b), m)| a & m | b & !m).collect();
        let mixed = <FlowKey as zerocopy::FromBytes>::read_from_bytes(&mixed).unwrap();
        let mut again = FlowMask::default();
        prop_assert_eq!(pretends(&settings, &mixed, &mut again), found);
        prop_assert_eq!(again, mask, "and it takes the same to know");
        // And of what is left when the other bits are gone.
        let mut again = mask;
        prop_assert_eq!(pretends(&settings, &one.masked(&mask), &mut again), found);
        prop_assert_eq!(again, mask);
    }
}
