//! What a port takes of a guest that comes from another lasthop.

use crate::connection::read;
use lasthop_api::{Connection, NotTaken, PortAdopted, Station};
use lasthop_policy::{Effects, Learning};
use lasthop_text::parse_mac;
use lasthop_types::PortId;
use std::collections::BTreeMap;

/// Most addresses, and most connections, in one call of control: well below a millisecond.
pub const AT_ONCE: usize = 256;

/// Has `port`, named `name`, have these addresses, if it `is_up`, and these connections. All that is not taken is counted under a reason, and changes
/// nothing. Pure but for `policy`; what the switch is to do about it goes to `out`.
pub fn adopt(
    policy: &mut Learning,
    (port, name, is_up): (PortId, &str, bool),
    stations: &[Station],
    connections: &[Connection],
    now_ms: u64,
    out: &mut Effects,
) -> PortAdopted {
    let (mut adopted, mut not) = (PortAdopted::default(), BTreeMap::new());
    let mut leave = |why: &'static str| *not.entry(why).or_insert(0) += 1;
    for Station { mac, vlan } in stations {
        match parse_mac(mac) {
            // Its packets would end here while it still runs where it comes from.
            Ok(_) if !is_up => leave("the port is not up yet; an address is learned with its first packet"),
            Ok(mac) if policy.adopt_station(port, *vlan, mac, now_ms, out) => adopted.stations += 1,
            Ok(_) => leave("an address that cannot live at this port"),
            Err(_) => leave("no Ethernet address"),
        }
    }
    for connection in connections {
        let put = read(name, connection)
            .and_then(|(original, opened)| policy.adopt_connection(original, port, opened, now_ms, out));
        match put {
            Ok(true) => adopted.connections += 1,
            Ok(false) => adopted.known += 1,
            Err(why) => leave(why),
        }
    }
    let not_taken = not.into_iter().map(|(reason, number)| NotTaken { reason: reason.into(), number });
    adopted.not_taken = not_taken.collect();
    adopted
}
