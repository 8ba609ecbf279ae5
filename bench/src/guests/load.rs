//! Our own load generator as the guests of any switch.

use crate::acl::{Kind, List};
use crate::contender::Contender;
use crate::cpus::Cpus;
use crate::distance::Track;
use crate::guests::crowd::{CROWDED, Crowd};
use crate::guests::reflector::Reflector;
use crate::machine;
use crate::round::Round;
use crate::switch::bridge_tap::BridgeTap;
use crate::switch::dpdk_vhost::DpdkVhost;
use crate::switch::driven::Driven;
use crate::switch::lasthop::Ours;
use crate::switch::ovs::Ovs;
use crate::switch::uplink::Device;
use crate::switch::uplink::Uplink;
use crate::switch::{Extras, Spent, Switch};
use lasthop_harness::stop::{Outcome, check, failed};
use lasthop_harness::{Port, proc, scratch};
use lasthop_loadgen::frame::Vary;
use lasthop_loadgen::{
    Check, FlowOrder, Grants, Listening, Notify, Observer, Pattern, Report, Session, Settings, Sizes, Socket,
};
use lasthop_sys::CpuList;
use std::time::Duration;

/// What is plugged in: scenarios that agree in it are played one after the other on the same switch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Setup {
    /// Guests.
    pub ports: usize,
    /// Packed rings.
    pub packed: bool,
    /// Queue pairs of each guest.
    pub queues: u16,
    /// 64 KiB packets and jumbo frames.
    pub large: bool,
    /// Packets go round and are not made.
    pub round: bool,
    /// Guests sleep when they have nothing to do.
    pub sleep: bool,
    /// Rules of an access list.
    pub rules: usize,
    /// What that is for.
    pub kind: Kind,
    /// A program that spins on each of the CPUs.
    pub crowd: bool,
    /// An uplink to a world outside that sends everything back.
    pub outside: Option<Device>,
    /// Each pair of guests has a thread and a CPU of its own, and the switch all others.
    pub spread: bool,
    /// How guests grant their pages, if they are behind IOMMUs.
    pub grants: Option<Grants>,
    /// Rings of 256 entries, as Linux guests have.
    pub short: bool,
    /// Pages in which buffers lie by chance, if they are not always in the same place.
    pub heap: Option<usize>,
}

impl Setup {
    /// Two guests, split rings, one queue pair, nothing special.
    pub const PLAIN: Self = Self {
        ports: 2,
        packed: false,
        queues: 1,
        large: false,
        round: false,
        sleep: false,
        rules: 0,
        kind: Kind::Stateless,
        crowd: false,
        outside: None,
        spread: false,
        grants: None,
        short: false,
        heap: None,
    };
    /// The same, packets go round.
    pub const ROUND: Self = Self { round: true, ..Self::PLAIN };

    /// The access list, if there is one.
    pub fn list(&self) -> Option<List> {
        (self.rules > 0).then(|| List::generate(self.kind, self.rules))
    }
}

/// What is played.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Act {
    /// Who sends to whom.
    pub pattern: Pattern,
    /// Lengths of frames, as the generator wants them.
    pub sizes: &'static str,
    /// Packets a second.
    pub rate: Option<f64>,
    /// Packets of each sender on their way.
    pub window: Option<u32>,
    /// Flows.
    pub flows: u32,
    /// Every packet is the first of its flow, and what tells it from the others.
    pub once: Option<Vary>,
    /// Traffic before the measurement, in milliseconds, where the usual time would not do for all flows.
    pub settle_ms: Option<u64>,
    /// What comes out of it.
    pub yields: Yields,
}

/// The figures of an act.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Yields {
    /// Packets and bytes, processor time of each packet.
    Speed,
    /// Times there and back.
    Times,
    /// Processor time at a fixed rate.
    Cost,
    /// Processor time left to programs that spin.
    Left,
    /// Packets and bytes through an uplink, processor time of each packet.
    Outside,
    /// New flows a second, memory of each, times of their first packets.
    Flows,
    /// Packets and bytes, processor time of each packet, and how much was granted for it.
    Granted,
    /// Packets and bytes through an uplink, processor time of each packet, all and lasthop-uplink's, and how many came by guests' own queues.
    Queues,
}

impl Act {
    /// 64-byte frames both ways, as many as go with 256 on their way.
    pub const PLAIN: Self = Self {
        pattern: Pattern::BothWays,
        sizes: "64",
        rate: None,
        window: Some(256),
        flows: 1,
        once: None,
        settle_ms: None,
        yields: Yields::Speed,
    };
}

/// A switch with guests plugged in.
pub struct Stage {
    // In this order: guests leave before their switch ends.
    session: Session<'static>,
    _listening: Listening,
    switch: Box<dyn Switch>,
    _outside: Option<Reflector>,
    settings: Settings,
    cpus: Cpus,
    crowd: Vec<usize>,
    _dir: tempfile::TempDir,
}

impl Stage {
    /// Starts the switch and plugs the guests in.
    pub fn set(contender: Contender, cpus: Cpus, setup: Setup) -> Outcome<Self> {
        let dir = scratch();
        let ports: Vec<Port> = (0..setup.ports).map(|i| Port::connect(&format!("p{i}"), dir.path())).collect();
        let list = setup.list();
        let device = setup.outside.map(|device| used(device, contender));
        let outside = device.map(Reflector::new).transpose()?;
        let uplink = outside.as_ref().zip(device).map(|(world, device)| Uplink { netns: &world.site, device });
        let translated = setup.grants.is_some();
        let extras = Extras {
            large: setup.large,
            queues: setup.queues,
            list: list.as_ref(),
            uplink,
            translated,
            ..Extras::default()
        };
        let (guests, switch) = if setup.spread { spread(machine::cpus(), setup.ports / 2, cpus) } else { cpus.each() };
        let settings = settings(setup, &ports, guests)?;
        // Before the switch tries to connect for the first time.
        let listening = lasthop_loadgen::listen(&settings)?;
        let places = Places { cpus, guests: &settings.cpus, switch: &switch, spread: setup.spread };
        let switch = start(contender, places, &ports, extras)?;
        let session = Session::connect(&settings, &listening, &check)?;
        let crowd = if setup.crowd { vec![cpus.guests, cpus.switch] } else { Vec::new() };
        // There is no one distance between many.
        let cpus = if setup.spread { Cpus { switch: cpus.guests, ..cpus } } else { cpus };
        Ok(Self { session, _listening: listening, switch, _outside: outside, settings, cpus, crowd, _dir: dir })
    }

    /// Plays an act for so many seconds.
    pub fn play(&mut self, act: Act, seconds: f64) -> Outcome<Round> {
        let times = act.yields == Yields::Times;
        let first = act.yields == Yields::Flows;
        let settings = Settings {
            pattern: act.pattern,
            sizes: act.sizes.parse().map_err(failed)?,
            rate: act.rate,
            window: act.window,
            flows: act.flows,
            packets: act.once.map(|_| act.flows.into()),
            vary: act.once.unwrap_or(Vary::Tuple),
            flow_order: if act.once.is_some() { FlowOrder::Round } else { FlowOrder::Random },
            // A number for each of a million flows would be a cache miss of the guests'.
            check: if act.flows > 10_000 || act.pattern.circulates() { Check::Count } else { Check::Order },
            latency: times || first,
            // Switches that learn or cache flows do so here.
            warmup: Duration::from_millis(match act.settle_ms {
                _ if act.once.is_some() => 0,
                Some(ms) => ms,
                None if act.flows > 10_000 => 1000,
                None => 300,
            }),
            length: Duration::from_secs_f64(if act.once.is_some() { 10.0 } else { seconds }),
            ..self.settings.clone()
        };
        let before = self.switch.memory_kib();
        let factor = if act.pattern.returns() { 2.0 } else { 1.0 };
        let crowd = Crowd::new(&self.crowd)?;
        let mut watch = Watch {
            switch: &mut *self.switch,
            factor,
            crowd,
            left: 0.0,
            guests: 0.0,
            spent: None,
            cpus: self.cpus,
            within: !times,
            told_ns: 0,
            uplink: None,
            uplink_ns: 0,
            track: None,
            trips: Vec::new(),
        };
        let queues = act.yields == Yields::Queues;
        // The questions cost processor time too: they are asked outside of what is measured.
        watch.uplink = if queues { watch.switch.uplink() } else { None };
        let came_before = if queues { watch.switch.by_queues() } else { None };
        let report = self.session.play(&settings, &mut watch)?;
        let uplink_ns = watch.uplink.map(|_| watch.uplink_ns as f64);
        let (left, guests, trips) = (100.0 * watch.left, 100.0 * watch.guests, watch.trips);
        let told_ns = watch.told_ns as f64;
        let spent = watch.spent.ok_or_else(|| failed("nothing was measured"))?;
        if report.received == 0 {
            return Err(failed("no packet came through"));
        }
        if report.reordered + report.damaged > 0 {
            return Err(failed(format!("{} packets out of order, {} damaged", report.reordered, report.damaged)));
        }
        let memory = self.switch.memory_kib().saturating_sub(before) as f64 * 1024.0;
        let shared = [left, guests];
        let figures = match act.yields {
            Yields::Granted => granted(&report, spent, factor, told_ns),
            Yields::Queues => {
                let came = came_before.zip(self.switch.by_queues());
                let own = came.map(|(before, after)| own_percent(before, after));
                if own.is_some_and(|own| own < OWN) {
                    return Err(failed(format!(
                        "only {:.0} % of the packets came by guests' own queues",
                        own.unwrap_or(0.0)
                    )));
                }
                through_queues(&report, spent, factor, self.switch.polls(), uplink_ns, own)
            }
            yields => figures(yields, &report, spent, factor, memory, shared),
        };
        Ok(Round::new(figures, trips))
    }

    /// Memory of the switch, in KiB.
    pub fn memory_kib(&self) -> f64 {
        self.switch.memory_kib() as f64
    }
}

/// What a contender makes of an interface.
fn used(device: Device, contender: Contender) -> Device {
    match (contender, device) {
        // What differs is the uplink, and nothing of the switch.
        (Contender::NoGro, _) => Device::XdpNoGro,
        (Contender::SharedQueue, _) => Device::Xdp,
        // A bridge has an interface as it is.
        (Contender::BridgeTap, Device::XdpQueues(_)) => Device::Packet,
        _ => device,
    }
}

/// The guests of a setup, before it is known what they do.
fn settings(setup: Setup, ports: &[Port], guests: Vec<usize>) -> Outcome<Settings> {
    let listen = |p: &Port| Socket { path: p.socket.clone(), listen: true };
    let pattern = match setup {
        Setup { round: true, .. } => Pattern::Loop,
        Setup { outside: Some(_), .. } => Pattern::Reflect,
        Setup { ports, .. } if !ports.is_multiple_of(2) => Pattern::Incast,
        _ => Pattern::BothWays,
    };
    let mut settings = Settings::new(ports.iter().map(listen).collect(), pattern);
    settings.packed = setup.packed;
    settings.queues = setup.queues;
    settings.notify = if setup.sleep { Notify::Sleep } else { Notify::Poll };
    settings.cpus = guests;
    settings.check = if setup.round { Check::Count } else { Check::Order };
    settings.sizes = Sizes::of(1514);
    (settings.grants, settings.heap) = (setup.grants, setup.heap);
    if setup.short {
        settings.ring_size = 256;
    }
    if setup.large {
        (settings.ring_size, settings.rx_buffer) = (256, 4096);
        settings.sizes = "gso".parse().map_err(failed)?;
    }
    if setup.ports > 4 && !setup.spread && !setup.short {
        // Many ports are for counting memory.
        settings.ring_size = 64;
    }
    Ok(settings)
}

/// Who is on which CPUs.
#[derive(Clone, Copy)]
pub(super) struct Places<'a> {
    pub cpus: Cpus,
    pub guests: &'a [usize],
    pub switch: &'a [usize],
    /// There may be more of them than two.
    pub spread: bool,
}

/// Starts the switch, which connects to guests that listen.
pub(super) fn start(
    contender: Contender,
    places: Places<'_>,
    ports: &[Port],
    extras: Extras<'_>,
) -> Outcome<Box<dyn Switch>> {
    let Places { cpus, guests, switch, spread } = places;
    let sockets: Vec<_> = ports.iter().map(|p| &*p.socket).collect();
    Ok(match contender {
        Contender::Lasthop | Contender::NoGro | Contender::SharedQueue | Contender::Changed(_) => {
            let change = if let Contender::Changed(change) = contender { Some(change) } else { None };
            let list = switch.iter().map(ToString::to_string).collect::<Vec<_>>().join(",");
            let start = || Ours::start(ports, &list, extras, change);
            Box::new(if extras.uplink.is_some() || spread { start_on(switch, start)? } else { start()? })
        }
        Contender::Device => Box::new(Ours::device(ports, cpus.switch, extras)?),
        Contender::Driven(rules) => Box::new(Driven::start(ports, cpus.switch, rules, extras)?),
        Contender::Ovs(rules) => {
            // Its main thread is who serves an interface without a polling thread.
            let main = if extras.uplink.is_some() && extras.promise.is_none() { cpus.switch } else { cpus.guests };
            let start = || Ovs::start(main, switch, &sockets, rules, extras);
            let all: Vec<usize> = guests.iter().chain(switch).copied().collect();
            Box::new(if spread { start_on(&all, start)? } else { start()? })
        }
        Contender::DpdkVhost => Box::new(DpdkVhost::start(cpus.guests, cpus.switch, &sockets, extras)?),
        Contender::BridgeTap | Contender::BridgeTc => {
            Box::new(BridgeTap::start(cpus.guests, cpus.switch, &sockets, extras)?)
        }
        Contender::LinuxBridge | Contender::BridgeNft | Contender::BridgeAlone | Contender::Tap => {
            return Err(failed("has no such ports"));
        }
    })
}

/// A CPU for each of so many pairs of guests, and those for the switch: all others of the first 64. With two CPUs they are as
/// everywhere else.
pub(super) fn spread(all: &[usize], pairs: usize, cpus: Cpus) -> (Vec<usize>, Vec<usize>) {
    let others = all.iter().copied().filter(|c| *c < 64 && *c != cpus.guests && *c != cpus.switch);
    let mut guests: Vec<usize> = [cpus.guests].into_iter().chain(others).collect();
    let mut switch = guests.split_off(pairs.min(guests.len()));
    switch.push(cpus.switch);
    (guests, switch)
}

/// Starts something all of whose processes are to stay on some CPUs.
fn start_on<T>(cpus: &[usize], start: impl FnOnce() -> Outcome<T>) -> Outcome<T> {
    let before = CpuList::allowed().map_err(failed)?;
    cpus.iter().copied().collect::<CpuList>().bind_current_thread().map_err(failed)?;
    let started = start();
    before.bind_current_thread().map_err(failed)?;
    started
}

/// `factor` is how often a packet that was received has gone through the switch, `shared` what others and what the guests got of
/// the CPUs, in percent.
fn figures(
    yields: Yields,
    report: &Report,
    spent: Spent,
    factor: f64,
    memory: f64,
    shared: [f64; 2],
) -> Vec<Option<f64>> {
    let packets = factor * report.received as f64;
    let (busy, cpu) = (spent.busy_ns / packets, spent.cpu_ns / packets);
    let percent = spent.cpu_ns / report.seconds / 1e7;
    let figures = match yields {
        Yields::Speed => vec![factor * report.mpps, factor * report.gbit_per_second, busy, cpu],
        Yields::Times => {
            let Some(l) = &report.latency else { return vec![None; 6] };
            vec![report.mpps * 1e3, l.p50, l.p99, l.p999, busy, percent]
        }
        Yields::Cost => {
            let taken = (spent.cpu_ns - spent.idle_ns) / report.seconds / 1e7;
            vec![report.mpps * 1e3, busy, cpu, percent, taken]
        }
        Yields::Outside => vec![report.mpps, report.gbit_per_second, cpu],
        Yields::Left => {
            let [left, guests] = shared;
            vec![left, report.mpps * 1e3, cpu, spent.busy_ns / report.seconds / 1e7 / CROWDED, guests]
        }
        Yields::Flows => {
            let Some(l) = &report.latency else { return vec![None; 5] };
            vec![report.mpps * 1e3, cpu / 1e3, memory / packets, l.p50, l.p99]
        }
        Yields::Granted => return granted(report, spent, factor, 0.0),
        Yields::Queues => return through_queues(report, spent, factor, false, None, None),
    };
    figures.into_iter().map(Some).collect()
}

/// The part of what comes, in percent, that comes by guests' own queues where these are what is measured: all but the first packets, whose guests
/// are not known yet.
const OWN: f64 = 90.0;

/// Of packets from the network between two looks at the queues, those by queues that are kept for a guest, in percent.
fn own_percent(before: [u64; 2], after: [u64; 2]) -> f64 {
    let [shared, own] = [0, 1].map(|i| after[i].saturating_sub(before[i]) as f64);
    100.0 * own / (shared + own).max(1.0)
}

/// `uplink_ns`: of a process for the uplink alone, if there is one.
fn through_queues(
    report: &Report,
    spent: Spent,
    factor: f64,
    polls: bool,
    uplink_ns: Option<f64>,
    own: Option<f64>,
) -> Vec<Option<f64>> {
    let packets = factor * report.received as f64;
    let cost = if polls { spent.busy_ns } else { spent.cpu_ns } / packets;
    let uplink = uplink_ns.map(|ns| ns / packets);
    vec![Some(report.mpps), Some(report.gbit_per_second), Some(cost), uplink, own]
}

/// `told_ns` of the processor time went to messages of the front-ends.
fn granted(report: &Report, spent: Spent, factor: f64, told_ns: f64) -> Vec<Option<f64>> {
    let packets = factor * report.received as f64;
    let told = report.grants.unwrap_or_default();
    let granting = report.grants.is_some();
    let per_packet = |count: u64| granting.then(|| count as f64 / packets);
    vec![
        Some(report.mpps * 1e3),
        Some(report.gbit_per_second * 1e3),
        Some(spent.cpu_ns / packets),
        Some(100.0 * told_ns / spent.cpu_ns.max(1.0)),
        per_packet(told.updates),
        per_packet(told.invalidations),
        granting.then_some(told.pages as f64),
    ]
}

/// Takes the switch's processor time while packets flow, and the distance between the CPUs.
struct Watch<'a> {
    switch: &'a mut dyn Switch,
    /// Times that a packet which was received has gone through the switch.
    factor: f64,
    crowd: Crowd,
    /// Part of the CPUs' time that the crowd got.
    left: f64,
    /// Part that the guests took.
    guests: f64,
    spent: Option<Spent>,
    cpus: Cpus,
    /// Whether the distance is probed within, too: packets wait for a probe.
    within: bool,
    /// Processor time on front-ends' messages.
    told_ns: u64,
    /// The uplink's process, and its processor time.
    uplink: Option<u32>,
    uplink_ns: u64,
    track: Option<Track>,
    /// Between the CPUs, in nanoseconds.
    trips: Vec<f64>,
}

impl Observer for Watch<'_> {
    fn begin(&mut self) -> Outcome<()> {
        let track = Track::new(self.cpus, self.within);
        self.told_ns = self.switch.told_ns();
        track.begin();
        // Last here and first at the end: what lies between is a measured time longer than that of the packets.
        self.switch.begin()?;
        self.uplink_ns = self.uplink.map_or(0, proc::cpu_ns);
        self.track = Some(track);
        self.crowd.begin();
        Ok(())
    }

    fn end(&mut self, packets: f64) -> Outcome<()> {
        (self.left, self.guests) = self.crowd.parts();
        self.uplink_ns = self.uplink.map_or(0, proc::cpu_ns).saturating_sub(self.uplink_ns);
        self.spent = Some(self.switch.spent(packets * self.factor)?);
        self.trips = self.track.take().map(Track::end).unwrap_or_default();
        self.told_ns = self.switch.told_ns().saturating_sub(self.told_ns);
        Ok(())
    }
}

/// KiB of the switch for each port: between `few` and `many` of them.
pub fn memory_per_port(contender: Contender, cpus: Cpus, few: usize, many: usize) -> Outcome<Vec<Option<f64>>> {
    let of = |ports| Stage::set(contender, cpus, Setup { ports, ..Setup::PLAIN }).map(|s| s.memory_kib());
    let (small, large) = (of(few)?, of(many)?);
    Ok(vec![Some((large - small) / (many - few) as f64), Some(small)])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_have_a_cpu_each_and_the_switch_all_others() {
        let cpus = Cpus { guests: 0, switch: 1 };
        assert_eq!(spread(&[0, 1], 1, cpus), (vec![0], vec![1]));
        let many: Vec<usize> = (0..16).collect();
        assert_eq!(spread(&many, 7, cpus), (vec![0, 2, 3, 4, 5, 6, 7], vec![8, 9, 10, 11, 12, 13, 14, 15, 1]));
        let elsewhere = Cpus { guests: 3, switch: 2 };
        assert_eq!(spread(&[1, 2, 3, 64, 65], 2, elsewhere), (vec![3, 1], vec![2]));
    }

    #[test]
    fn who_has_a_queue_of_its_own_has_what_came_by_it() {
        assert_eq!(own_percent([100, 10], [110, 100]), 90.0);
        assert_eq!(own_percent([0, 0], [0, 0]), 0.0);
    }

    #[test]
    fn a_packet_costs_what_a_switch_is_busy_where_it_polls() {
        let report = Report { received: 50, mpps: 1.0, gbit_per_second: 2.0, ..Report::default() };
        let spent = Spent { cpu_ns: 1000.0, busy_ns: 400.0, idle_ns: 0.0 };
        let ours = through_queues(&report, spent, 2.0, false, Some(300.0), Some(99.0));
        assert_eq!(ours, [1.0, 2.0, 10.0, 3.0, 99.0].map(Some));
        let bridge = through_queues(&report, spent, 2.0, true, None, None);
        assert_eq!(bridge[2..], [Some(4.0), None, None], "it has no process for the uplink alone");
    }

    #[test]
    fn queues_are_the_uplink_s_alone() {
        let device = Device::XdpQueues(3);
        assert_eq!(used(device, Contender::Lasthop).uplink(), "up=net0,af_xdp,queues=3");
        assert_eq!(used(device, Contender::SharedQueue), Device::Xdp);
        assert!(!used(device, Contender::BridgeTap).is_xdp());
        assert_eq!(used(Device::Packet, Contender::BridgeTap), Device::Packet);
    }
}
