//! Address translation: which address and port a connection gets.

use crate::tuple::{Factors, SCTP, TCP, Tuple, UDP};

/// What a packet's action says of translation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Nat {
    /// Nothing: a connection's packets are not translated here, even if it has a translation.
    #[default]
    None,
    /// As the connection has been translated, if it has.
    Existing,
    /// The same; and a new one gets a source of this range.
    Source(Range),
    /// The same; and a new one gets a destination of this range.
    Destination(Range),
    /// The same; and a new one gets a source of the first range and a destination of the second.
    Both(Range, Range),
}

/// Addresses and ports, first and last of each. One that is not given stays as it is; but a source port that is taken already is exchanged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Range {
    /// Addresses, as in [`lasthop_frame::FlowKey`].
    pub addresses: Option<[[u8; 16]; 2]>,
    /// Ports; the identifiers of ICMP echo count as source ports.
    pub ports: Option<[u16; 2]>,
    /// One client always gets the same address, whomever it speaks to.
    pub persistent: bool,
    /// The port is chosen anew even where the old one is in the range.
    pub random: bool,
}

impl Nat {
    /// What makes of a connection's first packet one that looks like this, and of no other kind.
    pub fn exactly(original: &Tuple, sent: &Tuple) -> Self {
        if original == sent {
            return Self::None;
        }
        let range = |address, port| Range {
            addresses: Some([address; 2]),
            ports: (!sent.is_icmp()).then_some([port; 2]),
            ..Range::default()
        };
        let [src, dst] = sent.ports();
        Self::Both(range(sent.src(), src), range(sent.dst(), dst))
    }
}

/// How many ports are tried.
pub(crate) const TRIES: u32 = 128;

/// What a connection's first packet is to look like; try number `n`. `None`: there are no more. Which are tried, and in what order, is decided by a hash of
/// the tuple with this tracker's secrets. Without `icmp_ids` the identifiers of echoes are no ports.
pub(crate) fn translated(nat: &Nat, tuple: &Tuple, n: u32, secrets: &Factors, icmp_ids: bool) -> Option<Tuple> {
    let (range, is_source) = match nat {
        Nat::Source(range) => (range, true),
        Nat::Destination(range) => (range, false),
        Nat::Both(source, destination) => {
            let to = translated(&Nat::Destination(*destination), tuple, 0, secrets, icmp_ids)?;
            return translated(&Nat::Source(*source), &to, n, secrets, icmp_ids);
        }
        Nat::None | Nat::Existing => return (n == 0).then_some(*tuple),
    };
    let mut new = *tuple;
    let has_ports = matches!(tuple.proto(), TCP | UDP | SCTP) || icmp_ids && tuple.is_icmp() && is_source;
    let port = tuple.ports()[usize::from(!is_source)];
    let ports = match range.ports {
        _ if !has_ports => None,
        None if is_source => Some(neighbours(port)),
        given => given,
    };
    if let Some([first, last]) = range.addresses.map(|range| range.map(u128::from_be_bytes)) {
        // Without ports to choose from, the next address is tried.
        let step = if ports.is_none() { u128::from(n) } else { 0 };
        let span = last.saturating_sub(first).saturating_add(1);
        let address = first.saturating_add((u128::from(by_address(tuple, range, secrets)) + step) % span).to_be_bytes();
        if is_source {
            new.set_src(address)
        } else {
            new.set_dst(address)
        }
        if ports.is_none() && u128::from(n) >= span {
            return None;
        }
    } else if ports.is_none() && n > 0 {
        return None;
    }
    if let Some([first, last]) = ports {
        let span = u32::from(last.saturating_sub(first)) + 1;
        let stays = (first..=last).contains(&port) && !range.random;
        if n > span - u32::from(!stays) {
            return None;
        }
        let start = (secrets.hash(tuple) >> 32) as u32 % span;
        let chosen = if stays && n == 0 { port } else { first + ((start + n) % span) as u16 };
        let [src, dst] = tuple.ports();
        new.set_ports(if is_source { [chosen, dst] } else { [src, chosen] });
    }
    Some(new)
}

fn by_address(tuple: &Tuple, range: &Range, secrets: &Factors) -> u64 {
    let mut of = *tuple;
    of.set_ports([0, 0]);
    if range.persistent {
        of.set_dst([0; 16]);
    }
    secrets.hash(&of)
}

/// Ports that mean to a server what this one does: a privileged one stays one.
fn neighbours(port: u16) -> [u16; 2] {
    match port {
        0..512 => [1, 511],
        512..1024 => [600, 1023],
        _ => [1024, u16::MAX],
    }
}
