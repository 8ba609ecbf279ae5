//! A rule: what it matches, what becomes of that, and how both are said to the kernel (linux/pkt_cls.h, linux/tc_act/).
#![allow(missing_docs)] // Fields whose names say all.

use crate::message::Request;
use crate::{FLOWS, REST};

pub(crate) const TCA_KIND: u16 = 1;
pub(crate) const TCA_OPTIONS: u16 = 2;
pub(crate) const FLOWER: &[u8] = b"flower\0";

/// Kinds of attributes of a flower rule.
pub(crate) mod flower {
    pub const ACT: u16 = 3;
    pub const ETH_DST: u16 = 4;
    pub const ETH_SRC: u16 = 6;
    pub const ETH_TYPE: u16 = 8;
    pub const IP_PROTO: u16 = 9;
    pub const IPV4_SRC: u16 = 10;
    pub const IPV4_DST: u16 = 12;
    pub const IPV6_SRC: u16 = 14;
    pub const IPV6_DST: u16 = 16;
    pub const TCP: [u16; 4] = [18, 35, 19, 36];
    pub const UDP: [u16; 4] = [20, 37, 21, 38];
    pub const SCTP: [u16; 4] = [41, 39, 42, 40];
    pub const FLAGS: u16 = 22;
    pub const VLAN_ID: u16 = 23;
    pub const VLAN_PRIO: u16 = 24;
    pub const VLAN_ETH_TYPE: u16 = 25;
    pub const KEY_FLAGS: u16 = 47;
    pub const TCP_FLAGS: u16 = 71;
    pub const IP_TOS: u16 = 73;
    pub const IP_TTL: u16 = 75;
}

/// `TCA_FLOWER_KEY_FLAGS_IS_FRAGMENT`.
const FRAGMENT: u32 = 1;
const IPV4: u16 = 0x0800;
const IPV6: u16 = 0x86dd;
const ARP: u16 = 0x0806;
const CTAG: u16 = 0x8100;
const STAG: u16 = 0x88a8;
const ALL: u16 = 3;

/// Who carries rules out, in Open vSwitch's words.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Policy {
    /// The card if it can, else the kernel.
    #[default]
    None,
    /// The card alone: what it cannot carry out is refused.
    SkipSw,
    /// The kernel alone.
    SkipHw,
}

impl Policy {
    /// All of them, by their names.
    pub const ALL: [(&'static str, Self); 3] =
        [("none", Self::None), ("skip_sw", Self::SkipSw), ("skip_hw", Self::SkipHw)];

    /// Its name.
    pub fn name(self) -> &'static str {
        Self::ALL.iter().find(|(_, policy)| *policy == self).map_or("none", |(name, _)| name)
    }

    /// The one of this name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.iter().find(|(other, _)| *other == name).map(|(_, policy)| *policy)
    }

    /// `TCA_CLS_FLAGS_SKIP_HW`, `TCA_CLS_FLAGS_SKIP_SW`.
    fn flags(self) -> u32 {
        match self {
            Self::None => 0,
            Self::SkipHw => 1,
            Self::SkipSw => 2,
        }
    }
}

/// The one VLAN tag that a frame has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tag {
    /// 0x8100 or 0x88a8.
    pub tpid: u16,
    /// VLAN id.
    pub id: u16,
    /// Its priority, if that matters.
    pub priority: Option<u8>,
}

/// What a rule matches: values, each with the bits of it that matter. Addresses of IPv4 are the last four bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Match {
    /// Of what follows the tag, or the addresses.
    pub ethertype: u16,
    /// Without one, frames without a tag.
    pub tag: Option<Tag>,
    pub eth_dst: [[u8; 6]; 2],
    pub eth_src: [[u8; 6]; 2],
    pub ip_src: [[u8; 16]; 2],
    pub ip_dst: [[u8; 16]; 2],
    pub ip_proto: Option<u8>,
    pub ip_tos: [u8; 2],
    pub ip_ttl: [u8; 2],
    /// No fragments.
    pub whole: bool,
    /// Ports of TCP, UDP or SCTP.
    pub l4_src: [u16; 2],
    pub l4_dst: [u16; 2],
    pub tcp_flags: [u16; 2],
}

/// What becomes of a frame that a rule matches, step by step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Act {
    /// Its outermost tag goes.
    PopVlan,
    /// It gets a tag.
    PushVlan { tpid: u16, id: u16, priority: u8 },
    /// This interface sends it, as it is at this point, and it goes on.
    Mirror(u32),
    /// This interface sends it, and that is all.
    Redirect(u32),
}

/// Which rule: of the ingress of which interface, and its number there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Place {
    /// The interface's number.
    pub device: u32,
    /// Lower ones are looked at first. Rules of a priority are of one protocol.
    pub priority: u16,
    /// EtherType of a frame as it came, its tag's included.
    pub protocol: u16,
    /// 0: all of this priority.
    pub handle: u32,
}

impl Place {
    /// Where all rules of flows of this interface are.
    pub fn of_flows(device: u32) -> impl Iterator<Item = Self> {
        let place = move |protocol| Some(Self { device, priority: priority(protocol)?, protocol, handle: 0 });
        [IPV4, IPV6, CTAG, STAG, ARP].into_iter().filter_map(place)
    }

    /// That of the rule which takes all that no other has taken.
    pub fn of_rest(device: u32) -> Self {
        Self { device, priority: REST, protocol: ALL, handle: 1 }
    }

    /// `struct tcmsg`: the filters of the ingress of an interface, or its qdisc `clsact`.
    pub(crate) fn tcmsg(self) -> [u8; 20] {
        tcmsg(self.device, self.handle, INGRESS, u32::from(self.priority) << 16 | u32::from(self.protocol.to_be()))
    }
}

/// `TC_H_MAKE(TC_H_CLSACT, TC_H_MIN_INGRESS)`, `TC_H_CLSACT` and its handle.
pub(crate) const INGRESS: u32 = 0xffff_fff2;
pub(crate) const CLSACT: u32 = 0xffff_fff1;
pub(crate) const CLSACT_HANDLE: u32 = 0xffff_0000;

/// `struct tcmsg`.
pub(crate) fn tcmsg(device: u32, handle: u32, parent: u32, info: u32) -> [u8; 20] {
    let mut bytes = [0; 20];
    let words = [device, handle, parent, info];
    bytes[4..].as_chunks_mut::<4>().0.iter_mut().zip(words).for_each(|(to, word)| *to = word.to_ne_bytes());
    bytes
}

/// The priority of flows' rules of this protocol; `None`: there are none.
pub fn priority(protocol: u16) -> Option<u16> {
    let at = [IPV4, IPV6, CTAG, STAG, ARP].iter().position(|known| *known == protocol)?;
    Some(FLOWS + at as u16)
}

/// A rule of one flow.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    pub matches: Match,
    pub acts: Vec<Act>,
}

impl Rule {
    /// Which EtherType its frames come with.
    pub fn protocol(&self) -> u16 {
        self.matches.tag.map_or(self.matches.ethertype, |tag| tag.tpid)
    }

    /// Adds it to a request for the place where it is to be.
    pub(crate) fn write(&self, request: &mut Request, policy: Policy) {
        request.add(TCA_KIND, FLOWER);
        request.nest(TCA_OPTIONS, |options| {
            self.matches.write(options);
            options.add(flower::FLAGS, &policy.flags().to_ne_bytes());
            write_acts(options, &self.acts);
        });
    }
}

/// All frames leave by another interface; this is always the kernel's work.
pub(crate) fn write_rest(request: &mut Request, to: u32) {
    request.add(TCA_KIND, FLOWER);
    request.nest(TCA_OPTIONS, |options| {
        options.add(flower::FLAGS, &Policy::SkipHw.flags().to_ne_bytes());
        write_acts(options, &[Act::Redirect(to)]);
    });
}

/// A value and the bits of it that matter, if any do, as two attributes that follow each other.
fn masked(options: &mut Request, [kind, mask_kind]: [u16; 2], value: &[u8], mask: &[u8]) {
    if mask.iter().any(|byte| *byte != 0) {
        options.add(kind, value);
        options.add(mask_kind, mask);
    }
}

fn next(kind: u16) -> [u16; 2] {
    [kind, kind + 1]
}

impl Match {
    fn write(&self, to: &mut Request) {
        let ethertype = self.ethertype.to_be_bytes();
        match self.tag {
            None => to.add(flower::ETH_TYPE, &ethertype),
            Some(tag) => {
                to.add(flower::ETH_TYPE, &tag.tpid.to_be_bytes());
                to.add(flower::VLAN_ID, &tag.id.to_ne_bytes());
                tag.priority.iter().for_each(|priority| to.add(flower::VLAN_PRIO, &[*priority]));
                to.add(flower::VLAN_ETH_TYPE, &ethertype);
            }
        }
        masked(to, next(flower::ETH_DST), &self.eth_dst[0], &self.eth_dst[1]);
        masked(to, next(flower::ETH_SRC), &self.eth_src[0], &self.eth_src[1]);
        self.ip_proto.iter().for_each(|proto| to.add(flower::IP_PROTO, &[*proto]));
        let (kinds, from) = if self.ethertype == IPV4 {
            ([flower::IPV4_SRC, flower::IPV4_DST], 12)
        } else {
            ([flower::IPV6_SRC, flower::IPV6_DST], 0)
        };
        for (kind, [value, mask]) in kinds.into_iter().zip([&self.ip_src, &self.ip_dst]) {
            masked(to, next(kind), &value[from..], &mask[from..]);
        }
        masked(to, next(flower::IP_TOS), &self.ip_tos[..1], &self.ip_tos[1..]);
        masked(to, next(flower::IP_TTL), &self.ip_ttl[..1], &self.ip_ttl[1..]);
        if self.whole {
            masked(to, next(flower::KEY_FLAGS), &[0; 4], &FRAGMENT.to_be_bytes());
        }
        let ports = match self.ip_proto {
            Some(17) => flower::UDP,
            Some(132) => flower::SCTP,
            _ => flower::TCP,
        };
        for (kinds, [value, mask]) in ports.as_chunks::<2>().0.iter().zip([self.l4_src, self.l4_dst]) {
            masked(to, *kinds, &value.to_be_bytes(), &mask.to_be_bytes());
        }
        let [flags, mask] = self.tcp_flags;
        masked(to, next(flower::TCP_FLAGS), &flags.to_be_bytes(), &mask.to_be_bytes());
    }
}

/// `TC_ACT_PIPE`, `TC_ACT_STOLEN`: the next action; no further.
const PIPE: u32 = 3;
const STOLEN: u32 = 4;
/// The parameters that all actions begin with (`tc_gen`).
fn general(action: u32) -> [u8; 20] {
    let mut bytes = [0; 20];
    bytes[8..12].copy_from_slice(&action.to_ne_bytes());
    bytes
}

fn write_acts(options: &mut Request, acts: &[Act]) {
    const KIND: u16 = 1;
    const OPTIONS: u16 = 2;
    const PARAMETERS: u16 = 2;
    options.nest(flower::ACT, |list| {
        for (number, act) in (1..).zip(acts) {
            list.nest(number, |one| {
                let is_vlan = matches!(act, Act::PopVlan | Act::PushVlan { .. });
                one.add(KIND, if is_vlan { b"vlan\0" } else { b"mirred\0" });
                one.nest(OPTIONS, |options| {
                    let (action, first, second): (_, u32, Option<u32>) = match *act {
                        Act::PopVlan => (PIPE, 1, None),
                        Act::PushVlan { .. } => (PIPE, 2, None),
                        Act::Redirect(device) => (STOLEN, 1, Some(device)),
                        Act::Mirror(device) => (PIPE, 2, Some(device)),
                    };
                    let mut parameters = general(action).to_vec();
                    parameters.extend(first.to_ne_bytes());
                    parameters.extend(second.into_iter().flat_map(u32::to_ne_bytes));
                    options.add(PARAMETERS, &parameters);
                    if let Act::PushVlan { tpid, id, priority } = *act {
                        options.add(3, &id.to_ne_bytes());
                        options.add(4, &tpid.to_be_bytes());
                        options.add(6, &[priority]);
                    }
                });
            });
        }
    });
}

#[cfg(test)]
mod tests;
