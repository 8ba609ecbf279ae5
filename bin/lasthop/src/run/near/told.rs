//! What control is told of where VMs and ports' threads are, in messages that the channel takes; and what the log is.

use super::{Near, Said, Threads};
use crate::run::engines::allowed_cpus;
use crate::run::supervisor::Supervisor;
use lasthop_management_ipc::{Nearness, PlaceNews, PortPlace, SupervisorToControl};
use lasthop_sys::CpuList;
use lasthop_types::PortId;
use std::collections::BTreeMap;
use std::time::Instant;
use tracing::{info, warn};

/// Text of a message is this long at most, and one port more: half of what the channel takes. A list of all CPUs that a mask of the kernel's has takes 4 KiB.
const TEXT: usize = 24 * 1024;
/// What a port takes beside its text, and more.
const BESIDE: usize = 64;

/// What control has been told.
#[derive(Debug, Default)]
pub(super) struct Told {
    places: BTreeMap<PortId, PortPlace>,
    /// There was something to say, and what was said before still waited.
    late: bool,
}

impl Told {
    pub(super) fn is_late(&self) -> bool {
        self.late
    }

    /// What is to be said now that all are there.
    pub(super) fn news(&mut self, places: Vec<PortPlace>) -> Vec<PlaceNews> {
        let places: BTreeMap<_, _> = places.into_iter().map(|place| (place.port, place)).collect();
        let gone = self.places.keys().filter(|port| !places.contains_key(*port));
        let gone = gone.map(|port| PlaceNews::Gone(*port));
        let other = places.values().filter(|place| self.places.get(&place.port) != Some(place));
        let news = gone.chain(other.cloned().map(PlaceNews::Is)).collect();
        (self.places, self.late) = (places, false);
        news
    }

    /// All of it again, for one who knows nothing.
    fn all(&self) -> Vec<PlaceNews> {
        std::iter::once(PlaceNews::NoneKnown).chain(self.places.values().cloned().map(PlaceNews::Is)).collect()
    }
}

/// In messages.
pub(super) fn pieces(news: Vec<PlaceNews>) -> Vec<Vec<PlaceNews>> {
    let (mut pieces, mut left) = (Vec::<Vec<PlaceNews>>::new(), 0);
    for one in news {
        let text = match &one {
            PlaceNews::Is(place) => {
                let why = if let Nearness::Refused(why) = &place.state { why.len() } else { 0 };
                place.vm_cpus.len() + place.thread_cpus.as_ref().map_or(0, String::len) + why
            }
            _ => 0,
        };
        match pieces.last_mut().filter(|_| left > 0) {
            Some(piece) => piece.push(one),
            None => {
                pieces.push(vec![one]);
                left = TEXT;
            }
        }
        left = left.saturating_sub(text + BESIDE);
    }
    pieces
}

impl Supervisor {
    /// Threads of ports are where they are to be.
    pub(in crate::run) fn step_threads(&mut self, now: Instant) {
        self.cgroup_accounting.iter_mut().for_each(|cgroup_accounting| cgroup_accounting.step(now));
        if self.followed.deadline(now).is_some_and(|due| due <= now) {
            let cpus = self.cpus_of_ports();
            let polled = self.ports.keys().copied().filter(|port| self.is_polled(PortId(*port))).collect();
            let (of_ports, switch) = (&self.port_threads, self.switch.pid());
            let threads = Threads { of_ports, switch, cpus: &cpus, polled: &polled };
            if self.followed.step(threads, now) {
                self.say_places(&cpus);
            }
            self.log_places();
        }
    }

    /// What has become otherwise, once what was said before is on its way: no more than one word of each port waits.
    fn say_places(&mut self, cpus: &CpuList) {
        if self.control.has_unsent(|message| matches!(message, SupervisorToControl::Places(_))) {
            self.followed.told.late = true;
            return;
        }
        let news = self.followed.places(cpus);
        let news = self.followed.told.news(news);
        self.send_places(news);
    }

    fn send_places(&mut self, news: Vec<PlaceNews>) {
        pieces(news).into_iter().for_each(|piece| self.control.send(SupervisorToControl::Places(piece), None));
    }

    fn log_places(&mut self) {
        for (port, said) in std::mem::take(&mut self.followed.said) {
            let name = self.name_of_port(port);
            match said {
                Said::Runs(place) => info!("the VM of port {name} runs {place}"),
                Said::Refused(cpus, why) => warn!(
                    "--near: the thread of port {name} cannot be bound to CPUs {cpus}: {why}; it takes the rights of root, CAP_SYS_NICE, or the same user, and a \
                     control group (cpuset) that has one of these CPUs; threads that cannot run on any CPU of ports, and `lasthop doctor` names their ports"
                ),
            }
        }
    }

    /// When that has something to do.
    pub(in crate::run) fn threads_deadline(&self) -> Option<Instant> {
        let of_groups = self.cgroup_accounting.as_ref().and_then(|groups| groups.deadline());
        of_groups.into_iter().chain(self.followed.deadline(Instant::now())).min()
    }

    /// A new control knows nothing.
    pub(in crate::run) fn tell_places(&mut self) {
        self.control.unsend(|message| matches!(message, SupervisorToControl::Places(_)));
        let all = self.followed.told.all();
        self.send_places(all);
    }

    /// From now on threads are kept so near to their VMs.
    pub(in crate::run) fn keep_near(&mut self, near: Near) {
        self.followed.set_near(near);
        self.followed.told = Told::default();
        self.tell_places();
    }

    /// The port's thread has just been started, or has been put into another control group.
    pub(in crate::run) fn place_thread(&mut self, port: PortId) {
        if let Some(thread) = self.port_threads.of(port.0, self.switch.pid()) {
            let cpus = self.cpus_of_ports();
            self.followed.place(port.0, thread, &cpus);
            self.log_places();
        }
    }

    /// Those that are online.
    fn cpus_of_ports(&self) -> CpuList {
        let allowed = allowed_cpus().unwrap_or_default();
        let cpus = self.engines.now.of_threads().unwrap_or_else(|| allowed.clone());
        let online: CpuList = cpus.iter().filter(|cpu| allowed.contains(*cpu)).collect();
        if online.is_empty() { cpus } else { online }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lasthop_ipc::Channel;
    use lasthop_management_ipc::ControlToSupervisor;

    /// With lists as long as any mask of the kernel's makes them.
    fn places(ports: u32, state: &Nearness) -> Vec<PortPlace> {
        let cpus = (0..1024).step_by(2).collect::<CpuList>().to_string();
        let place = |port| PortPlace {
            port: PortId(port),
            node: Some(port),
            vm_cpus: cpus.clone(),
            thread_cpus: Some(cpus.clone()),
            state: state.clone(),
        };
        (0..ports).map(place).collect()
    }

    fn hear(known: &mut BTreeMap<PortId, PortPlace>, news: Vec<PlaceNews>) -> usize {
        let pieces = pieces(news);
        let (supervisor, control) = Channel::<SupervisorToControl, ControlToSupervisor>::pair().unwrap();
        let mut supervisor = Channel::<SupervisorToControl, ControlToSupervisor>::new(supervisor);
        let mut control = Channel::<ControlToSupervisor, SupervisorToControl>::new(control);
        let sent = pieces.len();
        for piece in pieces {
            supervisor.send(&SupervisorToControl::Places(piece), None).unwrap();
            let SupervisorToControl::Places(heard) = control.recv().unwrap().0 else { panic!("something else") };
            heard.into_iter().for_each(|one| one.heard_by(known));
        }
        sent
    }

    #[test]
    fn what_control_is_told_fits_into_messages_however_many_ports_there_are() {
        let (mut told, mut known) = (Told::default(), BTreeMap::new());
        let refused = Nearness::Refused("Operation not permitted (os error 1)".into());
        let all = places(3000, &refused);
        assert!(hear(&mut known, told.news(all.clone())) > 100);
        assert!(known.len() == 3000 && known.values().cloned().eq(all.clone()));
        assert_eq!(told.news(all), [], "they are as they were");
        // Short ones as well.
        let mut many = places(10_000, &refused);
        many.iter_mut().for_each(|place| (place.vm_cpus, place.thread_cpus) = (String::new(), None));
        hear(&mut known, told.news(many));
        // What is otherwise, and who is gone.
        let mut some = places(3, &Nearness::Near);
        hear(&mut known, told.news(some.clone()));
        some[1].state = Nearness::Spread;
        let last = some.remove(0);
        assert_eq!(told.news(some.clone()), [PlaceNews::Gone(last.port), PlaceNews::Is(some[0].clone())]);
        // One that has started since knows nothing, or what was so once.
        let mut known = BTreeMap::from([(PortId(77), last)]);
        hear(&mut known, told.all());
        assert!(known.into_values().eq(some));
    }
}
