use super::*;
use lasthop_frame::FlowMask;
use pattern::first_bits;

/// IPv4 and TCP from 10.0.0.1 port 1000 to 10.0.0.2 port 80.
fn key() -> FlowKey {
    let mut key = FlowKey { eth_type: IPV4, ip_proto: TCP, l4_src: 1000, l4_dst: 80, ..FlowKey::default() };
    key.ip_src[12..].copy_from_slice(&[10, 0, 0, 1]);
    key.ip_dst[12..].copy_from_slice(&[10, 0, 0, 2]);
    key
}

/// Everything that is IPv4 and comes from this network.
fn from(network: u32, len: u32) -> Pattern {
    Pattern { ether: Ether::Type(IPV4), src: network.into(), src_mask: first_bits(len, 32), ..Pattern::default() }
}

fn found(patterns: &[Pattern], key: &FlowKey) -> (Found, FlowMask) {
    let (mut mask, mut seen) = (FlowMask::default(), Seen::of(&FlowMask::default()));
    let found = patterns.iter().cloned().collect::<Classifier>().first_match(key, &mut seen);
    seen.add_to(&mut mask);
    (found, mask)
}

#[test]
fn without_patterns_nothing_is_found_and_nothing_looked_at() {
    assert_eq!(found(&[], &key()), (Found::Nothing, FlowMask::default()));
}

#[test]
fn patterns_about_other_networks_cost_the_first_bits_of_an_address() {
    let (first, mask) = found(&[from(0xc0a8_0000, 16), from(0xac10_0000, 12), from(0x0a00_0000, 8)], &key());
    assert_eq!(first, Found::Pattern(2));
    assert_eq!(mask.0.ip_src[12..], [255, 0, 0, 0]);
    assert_eq!((mask.0.ip_dst, mask.0.l4_src, mask.0.l4_dst, mask.0.ip_proto), ([0; 16], 0, 0, 0));
}

#[test]
fn a_port_is_looked_at_as_far_as_it_takes() {
    let web = Pattern {
        ether: Ether::Ip,
        proto: Proto::One(TCP),
        transport: true,
        dport: [(0, 1023)].into(),
        ..Pattern::default()
    };
    let (first, mask) = found(&[web], &key());
    assert_eq!((first, mask.0.l4_dst, mask.0.l4_src), (Found::Pattern(0), 0xfc00, 0));
}

#[test]
fn later_fragments_match_by_the_rest_if_the_pattern_says_so() {
    let later = FlowKey { ip_frag: FlowKey::FRAG_LATER, l4_src: 0, l4_dst: 0, ..key() };
    let web = |later_fragments| Pattern {
        ether: Ether::Ip,
        proto: Proto::One(TCP),
        transport: true,
        later_fragments,
        dport: [(80, 80)].into(),
        ..Pattern::default()
    };
    assert_eq!(found(&[web(true)], &later).0, Found::Pattern(0));
    assert_eq!(found(&[web(false)], &later).0, Found::Nothing);
}

#[test]
fn malformed_headers_are_said_only_where_a_pattern_looks_at_headers() {
    let broken = FlowKey { anomalies: FlowKey::MALFORMED_L4, ..key() };
    assert_eq!(found(&[from(0x0a00_0000, 8)], &broken).0, Found::Malformed);
    assert_eq!(found(&[Pattern::default()], &broken).0, Found::Pattern(0));
}
