//! A rule, and its text in the form that [`read`](super::read) understands.

pub use lasthop_classifier::{Ether, Range};
pub(crate) use lasthop_frame::ethertype::{ARP, IPV4, IPV6};
pub(crate) use lasthop_frame::proto::{ICMP, ICMPV6, SCTP, TCP, UDP};
use lasthop_text::MacAddr;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// What a rule says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Let it pass.
    Permit,
    /// Drop it.
    Deny,
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Permit => "permit",
            Self::Deny => "deny",
        })
    }
}

/// Which way a frame passes a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Direction {
    /// From the guest into the switch.
    FromGuest,
    /// From the switch to the guest.
    ToGuest,
}

impl Direction {
    /// Both.
    pub const ALL: [Self; 2] = [Self::FromGuest, Self::ToGuest];

    /// From its text.
    pub fn parse(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|d| d.text() == word)
    }

    /// `from-guest` or `to-guest`.
    pub fn text(self) -> &'static str {
        match self {
            Self::FromGuest => "from-guest",
            Self::ToGuest => "to-guest",
        }
    }
}

impl fmt::Display for Direction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.text())
    }
}

/// An address and how many of its first bits count.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Prefix {
    addr: IpAddr,
    len: u8,
}

impl Prefix {
    /// `None` if the address is not that long. Bits behind the prefix are cleared.
    pub fn new(addr: IpAddr, len: u8) -> Option<Self> {
        let addr = match addr {
            IpAddr::V4(a) if len <= 32 => {
                IpAddr::V4(Ipv4Addr::from_bits(a.to_bits() & u32::MAX.checked_shl(32 - u32::from(len)).unwrap_or(0)))
            }
            IpAddr::V6(a) if len <= 128 => {
                let mask = u128::MAX.checked_shl(128 - u32::from(len)).unwrap_or(0);
                IpAddr::V6(Ipv6Addr::from_bits(a.to_bits() & mask))
            }
            _ => return None,
        };
        Some(Self { addr, len })
    }

    /// The address, bits behind the prefix clear.
    pub fn addr(&self) -> IpAddr {
        self.addr
    }

    /// How many bits count.
    pub fn bits(&self) -> u8 {
        self.len
    }

    /// Of IPv6.
    pub fn is_v6(&self) -> bool {
        self.addr.is_ipv6()
    }

    /// Every address of the other is one of its.
    pub fn contains(&self, other: &Self) -> bool {
        self.len <= other.len && Self::new(other.addr, self.len) == Some(*self)
    }
}

/// Where a packet comes from, or goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// One address or prefix.
    Prefix(Prefix),
    /// One of the addresses of the set with this name.
    Set(String),
}

impl Place {
    /// The prefix that it is, if it is one.
    pub fn prefix(&self) -> Option<&Prefix> {
        match self {
            Self::Prefix(prefix) => Some(prefix),
            Self::Set(_) => None,
        }
    }

    /// The set that it names, if it names one.
    pub fn set(&self) -> Option<&str> {
        match self {
            Self::Prefix(_) => None,
            Self::Set(name) => Some(name),
        }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Prefix(prefix) => prefix.fmt(f),
            Self::Set(name) => write!(f, "@{name}"),
        }
    }
}

impl fmt::Display for Prefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let whole = if self.is_v6() { 128 } else { 32 };
        if self.len == whole { write!(f, "{}", self.addr) } else { write!(f, "{}/{}", self.addr, self.len) }
    }
}

/// An Ethernet address and which of its bits count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mac {
    /// The address; bits outside the mask are clear.
    pub addr: MacAddr,
    /// The mask.
    pub mask: MacAddr,
}

impl fmt::Display for Mac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.addr)?;
        if self.mask == MacAddr::BROADCAST { Ok(()) } else { write!(f, "/{}", self.mask) }
    }
}

/// A rule: a frame matches when it matches everything that is given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    /// What it says of a frame that matches.
    pub action: Action,
    /// EtherType behind the VLAN tags. Given addresses, it is that of their version, or ARP's.
    pub ether: Ether,
    /// IP protocol. Without one, a rule with ports is for TCP, UDP and SCTP.
    pub proto: Option<u8>,
    /// Source address; ARP's sender.
    pub src: Option<Place>,
    /// Destination address; ARP's target.
    pub dst: Option<Place>,
    /// Source ports, or ICMP types: one of these ranges; empty for any.
    pub sport: Vec<Range>,
    /// Destination ports, or ICMP codes: one of these ranges; empty for any.
    pub dport: Vec<Range>,
    /// Source Ethernet address.
    pub src_mac: Option<Mac>,
    /// Destination Ethernet address.
    pub dst_mac: Option<Mac>,
    /// VLAN id of the outer tag; 0 for frames without one and for priority-tagged ones.
    pub vlan: Option<u16>,
    /// Only packets of a connection that was answered, and ICMP errors about one.
    pub established: bool,
}

impl Rule {
    /// Matches every frame.
    pub fn any(action: Action) -> Self {
        Self {
            action,
            ether: Ether::Any,
            proto: None,
            src: None,
            dst: None,
            sport: Vec::new(),
            dport: Vec::new(),
            src_mac: None,
            dst_mac: None,
            vlan: None,
            established: false,
        }
    }

    /// It names ports or ICMP types, which a later fragment does not have.
    pub fn looks_at_transport(&self) -> bool {
        !self.sport.is_empty() || !self.dport.is_empty()
    }

    /// The sets that it names.
    pub fn sets(&self) -> impl Iterator<Item = &str> {
        [&self.src, &self.dst].into_iter().flatten().filter_map(Place::set)
    }

    fn is_icmp(&self) -> bool {
        matches!(self.proto, Some(ICMP | ICMPV6))
    }

    /// EtherType that follows from the rest of the rule.
    fn implied(&self) -> Ether {
        let prefix = [&self.src, &self.dst].into_iter().flatten().find_map(Place::prefix);
        match (prefix, self.proto) {
            (Some(p), _) => Ether::Type(if p.is_v6() { IPV6 } else { IPV4 }),
            (None, Some(ICMP)) => Ether::Type(IPV4),
            (None, Some(ICMPV6)) => Ether::Type(IPV6),
            (None, Some(_)) => Ether::Ip,
            (None, None) if self.looks_at_transport() || self.sets().next().is_some() => Ether::Ip,
            (None, None) => Ether::Any,
        }
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.action)?;
        let mut kind = false;
        if self.ether != self.implied() {
            kind = true;
            match self.ether {
                // Only a rule that nothing can be said of but its addresses: they were IP's then.
                Ether::Any => f.write_str(" any")?,
                Ether::Ip => f.write_str(" ip")?,
                Ether::Type(IPV4) => f.write_str(" ipv4")?,
                Ether::Type(IPV6) => f.write_str(" ipv6")?,
                Ether::Type(ARP) => f.write_str(" arp")?,
                Ether::Type(other) => write!(f, " ethertype {other:#06x}")?,
            }
        }
        match self.proto {
            Some(TCP) => f.write_str(" tcp")?,
            Some(UDP) => f.write_str(" udp")?,
            Some(SCTP) => f.write_str(" sctp")?,
            Some(ICMP) => f.write_str(" icmp")?,
            Some(ICMPV6) => f.write_str(" icmpv6")?,
            Some(other) => write!(f, " proto {other}")?,
            None if kind => {}
            None => f.write_str(if self.ether == Ether::Any { " any" } else { " ip" })?,
        }
        if self.established {
            f.write_str(" established")?;
        }
        if let Some(vlan) = self.vlan {
            match vlan {
                0 => f.write_str(" vlan none")?,
                id => write!(f, " vlan {id}")?,
            }
        }
        if let Some(mac) = &self.src_mac {
            write!(f, " from-mac {mac}")?;
        }
        if let Some(mac) = &self.dst_mac {
            write!(f, " to-mac {mac}")?;
        }
        if self.is_icmp() {
            side(f, "from", self.src.as_ref(), &[])?;
            side(f, "to", self.dst.as_ref(), &[])?;
            numbers(f, "type", &self.sport)?;
            return numbers(f, "code", &self.dport);
        }
        side(f, "from", self.src.as_ref(), &self.sport)?;
        side(f, "to", self.dst.as_ref(), &self.dport)
    }
}

fn side(f: &mut fmt::Formatter<'_>, word: &str, place: Option<&Place>, ports: &[Range]) -> fmt::Result {
    match place {
        Some(place) => write!(f, " {word} {place}")?,
        None if !ports.is_empty() => write!(f, " {word} any")?,
        None => {}
    }
    numbers(f, "port", ports)
}

fn numbers(f: &mut fmt::Formatter<'_>, word: &str, ranges: &[Range]) -> fmt::Result {
    for (n, (low, high)) in ranges.iter().enumerate() {
        if n == 0 {
            write!(f, " {word} ")?
        } else {
            f.write_str(",")?
        }
        if low == high { write!(f, "{low}")? } else { write!(f, "{low}-{high}")? }
    }
    Ok(())
}
