//! `lasthop port import`: a guest comes from another lasthop, with what that knew of it. What comes was a file, and is judged as such.

use super::connections::PROTOCOLS;
use super::{Answer, Core, give, refuse};
use lasthop_api::{ApiError, Connection, Direction, NotTaken, PortAdopted, Station};
use lasthop_ipc::PortState;
use lasthop_policy::{Effects, Tuple};
use lasthop_text::parse_mac;
use std::collections::BTreeMap;
use std::net::IpAddr;

/// Most addresses, and most connections, in one call: well below a millisecond.
pub(crate) const AT_ONCE: usize = 256;

impl Core {
    pub(super) fn adopt(
        &mut self,
        name: String,
        stations: &[Station],
        connections: &[Connection],
        answer: Answer<PortAdopted>,
        now_ms: u64,
    ) {
        let Some(port) = self.find(&name) else {
            let message = format!("there is no port named {name:?}; `lasthop port list` shows those there are");
            return refuse(answer, ApiError::NoSuchPort { name, message });
        };
        if stations.len() > AT_ONCE || connections.len() > AT_ONCE {
            let message = format!("more than {AT_ONCE} addresses or connections in one call; tell them in several");
            return refuse(answer, ApiError::BadFilter { message });
        }
        let (mut out, mut adopted, mut not) = (Effects::default(), PortAdopted::default(), BTreeMap::new());
        let mut leave = |why: &'static str| *not.entry(why).or_insert(0) += 1;
        let up = self.infos.get(&port).is_some_and(|info| info.state() == PortState::Up);
        for Station { mac, vlan } in stations {
            match parse_mac(mac) {
                // Its packets would end here while it still runs where it comes from.
                Ok(_) if !up => leave("the port is not up yet; an address is learned with its first packet"),
                Ok(mac) if self.policy.adopt_station(port, *vlan, mac, now_ms, &mut out) => adopted.stations += 1,
                Ok(_) => leave("an address that cannot live at this port"),
                Err(_) => leave("no Ethernet address"),
            }
        }
        for connection in connections {
            let put = read_connection(&name, connection)
                .and_then(|(original, opened)| self.policy.adopt_connection(original, port, opened, now_ms, &mut out));
            match put {
                Ok(true) => adopted.connections += 1,
                Ok(false) => adopted.known += 1,
                Err(why) => leave(why),
            }
        }
        self.carry_out(out, now_ms);
        let not_taken = not.into_iter().map(|(reason, number)| NotTaken { reason: reason.into(), number });
        adopted.not_taken = not_taken.collect();
        give(answer, adopted);
    }
}

/// A connection of the guest that was at port `name` of another lasthop: its first packet's direction, and whether the guest has opened it. Other
/// ports' names are the other lasthop's.
fn read_connection(name: &str, of: &Connection) -> Result<(Tuple, bool), &'static str> {
    let named = PROTOCOLS.iter().find(|(name, _)| *name == of.proto).map_or(of.proto_number, |(_, number)| *number);
    if named != of.proto_number || !matches!(named, 6 | 17 | 132) {
        return Err("of a protocol that begins anew by itself");
    }
    if !of.replied || of.state.as_deref().is_some_and(|state| state != "ESTABLISHED") {
        return Err("not established");
    }
    let original = tuple(&of.original, named, of.vlan)?;
    if original.inverse() != Some(tuple(&of.reply, named, of.vlan)?) {
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
