//! Limits of interfaces, as Open vSwitch has the kernel set them: `ingress_policing_rate`, and `linux-htb`, by messages of routing netlink's that
//! `liblasthop_ovs.so` hands over. What may come from a port, and what may go there in all, are rates of the port in the switch; each class of what goes there is
//! one of the switch's meters, because a flow says which class its packets are of.

use crate::meters::OWN;
use crate::requests::{Changes, Reply};
use crate::{Datapath, Out};
use lasthop_ipc::RateLimit;
use lasthop_management_ipc::ControlToSupervisor;
use lasthop_ovs_abi::Refused;
use lasthop_ovs_abi::netlink::{Message, Writer, flag};
use lasthop_ovs_abi::traffic::{self, Class, HANDLE, INGRESS, ROOT, Rate, Request};
use std::collections::BTreeMap;

/// The class of all that goes to an interface.
const ALL: u32 = HANDLE | 0xfffe;
/// That of what names none.
const DEFAULT: u32 = HANDLE | 1;
/// Most classes of an interface.
const MOST: usize = 64;
/// What a class's least share is at least, in bytes a second: Open vSwitch gives each one as much as the MTU.
const NOTHING: u64 = 65_536;
/// At once passes one segment of the guest's, at least.
const SEGMENT: u64 = 65_536;
/// So much may a port that is policed send before it is held: 64 segments.
const AT_ONCE: u64 = 64 * SEGMENT;
const SECOND_NS: u64 = 1_000_000_000;

/// What limits an interface.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Limits {
    /// There is a discipline for what comes from there, which has a filter or not.
    ingress: Option<Option<Rate>>,
    /// There is one for what goes there, with classes by their handles.
    classes: Option<BTreeMap<u32, Class>>,
}

impl Limits {
    /// Of all that comes from there, and of all that goes there.
    fn rates(&self) -> [Option<RateLimit>; 2] {
        let all = self.classes.as_ref().and_then(|classes| classes.get(&ALL));
        [self.ingress.flatten(), all.map(|class| class.rate)].map(|rate| rate.as_ref().map(limit))
    }
}

/// All of them, by the interfaces' names.
#[derive(Debug, Default)]
pub(crate) struct Shaping {
    all: BTreeMap<String, Limits>,
    /// Meters of classes.
    meters: BTreeMap<(String, u32), u64>,
    /// The same by Open vSwitch's number of the port.
    by_port: BTreeMap<u32, BTreeMap<u32, u64>>,
    last: u64,
}

/// As the switch has rates; at once passes what somebody says, and a segment.
fn limit(rate: &Rate) -> RateLimit {
    let Rate { bytes, packets, burst_ns } = *rate;
    let least = (SEGMENT * SECOND_NS).checked_div(bytes).unwrap_or(0);
    RateLimit { bytes, packets, burst_ns: burst_ns.max(least) }
}

impl Shaping {
    /// The meter of packets with this priority that go to this port of Open vSwitch's, if they are of a class.
    pub fn meter(&self, port: u32, priority: u32) -> Option<u64> {
        let classes = self.by_port.get(&port)?;
        classes.get(&priority).or_else(|| classes.get(&DEFAULT)).copied()
    }

    /// The meters of an interface's classes.
    pub fn meters_of(&self, name: &str) -> impl Iterator<Item = u64> {
        self.meters.iter().filter(move |((of, _), _)| of == name).map(|(_, meter)| *meter)
    }
}

impl Datapath {
    /// Whether packets of this interface are the switch's from and to its guest, so that none of them meets what the kernel does.
    fn is_guests(&self, name: &str) -> bool {
        self.configs.get(name).is_some_and(|port| !self.devices.contains(port))
    }

    /// A message about the interface of this name.
    pub(crate) fn traffic_request(
        &mut self,
        name: &str,
        message: &Message<'_>,
        pid: u32,
        changes: &mut Changes,
    ) -> Reply {
        if !self.configs.contains_key(name) {
            return Err(traffic::FOR_THE_KERNEL);
        }
        let request = Request::read(message.payload)?;
        match message.kind {
            _ if !request.is_ingress() && !self.is_guests(name) => Err(traffic::FOR_THE_KERNEL),
            traffic::GET_QDISC | traffic::GET_CLASS | traffic::GET_FILTER => {
                self.tell_traffic(name, message, &request, pid)
            }
            _ => {
                self.limit_interface(name, message, changes)?;
                let mut to = Writer::new();
                traffic::write_interface(name, &mut to);
                to.raw(message.whole);
                to.pad();
                self.out.push(Out::Note(to.into_bytes()));
                // Who wants to hear what was made is told the same.
                let echo = message.flags & flag::ECHO != 0;
                Ok(Vec::from_iter(echo.then(|| message.whole.to_vec())))
            }
        }
    }

    /// Does what such a message says, whoever's the interface is.
    pub(crate) fn limit_interface(
        &mut self,
        name: &str,
        message: &Message<'_>,
        changes: &mut Changes,
    ) -> Result<(), Refused> {
        let request = Request::read(message.payload)?;
        match message.kind {
            traffic::NEW_QDISC | traffic::DEL_QDISC | traffic::NEW_FILTER | traffic::DEL_FILTER
                if request.is_ingress() =>
            {
                self.police(name, message, &request)
            }
            traffic::NEW_QDISC | traffic::DEL_QDISC => self.shape(name, message, &request, changes),
            traffic::NEW_CLASS | traffic::DEL_CLASS => self.change_class(name, message, &request, changes),
            _ => Err(Refused::UNSUPPORTED),
        }
    }

    /// What comes from an interface is policed, or not any more.
    fn police(&mut self, name: &str, message: &Message<'_>, request: &Request<'_>) -> Result<(), Refused> {
        let ingress = self.shaping.all.get(name).and_then(|limits| limits.ingress);
        let new = match (message.kind, ingress) {
            (traffic::NEW_QDISC, Some(_)) => return Err(Refused::EXISTS),
            (traffic::NEW_QDISC, None) if request.kind == "ingress" => Some(None),
            (traffic::NEW_QDISC, None) => return self.refuse(name, request.kind),
            (_, None) => return Err(Refused::NO_ENTRY),
            (traffic::NEW_FILTER, Some(_)) => match request.police() {
                Ok(rate) => Some(Some(rate)),
                Err(_) => return self.refuse(name, request.kind),
            },
            (traffic::DEL_FILTER, Some(_)) => Some(None),
            (_, Some(_)) => None,
        };
        self.shaping.all.entry(name.to_owned()).or_default().ingress = new;
        if ingress.flatten() != new.flatten() {
            self.tell_rates(name);
        }
        Ok(())
    }

    fn refuse(&self, name: &str, kind: &str) -> Result<(), Refused> {
        tracing::warn!(
            "{name}: Open vSwitch wants {kind:?} there, which lasthop has not; it has `ingress_policing_rate`, and of `qos` the type linux-htb"
        );
        Err(Refused::UNSUPPORTED)
    }

    /// What goes to an interface gets classes, or has none any more.
    fn shape(
        &mut self,
        name: &str,
        message: &Message<'_>,
        request: &Request<'_>,
        changes: &mut Changes,
    ) -> Result<(), Refused> {
        let is_there = self.shaping.all.get(name).is_some_and(|limits| limits.classes.is_some());
        let new = match message.kind {
            traffic::NEW_QDISC if is_there => return Err(Refused::EXISTS),
            traffic::NEW_QDISC if request.kind == "htb" && request.handle == HANDLE => Some(BTreeMap::new()),
            traffic::NEW_QDISC => return self.refuse(name, request.kind),
            _ if !is_there => return Err(Refused::NO_ENTRY),
            _ => None,
        };
        self.shaping.all.entry(name.to_owned()).or_default().classes = new;
        self.tell_rates(name);
        self.meter_classes(changes);
        Ok(())
    }

    fn change_class(
        &mut self,
        name: &str,
        message: &Message<'_>,
        request: &Request<'_>,
        changes: &mut Changes,
    ) -> Result<(), Refused> {
        let limits = self.shaping.all.get_mut(name);
        let classes = limits.and_then(|limits| limits.classes.as_mut()).ok_or(Refused::NO_ENTRY)?;
        let at = request.handle;
        if message.kind == traffic::DEL_CLASS {
            classes.remove(&at).ok_or(Refused::NO_ENTRY)?;
        } else {
            let class = request.class()?;
            let is_new = !classes.contains_key(&at);
            if at >> 16 != HANDLE >> 16 || class.rate.bytes == 0 || is_new && classes.len() >= MOST {
                return Err(Refused::INVALID);
            }
            if at != ALL && (class.least > NOTHING || class.priority > 0) {
                tracing::warn!(
                    "{name}: queue {} is refused: lasthop keeps nothing free for one queue (`min-rate`) and serves none before others (`priority`); a queue \
                     may have a `max-rate`",
                    (at & 0xffff).saturating_sub(1)
                );
                return Err(Refused::UNSUPPORTED);
            }
            classes.insert(at, class);
        }
        if at == ALL {
            self.tell_rates(name);
        } else {
            self.meter_classes(changes);
        }
        Ok(())
    }

    fn tell_traffic(&self, name: &str, message: &Message<'_>, request: &Request<'_>, pid: u32) -> Reply {
        let classes = self.shaping.all.get(name).and_then(|limits| limits.classes.as_ref());
        let is_dump = message.flags & flag::DUMP == flag::DUMP;
        let tell = |kind: u16, fill: &dyn Fn(&mut Writer)| {
            let mut to = Writer::new();
            to.begin(kind, if is_dump { flag::MULTI } else { 0 }, message.sequence, pid);
            fill(&mut to);
            to.end();
            to.into_bytes()
        };
        let class = |handle: &u32, class: &Class| {
            let meter = self.shaping.meters.get(&(name.to_owned(), *handle));
            let [passed, dropped] = meter.map(|meter| self.meters.passed(*meter)).unwrap_or_default();
            tell(traffic::NEW_CLASS, &|to| traffic::write_class(*handle, class, passed, dropped[0], to))
        };
        let mut told: Vec<_> = match message.kind {
            traffic::GET_QDISC => {
                classes.map(|_| tell(traffic::NEW_QDISC, &traffic::write_discipline)).into_iter().collect()
            }
            traffic::GET_CLASS => {
                let meant = |handle: &u32| is_dump || *handle == request.handle;
                classes
                    .into_iter()
                    .flatten()
                    .filter(|(handle, _)| meant(handle))
                    .map(|(at, of)| class(at, of))
                    .collect()
            }
            _ => Vec::new(),
        };
        if is_dump {
            let mut done = Writer::new();
            done.done(message.sequence, pid);
            told.push(done.into_bytes());
        }
        if told.is_empty() { Err(Refused::NO_ENTRY) } else { Ok(told) }
    }

    /// The port's rates are otherwise now.
    fn tell_rates(&mut self, name: &str) {
        let [from, to] = self.shaping.all.get(name).map(Limits::rates).unwrap_or_default();
        self.out.push(Out::Supervisor(ControlToSupervisor::Limit { name: name.to_owned(), from, to }));
        self.shaping.all.retain(|_, limits| *limits != Limits::default());
    }

    /// Rates of ports, by name: of what comes from there, and of what goes there.
    pub fn rates(&self) -> impl Iterator<Item = (&str, [Option<RateLimit>; 2])> {
        let all = self.shaping.all.iter().map(|(name, limits)| (name.as_str(), limits.rates()));
        all.filter(|(_, rates)| *rates != [None; 2])
    }

    pub(crate) fn tell_all_rates(&mut self) {
        let names: Vec<_> = self.shaping.all.keys().cloned().collect();
        names.iter().for_each(|name| self.tell_rates(name));
    }

    /// Classes have meters as they are now, by the ports' numbers as they are now.
    pub(crate) fn meter_classes(&mut self, changes: &mut Changes) {
        let mut wanted = BTreeMap::new();
        for (name, limits) in &self.shaping.all {
            let classes = limits.classes.iter().flatten().filter(|(handle, _)| **handle != ALL);
            let all =
                limits.classes.iter().flatten().find(|(handle, _)| **handle == ALL).map(|(_, all)| all.rate.bytes);
            let rate = |class: &Class| match class.rate {
                // The port's own rate holds such a class, whose packets then wait; its meter counts, and is not to drop what a policed port sends at once.
                rate if all.is_some_and(|all| rate.bytes >= all) => {
                    let least = (AT_ONCE * SECOND_NS).checked_div(rate.bytes).unwrap_or(0);
                    Rate { burst_ns: rate.burst_ns.max(least), ..rate }
                }
                rate => rate,
            };
            wanted.extend(classes.map(|(handle, class)| ((name.clone(), *handle), rate(class))));
        }
        let gone: Vec<_> = self.shaping.meters.keys().filter(|key| !wanted.contains_key(key)).cloned().collect();
        for key in gone {
            if let Some(meter) = self.shaping.meters.remove(&key) {
                self.remove_meter(meter);
            }
        }
        for (key, rate) in wanted {
            let RateLimit { bytes, packets, burst_ns } = limit(&rate);
            let meter = self.shaping.meters.get(&key).copied().unwrap_or_else(|| {
                self.shaping.last += 1;
                OWN + self.shaping.last
            });
            if self.set_class_meter(meter, [bytes, packets, burst_ns]) {
                self.shaping.meters.insert(key, meter);
            }
        }
        let mut by_port: BTreeMap<u32, BTreeMap<u32, u64>> = BTreeMap::new();
        for (no, vport) in &self.vports {
            let of = |(_, meter): (&(String, u32), &u64)| *meter;
            let own = self.shaping.meters.iter().filter(|((name, _), _)| *name == vport.name);
            let own: BTreeMap<_, _> = own.map(|entry| (entry.0.1, of(entry))).collect();
            if !own.is_empty() {
                by_port.insert(*no, own);
            }
        }
        changes.told = true;
        if by_port != self.shaping.by_port {
            self.shaping.by_port = by_port;
            changes.all = true;
        }
    }

    /// Interfaces that are not there any more have no limits.
    pub(crate) fn forget_shaping(&mut self) -> bool {
        let before = self.shaping.all.len();
        self.shaping.all.retain(|name, _| self.configs.contains_key(name));
        before != self.shaping.all.len()
    }

    /// What another process makes the same limits of: requests, each with the interface's name in front.
    pub(crate) fn write_shaping(&self, to: &mut Writer) {
        for (name, limits) in &self.shaping.all {
            let mut one = |kind: u16, fill: &dyn Fn(&mut Writer)| {
                traffic::write_interface(name, to);
                to.begin(kind, 0, 0, 0);
                fill(to);
                to.end();
            };
            if let Some(rate) = limits.ingress {
                one(traffic::NEW_QDISC, &|to| traffic::write_request(0, INGRESS, "ingress", |_| {}, to));
                if let Some(rate) = rate {
                    let police = |to: &mut Writer| traffic::write_police(&rate, to);
                    one(traffic::NEW_FILTER, &|to| traffic::write_request(1, INGRESS, "matchall", police, to));
                }
            }
            if let Some(classes) = &limits.classes {
                one(traffic::NEW_QDISC, &|to| traffic::write_request(HANDLE, ROOT, "htb", |_| {}, to));
                for (handle, class) in classes {
                    let parameters = |to: &mut Writer| traffic::write_parameters(class, to);
                    one(traffic::NEW_CLASS, &|to| traffic::write_request(*handle, class.parent, "htb", parameters, to));
                }
            }
        }
    }
}
