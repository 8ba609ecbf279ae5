//! `lasthop conntrack`: connections told of or ended. There may be a million, so some places of the table are looked at at a time, and misses are answered in
//! between.

use super::{Answer, Core, give, no_such_port, refuse};
use crate::Decider;
use lasthop_api::{ApiError, Connection, ConntrackFlushed, ConntrackStats, Drops, PortConnections};
use lasthop_moved::{PROTOCOLS, shown};
use lasthop_policy::{ConnectionCursor, ConnectionFilter, ConnectionStats, ConnectionView, Effects};
use std::net::IpAddr;

/// Places of the table that are looked at at a time: below a millisecond if all are taken.
const PLACES: u32 = 1024;

/// Which connections somebody means, as he wrote it.
#[derive(Debug, Default)]
pub(crate) struct Meant {
    pub port: Option<String>,
    pub vlan: Option<u16>,
    pub proto: Option<String>,
    pub addr: Option<String>,
}

/// What somebody wants of connections.
#[derive(Debug)]
pub(crate) enum WalkCall {
    List { meant: Meant, answer: Answer<Vec<Connection>> },
    Flush { meant: Meant, answer: Answer<ConntrackFlushed> },
}

/// A way through the table.
#[derive(Debug)]
pub(super) struct Walk {
    at: ConnectionCursor,
    filter: ConnectionFilter,
    what: What,
}

#[derive(Debug)]
enum What {
    List { written: Vec<Connection>, answer: Answer<Vec<Connection>> },
    Flush { ended: u64, answer: Answer<ConntrackFlushed> },
}

impl Core {
    pub(super) fn walk(&mut self, call: WalkCall) {
        let (WalkCall::List { meant, .. } | WalkCall::Flush { meant, .. }) = &call;
        let walk = |filter, what| Walk { at: ConnectionCursor::default(), filter, what };
        match (self.filter(meant), call) {
            (Ok(filter), WalkCall::List { answer, .. }) => {
                self.walks.push_back(walk(filter, What::List { written: Vec::new(), answer }));
            }
            (Ok(filter), WalkCall::Flush { answer, .. }) => {
                self.walks.push_back(walk(filter, What::Flush { ended: 0, answer }));
            }
            (Err(e), WalkCall::List { answer, .. }) => refuse(answer, e),
            (Err(e), WalkCall::Flush { answer, .. }) => refuse(answer, e),
        }
    }

    fn filter(&self, meant: &Meant) -> Result<ConnectionFilter, ApiError> {
        let bad = |message| ApiError::BadFilter { message };
        let port = meant.port.as_ref().map(|name| self.find(name).ok_or_else(|| no_such_port(name.clone())));
        // Open vSwitch's rules choose zones of any number.
        if let Some(vlan) = meant.vlan.filter(|vlan| *vlan > 4094 && !self.only_watches) {
            return Err(bad(format!("{vlan} is not a VLAN id; use 1 to 4094, or 0 for connections without a VLAN")));
        }
        let proto = meant.proto.as_ref().map(|text| {
            let named = PROTOCOLS.iter().find(|(name, _)| name == text).map(|(_, number)| *number);
            let wrong =
                || bad(format!("{text:?} is no protocol; use tcp, udp, sctp, icmp, icmpv6 or a number up to 255"));
            named.or_else(|| text.parse().ok()).ok_or_else(wrong)
        });
        let addr = meant.addr.as_ref().map(|text| {
            let wrong = |_| bad(format!("{text:?} is no address; use one such as 10.0.0.1 or fd00::1"));
            text.parse::<IpAddr>().map_err(wrong)
        });
        let (port, proto, addr) = (port.transpose()?, proto.transpose()?, addr.transpose()?);
        Ok(ConnectionFilter { port, vlan: meant.vlan, proto, addr })
    }

    /// Goes on with one of them, in turn.
    pub(super) fn walk_some(&mut self, now_ms: u64, out: &mut Effects) {
        let Some(Walk { at, filter, mut what }) = self.walks.pop_front() else { return };
        let next = match &mut what {
            What::List { answer, .. } if answer.is_closed() => return,
            What::List { written, .. } => {
                let see = |view| written.push(shown(&view, |id| self.name(id)));
                self.policy.connections(at, PLACES, &filter, now_ms, see)
            }
            What::Flush { ended, .. } => {
                let (some, next) = self.policy.flush_connections(at, PLACES, &filter, now_ms, out);
                *ended += some as u64;
                next
            }
        };
        self.walk_on(Walk { at, filter, what }, next);
    }

    /// The same in the table of what decides instead.
    pub fn walk_others<D: Decider>(&mut self, decider: &mut D, now_ms: u64) {
        let Some(Walk { at, filter, mut what }) = self.walks.pop_front() else { return };
        let means = |view: &ConnectionView| filter.means(&view.connection, [view.from, view.reply]);
        let next = match &mut what {
            What::List { answer, .. } if answer.is_closed() => return,
            What::List { written, .. } => {
                let see = |view: ConnectionView| {
                    let told = means(&view).then(|| shown(&view, |id| self.name(id)));
                    written.extend(told);
                };
                decider.connections(at, PLACES, now_ms, see)
            }
            What::Flush { ended, .. } => {
                let (some, next) = decider.flush_connections(at, PLACES, now_ms, means);
                *ended += some as u64;
                next
            }
        };
        self.walk_on(Walk { at, filter, what }, next);
    }

    fn walk_on(&mut self, walk: Walk, next: Option<ConnectionCursor>) {
        let Walk { filter, what, .. } = walk;
        match (next, what) {
            (Some(at), what) => self.walks.push_back(Walk { at, filter, what }),
            (None, What::List { written, answer }) => give(answer, written),
            (None, What::Flush { ended, answer }) => give(answer, ConntrackFlushed { connections: ended }),
        }
    }

    /// Tells figures of a table; `None`: nobody asks about connections, or there is no memory for it.
    pub fn tell_conntrack(&self, answer: Answer<ConntrackStats>, stats: Option<ConnectionStats>) {
        let none = || match self.policy.lacks_connections() {
            true => {
                ConntrackStats { no_memory: true, capacity: self.policy.room() as u64, ..ConntrackStats::default() }
            }
            false => ConntrackStats::default(),
        };
        give(answer, stats.map_or_else(none, |stats| self.conntrack_stats(&stats)));
    }

    /// Says once that there is no memory for a table of connections, and once that there is again.
    pub(super) fn look_for_table(&mut self) {
        let lacks = self.policy.lacks_connections();
        match (std::mem::replace(&mut self.lacks_table, lacks), lacks) {
            (false, true) => tracing::error!(
                "there is no memory for {} connections, so nothing of IP passes stateful access lists; give this host memory, or `lasthop \
                 run` a smaller --connections, and load the lists again",
                self.policy.room()
            ),
            (true, false) if self.policy.connection_stats().is_some() => {
                tracing::info!("there is memory for connections again: stateful access lists work");
            }
            _ => {}
        }
    }

    fn conntrack_stats(&self, stats: &ConnectionStats) -> ConntrackStats {
        let totals = &stats.totals;
        ConntrackStats {
            tracking: true,
            no_memory: false,
            connections: totals.connections as u64,
            capacity: totals.capacity as u64,
            created: totals.created,
            expired: totals.expired,
            evicted: totals.evicted,
            refused: stats.refused.iter().map(|(name, n)| Drops { reason: (*name).into(), packets: *n }).collect(),
            ports: (stats.ports.iter())
                .map(|(id, n, limit)| {
                    let (connections, limit) = (u64::from(*n), u64::from(*limit));
                    PortConnections { port: self.name(*id), connections, limit }
                })
                .collect(),
            recorded: stats.recorded,
        }
    }
}
