//! What a flow does (`enum ovs_action_attr`).

use crate::netlink::{attributes, table, u32_of};
use crate::nsh::{self, Nsh};
use crate::{Ct, Refused, is_mpls, key};
use lasthop_frame::{Part, Set, ethertype, proto};
use lasthop_tunnel::Tunnel;

/// Most actions of a list, those inside of others counted too.
pub const MAX_ACTS: usize = 4096;
/// Length of an Ethernet header, which a cut leaves.
const ETHERNET: u32 = 14;
/// How deep lists may lie in lists.
const MAX_DEPTH: usize = 8;

/// What no packet shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Meta {
    /// The priority.
    Priority,
    /// The mark.
    Mark,
}

/// What is done to a packet at its front, that the switch cannot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Front {
    /// A label becomes the outermost, behind the Ethernet header.
    PushMpls {
        /// The label, as it is sent.
        label: u32,
        /// The packet's EtherType from then on.
        ether_type: u16,
    },
    /// The outermost label goes.
    PopMpls {
        /// The packet's EtherType from then on; [`Front::ETHERNET`]: what is behind the label is a frame.
        ether_type: u16,
    },
    /// Bits of the outermost label change.
    SetMpls {
        /// The new bits.
        value: u32,
        /// Which.
        mask: u32,
    },
    /// All of the frame becomes what a label is in front of, without an Ethernet header of its own.
    Wrap {
        /// The label, as it is sent.
        label: u32,
        /// The packet's EtherType from then on.
        ether_type: u16,
    },
    /// It gets an Ethernet header: destination and source.
    PushEthernet([u8; 12]),
    /// Its Ethernet header goes.
    PopEthernet,
    /// This network service header comes in front of all of it. Which protocol is next the packet says.
    PushNsh(Vec<u8>),
    /// The network service header that it begins with goes.
    PopNsh,
    /// Bits of the network service header change.
    SetNsh {
        /// The new bits.
        value: Nsh,
        /// Which.
        mask: Nsh,
    },
}

impl Front {
    /// Says that behind a label there is a frame.
    pub const ETHERNET: u16 = 0x6558;
}

/// One action.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Act {
    /// Send it to this port of Open vSwitch's.
    Output(u32),
    /// Send it to Open vSwitch.
    Userspace {
        /// The socket, unless upcalls go by the CPU.
        pid: u32,
        /// To be sent along.
        userdata: Option<Vec<u8>>,
        /// The flow's actions are to be sent along.
        actions: bool,
        /// The outer header is to be sent along that it leaves with by this port, if that is a tunnel's.
        egress: Option<u32>,
    },
    /// Set fields of its header, one after the other.
    Set(Vec<Set>),
    /// Set bits of what no packet shows.
    SetMeta {
        /// What.
        meta: Meta,
        /// The new bits.
        value: u32,
        /// Which.
        mask: u32,
    },
    /// What goes through a tunnel from here on has this outer header.
    SetTunnel(Box<Tunnel>),
    /// A VLAN tag becomes the outermost.
    PushVlan {
        /// 0x8100 or 0x88a8.
        tpid: u16,
        /// As it is sent.
        tci: u16,
    },
    /// The outermost VLAN tag goes.
    PopVlan,
    /// Look it up again, with this id.
    Recirculate(u32),
    /// Compute a hash of its addresses and ports, with this basis.
    Hash(u32),
    /// The next output is cut to so many bytes.
    Truncate(u32),
    /// With this probability, of `u32::MAX`, do this with a copy.
    Sample(u32, Vec<Self>),
    /// Do this with a copy.
    Clone(Vec<Self>),
    /// If it is longer than so many bytes do the first with it, else the second.
    CheckLength(u16, Vec<Self>, Vec<Self>),
    /// Look its connection up.
    Ct(Ct),
    /// It has been to no connection.
    CtClear,
    /// It goes on if this meter lets it pass, or there is none with the number.
    Meter(u32),
    /// Change its front.
    Front(Front),
}

/// What is known of the packets that actions are for; 0: nothing, so that what a header has to be there for is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Suits {
    /// Their EtherType, behind their tags.
    pub eth_type: u16,
    /// The protocol in their IP header.
    pub ip_proto: u8,
}

impl Suits {
    /// Whether this field may be set, to a value of so many bits under a mask, or to this value (`validate_set` in the kernel's net/openvswitch/flow_netlink.c).
    fn takes(self, kind: u16, value: &[u8], mask: Option<&[u8]>) -> bool {
        // Where the structure says which protocol it is, and which fragment.
        let stays = |proto: usize, fragment: usize| match mask {
            Some(mask) => [proto, fragment].iter().all(|at| mask.get(*at).is_none_or(|bits| *bits == 0)),
            None => value.get(proto).is_none_or(|value| *value == self.ip_proto),
        };
        let is_ip = matches!(self.eth_type, ethertype::IPV4 | ethertype::IPV6);
        match kind {
            key::IPV4 => self.eth_type == ethertype::IPV4 && stays(8, 11),
            key::IPV6 => self.eth_type == ethertype::IPV6 && stays(36, 39),
            key::TCP => is_ip && self.ip_proto == proto::TCP,
            key::UDP => is_ip && self.ip_proto == proto::UDP,
            key::MPLS => is_mpls(self.eth_type),
            key::NSH => self.eth_type == nsh::ETHER_TYPE,
            _ => true,
        }
    }
}

impl Act {
    /// Reads a list of actions, whatever packets they are for.
    pub fn read(list: &[u8]) -> Result<Vec<Self>, Refused> {
        read(list, MAX_DEPTH, &mut Reader { count: 0, suits: None })
    }

    /// Reads a list of actions for such packets. Refuses what does not suit them, up to where their front changes.
    pub fn read_for(list: &[u8], packets: Suits) -> Result<Vec<Self>, Refused> {
        read(list, MAX_DEPTH, &mut Reader { count: 0, suits: Some(packets) })
    }
}

struct Reader {
    /// Actions so far.
    count: usize,
    /// What the packets are at this place, if that is known.
    suits: Option<Suits>,
}

/// A list in another: what it makes of packets it makes of a copy, or nothing follows.
fn read_inner(list: &[u8], depth: usize, reader: &mut Reader) -> Result<Vec<Act>, Refused> {
    let suits = reader.suits;
    let acts = read(list, depth, reader);
    reader.suits = suits;
    acts
}

fn read(list: &[u8], depth: usize, reader: &mut Reader) -> Result<Vec<Act>, Refused> {
    let depth = depth.checked_sub(1).ok_or(Refused::INVALID)?;
    let mut acts = Vec::new();
    for attribute in attributes(list) {
        reader.count += 1;
        if reader.count > MAX_ACTS {
            return Err(Refused::INVALID);
        }
        let (kind, value) = attribute?;
        let act = match kind {
            1 => Act::Output(u32_of(value)?),
            2 => userspace(value)?,
            3 => set(value, false, reader.suits)?,
            4 => push_vlan(value)?,
            5 => Act::PopVlan,
            6 => sample(value, depth, reader)?,
            7 => Act::Recirculate(u32_of(value)?),
            8 => hash(value)?,
            9 => Act::Front(push_mpls(value)?),
            10 => Act::Front(Front::PopMpls {
                ether_type: value.try_into().map(u16::from_be_bytes).map_err(|_| Refused::RANGE)?,
            }),
            11 => set(value, true, reader.suits)?,
            12 => Act::Ct(Ct::read(value)?),
            13 => Act::Truncate(u32_of(value).ok().filter(|len| *len >= ETHERNET).ok_or(Refused::INVALID)?),
            14 => Act::Front(Front::PushEthernet(push_ethernet(value)?)),
            15 => Act::Front(Front::PopEthernet),
            16 => Act::CtClear,
            17 => Act::Front(push_nsh(value)?),
            18 => Act::Front(Front::PopNsh),
            19 => Act::Meter(u32_of(value)?),
            20 => Act::Clone(read_inner(value, depth, reader)?),
            21 => check_length(value, depth, reader)?,
            22 => Act::Front(wrap(value)?),
            // Open vSwitch does without.
            _ => return Err(Refused::INVALID),
        };
        if matches!(act, Act::Front(_)) {
            reader.suits = None;
        }
        acts.push(act);
    }
    Ok(acts)
}

fn userspace(value: &[u8]) -> Result<Act, Refused> {
    let [_, pid, userdata, egress, actions] = table::<5>(value)?;
    let (pid, egress) = (pid.map(u32_of).transpose()?.unwrap_or(0), egress.map(u32_of).transpose()?);
    Ok(Act::Userspace { pid, userdata: userdata.map(Vec::from), actions: actions.is_some(), egress })
}

fn push_vlan(value: &[u8]) -> Result<Act, Refused> {
    let &[t0, t1, c0, c1] = value else { return Err(Refused::RANGE) };
    let (tpid, tci) = (u16::from_be_bytes([t0, t1]), u16::from_be_bytes([c0, c1]));
    // The bit that says that there is a tag is not sent.
    if !matches!(tpid, 0x8100 | 0x88a8) || tci & 0x1000 == 0 {
        return Err(Refused::INVALID);
    }
    Ok(Act::PushVlan { tpid, tci: tci & !0x1000 })
}

fn push_mpls(value: &[u8]) -> Result<Front, Refused> {
    // The structure has padding at its end.
    let &[a, b, c, d, t0, t1, ..] = value else { return Err(Refused::RANGE) };
    let (label, ether_type) = (u32::from_be_bytes([a, b, c, d]), u16::from_be_bytes([t0, t1]));
    if is_mpls(ether_type) { Ok(Front::PushMpls { label, ether_type }) } else { Err(Refused::INVALID) }
}

fn wrap(value: &[u8]) -> Result<Front, Refused> {
    let flags =
        value.get(6..8).and_then(|flags| flags.try_into().ok()).map(u16::from_ne_bytes).ok_or(Refused::RANGE)?;
    match push_mpls(value)? {
        Front::PushMpls { label, ether_type } if flags & 1 == 0 => Ok(Front::Wrap { label, ether_type }),
        front => Ok(front),
    }
}

fn push_ethernet(value: &[u8]) -> Result<[u8; 12], Refused> {
    let value: [u8; 12] = value.try_into().map_err(|_| Refused::RANGE)?;
    let mut addresses = value;
    addresses.rotate_left(6);
    Ok(addresses)
}

/// A list of one: the header, as a key has it.
fn push_nsh(value: &[u8]) -> Result<Front, Refused> {
    match attributes(value).collect::<Result<Vec<_>, _>>()?[..] {
        [(key::NSH, header)] => nsh::read_push(header).map(Front::PushNsh),
        _ => Err(Refused::INVALID),
    }
}

fn sample(value: &[u8], depth: usize, reader: &mut Reader) -> Result<Act, Refused> {
    let [_, probability, acts] = table::<3>(value)?;
    let probability = u32_of(probability.ok_or(Refused::INVALID)?)?;
    Ok(Act::Sample(probability, read_inner(acts.ok_or(Refused::INVALID)?, depth, reader)?))
}

fn hash(value: &[u8]) -> Result<Act, Refused> {
    let (algorithm, basis) = value.split_at_checked(4).ok_or(Refused::RANGE)?;
    if u32_of(algorithm)? != 0 {
        return Err(Refused::INVALID);
    }
    Ok(Act::Hash(u32_of(basis)?))
}

fn check_length(value: &[u8], depth: usize, reader: &mut Reader) -> Result<Act, Refused> {
    let [_, len, longer, other] = table::<4>(value)?;
    let len = len.and_then(|len| len.try_into().ok()).map(u16::from_ne_bytes).ok_or(Refused::INVALID)?;
    let mut list = |acts: Option<&[u8]>| read_inner(acts.unwrap_or_default(), depth, reader);
    Ok(Act::CheckLength(len, list(longer)?, list(other)?))
}

/// A field and its new value; `masked`: and then the bits that change.
fn set(value: &[u8], masked: bool, suits: Option<Suits>) -> Result<Act, Refused> {
    let mut fields = attributes(value);
    let (kind, value) = fields.next().ok_or(Refused::INVALID)??;
    if fields.next().is_some() {
        return Err(Refused::INVALID);
    }
    if kind == key::TUNNEL && !masked {
        return Ok(Act::SetTunnel(crate::tunnel::read_set(value)?.into()));
    }
    let halves = value.split_at(value.len() / 2);
    let (new, bits) = if masked { (halves.0, Some(halves.1)) } else { (value, None) };
    if suits.is_some_and(|suits| !suits.takes(kind, new, bits)) {
        return Err(Refused::INVALID);
    }
    if kind == key::NSH {
        let (value, mask) = nsh::read_set(value, masked)?;
        return Ok(Act::Front(Front::SetNsh { value, mask }));
    }
    let all = vec![0xff; value.len()];
    let (value, mask) = (new, bits.unwrap_or(&all));
    let meta = |meta| Ok(Act::SetMeta { meta, value: u32_of(value)?, mask: u32_of(mask)? });
    if kind == key::MPLS {
        let label = |bytes: &[u8]| bytes.try_into().map(u32::from_be_bytes).map_err(|_| Refused::RANGE);
        let (value, mask) = (label(value)?, label(mask)?);
        return Ok(Act::Front(Front::SetMpls { value: value & mask, mask }));
    }
    let len = match kind {
        key::PRIORITY_ATTRIBUTE => return meta(Meta::Priority),
        key::SKB_MARK => return meta(Meta::Mark),
        key::ETHERNET | key::IPV4 => 12,
        key::IPV6 => 40,
        key::TCP | key::UDP => 4,
        _ => return Err(Refused::INVALID),
    };
    if value.len() != len || mask.len() != len {
        return Err(Refused::INVALID);
    }
    let (value, mask) = (arranged(kind, value), arranged(kind, mask));
    let (part, words): (Part, &[u8]) = match kind {
        key::ETHERNET => (Part::Ethernet, &[0, 1, 2]),
        key::IPV4 => (Part::Ipv4, &[0, 2, 3, 4]),
        key::IPV6 => (Part::Ipv6, &[0, 1, 2, 3, 4, 5, 6, 7, 8, 9]),
        _ => (Part::Ports, &[0]),
    };
    let words = words.iter().zip(value.into_iter().zip(mask)).filter(|(_, (_, mask))| *mask != 0);
    Ok(Act::Set(words.map(|(word, (value, mask))| Set { part, word: *word, value: value & mask, mask }).collect()))
}

/// The words of a header that a key's structure speaks of, in the header's order. What it has and cannot be set (protocol, fragment) is
/// left out.
fn arranged(kind: u16, value: &[u8]) -> Vec<u32> {
    let word = |at: usize| value.get(at..).and_then(|v| v.first_chunk()).map_or(0, |b| u32::from_be_bytes(*b));
    let byte = |at: usize| value.get(at).map_or(0, |b| u32::from(*b));
    match kind {
        key::ETHERNET => {
            // The frame begins with the destination, the structure with the source.
            let (source, destination) = value.split_at(6.min(value.len()));
            let frame = [destination, source].concat();
            frame.as_chunks().0.iter().map(|b| u32::from_be_bytes(*b)).collect()
        }
        key::IPV4 => vec![byte(9) << 16, byte(10) << 24, word(0), word(4)],
        key::IPV6 => {
            let first = byte(37) << 20 | word(32) & 0xf_ffff;
            [first, byte(38)].into_iter().chain((0..8).map(|i| word(4 * i))).collect()
        }
        _ => vec![word(0)],
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::netlink::Writer;
    use lasthop_frame::{Edit, Header, Offload};
    use proptest::prelude::*;

    fn list(fill: impl FnOnce(&mut Writer)) -> Vec<u8> {
        let mut writer = Writer::new();
        fill(&mut writer);
        writer.into_bytes()
    }

    /// What a frame of UDP over IPv4 becomes.
    fn after(acts: &[Act]) -> Vec<u8> {
        let mut frame = vec![2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 8, 0, 0x45, 0, 0, 32, 0, 0, 0, 0, 64, 17, 0, 0];
        frame.extend([10, 0, 0, 1, 10, 0, 0, 2, 0x12, 0x34, 0, 53, 0, 12, 0, 0, 1, 2, 3, 4]);
        let mut header = Header::default();
        header.restart(frame.len()).copy_from_slice(&frame);
        for act in acts {
            let Act::Set(sets) = act else { panic!("{act:?} sets nothing") };
            for set in sets {
                Edit::Set(*set).apply(&mut header, &mut Offload::default(), 0).unwrap();
            }
        }
        header.bytes().to_vec()
    }

    #[test]
    fn fields_are_set_where_the_frame_has_them() {
        let acts = Act::read(&list(|to| {
            to.nest(3, |to| to.attribute(key::ETHERNET, &[2, 9, 9, 9, 9, 1, 2, 8, 8, 8, 8, 2]));
            to.nest(11, |to| {
                let (value, mask) =
                    ([0, 0, 0, 0, 172, 16, 0, 9, 0, 0, 63, 0], [0, 0, 0, 0, 255, 255, 255, 255, 0, 0, 255, 0]);
                to.attribute(key::IPV4, &[value, mask].concat());
            });
            to.nest(11, |to| to.attribute(key::UDP, &[0, 0, 0x20, 1, 0, 0, 0xff, 0xff]));
        }));
        let frame = after(&acts.unwrap());
        assert_eq!(frame[..12], [2, 8, 8, 8, 8, 2, 2, 9, 9, 9, 9, 1]);
        assert_eq!((frame[22], &frame[26..34]), (63, &[10, 0, 0, 1, 172, 16, 0, 9][..]));
        assert_eq!(frame[34..38], [0x12, 0x34, 0x20, 1]);
    }

    #[test]
    fn an_order_to_set_what_cannot_be_set_is_refused() {
        for (kind, value) in [(13, vec![0; 24]), (17, vec![0; 4]), (key::IPV4, vec![0; 11]), (31, vec![0; 4])] {
            assert_eq!(Act::read(&list(|to| to.nest(3, |to| to.attribute(kind, &value)))), Err(Refused::INVALID));
        }
    }

    #[test]
    fn lists_in_lists_end_somewhere() {
        let mut inner = list(|to| to.number(1, 7));
        for _ in 0..MAX_DEPTH - 1 {
            inner = list(|to| to.nest(20, |to| to.raw(&inner)));
        }
        assert!(Act::read(&inner).is_ok());
        let deeper = list(|to| to.nest(20, |to| to.raw(&inner)));
        assert_eq!(Act::read(&deeper), Err(Refused::INVALID));
    }

    proptest! {
        #[test]
        fn any_list_is_read(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = Act::read(&bytes);
        }

        #[test]
        fn any_action_is_read(kind in 0u16..26, value in prop::collection::vec(any::<u8>(), 0..80)) {
            let _ = Act::read(&list(|to| to.nest(kind, |to| to.raw(&value))));
        }
    }
}
