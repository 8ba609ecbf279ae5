//! `lasthop port import`: a guest comes from another lasthop, with what that knew of it. What comes was a file, and is judged as such.

use super::{Answer, Core, give, no_such_port, refuse};
use lasthop_api::{ApiError, Connection, PortAdopted, Station};
use lasthop_ipc::PortState;
use lasthop_moved::AT_ONCE;
use lasthop_policy::Effects;

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
            return refuse(answer, no_such_port(name));
        };
        if stations.len() > AT_ONCE || connections.len() > AT_ONCE {
            let message = format!("more than {AT_ONCE} addresses or connections in one call; tell them in several");
            return refuse(answer, ApiError::BadFilter { message });
        }
        let (up, mut out) =
            (self.infos.get(&port).is_some_and(|info| info.state() == PortState::Up), Effects::default());
        let of = (port, name.as_str(), up);
        let adopted = lasthop_moved::adopt(&mut self.policy, of, stations, connections, now_ms, &mut out);
        self.carry_out(out, now_ms);
        give(answer, adopted);
    }
}
