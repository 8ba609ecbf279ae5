//! Generated, mutated and chosen frames: [`extract`] against the reference in `testutil/reference.rs`.

use crate::testutil::reference::{check, dirty};
use crate::testutil::{self, Frame};
use crate::{Depth, FlowKey, extract};
use proptest::prelude::*;

fn ip_and_transport() -> impl Strategy<Value = Frame> {
    let extension = prop_oneof![
        Just((0, vec![0; 7])),
        Just((0, [&[1][..], &[0; 14]].concat())),
        Just((43, vec![0; 7])),
        Just((60, vec![0; 7])),
        Just((60, [&[9][..], &[0; 78]].concat())),
        Just((51, [&[4][..], &[0; 22]].concat())),
        Just((44, vec![0; 7])),
        Just((44, vec![0, 0, 1, 0, 0, 0, 9])),
        Just((44, vec![0, 0, 8, 0, 0, 0, 9])),
        Just((139, vec![0; 7])),
    ];
    let ipv4 = (0usize..11, prop_oneof![4 => Just(0u16), 1 => Just(0x2000), 1 => Just(0x4000), 1 => 1u16..0x1fff])
        .prop_map(|(options, word)| {
            let f = Frame::new(1, 2).ipv4([10, 0, 0, 1], [10, 0, 0, 2]);
            f.ip_options(&vec![1; options * 4]).fragment(word)
        });
    let ipv6 = proptest::collection::vec(extension, 0..4).prop_map(|extensions| {
        let f = Frame::new(1, 2).ipv6([0xfd; 16], [0xfe; 16]).tos(0xb8);
        extensions.into_iter().fold(f, |f, (number, body)| f.extension(number, &body))
    });
    let nd_option = prop_oneof![
        Just(vec![1, 1, 2, 0, 0, 0, 0, 1]),
        Just(vec![2, 1, 2, 0, 0, 0, 0, 2]),
        Just([&[14, 1][..], &[0; 6]].concat()),
        Just([&[14, 8][..], &[0; 62]].concat()),
        Just(vec![14, 0, 0, 0, 0, 0, 0, 0]),
        Just(vec![14, 255]),
        Just([&[1, 2][..], &[0; 14]].concat()),
    ];
    let message = proptest::collection::vec(nd_option, 0..4).prop_map(|o| [vec![7; 20], o.concat()].concat());
    let transport = prop_oneof![
        3 => (0usize..11).prop_map(|o| (0, o * 4, vec![0x61; 30])),
        2 => Just((1, 0, vec![0x62; 30])),
        1 => Just((2, 0, vec![0x63; 30])),
        3 => message.prop_map(|m| (3, 0, m)),
        2 => (0usize..40).prop_map(|len| (4, 0, vec![5; len])),
    ];
    (any::<bool>(), ipv4, ipv6, transport, 0u8..=255).prop_map(|(v4, f4, f6, (kind, options, payload), number)| {
        let f = if v4 { f4 } else { f6 };
        match kind {
            0 => f.tcp(1024, 80).tcp_fields(0x1a, 7, &vec![1; options]),
            1 => f.udp(53, 5353),
            2 => f.icmp(8, 0),
            3 => f.icmp(135 + number % 2, u8::from(number == 9)),
            _ => f.protocol([132, 58, 1, 59, number][usize::from(number) % 5]),
        }
        .payload(payload)
    })
}

fn frames() -> impl Strategy<Value = Vec<u8>> {
    let tags = prop_oneof![
        4 => Just(vec![]),
        2 => Just(vec![(0x8100, 0xe005)]),
        1 => Just(vec![(0x88a8, 7), (0x8100, 9)]),
        1 => Just(vec![(0x88a8, 7), (0x8100, 9), (0x8100, 11)]),
    ];
    let arp = (0u16..300, any::<bool>()).prop_map(|(operation, rarp)| {
        let mut f = testutil::arp(operation, ([2; 6], [10, 0, 0, 1]), ([4; 6], [10, 0, 0, 2]));
        if rarp {
            f[13] = 0x35;
            f[12] = 0x80;
        }
        f
    });
    let snap = |f: Vec<u8>, at: usize| {
        let llc = [&40u16.to_be_bytes()[..], &[0xaa, 0xaa, 3, 0, 0, 0]].concat();
        [&f[..at], &llc, &f[at..]].concat()
    };
    let ip = (ip_and_transport(), tags, 0usize..400, 0u8..8).prop_map(move |(f, tags, padding, llc)| {
        let tagged = tags.iter().fold(f.padding(padding % 300 * usize::from(padding > 200)), |f, (p, t)| f.tag(*p, *t));
        let f = tagged.build();
        if llc == 0 { snap(f, 12 + 4 * tags.len()) } else { f }
    });
    prop_oneof![
        10 => ip,
        1 => arp,
        1 => proptest::collection::vec(any::<u8>(), 0..300),
    ]
}

/// Bytes changed, preferably to values that mean something, and the frame cut.
pub(crate) fn mutated() -> impl Strategy<Value = Vec<u8>> {
    let byte = prop_oneof![
        Just(0u8),
        Just(1),
        Just(2),
        Just(3),
        Just(6),
        Just(17),
        Just(43),
        Just(44),
        Just(51),
        Just(58),
        Just(60),
        Just(0x45),
        Just(0x4f),
        Just(0x60),
        Just(0x81),
        Just(0x88),
        Just(255),
        any::<u8>()
    ];
    let changes = proptest::collection::vec((0usize..120, byte), 0..5);
    (frames(), changes, prop_oneof![2 => Just(usize::MAX), 1 => 0usize..260]).prop_map(|(mut f, changes, cut)| {
        for (at, byte) in changes {
            if let Some(b) = f.get_mut(at) {
                *b = byte;
            }
        }
        f.truncate(cut);
        f
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn same_key_for_well_formed_frames(frame in frames()) {
        check(&frame, frame.len());
    }

    #[test]
    fn same_key_for_mutated_frames(frame in mutated()) {
        check(&frame, frame.len());
    }

    /// Every cut of one frame, and every byte of its headers raised.
    #[test]
    fn same_key_for_every_cut(frame in frames()) {
        for len in 0..frame.len().min(150) {
            check(&frame[..len], len);
        }
    }

    /// A snapshot shorter than it might be (`lasthop trace`) and lengths that lie never make it panic.
    #[test]
    fn any_bytes_and_any_length_are_fine(frame in mutated(), frame_len in 0usize..70_000) {
        let mut key = dirty();
        extract(&mut key, &frame, frame_len, Depth::Full);
        prop_assert_eq!(key.in_port, dirty().in_port);
    }
}

/// Key of a frame that both agree on.
fn key(frame: &[u8]) -> FlowKey {
    check(frame, frame.len())
}

#[test]
fn plain_tcp() {
    let f =
        Frame::new(1, 2).vlan(0x2005).ipv4([10, 0, 0, 1], [10, 0, 0, 2]).tos(0x12).tcp(1000, 80).tcp_fields(2, 1, &[]);
    let k = key(&f.build());
    assert_eq!((k.eth_src[5], k.eth_dst[5], k.eth_type), (1, 2, 0x800));
    assert_eq!((k.vlan_tpid, k.vlan_tci, k.inner_vlan_tci), (0x8100, 0x3005, 0));
    assert_eq!((&k.ip_src[12..], &k.ip_dst[12..]), (&[10, 0, 0, 1][..], &[10, 0, 0, 2][..]));
    assert_eq!((k.ip_proto, k.ip_tos, k.ip_ttl, k.ip_frag), (6, 0x12, 64, 0));
    assert_eq!((k.l4_src, k.l4_dst, k.tcp_flags, k.anomalies), (1000, 80, 2, 0));
}

/// P1: cut inside any header.
#[test]
fn cut_frames() {
    let f = Frame::new(1, 2).ipv4([10, 0, 0, 1], [10, 0, 0, 2]).udp(1, 2).build();
    assert_eq!((key(&f[..13]).eth_src, key(&f[..13]).eth_type), ([0; 6], 0));
    assert_eq!((key(&f[..14]).eth_type, key(&f[..14]).anomalies), (0x800, FlowKey::MALFORMED_L3));
    assert_eq!(key(&f[..33]).anomalies, FlowKey::MALFORMED_L3);
    assert_eq!(key(&f[..41]).anomalies, FlowKey::MALFORMED_L3, "total length above the frame");
    assert_eq!((key(&f).anomalies, key(&f).l4_dst), (0, 2));
    let tagged = Frame::new(1, 2).vlan(5).build();
    assert_eq!((key(&tagged[..17]).eth_type, key(&tagged[..17]).vlan_tci), (0x8100, 0));
}

/// P2: padding of any size.
#[test]
fn padding_is_not_payload() {
    for padding in [1, 255, 256, 300, 60_000] {
        let f = Frame::new(1, 2).ipv4([10, 0, 0, 1], [10, 0, 0, 2]).udp(7, 9).padding(padding).build();
        assert_eq!((key(&f).anomalies, key(&f).l4_src), (0, 7));
    }
    let no_header = Frame::new(1, 2).ipv4([1; 4], [2; 4]).protocol(17).padding(100).build();
    assert_eq!(key(&no_header).anomalies, FlowKey::MALFORMED_L4, "padding must not be read as ports");
}

/// P3: protocol 0 of IPv4 is a protocol; IPv6 chains end at what is not an extension.
#[test]
fn protocols_and_extension_chains() {
    let k = key(&Frame::new(1, 2).ipv4([1; 4], [2; 4]).protocol(0).payload([9; 40]).build());
    assert_eq!((k.ip_proto, k.l4_src, k.anomalies), (0, 0, 0));
    let v6 = || Frame::new(1, 2).ipv6([3; 16], [4; 16]);
    let k = key(&v6().extension(0, &[0; 7]).extension(60, &[0; 7]).udp(5, 6).build());
    assert_eq!((k.ip_proto, k.l4_src, k.l4_dst), (17, 5, 6));
    let k = key(&v6().extension(139, &[0; 7]).udp(5, 6).build());
    assert_eq!((k.ip_proto, k.l4_src, k.anomalies), (139, 0, 0), "unknown next header");
    let k = key(&v6().extension(0, &[200, 0, 0, 0, 0, 0, 0]).udp(5, 6).build());
    assert_eq!((k.ip_proto, k.anomalies), (0, FlowKey::MALFORMED_L4), "longer than the packet");
    assert_eq!(k.ip_src, [3; 16], "addresses are known all the same");
    for (words, anomaly) in [(0, FlowKey::MALFORMED_L4), (1, 0)] {
        let ah = v6().extension(51, &[words, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]).udp(5, 6).build();
        assert_eq!(key(&ah).anomalies, anomaly, "AH without its sequence number");
    }
    let deep = v6().extension(60, &[&[19][..], &[0; 158]].concat()).tcp(5, 6).payload([0; 100]).build();
    assert_eq!((key(&deep).anomalies, key(&deep).l4_src), (FlowKey::DEEP_EXTENSIONS, 0));
    let long = (0..20).fold(v6(), |f, _| f.extension(0, &[0; 7])).udp(5, 6).build();
    assert_eq!(key(&long).anomalies, FlowKey::DEEP_EXTENSIONS);
}

/// P4: option lengths that are zero or reach too far.
#[test]
fn neighbour_discovery() {
    let (mac, ip, target) = ([2, 0, 0, 0, 0, 7], [0xfe; 16], [0xfd; 16]);
    let good = testutil::neighbour_solicitation((mac, ip), target);
    let k = key(&good);
    assert_eq!((k.l4_src, k.l4_dst, k.anomalies), (135, 0, 0));
    assert_eq!((k.nd_target, k.arp_sha, k.arp_tha), (target, mac, [0; 6]));
    for len in [0, 2, 255] {
        let mut bad = good.clone();
        bad[14 + 40 + 24 + 1] = len;
        let k = key(&bad);
        assert_eq!((k.anomalies, k.l4_src, k.nd_target, k.arp_sha), (FlowKey::MALFORMED_L4, 0, [0; 16], [0; 6]));
    }
}

/// P5: total length below the header or above the frame.
#[test]
fn ip_lengths() {
    let good = Frame::new(1, 2).ipv4([10, 0, 0, 1], [10, 0, 0, 2]).udp(7, 9).build();
    for len in [0, 19, 29, 0xffff] {
        let mut bad = good.clone();
        bad[16..18].copy_from_slice(&u16::to_be_bytes(len));
        let k = key(&bad);
        assert_eq!((k.anomalies, k.ip_src, k.ip_proto), (FlowKey::MALFORMED_L3, [0; 16], 0), "{len}");
    }
    let mut short = good.clone();
    short[16..18].copy_from_slice(&24u16.to_be_bytes());
    assert_eq!((key(&short).anomalies, key(&short).ip_proto), (FlowKey::MALFORMED_L4, 17));
}

/// P6: fragments.
#[test]
fn fragments() {
    let f = |word| Frame::new(1, 2).ipv4([1; 4], [2; 4]).fragment(word).udp(7, 9).payload([0; 16]);
    let k = key(&f(0x2000).build());
    assert_eq!((k.ip_frag, k.l4_dst), (FlowKey::FRAG_ANY, 9));
    let k = key(&f(0x0001).build());
    assert_eq!((k.ip_frag, k.l4_dst, k.ip_proto), (FlowKey::FRAG_ANY | FlowKey::FRAG_LATER, 0, 17));
    let tiny = Frame::new(1, 2).ipv4([1; 4], [2; 4]).fragment(0x2000).protocol(6).payload([0; 8]).build();
    assert_eq!((key(&tiny).ip_frag, key(&tiny).anomalies), (FlowKey::FRAG_ANY, FlowKey::MALFORMED_L4));
    let v6 = |body: &[u8; 7]| Frame::new(1, 2).ipv6([3; 16], [4; 16]).extension(44, body).udp(7, 9).build();
    assert_eq!((key(&v6(&[0; 7])).ip_frag, key(&v6(&[0; 7])).l4_dst), (0, 9), "the whole packet is no fragment");
    let k = key(&v6(&[0, 0, 1, 0, 0, 0, 0]));
    assert_eq!((k.ip_frag, k.l4_dst), (FlowKey::FRAG_ANY, 9));
    let k = key(&v6(&[0, 0, 8, 0, 0, 0, 0]));
    assert_eq!((k.ip_frag, k.l4_dst), (FlowKey::FRAG_ANY | FlowKey::FRAG_LATER, 0));
}

/// P7: stacks deeper than the key.
#[test]
fn deep_stacks() {
    let tagged = (0..8).fold(Frame::new(1, 2), |f, i| f.vlan(i)).ipv4([1; 4], [2; 4]).udp(7, 9).build();
    let k = key(&tagged);
    assert_eq!((k.eth_type, k.inner_vlan_tci, k.anomalies, k.ip_proto), (0x8100, 0x1001, FlowKey::DEEP_VLAN, 0));
    let mpls = Frame::new(1, 2).ether_type(0x8847).payload([0; 100]).build();
    assert_eq!((key(&mpls).eth_type, key(&mpls).anomalies), (0x8847, 0));
}

#[test]
fn link_layer_lengths() {
    let llc = |bytes: &[u8]| [Frame::new(1, 2).ether_type(60).build(), bytes.to_vec()].concat();
    assert_eq!(key(&llc(&[0x42, 0x42, 3, 0, 0])).eth_type, 0x5ff);
    assert_eq!(key(&llc(&[0xaa, 0xaa, 3, 0, 0, 0, 0x88, 0xcc])).eth_type, 0x88cc);
    assert_eq!(key(&llc(&[0xaa, 0xaa, 3, 0, 0, 0, 6, 0])).eth_type, 0x600, "the smallest");
    assert_eq!(key(&llc(&[0xaa, 0xaa, 3, 0, 0, 0, 5, 0xff])).eth_type, 0x5ff);
    assert_eq!(key(&llc(&[0xaa, 0xaa, 3, 0, 0, 0x0c, 0x20, 0])).eth_type, 0x5ff, "another organisation's numbers");
}
