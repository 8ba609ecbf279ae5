//! Time-out policies of connections, as Open vSwitch names them: one for each protocol of a set, with the set's name in front.

use crate::Datapath;
use lasthop_conntrack::{CLASSES, Class, POLICIES, Tracker};
use lasthop_ovs_abi::Refused;
use lasthop_ovs_abi::netlink::{Message, Writer, flag};
use lasthop_ovs_abi::timeouts::{self, NAME, Timeouts};
use std::collections::BTreeMap;

const TCP: u8 = 6;
const UDP: u8 = 17;
/// Of TCP's states the one in which both sides have sent a SYN.
const SYN_SENT_2: u16 = 9;

type Name = [u8; NAME];

/// All policies, and the tracker's number of each set.
#[derive(Debug, Default)]
pub(crate) struct Policies {
    all: BTreeMap<Name, Timeouts>,
    sets: BTreeMap<Vec<u8>, u8>,
}

/// The set that a policy is of: `ovs_tp_7` of `ovs_tp_7_udp4`.
fn set_of(name: &Name) -> &[u8] {
    let end = name.iter().rposition(|byte| *byte == b'_').unwrap_or(NAME);
    name.get(..end).unwrap_or_default()
}

/// What a state of a protocol's is, by the kernel's number. A second SYN has the same seconds as the first.
fn class(proto: u8, state: u16) -> Option<Class> {
    let all: &[Class] = match proto {
        TCP => &[
            Class::TcpSynSent,
            Class::TcpSynRecv,
            Class::TcpEstablished,
            Class::TcpFinWait,
            Class::TcpCloseWait,
            Class::TcpLastAck,
            Class::TcpTimeWait,
            Class::TcpClose,
            Class::TcpSynSent,
            Class::TcpRetransmitted,
            Class::TcpUnacknowledged,
        ],
        UDP => &[Class::Udp, Class::UdpStream],
        _ => &[Class::Icmp],
    };
    all.get(usize::from(state).checked_sub(1)?).copied()
}

/// The seconds of all states: where a policy says none, those that its state has by itself. The kernel tells policies like this, and Open vSwitch reads no others.
fn whole(of: &Timeouts) -> Timeouts {
    let said = |state: u16| of.seconds.iter().find(|(said, _)| *said == state).map(|(_, seconds)| *seconds);
    let by_itself =
        |state| CLASSES.iter().find(|(of_class, ..)| Some(*of_class) == class(of.proto, state)).map(|of| of.2);
    let seconds =
        (1..=timeouts::states(of.proto)).filter_map(|state| Some((state, said(state).or_else(|| by_itself(state))?)));
    Timeouts { seconds: seconds.collect(), ..*of }
}

impl Policies {
    /// The tracker's number; the default's if there is no such policy.
    pub fn number(&self, name: Option<&Name>) -> u8 {
        let set = name.filter(|name| self.all.contains_key(*name)).map(|name| self.sets.get(set_of(name)).copied());
        set.flatten().unwrap_or(0)
    }

    /// The tracker's number of a set; the default's if there is none.
    pub fn number_of_set(&self, set: &[u8]) -> u8 {
        self.sets.get(set).copied().unwrap_or(0)
    }

    /// The set of one of the tracker's numbers; nothing if it is the default's.
    pub fn set_of_number(&self, number: u8) -> &[u8] {
        let found = self.sets.iter().find(|(_, of)| **of == number && number != 0);
        found.map_or(&[], |(set, _)| set)
    }

    /// All of them, as requests that make them.
    pub fn write(&self, to: &mut Writer) {
        for (name, timeouts) in &self.all {
            to.begin(timeouts::NEW, 0, 0, 0);
            timeouts.write(name, to);
            to.end();
        }
    }

    fn put(&mut self, name: Name, timeouts: Timeouts, tracker: &Tracker) -> Result<(), Refused> {
        let number = match self.sets.get(set_of(&name)) {
            Some(number) => *number,
            None => {
                let free = (1..POLICIES).find(|number| self.sets.values().all(|taken| usize::from(*taken) != *number));
                let free = free.and_then(|free| u8::try_from(free).ok()).ok_or(Refused::FULL)?;
                for (class, _, seconds) in CLASSES {
                    tracker.set_timeout(free.into(), *class, *seconds);
                }
                self.sets.insert(set_of(&name).to_vec(), free);
                free
            }
        };
        // What a second SYN has counts for nothing: here it is the first once more.
        for (state, seconds) in
            timeouts.seconds.iter().filter(|(state, _)| timeouts.proto != TCP || *state != SYN_SENT_2)
        {
            if let Some(class) = class(timeouts.proto, *state) {
                tracker.set_timeout(number.into(), class, *seconds);
            }
        }
        self.all.insert(name, timeouts);
        Ok(())
    }

    fn remove(&mut self, name: &Name) -> Result<(), Refused> {
        self.all.remove(name).ok_or(Refused::NO_ENTRY)?;
        if !self.all.keys().any(|other| set_of(other) == set_of(name)) {
            self.sets.remove(set_of(name));
        }
        Ok(())
    }
}

impl Datapath {
    /// A request about policies.
    pub(crate) fn timeout_request(&mut self, message: &Message<'_>, pid: u32) -> Result<Vec<Vec<u8>>, Refused> {
        let name = timeouts::named(message.payload)?;
        let policies = &mut self.policies;
        let tell = |name: &Name, timeouts: &Timeouts, flags: u16| {
            let mut to = Writer::new();
            to.begin(timeouts::NEW, flags, message.sequence, pid);
            whole(timeouts).write(name, &mut to);
            to.end();
            to.into_bytes()
        };
        match (message.kind, name) {
            (timeouts::GET, None) if message.flags & flag::DUMP == flag::DUMP => {
                let mut told: Vec<_> = policies.all.iter().map(|(name, of)| tell(name, of, flag::MULTI)).collect();
                let mut done = Writer::new();
                done.done(message.sequence, pid);
                told.push(done.into_bytes());
                Ok(told)
            }
            (timeouts::GET, Some(name)) => {
                policies.all.get(&name).map(|of| vec![tell(&name, of, 0)]).ok_or(Refused::NO_ENTRY)
            }
            (timeouts::NEW, Some(name)) => {
                let tracker = self.connections.tracker.as_ref().ok_or(Refused::UNSUPPORTED)?;
                policies.put(name, Timeouts::read(message.payload)?, tracker).map(|()| Vec::new())
            }
            (timeouts::DELETE, Some(name)) => policies.remove(&name).map(|()| Vec::new()),
            _ => Err(Refused::INVALID),
        }
    }
}
