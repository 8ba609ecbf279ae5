//! From a flow to rules of flower. A rule may match less than the flow, never more: what it leaves is the data plane's.

use crate::Why;
use lasthop_flow::{Action, FlowSpec};
use lasthop_frame::{Edit, FlowKey, FlowMask};
use lasthop_tc::{Act, Match, Rule, Tag, priority};
use lasthop_types::PortId;

const IPV4: u16 = 0x0800;
const IPV6: u16 = 0x86dd;
const CTAG: u16 = 0x8100;
const STAG: u16 = 0x88a8;
const VLAN_ID: u16 = 0x0fff;
const PRIORITY: u16 = 0xe000;
const TCP: u8 = 6;
const WITH_PORTS: [u8; 3] = [TCP, 17, 132];

/// Bits of a key that rules can look at. Of a key's anomalies a rule sees none, but for tags: what the kernel cannot read it does not match by these fields
/// (docs/uplinks.md says what that leaves).
pub fn mask() -> FlowMask {
    let all = [u8::MAX; 16];
    FlowMask(FlowKey {
        in_port: u32::MAX,
        recirculation: u32::MAX,
        eth_dst: [u8::MAX; 6],
        eth_src: [u8::MAX; 6],
        eth_type: u16::MAX,
        vlan_tci: u16::MAX,
        vlan_tpid: u16::MAX,
        inner_vlan_tpid: u16::MAX,
        inner_vlan_tci: u16::MAX,
        anomalies: u16::MAX,
        ip_src: all,
        ip_dst: all,
        ip_proto: u8::MAX,
        ip_tos: u8::MAX,
        ip_ttl: u8::MAX,
        ip_frag: u8::MAX,
        l4_src: u16::MAX,
        l4_dst: u16::MAX,
        tcp_flags: u16::MAX,
        ct_zone: u16::MAX,
        ct_state: u16::MAX,
        ct_mark: u32::MAX,
        tunnel_flags: u16::MAX,
        tunnel_tos: u8::MAX,
        tunnel_ttl: u8::MAX,
        tunnel_id: u64::MAX,
        tunnel_src: all,
        tunnel_dst: all,
        ..FlowKey::default()
    })
}

/// The rules that come to no more than the flow, for the interfaces that `device` knows of the ports that it outputs to.
pub fn rules(flow: &FlowSpec, device: impl Fn(PortId) -> Result<u32, Why>) -> Result<Vec<Rule>, Why> {
    let acts = acts(&flow.actions, device)?;
    let matches = matches(&flow.key, &flow.mask.0)?;
    Ok(matches.into_iter().map(|matches| Rule { matches, acts: acts.clone() }).collect())
}

/// The last output is a redirection: behind it a packet is gone.
fn acts(actions: &[Action], device: impl Fn(PortId) -> Result<u32, Why>) -> Result<Vec<Act>, Why> {
    let last = actions.iter().rposition(|action| matches!(action, Action::Output(_))).ok_or(Why::Refuses)?;
    let act = |(at, action): (usize, &Action)| match *action {
        Action::Output(port) if at == last => device(port).map(Act::Redirect),
        Action::Output(port) => device(port).map(Act::Mirror),
        Action::Edit(Edit::PopVlan) => Ok(Act::PopVlan),
        Action::Edit(Edit::PushVlan { tpid, tci })
            if matches!(tpid, CTAG | STAG) && tci & !(PRIORITY | VLAN_ID) == 0 =>
        {
            Ok(Act::PushVlan { tpid, id: tci & VLAN_ID, priority: (tci >> 13) as u8 })
        }
        _ => Err(Why::Action),
    };
    actions.iter().enumerate().take(last + 1).map(act).collect()
}

fn matches(key: &FlowKey, mask: &FlowKey) -> Result<Vec<Match>, Why> {
    // What no frame that comes by an interface has.
    let without = |key: &FlowKey| {
        let FlowKey {
            recirculation, anomalies, ct_zone, ct_state, ct_mark, tunnel_flags, tunnel_tos, tunnel_ttl, ..
        } = *key;
        let numbers = [recirculation, ct_mark, anomalies.into(), ct_zone.into(), ct_state.into(), tunnel_flags.into()];
        let tunnel = key.tunnel_id == 0 && [tunnel_tos, tunnel_ttl] == [0; 2];
        let inner = key.inner_vlan_tpid == 0 && key.inner_vlan_tci == 0;
        tunnel && inner && numbers == [0; 6] && [key.tunnel_src, key.tunnel_dst] == [[0; 16]; 2]
    };
    let ports = mask.l4_src | mask.l4_dst | mask.tcp_flags != 0;
    let network = ports
        || [mask.ip_src, mask.ip_dst] != [[0; 16]; 2]
        || mask.ip_proto | mask.ip_tos | mask.ip_ttl | mask.ip_frag != 0;
    let cannot = mask.in_port != u32::MAX
        || !without(key)
        || mask.ipv6_label != 0
        || [mask.arp_sha, mask.arp_tha] != [[0; 6]; 2]
        || mask.nd_target != [0; 16]
        || key.ip_frag != 0
        || ![0, u8::MAX].contains(&mask.ip_proto)
        || ports && !(mask.ip_proto == u8::MAX && WITH_PORTS.contains(&key.ip_proto))
        || mask.tcp_flags != 0 && key.ip_proto != TCP;
    if cannot {
        return Err(Why::Match);
    }
    let tag = tag(key, mask)?;
    let protocols = match mask.eth_type {
        // All else is the data plane's.
        0 if network => return Err(Why::Match),
        0 => vec![IPV4, IPV6],
        u16::MAX if network && !matches!(key.eth_type, IPV4 | IPV6) => return Err(Why::Match),
        u16::MAX
            if key.eth_type == IPV4
                && [mask.ip_src, mask.ip_dst].iter().flat_map(|ip| &ip[..12]).any(|b| *b != 0)
                && !high_zero(key) =>
        {
            return Err(Why::Match);
        }
        u16::MAX if priority(key.eth_type).is_some() && !matches!(key.eth_type, CTAG | STAG) => vec![key.eth_type],
        _ => return Err(Why::Match),
    };
    let one = |ethertype| Match {
        ethertype,
        tag,
        eth_dst: [key.eth_dst, mask.eth_dst],
        eth_src: [key.eth_src, mask.eth_src],
        ip_src: [key.ip_src, mask.ip_src],
        ip_dst: [key.ip_dst, mask.ip_dst],
        ip_proto: (mask.ip_proto != 0).then_some(key.ip_proto),
        ip_tos: [key.ip_tos, mask.ip_tos],
        ip_ttl: [key.ip_ttl, mask.ip_ttl],
        whole: ports || mask.ip_frag != 0,
        l4_src: [key.l4_src, mask.l4_src],
        l4_dst: [key.l4_dst, mask.l4_dst],
        tcp_flags: [key.tcp_flags, mask.tcp_flags],
    };
    Ok(protocols.into_iter().map(one).collect())
}

/// Of addresses of IPv4, which are the last four bytes.
fn high_zero(key: &FlowKey) -> bool {
    [key.ip_src, key.ip_dst].iter().flat_map(|ip| &ip[..12]).all(|byte| *byte == 0)
}

/// The tag that its frames have. Where a flow says nothing of it, or takes a tag with a priority alone for none, the rule's have none.
fn tag(key: &FlowKey, mask: &FlowKey) -> Result<Option<Tag>, Why> {
    if key.vlan_tci == 0 && key.vlan_tpid == 0 {
        return Ok(None);
    }
    let tpid = match (mask.vlan_tpid, key.vlan_tpid) {
        (0, _) => CTAG,
        (u16::MAX, tpid @ (CTAG | STAG)) => tpid,
        _ => return Err(Why::Match),
    };
    let priority = match mask.vlan_tci & PRIORITY {
        0 => None,
        PRIORITY => Some((key.vlan_tci >> 13) as u8),
        _ => return Err(Why::Match),
    };
    // Without its id all VLANs would match.
    if mask.vlan_tci & VLAN_ID != VLAN_ID {
        return Err(Why::Match);
    }
    Ok(Some(Tag { tpid, id: key.vlan_tci & VLAN_ID, priority }))
}

#[cfg(test)]
mod tests;
