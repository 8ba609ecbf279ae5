//! A connection, as it is shown and as it comes back.

use lasthop_api::{Connection, Direction};
use lasthop_policy::{ConnectionView, ProtoState, SctpState, TcpState, Tuple};
use lasthop_types::PortId;
use std::net::IpAddr;

/// Protocols with names of their own, and their numbers.
pub const PROTOCOLS: [(&str, u8); 5] = [("tcp", 6), ("udp", 17), ("sctp", 132), ("icmp", 1), ("icmpv6", 58)];

/// A connection as the API shows it, and as it is exported; `name` knows ports by their names.
pub fn shown(view: &ConnectionView, name: impl Fn(PortId) -> String) -> Connection {
    let of = &view.connection;
    let proto = of.original.proto();
    let named = PROTOCOLS.iter().find(|(_, number)| *number == proto);
    Connection {
        proto: named.map_or_else(|| proto.to_string(), |(name, _)| (*name).into()),
        proto_number: proto,
        state: state(of.state).map(Into::into),
        vlan: of.original.zone(),
        from: view.from.map_or_else(|| "-".into(), &name),
        to: view.reply.map(name),
        original: direction(&of.original),
        reply: direction(&of.reply),
        replied: of.replied,
        assured: of.assured,
        seconds_left: of.seconds_left,
        flows: view.flows as u64,
    }
}

fn direction(tuple: &Tuple) -> Direction {
    let address = |bytes: [u8; 16]| match bytes {
        [.., a, b, c, d] if !tuple.is_v6() => IpAddr::from([a, b, c, d]).to_string(),
        bytes => IpAddr::from(bytes).to_string(),
    };
    let ([sport, dport], proto) = (tuple.ports(), tuple.proto());
    let (sport, dport) = match proto {
        1 | 58 => (Some(dport >> 8), Some(dport & 0xff)),
        6 | 17 | 132 => (Some(sport), Some(dport)),
        _ => (None, None),
    };
    Direction { src: address(tuple.src()), dst: address(tuple.dst()), sport, dport }
}

/// By Linux's names.
fn state(state: ProtoState) -> Option<&'static str> {
    Some(match state {
        ProtoState::Stateless => return None,
        ProtoState::Tcp(state) => match state {
            TcpState::None => "NONE",
            TcpState::SynSent => "SYN_SENT",
            TcpState::SynRecv => "SYN_RECV",
            TcpState::Established => "ESTABLISHED",
            TcpState::FinWait => "FIN_WAIT",
            TcpState::CloseWait => "CLOSE_WAIT",
            TcpState::LastAck => "LAST_ACK",
            TcpState::TimeWait => "TIME_WAIT",
            TcpState::Close => "CLOSE",
            TcpState::SynSent2 => "SYN_SENT2",
        },
        ProtoState::Sctp(state) => match state {
            SctpState::None => "NONE",
            SctpState::Closed => "CLOSED",
            SctpState::CookieWait => "COOKIE_WAIT",
            SctpState::CookieEchoed => "COOKIE_ECHOED",
            SctpState::Established => "ESTABLISHED",
            SctpState::ShutdownSent => "SHUTDOWN_SENT",
            SctpState::ShutdownRecd => "SHUTDOWN_RECD",
            SctpState::ShutdownAckSent => "SHUTDOWN_ACK_SENT",
            SctpState::HeartbeatSent => "HEARTBEAT_SENT",
        },
    })
}

/// A connection of the guest that was at port `name` of another lasthop: its first packet's direction, and whether the guest has opened it. Other
/// ports' names are the other lasthop's.
pub(crate) fn read(name: &str, of: &Connection) -> Result<(Tuple, bool), &'static str> {
    let named = PROTOCOLS.iter().find(|(name, _)| *name == of.proto).map(|(_, number)| *number);
    let number = of.proto_number;
    if named.or_else(|| of.proto.parse().ok()) != Some(number) || !matches!(number, 6 | 17 | 132) {
        return Err("of a protocol that begins anew by itself");
    }
    if !of.replied || of.state.as_deref().is_some_and(|state| state != "ESTABLISHED") {
        return Err("not established");
    }
    let original = tuple(&of.original, number, of.vlan)?;
    if original.inverse() != Some(tuple(&of.reply, number, of.vlan)?) {
        return Err("translated: its ports and addresses are the other lasthop's");
    }
    match (of.from == name, of.to.as_deref() == Some(name)) {
        (true, true) => Err("from the port to itself"),
        (false, false) => Err("of another port"),
        (opened, _) => Ok((original, opened)),
    }
}

fn tuple(of: &Direction, proto: u8, vlan: u16) -> Result<Tuple, &'static str> {
    const WRONG: &str = "no addresses and ports";
    let (Some(sport), Some(dport)) = (of.sport, of.dport) else { return Err(WRONG) };
    let (Ok(src), Ok(dst)) = (of.src.parse::<IpAddr>(), of.dst.parse::<IpAddr>()) else { return Err(WRONG) };
    if src.is_ipv4() != dst.is_ipv4() || vlan > 4094 {
        return Err(WRONG);
    }
    let bytes = |address: IpAddr| match address {
        IpAddr::V4(v4) => {
            let mut bytes = [0; 16];
            bytes[12..].copy_from_slice(&v4.octets());
            bytes
        }
        IpAddr::V6(v6) => v6.octets(),
    };
    Ok(Tuple::new([bytes(src), bytes(dst)], [sport, dport], proto, src.is_ipv6(), vlan))
}
