//! What a guest brings along that lived at another lasthop: its connections, and its addresses.

use super::connections::between;
use super::tracking::{CARRIED, NOWHERE, label, number, ports};
use super::{Effects, Learning};
use crate::flows::Pair;
use crate::guard::pretends;
use lasthop_conntrack::{Commit, Nat, Tuple};
use lasthop_frame::{FlowKey, FlowMask};
use lasthop_text::MacAddr;
use lasthop_types::PortId;

impl Learning {
    /// Puts in a connection of the guest at port `moved` that was established elsewhere, `opened` by the guest or by somebody else. Who the other
    /// end is here, no name of another host's tells: it is known with the first packet, by where the packet comes from, or by where its Ethernet
    /// address lives. The connection is judged by the lists in force with that packet, as one that was opened under other lists. It is one of
    /// those that `moved` may have opened, whoever did. Those that others opened leave half of them to `moved`. False: it is known already. An
    /// error says why not, in a few words.
    pub fn adopt_connection(
        &mut self,
        original: Tuple,
        moved: PortId,
        opened: bool,
        now_ms: u64,
        out: &mut Effects,
    ) -> Result<bool, &'static str> {
        const NO_LIST: &str = "no stateful access list holds for its port";
        if !self.tracks(moved) {
            return Err(NO_LIST);
        }
        let answer = original.inverse().filter(|inverse| *inverse != original && original.zone() <= 4094);
        let Some(inverse) = answer else {
            return Err("no packet can answer it");
        };
        let limit = self.connection_limit(moved);
        let Some(connections) = &mut self.connections else { return Err(NO_LIST) };
        if let Some(known) = connections.recall(&original).known() {
            let is_here = ports(known.label).contains(&moved.0);
            return if is_here {
                Ok(false)
            } else {
                Err("known here as one between other ports; `lasthop conntrack flush` ends that")
            };
        }
        if !opened && connections.owned(moved) >= limit / 2 {
            return Err("opened by others, who have half of what the port may open");
        }
        connections.last += 1;
        let [from, reply] = if opened { [moved.0, NOWHERE] } else { [NOWHERE, moved.0] };
        let commit = Commit {
            // Of lists that never hold.
            mark: (0, u32::MAX),
            label: (label(connections.last, from, reply) | CARRIED, u128::MAX),
            owner: connections.owner(moved, limit),
            ..Commit::default()
        };
        let adopted = connections.tracker.adopt_translated(original, &Nat::None, &commit, now_ms);
        if adopted == Ok(true) {
            connections.begun(&original, &inverse);
            self.share_begins(number(commit.label.0), moved, &original, &original);
            between(&original, &inverse).for_each(|pair| self.unhide(&pair, out));
        }
        self.take_ended(now_ms, out);
        adopted.map_err(|refusal| refusal.name())
    }

    /// An address lives at a port now, as if it had sent something. True if it is learned.
    pub fn adopt_station(&mut self, port: PortId, vlan: u16, mac: MacAddr, now_ms: u64, out: &mut Effects) -> bool {
        let key = FlowKey { in_port: port.0, eth_src: mac.0, ..FlowKey::default() };
        let may_say_so = || {
            let mut mask = FlowMask::default();
            let pretence = self.guest_settings(port).and_then(|settings| pretends(settings, &key, &mut mask));
            !self.is_pulled(port) && !self.is_destination(port) && pretence.is_none()
        };
        let fits = mac.is_unicast_source() && vlan <= 4094 && self.member(port).is_member(vlan) && may_say_so();
        fits && self.learn(&Pair { port, vlan, src: mac, dst: MacAddr::BROADCAST }, now_ms, out)
    }
}
