//! The flow key a second time: slow, on etherparse's header slices, one layer after the other, written without looking
//! at `extract.rs`. Property tests and a fuzz target hold the two against each other.

use crate::{Depth, FlowKey, SNAPSHOT_LEN, extract};
use etherparse::{
    ArpPacketSlice, Ethernet2HeaderSlice, IpAuthHeaderSlice, Ipv4HeaderSlice, Ipv6FragmentHeaderSlice, Ipv6HeaderSlice,
    Ipv6RawExtHeaderSlice, SingleVlanHeaderSlice, TcpHeaderSlice, UdpHeaderSlice,
};
use zerocopy::{FromBytes, IntoBytes};

/// A frame of which only the first bytes are known.
struct Known<'a> {
    /// As long as the frame; zero where not known.
    bytes: Vec<u8>,
    snapshot: &'a [u8],
}

impl Known<'_> {
    /// The bytes from `at` to `end`, given that the first `need` of them have to be read.
    fn header(&self, at: usize, need: usize, end: usize) -> Result<&[u8], u16> {
        match () {
            () if at + need > end => Err(FlowKey::MALFORMED_L4),
            () if at + need > self.snapshot.len() => Err(FlowKey::DEEP_EXTENSIONS),
            () => Ok(&self.bytes[at..end]),
        }
    }
}

/// Key of a frame of `frame_len` bytes, of which `snapshot` is the beginning, at [`Depth::Full`].
pub fn reference(snapshot: &[u8], frame_len: usize) -> FlowKey {
    let mut key = FlowKey::default();
    let mut bytes = snapshot.to_vec();
    bytes.resize(frame_len, 0);
    let known = Known { bytes, snapshot };
    let Ok(eth) = Ethernet2HeaderSlice::from_slice(snapshot) else { return key };
    (key.eth_dst, key.eth_src, key.eth_type) = (eth.destination(), eth.source(), eth.ether_type().0);
    let mut at = 14;

    let mut tags = Vec::new();
    while let (0x8100 | 0x88a8, true) = (key.eth_type, tags.len() < 2) {
        let Ok(tag) = SingleVlanHeaderSlice::from_slice(&snapshot[at..]) else { break };
        let id = tag.vlan_identifier().value();
        tags.push((key.eth_type, u16::from(tag.priority_code_point().value()) << 13 | 0x1000 | id));
        key.eth_type = tag.ether_type().0;
        at += 4;
    }
    if let Some(outer) = tags.first() {
        (key.vlan_tpid, key.vlan_tci) = *outer;
    }
    if let Some(inner) = tags.get(1) {
        (key.inner_vlan_tpid, key.inner_vlan_tci) = *inner;
        if key.eth_type == 0x8100 || key.eth_type == 0x88a8 {
            key.anomalies |= FlowKey::DEEP_VLAN;
        }
    }
    if key.eth_type < 0x600 {
        let llc = &snapshot[at..];
        let snap = if llc.len() >= 8 { u16::from_be_bytes([llc[6], llc[7]]) } else { 0 };
        if llc.starts_with(&[0xaa, 0xaa, 3, 0, 0, 0]) && snap >= 0x600 {
            key.eth_type = snap;
            at += 8;
        } else {
            key.eth_type = 0x5ff;
        }
    }

    let l3 = match key.eth_type {
        0x0800 => ipv4(&mut key, &known, at),
        0x86dd => ipv6(&mut key, &known, at),
        0x0806 | 0x8035 => arp(&mut key, &snapshot[at..]),
        _ => Ok(None),
    };
    let before = key;
    let anomaly = match l3 {
        Err(anomaly) => anomaly,
        Ok(None) => 0,
        Ok(Some((l4, end))) => transport(&mut key, &known, l4, end).err().unwrap_or(0),
    };
    if anomaly != 0 {
        key = FlowKey { anomalies: before.anomalies | anomaly, ..before };
    }
    key
}

type Behind = Result<Option<(usize, usize)>, u16>;

fn ipv4(key: &mut FlowKey, known: &Known, at: usize) -> Behind {
    let ip = Ipv4HeaderSlice::from_slice(&known.snapshot[at..]).map_err(|_| FlowKey::MALFORMED_L3)?;
    let end = at + usize::from(ip.total_len());
    if ip.slice().len() > usize::from(ip.total_len()) || end > known.bytes.len() {
        return Err(FlowKey::MALFORMED_L3);
    }
    key.ip_src[12..].copy_from_slice(&ip.source());
    key.ip_dst[12..].copy_from_slice(&ip.destination());
    key.ip_proto = ip.protocol().0;
    key.ip_tos = ip.dcp().value() << 2 | ip.ecn().value();
    key.ip_ttl = ip.ttl();
    if ip.is_fragmenting_payload() {
        key.ip_frag = FlowKey::FRAG_ANY;
    }
    if ip.fragments_offset().value() != 0 {
        key.ip_frag = FlowKey::FRAG_ANY | FlowKey::FRAG_LATER;
        return Ok(None);
    }
    Ok(Some((at + ip.slice().len(), end)))
}

fn ipv6(key: &mut FlowKey, known: &Known, at: usize) -> Behind {
    let ip = Ipv6HeaderSlice::from_slice(&known.snapshot[at..]).map_err(|_| FlowKey::MALFORMED_L3)?;
    let end = at + 40 + usize::from(ip.payload_length());
    if end > known.bytes.len() {
        return Err(FlowKey::MALFORMED_L3);
    }
    key.ip_src = ip.source();
    key.ip_dst = ip.destination();
    key.ip_tos = ip.traffic_class();
    key.ip_ttl = ip.hop_limit();
    key.ipv6_label = ip.flow_label().value();
    key.ip_proto = ip.next_header().0;
    let mut at = at + 40;
    loop {
        let malformed = FlowKey::MALFORMED_L4;
        let (next, len) = match key.ip_proto {
            0 | 43 | 60 => {
                let h = known.header(at, 8, end)?;
                let h = Ipv6RawExtHeaderSlice::from_slice(h).map_err(|_| malformed)?;
                (h.next_header(), h.slice().len())
            }
            51 => {
                let h = known.header(at, 8, end)?;
                let h = IpAuthHeaderSlice::from_slice(h).map_err(|_| malformed)?;
                (h.next_header(), h.slice().len())
            }
            44 => {
                let h = known.header(at, 8, end)?;
                let h = Ipv6FragmentHeaderSlice::from_slice(h).map_err(|_| malformed)?;
                if h.is_fragmenting_payload() {
                    key.ip_frag |= FlowKey::FRAG_ANY;
                }
                if h.fragment_offset().value() != 0 {
                    key.ip_frag |= FlowKey::FRAG_LATER;
                    key.ip_proto = h.next_header().0;
                    return Ok(None);
                }
                (h.next_header(), 8)
            }
            _ => return Ok(Some((at, end))),
        };
        key.ip_proto = next.0;
        at += len;
    }
}

fn arp(key: &mut FlowKey, bytes: &[u8]) -> Behind {
    if bytes.len() < 28 {
        return Err(FlowKey::MALFORMED_L3);
    }
    let Ok(arp) = ArpPacketSlice::from_slice(bytes) else { return Ok(None) };
    let ethernet = (arp.hw_addr_type().0, arp.hw_addr_size()) == (1, 6);
    if ethernet && (arp.proto_addr_type().0, arp.proto_addr_size()) == (0x800, 4) {
        key.ip_proto = if arp.operation().0 < 256 { arp.operation().0 as u8 } else { 0 };
        key.ip_src[12..].copy_from_slice(arp.sender_protocol_addr());
        key.ip_dst[12..].copy_from_slice(arp.target_protocol_addr());
        key.arp_sha.copy_from_slice(arp.sender_hw_addr());
        key.arp_tha.copy_from_slice(arp.target_hw_addr());
    }
    Ok(None)
}

fn transport(key: &mut FlowKey, known: &Known, at: usize, end: usize) -> Result<(), u16> {
    let malformed = FlowKey::MALFORMED_L4;
    match (key.ip_proto, key.eth_type) {
        (6, _) => {
            let tcp = TcpHeaderSlice::from_slice(known.header(at, 20, end)?).map_err(|_| malformed)?;
            (key.l4_src, key.l4_dst) = (tcp.source_port(), tcp.destination_port());
            key.tcp_flags = u16::from_be_bytes([tcp.slice()[12] & 15, tcp.slice()[13]]);
        }
        (17, _) => {
            let udp = UdpHeaderSlice::from_slice(known.header(at, 8, end)?).map_err(|_| malformed)?;
            (key.l4_src, key.l4_dst) = (udp.source_port(), udp.destination_port());
        }
        (132, _) => {
            let sctp = known.header(at, 12, end)?;
            key.l4_src = u16::from_be_bytes([sctp[0], sctp[1]]);
            key.l4_dst = u16::from_be_bytes([sctp[2], sctp[3]]);
        }
        (1, 0x0800) => {
            let icmp = known.header(at, 8, end)?;
            (key.l4_src, key.l4_dst) = (icmp[0].into(), icmp[1].into());
        }
        (58, 0x86dd) => {
            let icmp = known.header(at, 4, end)?;
            (key.l4_src, key.l4_dst) = (icmp[0].into(), icmp[1].into());
            if let [135 | 136, 0] = icmp[..2] {
                let message = known.header(at, 24, end)?;
                key.nd_target.copy_from_slice(&message[8..24]);
                let (mut source, mut target) = (Vec::new(), Vec::new());
                let mut at = at + 24;
                while at != end {
                    let len = usize::from(known.header(at, 2, end)?[1]);
                    if len == 0 || end - at < len * 8 {
                        return Err(malformed);
                    }
                    match (known.bytes[at], len) {
                        (1, 1) if source.is_empty() => source = known.header(at, 8, end)?[2..8].to_vec(),
                        (2, 1) if target.is_empty() => target = known.header(at, 8, end)?[2..8].to_vec(),
                        (1 | 2, _) => return Err(malformed),
                        _ => {}
                    }
                    at += len * 8;
                }
                let mac = |v: Vec<u8>| v.try_into().unwrap_or([0; 6]);
                (key.arp_sha, key.arp_tha) = (mac(source), mac(target));
            }
        }
        _ => {}
    }
    Ok(())
}

/// What a caller of [`extract`] may hold before: everything must be overwritten that the depth covers.
pub fn dirty() -> FlowKey {
    FlowKey::read_from_bytes(&[0xa5; size_of::<FlowKey>()]).expect("a key has no invalid bytes")
}

/// Panics unless [`extract`] equals the reference at every depth and touches nothing beyond the depth or of the
/// caller's. `frame` is a frame of `frame_len` bytes, or at least its first [`SNAPSHOT_LEN`]. Returns its key, which has
/// the fields of [`dirty`] that are the caller's.
pub fn check(frame: &[u8], frame_len: usize) -> FlowKey {
    let snapshot = &frame[..frame.len().min(SNAPSHOT_LEN)];
    let dirt = dirty();
    let expected = FlowKey {
        in_port: dirt.in_port,
        recirculation: dirt.recirculation,
        ct_zone: dirt.ct_zone,
        ct_state: dirt.ct_state,
        ct_mark: dirt.ct_mark,
        tunnel_flags: dirt.tunnel_flags,
        tunnel_tos: dirt.tunnel_tos,
        tunnel_ttl: dirt.tunnel_ttl,
        tunnel_id: dirt.tunnel_id,
        tunnel_src: dirt.tunnel_src,
        tunnel_dst: dirt.tunnel_dst,
        ..reference(snapshot, frame_len)
    };
    for depth in [Depth::L2, Depth::L4, Depth::Full] {
        let mut expected = expected;
        if depth == Depth::L2 {
            expected.anomalies &= FlowKey::DEEP_VLAN;
        }
        let mut got = dirt;
        extract(&mut got, snapshot, frame_len, depth);
        let len = 8 * depth.words();
        assert_eq!(&got.as_bytes()[len..], &dirt.as_bytes()[len..], "beyond {:?}", depth);
        assert_eq!(&got.as_bytes()[..len], &expected.as_bytes()[..len], "{:?}: {:?}\nnot {:?}", depth, got, expected);
    }
    expected
}
