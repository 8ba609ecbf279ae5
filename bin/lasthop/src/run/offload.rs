//! Flows in the kernel or a card (`--hw-offload`): the process `lasthop-flower` between the switch and control. It is told which ports are interfaces whose flows
//! may be there, and what takes away from what may be there is answered to whoever asked for it once it has been taken away.
//!
//! If the process is killed its rules stay in the kernel until the next one, started at once, has removed them. Meanwhile control is not to believe that the switch
//! is away, and that what it says holds everywhere: a copy of the end that the process had of the rings to control is kept here until then.

use super::RunError::{self, Failed};
use super::args::RunArgs;
use super::child::{Child, Ended};
use super::links::Links;
use super::setup::find_program;
use super::store::SavedUplink;
use super::supervisor::{OFFLOAD_CHANNEL, OFFLOAD_PID, Supervisor};
use lasthop_ipc::ChannelError;
use lasthop_management_ipc::{
    LinkState, OffloadFigures, OffloadState, OffloadToSupervisor, PortConfig, SupervisorToControl, SupervisorToOffload,
};
use lasthop_policy::PortSettings;
use lasthop_sys::{Epoll, make_tap};
use lasthop_tc::{Netlink, Policy};
use lasthop_types::PortId;
use lasthop_uplink_ipc::UplinkDriver;
use rustix::io::Errno;
use rustix::net::netdevice::name_to_index;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};
use rustix::system::uname;
use std::collections::BTreeMap;
use std::fs::OpenOptions;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::time::{Duration, Instant};
use tracing::{info, warn};

/// The kernel may take so long for all that is asked of it in one round: for the rules of a card some seconds.
const ROUND: Duration = Duration::from_secs(10);
/// How often it is looked whether it has ended, at the end.
const LOOK: Duration = Duration::from_millis(10);
/// A TAP device by which it is found out what the kernel can do.
const PROBE: &str = "lasthop-probe";

/// What it takes.
#[derive(Clone, Debug)]
pub struct OffloadProgram {
    program: PathBuf,
    lock: PathBuf,
    policy: Policy,
}

impl OffloadProgram {
    /// If it is wanted, and can be.
    pub fn wanted(args: &RunArgs) -> Result<Option<Self>, RunError> {
        if !args.hw_offload {
            return Ok(None);
        }
        let program = find_program("lasthop-flower", args.libexec.as_deref())?;
        can_be().map_err(|why| Failed(format!("--hw-offload: {why}")))?;
        let policy = Policy::from_name(&args.tc_policy).unwrap_or_default();
        Ok(Some(Self { program, lock: args.run_dir.join("offload.lock"), policy }))
    }
}

/// Older kernels look into tunnels for what a rule is about (their commit 6de6e46d27ef put an end to it): rules of a guest's own packets would take what others
/// have wrapped.
const OLDEST: (u32, u32) = (5, 16);

/// Whether a kernel that calls itself so keeps to a packet's outermost headers.
fn is_new_enough(release: &str) -> bool {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map_while(|number| number.parse::<u32>().ok());
    numbers.next().zip(numbers.next()).is_some_and(|release| release >= OLDEST)
}

/// Whether the kernel has what it takes: found out at an interface of our own, which goes at once.
fn can_be() -> Result<(), String> {
    let release = uname().release().to_string_lossy().into_owned();
    if !is_new_enough(&release) {
        let (major, minor) = OLDEST;
        return Err(format!(
            "this kernel ({release}) looks into tunnels where it compares packets with rules of flows, so that a guest's packets would take others' ways; \
             it takes Linux {major}.{minor}, or leave the option out: lasthop carries all packets then"
        ));
    }
    let denied = |e: Errno| match e {
        Errno::PERM | Errno::ACCESS => format!("{e}; run lasthop as root"),
        e => format!("what the kernel can do cannot be found out: {e}"),
    };
    let tap = make_tap(PROBE, None).map_err(|e| match e {
        Errno::NOENT | Errno::NODEV | Errno::NXIO => format!("/dev/net/tun: {e}; load the kernel's module tun"),
        e => denied(e),
    })?;
    let socket = socket_with(AddressFamily::INET, SocketType::DGRAM, SocketFlags::CLOEXEC, None).map_err(denied)?;
    let index = name_to_index(socket, PROBE).map_err(denied)?;
    let mut netlink = Netlink::open().map_err(denied)?;
    let made = netlink.make_place(index).and_then(|()| netlink.put_rest(index, index));
    drop(tap);
    made.map_err(|e| match e {
        Errno::PERM | Errno::ACCESS => denied(e),
        e => format!(
            "this kernel has no classifier \"flower\" with the action \"mirred\" ({e}): CONFIG_NET_CLS_FLOWER, CONFIG_NET_ACT_MIRRED and CONFIG_NET_SCH_INGRESS; \
             load its modules (`modprobe -a sch_ingress cls_flower act_mirred`), or leave the option out: lasthop carries all packets then"
        ),
    })
}

/// Whether a port has something that lasthop alone keeps: nobody would hold packets back that pass it by.
fn is_limited(settings: &PortSettings) -> bool {
    settings.rate_from.is_some()
        || settings.rate_to.is_some()
        || settings.max_cpu.is_some()
        || settings.max_cpu_to.is_some()
}

/// The process, and what it was told.
#[derive(Debug)]
pub struct Offload {
    child: Child<SupervisorToOffload, OffloadToSupervisor>,
    lock: PathBuf,
    policy: Policy,
    /// By a port's number: its interface's, and whether it has a rate; and whether it was told since that it is none any more, and has not answered.
    told: BTreeMap<u32, ((u32, bool), bool)>,
    number: u64,
    /// What it was told and has not answered: which port that was about.
    asked: BTreeMap<u64, u32>,
    /// Replies to control that wait until all up to this is answered.
    replies: Vec<(u64, u64, Result<PortConfig, String>)>,
    join: u64,
    /// Of its end of the rings to control.
    copy: Option<OwnedFd>,
    figures: OffloadFigures,
}

impl Offload {
    /// One that does not run yet.
    pub fn new(OffloadProgram { program, lock, policy }: OffloadProgram, watchdog: Option<Duration>) -> Self {
        let arguments = ["--supervisor-fd", "3", "--lock-fd", "4", "--tc-policy", policy.name()].map(String::from);
        let child = Child::new("lasthop-flower", program, arguments.to_vec(), OFFLOAD_CHANNEL, OFFLOAD_PID);
        Self {
            child: child.with_watchdog(watchdog, ROUND),
            lock,
            policy,
            told: BTreeMap::new(),
            number: 0,
            asked: BTreeMap::new(),
            replies: Vec::new(),
            join: 0,
            copy: None,
            figures: OffloadFigures::default(),
        }
    }

    /// Whether it can be between the switch and control.
    pub fn is_ready(&self) -> bool {
        self.child.is_ready()
    }

    /// Whether rules of this port's flows may still be there.
    pub fn holds(&self, port: u32) -> bool {
        self.told.contains_key(&port)
    }

    /// Whether it has not answered yet all that it was told.
    fn is_telling(&self) -> bool {
        !self.asked.is_empty()
    }

    /// Has control told this once all is answered that it was told.
    fn reply_later(&mut self, request: u64, result: Result<PortConfig, String>) {
        self.replies.push((self.number, request, result));
    }

    /// It is another process now, which has been told anew all that replies wait for.
    fn replies_wait_for_all(&mut self) {
        let number = self.number;
        self.replies.iter_mut().for_each(|(until, ..)| *until = number);
    }

    /// Gives it the ends of rings.
    pub fn join(&mut self, switch: OwnedFd, control: OwnedFd) -> Result<(), ChannelError> {
        let copy = control.try_clone().map_err(|e| Errno::from_io_error(&e).unwrap_or(Errno::IO))?;
        self.join += 1;
        self.copy = Some(copy);
        for end in [switch, control] {
            self.child.send(SupervisorToOffload::Join { number: self.join }, Some(end));
        }
        Ok(())
    }

    /// Its process, while it runs.
    pub fn pid(&self) -> Option<u32> {
        self.child.pid()
    }

    /// Whether its program is another one than would be started now.
    pub fn is_outdated(&self) -> bool {
        self.child.is_outdated()
    }

    /// What is to be shown of it.
    pub fn state(&self) -> OffloadState {
        let (policy, running, figures) = (self.policy.name().into(), self.child.is_ready(), self.figures.clone());
        OffloadState { policy, running, ports: self.told.len() as u64, figures }
    }

    /// Sends what waits.
    pub fn flush(&mut self, epoll: &Epoll) {
        self.child.flush(epoll);
    }

    /// When something is due.
    pub fn deadline(&self) -> Option<Instant> {
        self.child.deadline()
    }

    /// Kills it if it hangs.
    pub fn check_hang(&mut self, now: Instant) {
        self.child.check_hang(now);
        if let Some(hung) = self.child.kill_if_hung(now) {
            warn!("lasthop-flower hangs: its thread {} {}; replacing it", hung.name, hung.how);
        }
    }

    /// Whether it has done all that it was told; what is in the kernel or a card is of flows of today.
    fn is_settled(&self) -> bool {
        self.child.is_ready() && !self.is_telling()
    }

    /// Asks it to leave nothing behind, and to end.
    fn end(&mut self) {
        self.child.send(SupervisorToOffload::Shutdown, None);
    }

    /// Whether it is not at its end yet.
    pub fn is_ending(&mut self, epoll: &Epoll) -> bool {
        let now = Instant::now();
        self.child.flush(epoll);
        self.child.receive(epoll, now);
        self.child.reap(epoll, now);
        self.child.is_up()
    }

    fn tell(&mut self, port: u32, device: Option<(u32, bool)>) {
        self.number += 1;
        self.asked.insert(self.number, port);
        let (index, limited) = device.map_or((None, false), |(index, limited)| (Some(index), limited));
        let number = self.number;
        self.child.send(SupervisorToOffload::Port { port: PortId(port), device: index, limited, number }, None);
        match device {
            Some(device) => drop(self.told.insert(port, (device, false))),
            None => self.told.get_mut(&port).into_iter().for_each(|(_, leaves)| *leaves = true),
        }
    }

    /// It has answered this.
    fn done(&mut self, number: u64) -> Option<u32> {
        let port = self.asked.remove(&number)?;
        let is_last = !self.asked.values().any(|asked| *asked == port);
        if is_last && self.told.get(&port).is_some_and(|(_, leaves)| *leaves) {
            self.told.remove(&port);
        }
        Some(port)
    }

    /// Replies that have waited long enough: the process is there, and has answered all that they wait for.
    fn due_replies(&mut self) -> Vec<(u64, Result<PortConfig, String>)> {
        if !self.child.is_ready() {
            return Vec::new();
        }
        let first = self.asked.keys().next().copied().unwrap_or(u64::MAX);
        let due = self.replies.extract_if(.., |(number, ..)| *number < first);
        due.map(|(_, request, result)| (request, result)).collect()
    }

    /// Tells it which ports there are, as far as that is another thing than it was told.
    fn tell_all(&mut self, ports: &BTreeMap<u32, (u32, bool)>) {
        let gone = self.told.iter().filter(|(port, (_, leaves))| !ports.contains_key(port) && !leaves);
        let gone: Vec<_> = gone.map(|(port, _)| *port).collect();
        gone.into_iter().for_each(|port| self.tell(port, None));
        for (port, device) in ports {
            if self.told.get(port) != Some(&(*device, false)) {
                self.tell(*port, Some(*device));
            }
        }
    }

    /// Starts it. It is told first what the one before it was told, so that rules of ports that have gone meanwhile go too.
    fn start(&mut self, epoll: &Epoll) -> std::io::Result<()> {
        let lock = OpenOptions::new().write(true).create(true).truncate(false).open(&self.lock)?;
        self.child.start(epoll, vec![lock.into()])?;
        self.asked.clear();
        let before = std::mem::take(&mut self.told);
        before.into_iter().for_each(|(port, (device, _))| self.tell(port, Some(device)));
        self.child.send(SupervisorToOffload::Begin, None);
        Ok(())
    }
}

impl Supervisor {
    /// Ports whose flows may be in the kernel or a card: those with driver=tc whose interface is there.
    fn offloaded_ports(&self) -> BTreeMap<u32, (u32, bool)> {
        let ports = self.uplinks.iter().filter(|(_, uplink)| uplink.is_representor() && !uplink.is_leaving());
        let known = |links: &Links, device: &str| {
            (links.state(device, false) != LinkState::Missing).then(|| links.index(device)).flatten()
        };
        let device = |uplink: &super::uplink::Uplink| known(self.links.as_ref()?, &uplink.spec.device);
        let limited =
            |name: &String| self.settings.get(name).is_some_and(is_limited) || self.limited.contains_key(name);
        ports.filter_map(|(id, uplink)| Some((*id, (device(uplink)?, limited(&uplink.spec.name))))).collect()
    }

    /// Whether nothing of an earlier run is in the kernel or a card any more, if something of this one is to be.
    pub(super) fn offload_is_settled(&mut self) -> bool {
        self.step_offload(Instant::now());
        self.offload.as_ref().is_none_or(Offload::is_settled)
    }

    /// Asks lasthop-flower to end.
    pub(super) fn end_offload(&mut self) {
        self.offload.iter_mut().for_each(Offload::end);
    }

    /// At the end: lasthop-flower takes its rules away, which may take it longer than others need; then what is left goes, with what joins interfaces to TAP devices
    /// that are not there any more.
    pub(super) fn leave_no_rules(&mut self) {
        let (begun, mut killed) = (Instant::now(), false);
        while let Some(offload) = &mut self.offload
            && offload.is_ending(&self.epoll)
            && begun.elapsed() < 2 * ROUND
        {
            if begun.elapsed() >= ROUND && !std::mem::replace(&mut killed, true) {
                warn!("lasthop-flower did not end within {ROUND:?}; killing it");
                offload.child.kill();
            }
            std::thread::sleep(LOOK);
        }
        self.uplinks.values().for_each(|uplink| self.leave_representor(&uplink.spec));
    }

    /// A representor is nobody's any more: what it receives goes to the host's own stack again.
    pub(super) fn leave_representor(&self, spec: &SavedUplink) {
        let is_representor = spec.driver.as_deref().and_then(UplinkDriver::from_name) == Some(UplinkDriver::Tc);
        let index = self.links.as_ref().and_then(|links| links.index(&spec.device));
        if let Some(index) = index.filter(|_| is_representor)
            && let Err(e) = Netlink::open().and_then(|mut netlink| netlink.leave(index))
        {
            let device = &spec.device;
            warn!("{device}: its tc rules cannot be removed: {e}; `tc filter del dev {device} ingress` removes them");
        }
    }

    /// Starts the process if it is due, and tells it what has changed.
    pub(super) fn step_offload(&mut self, now: Instant) {
        let Some(offload) = &mut self.offload else { return };
        let starts = offload.child.is_due(now);
        if starts && let Err(e) = offload.start(&self.epoll) {
            offload.child.cannot_start(format!("cannot start lasthop-flower: {e}"), now);
        }
        let ports = self.offloaded_ports();
        if let Some(offload) = self.offload.as_mut().filter(|offload| offload.child.is_up()) {
            offload.tell_all(&ports);
            if starts {
                offload.replies_wait_for_all();
            }
            offload.child.flush(&self.epoll);
        }
    }

    /// Tells control this; if flows have to leave the kernel or a card for it, once they have.
    pub(super) fn reply_once_it_holds(&mut self, request: u64, result: Result<PortConfig, String>) {
        self.step_offload(Instant::now());
        // Rules of one that has ended are there until the next one has removed them.
        match self.offload.as_mut().filter(|offload| !offload.is_settled()) {
            Some(offload) => offload.reply_later(request, result),
            None => self.control.send(SupervisorToControl::Reply { request, result }, None),
        }
    }

    /// It has said something, or has ended.
    pub(super) fn offload_event(&mut self, now: Instant) -> Result<(), RunError> {
        let Some(offload) = &mut self.offload else { return Ok(()) };
        let messages = offload.child.receive(&self.epoll, now);
        let ended = offload.child.reap(&self.epoll, now);
        for message in messages {
            self.hear_offload(message);
        }
        if let Some(ended) = ended {
            self.offload_ended(&ended, now)?;
        }
        Ok(())
    }

    fn hear_offload(&mut self, message: OffloadToSupervisor) {
        let Some(offload) = &mut self.offload else { return };
        match message {
            OffloadToSupervisor::Ready => {
                offload.child.set_ready();
                info!(
                    "flows between ports with driver=tc go to the kernel or a card (tc-policy={})",
                    offload.policy.name()
                );
                if self.switch.is_up() && self.control.is_up() {
                    self.join_children();
                }
                self.announce();
                self.offload_has_let_go(None);
            }
            OffloadToSupervisor::Failed(why) => {
                let why: String = why.chars().take(300).map(|c| if c.is_control() { '?' } else { c }).collect();
                warn!("lasthop-flower: {why}");
                offload.child.set_fault(&why);
            }
            OffloadToSupervisor::Done(number) => {
                let port = offload.done(number);
                self.announce();
                self.offload_has_let_go(port);
            }
            OffloadToSupervisor::Apart { number, why } if number == offload.join => {
                offload.copy = None;
                if let Some(why) = why {
                    warn!("lasthop-flower, between the switch and control: {why}; joining them anew");
                    self.join_children();
                }
            }
            OffloadToSupervisor::Apart { .. } => {}
            OffloadToSupervisor::Figures(figures) => offload.figures = figures,
        }
    }

    /// Tells whoever waits for what it has just answered.
    fn offload_has_let_go(&mut self, port: Option<u32>) {
        let Some(offload) = &mut self.offload else { return };
        for (request, result) in offload.due_replies() {
            self.control.send(SupervisorToControl::Reply { request, result }, None);
        }
        let Some(port) = port.filter(|port| !offload.holds(*port)) else { return };
        if self.uplinks.get(&port).is_some_and(|uplink| uplink.is_leaving() && !uplink.is_up()) {
            self.uplink_is_gone(port);
        }
    }

    fn offload_ended(&mut self, ended: &Ended, now: Instant) -> Result<(), RunError> {
        self.replaced.note("flower", &ended.why, now);
        self.restart_or_give_up(ended)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_lasthop_alone_keeps_keeps_flows_in_it() {
        let limited =
            |key: &str, value: &str| is_limited(&PortSettings::try_from(format!("{key}={value}")).expect("a setting"));
        assert!(limited("rate-from", "1M") && limited("rate-to", "1M") && limited("max-cpu", "50"));
        assert!(limited("max-cpu-to", "50"));
        assert!(!limited("weight", "7"));
    }

    #[test]
    fn kernels_that_look_into_tunnels_are_refused() {
        for release in ["5.16.0", "6.1.0-18-amd64", "5.16-rc1", "10.2.3", "6.12.48+deb13"] {
            assert!(is_new_enough(release), "{release}");
        }
        for release in ["5.15.193-generic", "4.18.0-553.el8", "5.10.0-9-amd64", "", "5", "unknown"] {
            assert!(!is_new_enough(release), "{release}");
        }
    }

    fn offload() -> Offload {
        let program = OffloadProgram { program: "/bin/true".into(), lock: "/dev/null".into(), policy: Policy::None };
        Offload::new(program, None)
    }

    #[test]
    fn replies_wait_for_the_process_that_comes() {
        let mut offload = offload();
        offload.tell(1, Some((7, false)));
        offload.reply_later(5, Err("the first".into()));
        assert_eq!(offload.done(1), Some(1));
        assert!(!offload.is_settled() && offload.due_replies().is_empty(), "nobody is there who has removed a rule");
        offload.tell(1, Some((7, true)));
        offload.replies_wait_for_all();
        assert_eq!(offload.replies[0].0, 2, "it waits for what was told last");
    }
}
