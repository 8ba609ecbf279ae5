//! The supervisor's uplinks: started, joined to the switch, restarted, added and removed.

use super::capture_file;
use super::handover::Taker;
use super::links::Links;
use super::open_vswitch::{self, OpenVswitch};
use super::sessions;
use super::settings_text::changed;
use super::setup::check_new_uplink;
use super::store::SavedUplink;
use super::supervisor::Supervisor;
use super::uplink::{Claim, ENDING_LIMIT, LEAVING_LIMIT, Uplink, UplinkState, Waiting};
use super::{RunError, RunError::Failed};
use lasthop_ipc::SupervisorToSwitch;
use lasthop_management_ipc::{
    ControlToSupervisor, LinkState, PortConfig, SupervisorToControl, UplinkConfig, UplinkInfo,
};
use lasthop_policy::{PortSettings, Vlans};
use lasthop_sys::Trigger;
use lasthop_text::parse_mac;
use lasthop_types::PortId;
use lasthop_uplink_ipc::UplinkDriver;
use std::time::{Duration, Instant};
use tracing::{info, warn};

/// How long the counters of all uplinks may take.
const LIST_LIMIT: Duration = Duration::from_millis(200);

/// Channels of uplinks' processes, of which each has two: this plus the port's number; and their ends.
const CHANNELS: [u64; 2] = [2 << 32, 4 << 32];
const PIDS: [u64; 2] = [3 << 32, 5 << 32];

impl Supervisor {
    /// Those of the command line must work, unless we are patient; a remembered one that does not is tried again and again.
    pub(super) fn make_uplinks(
        &mut self,
        given: Vec<(SavedUplink, bool)>,
        saved: Vec<SavedUplink>,
        patient: bool,
    ) -> Result<(), RunError> {
        for (spec, saved) in given {
            if patient {
                self.make_uplink(spec, saved, false);
                continue;
            }
            Claim::take(&spec.device).map_err(|why| Failed(format!("{} {}: {why}", spec.kind(), spec.name)))?;
            let id = self.make_uplink(spec, saved, true);
            self.uplinks_needed.insert(id.0);
        }
        for spec in saved {
            let driver = spec.driver.as_deref().and_then(UplinkDriver::from_name);
            if self.ovs.is_none() && driver.is_some_and(UplinkDriver::is_tunnel) {
                warn!("port {}: a tunnel of Open vSwitch's, which does not decide now; it is forgotten", spec.name);
                continue;
            }
            self.make_uplink(spec, true, false);
        }
        if self.ovs.is_some() {
            let id = self.make_uplink(OpenVswitch::uplink(), false, true);
            self.uplinks_needed.insert(id.0);
        }
        Ok(())
    }

    /// `at_once`: somebody waits until it works.
    fn make_uplink(&mut self, spec: SavedUplink, saved: bool, at_once: bool) -> PortId {
        let id = self.next_port();
        // Without one, starting it fails and says so.
        let program = self.uplink_program.clone().unwrap_or_else(|_| "lasthop-uplink".into());
        let (name, path, none) = (spec.name.clone(), String::new(), (0, 0));
        let config = PortConfig { id, name, path, client: true, tx_batch: none, rx_batch: none, owner: None };
        let mut uplink = Uplink::new(config, spec, saved, &program, tokens(id), self.uplink_limit);
        uplink.at_once = at_once;
        uplink.made = self.taps.get(&uplink.spec.device).and_then(|mac| parse_mac(mac).ok());
        uplink.set_link(link_state(self.links.as_ref(), &uplink.spec));
        self.sessions.add(id, &uplink.config.name);
        self.uplinks.insert(id.0, uplink);
        id
    }

    /// One that another program of this process has made goes on.
    pub(super) fn resume_uplink(&mut self, state: UplinkState, taker: &Taker) -> Result<(), String> {
        let id = state.config.id;
        let program = self.uplink_program.clone().unwrap_or_else(|_| "lasthop-uplink".into());
        let mut uplink = Uplink::resumed(state, &program, tokens(id), self.uplink_limit, &self.epoll, taker)?;
        uplink.set_link(link_state(self.links.as_ref(), &uplink.spec));
        self.uplinks.insert(id.0, uplink);
        Ok(())
    }

    /// Has the kernel say how interfaces are from now on; `token`: under which it is reported that it has.
    pub(super) fn follow_links(&mut self, token: u64) {
        let links = Links::open().and_then(|links| {
            self.epoll.add(&links, token, Trigger::Level)?;
            Ok(links)
        });
        match links {
            Ok(links) => self.links = Some(links),
            Err(e) => warn!("cables that are pulled, and interfaces that are set down, are not seen: rtnetlink: {e}"),
        }
    }

    /// The kernel has said something of interfaces.
    pub(super) fn hear_links(&mut self) {
        let Some(links) = &mut self.links else { return };
        links.hear();
        for uplink in self.uplinks.values_mut() {
            uplink.set_link(link_state(Some(links), &uplink.spec));
        }
    }

    /// Tells control what is to be shown of interfaces, if that has changed.
    pub(super) fn tell_devices(&mut self) {
        let there = self.uplinks.values().filter(|uplink| !uplink.is_leaving());
        let devices: Vec<_> = there.map(Uplink::device_state).collect();
        if devices != self.told_devices {
            self.control.unsend(|message| matches!(message, SupervisorToControl::Devices(_)));
            self.control.send(SupervisorToControl::Devices(devices.clone()), None);
            self.told_devices = devices;
        }
    }

    /// Control passes on what somebody wants of uplinks, or says what it has found out about one.
    pub(super) fn hear_of_uplinks(&mut self, message: ControlToSupervisor) {
        match message {
            ControlToSupervisor::UplinkAdd { request, uplink } => {
                let UplinkConfig { name, device, driver, queues, nice, gro, spare, vlans, guest, settings } = uplink;
                let settings = changed(None, &settings);
                let no_gro = !gro;
                // Where it decides, control refuses those of anybody else.
                let for_ovs = self.ovs.is_some();
                let spec =
                    |vlans| SavedUplink { name, device, driver, queues, nice, no_gro, spare, vlans, guest, for_ovs };
                let spec = parse_vlans(vlans).map(spec).and_then(|spec| Ok((spec, settings?)));
                self.add_uplink(request, spec);
            }
            ControlToSupervisor::UplinkSet { request, name, vlans } => {
                let result = parse_vlans(vlans).and_then(|vlans| self.set_vlans(&name, vlans));
                self.control.send(SupervisorToControl::UplinkReply { request, result }, None);
            }
            ControlToSupervisor::UplinkDel { request, name } => self.delete_uplink(request, &name),
            ControlToSupervisor::UplinkList { request } => self.list_uplinks(request),
            ControlToSupervisor::Announce { uplink, macs } => {
                if let Some(uplink) = self.uplinks.get_mut(&uplink.0) {
                    uplink.announce(macs);
                }
            }
            ControlToSupervisor::Owners(stations) => self.owners_are(stations),
            ControlToSupervisor::TakesNothing { uplink, for_ms } => {
                if let Some(uplink) = self.uplinks.get_mut(&uplink.0) {
                    uplink.takes_nothing(Duration::from_millis(for_ms));
                }
            }
            ControlToSupervisor::Limit { name, from, to } => self.limit_port(name, [from, to]),
            ControlToSupervisor::Done([from, to]) => self.hear_done([&from, &to]),
            _ => {}
        }
    }

    pub(super) fn step_uplinks(&mut self, now: Instant) {
        for uplink in self.uplinks.values_mut() {
            uplink.step(&self.epoll, &mut self.switch, &mut self.sessions, now);
        }
    }

    /// An event of an uplink's; others are none of ours. Errors only before `ready` was printed.
    pub(super) fn uplink_event(&mut self, token: u64, now: Instant) -> Result<(), RunError> {
        let id = token as u32;
        // That a process has brought its interface up was said before that it is ready.
        self.hear_links();
        let Some(uplink) = self.uplinks.get_mut(&id) else { return Ok(()) };
        // What it had to say comes first, even when it has ended.
        let (kind, name) = (uplink.spec.kind(), uplink.spec.name.clone());
        match uplink.hear(&self.epoll, now) {
            Ok(_) if uplink.is_leaving() => {}
            Ok(false) => self.tell_kept(id),
            Ok(true) => {
                self.stand_by(id, now);
                self.uplink_is_ready(id);
            }
            Err(why) if self.uplinks_needed.contains(&id) => return Err(Failed(format!("{kind} {name}: {why}"))),
            Err(why) => {
                self.uplink_failed(id, &why);
                self.end_capture(id, &why);
            }
        }
        if PIDS.contains(&(token & !u64::from(u32::MAX))) {
            let Some(uplink) = self.uplinks.get_mut(&id) else { return Ok(()) };
            let ended = uplink.reap(&self.epoll, now);
            if uplink.is_leaving() {
                if !uplink.remove_device(&self.epoll, now, LEAVING_LIMIT) {
                    self.uplink_is_gone(id);
                }
            } else if let Some(ended) = ended.as_ref().filter(|ended| ended.planned) {
                info!("{}; its new program takes its place", ended.what);
            } else if let Some(ended) = ended {
                warn!("{}; {}", ended.what, ended.remedy());
                let process = uplink.process();
                self.replaced.note(&process, &ended.why, now);
                self.uplink_failed(id, &ended.what);
                if self.uplinks_needed.contains(&id) {
                    self.restart_or_give_up(&ended)?;
                }
            }
        }
        Ok(())
    }

    /// Whether the uplink has made its device is remembered: a later run is to know it again, and to remove it with the uplink.
    fn remember_tap(&mut self, id: u32) {
        let Some(uplink) = self.uplinks.get(&id) else { return };
        let (device, mac) = (uplink.spec.device.clone(), uplink.made.map(|mac| mac.to_string()));
        if self.taps.get(&device) == mac.as_ref() {
            return;
        }
        match mac {
            Some(mac) => self.taps.insert(device, mac),
            None => self.taps.remove(&device),
        };
        if let Err(e) = self.save(None, None) {
            warn!("TAP devices that were made here will not be known to be ours: {e}");
        }
    }

    fn uplink_is_ready(&mut self, id: u32) {
        self.remember_tap(id);
        self.uplinks_needed.remove(&id);
        self.announce();
        let Some(uplink) = self.uplinks.get_mut(&id) else { return };
        let Some(Waiting::Added(request)) = uplink.waiting.take_if(|w| matches!(w, Waiting::Added(_))) else { return };
        uplink.saved = !capture_file::is_pipe(&uplink.spec);
        let saved = if uplink.saved { self.save(None, None) } else { Ok(()) };
        let info = self.uplinks.get(&id).map(|uplink| self.info(uplink));
        let result = saved.map(|()| info.into_iter().collect());
        if result.is_err() {
            self.remove_uplink(id, None);
        }
        self.control.send(SupervisorToControl::UplinkReply { request, result }, None);
    }

    /// One that was just added and does not work is taken back. Told when its name is free again.
    fn uplink_failed(&mut self, id: u32, why: &str) {
        let Some(uplink) = self.uplinks.get_mut(&id) else { return };
        let Some(Waiting::Added(request)) = uplink.waiting.take_if(|w| matches!(w, Waiting::Added(_))) else { return };
        self.remove_uplink(id, Some(Waiting::Failed(request, why.to_owned())));
    }

    /// The pipe of a capture cannot be written to: its reader has ended, or what has its name is another. Nothing would ever take it away.
    fn end_capture(&mut self, id: u32, why: &str) {
        let Some(uplink) = self.uplinks.get(&id).filter(|uplink| !uplink.is_leaving()) else { return };
        if capture_file::is_pipe(&uplink.spec) {
            warn!("port {}: {why}; the capture has ended, and its mirror and port go", uplink.spec.name);
            self.remove_uplink(id, None);
        }
    }

    pub(super) fn uplink_is_gone(&mut self, id: u32) {
        self.step_offload(Instant::now());
        if self.offload.as_ref().is_some_and(|offload| offload.holds(id)) {
            // Told once no flow of it is anywhere else.
            return;
        }
        let Some(uplink) = self.uplinks.remove(&id) else { return };
        self.leave_representor(&uplink.spec);
        self.port_threads.forget(id);
        self.cpu_bounds.forget(PortId(id));
        self.sessions.forget(PortId(id));
        self.replaced.forget(&sessions::process(&uplink.config.name));
        let mut changed = self.settings.remove(&uplink.spec.name).is_some() || self.of_device.is_some();
        self.limited.remove(&uplink.spec.name);
        let info = self.info(&uplink);
        self.replaced.forget(&uplink.process());
        info!("{} {} removed", uplink.spec.kind(), uplink.spec.name);
        self.warn_of_queues();
        changed |= self.taps.remove(&uplink.spec.device).is_some();
        if changed && let Err(e) = self.save(None, None) {
            warn!("what was remembered of {} is still there: {e}", uplink.spec.device);
        }
        match uplink.waiting {
            Some(Waiting::Deleted(request)) => {
                self.control.send(SupervisorToControl::UplinkReply { request, result: Ok(vec![info]) }, None);
            }
            Some(Waiting::PortDeleted(request)) => {
                self.control.send(SupervisorToControl::Reply { request, result: Ok(uplink.config) }, None);
            }
            Some(Waiting::Failed(request, why)) => {
                self.control.send(SupervisorToControl::UplinkReply { request, result: Err(why) }, None);
            }
            _ => {}
        }
    }

    /// Takes its port away at once, and the process as soon as it has ended.
    fn remove_uplink(&mut self, id: u32, waiting: Option<Waiting>) {
        let Some(name) = self.uplinks.get(&id).map(|uplink| uplink.spec.name.clone()) else { return };
        self.delete_mirrors_to_capture(&name);
        let Some(uplink) = self.uplinks.get_mut(&id) else { return };
        uplink.waiting = waiting;
        let now = Instant::now();
        uplink.leave(now, LEAVING_LIMIT, true);
        self.tell_switch(SupervisorToSwitch::DelPort(PortId(id)));
        self.port_cannot_move(id);
        let Some(uplink) = self.uplinks.get_mut(&id) else { return };
        if !uplink.remove_device(&self.epoll, now, LEAVING_LIMIT) {
            self.uplink_is_gone(id);
        }
        self.tell_control_ports();
    }

    /// Somebody asks for a new one. Answered when it is ready, or cannot be.
    pub(super) fn add_uplink(&mut self, request: u64, spec: Result<(SavedUplink, PortSettings), String>) {
        let ports: Vec<_> = self.ports.values().map(super::port::Port::to_saved).collect();
        let there = self.uplinks.values().map(|uplink| &uplink.spec);
        let program = self.uplink_program.as_ref().map(drop).map_err(String::clone);
        let checked = spec.and_then(|(spec, settings)| {
            lasthop_policy::check_new_name(&spec.name)?;
            program.and_then(|()| check_new_uplink(ports.iter(), there, &spec))?;
            self.check_static_addresses(&spec.name, &settings)?;
            self.check_minimums(&spec.name, &settings)?;
            self.check_queue_of(&spec.name, &settings)?;
            self.engines.now.check_engine(settings.engine)?;
            self.check_no_wire(&spec.name, &spec.device)?;
            Claim::take(&spec.device)?;
            Ok((spec, settings))
        });
        let (spec, settings) = match checked {
            Ok(checked) => checked,
            Err(e) => {
                self.control.send(SupervisorToControl::UplinkReply { request, result: Err(e) }, None);
                return;
            }
        };
        // Before the port: it is not to carry a frame under other settings.
        self.remember_settings(&spec.name, settings);
        let name = spec.name.clone();
        let id = self.make_uplink(spec, false, true);
        self.tell_settings(id, &name);
        let Some(uplink) = self.uplinks.get_mut(&id.0) else { return };
        uplink.waiting = Some(Waiting::Added(request));
        let config = uplink.config.clone();
        info!("{} {}: opening {}", uplink.spec.kind(), uplink.spec.name, uplink.spec.device);
        self.tell_control_ports();
        self.tell_switch(SupervisorToSwitch::AddPort(config.id, config.name));
        self.tell_limits(id, &name);
    }

    /// Somebody wants one to carry other VLANs; none given: all. Control goes by it once it has heard.
    pub(super) fn set_vlans(&mut self, name: &str, vlans: Option<Vlans>) -> Result<Vec<UplinkInfo>, String> {
        let uplink = self.uplink_named(name)?;
        let before = std::mem::replace(&mut uplink.spec.vlans, vlans);
        let (id, saved) = (uplink.config.id, uplink.saved);
        if (saved || self.of_device.is_some())
            && let Err(e) = self.save(None, None)
        {
            self.uplink_named(name)?.spec.vlans = before;
            return Err(e);
        }
        info!("uplink {name}: other VLANs");
        // One that carries a VLAN of another one's on the same segment now is kept from the switch first.
        self.step_segments(Instant::now());
        self.tell_control_ports();
        Ok(self.uplinks.get(&id.0).map(|uplink| self.info(uplink)).into_iter().collect())
    }

    fn uplink_named(&mut self, name: &str) -> Result<&mut Uplink, String> {
        let mut there = self.uplinks.values_mut();
        match there.find(|u| u.spec.name == name && !u.is_leaving() && u.waiting.is_none()) {
            Some(uplink) if uplink.spec.guest => {
                Err(format!("{name} is a guest's port, not an uplink; `lasthop port del {name}` removes it"))
            }
            Some(uplink) => Ok(uplink),
            None => Err(format!("there is no uplink {name}; `lasthop uplink list` shows those there are")),
        }
    }

    /// Somebody wants the port of this name removed. If it is a device, that is answered when it is gone; false if it is none.
    pub(super) fn delete_device_port(&mut self, request: u64, name: &str) -> bool {
        let mut there = self.uplinks.values().filter(|u| u.spec.guest && !u.is_leaving() && u.waiting.is_none());
        let Some((id, saved)) = there.find(|u| u.spec.name == name).map(|u| (u.config.id, u.saved)) else {
            return false;
        };
        drop(there);
        if self.ovs.is_some() && name == open_vswitch::PACKET_PORT {
            let why = format!("Open vSwitch's packets come and go by {name}; it goes when lasthop run ends");
            self.control.send(SupervisorToControl::Reply { request, result: Err(why) }, None);
            return true;
        }
        match if saved { self.save(None, Some(id)) } else { Ok(()) } {
            Ok(()) => self.remove_uplink(id.0, Some(Waiting::PortDeleted(request))),
            Err(e) => self.control.send(SupervisorToControl::Reply { request, result: Err(e) }, None),
        }
        true
    }

    /// Somebody wants one removed. Answered when it is gone.
    pub(super) fn delete_uplink(&mut self, request: u64, name: &str) {
        let found = self.uplink_named(name).map(|u| (u.config.id, u.saved));
        let unsaved = found.and_then(|(id, saved)| {
            if saved {
                self.save(None, Some(id))?;
            }
            Ok(id)
        });
        match unsaved {
            Ok(id) => self.remove_uplink(id.0, Some(Waiting::Deleted(request))),
            Err(e) => self.control.send(SupervisorToControl::UplinkReply { request, result: Err(e) }, None),
        }
    }

    /// Somebody asks for all of them. Answered when they have told their counters, or soon.
    pub(super) fn list_uplinks(&mut self, request: u64) {
        let now = Instant::now();
        self.uplinks.values_mut().for_each(|uplink| uplink.refresh(now));
        self.uplink_lists.push((request, now + LIST_LIMIT));
        self.answer_uplink_lists(now);
    }

    /// Until when [`Supervisor::answer_uplink_lists`] has to be called.
    pub(super) fn uplink_lists_deadline(&self) -> Option<Instant> {
        self.uplink_lists.first().map(|(_, until)| *until)
    }

    pub(super) fn answer_uplink_lists(&mut self, now: Instant) {
        let fresh = self.uplinks.values().all(Uplink::is_fresh);
        let due = |until: Instant| fresh || until <= now;
        while let Some((request, _)) = self.uplink_lists.first().copied().filter(|(_, until)| due(*until)) {
            self.uplink_lists.remove(0);
            self.answer_uplink_list(request);
        }
    }

    fn info(&self, uplink: &Uplink) -> UplinkInfo {
        let mut info = uplink.info(self.replaced.times(&uplink.process()));
        // Somebody may have changed it since the interface was opened.
        if let (Some(about), Some(links)) = (&mut info.about, &self.links) {
            about.mtu = links.mtu(&info.device.device).unwrap_or(about.mtu);
        }
        info
    }

    fn answer_uplink_list(&mut self, request: u64) {
        let uplinks: Vec<UplinkInfo> =
            self.uplinks.values().filter(|u| !u.is_leaving()).map(|u| self.info(u)).collect();
        self.control.send(SupervisorToControl::UplinkReply { request, result: Ok(uplinks) }, None);
    }

    /// Asks all of them to end; those that do not are killed when they are dropped.
    pub(super) fn end_uplinks(&mut self) {
        let now = Instant::now();
        // What was made stays: the next run finds it with the addresses that somebody gave it.
        self.uplinks.values_mut().for_each(|uplink| uplink.leave(now, ENDING_LIMIT, false));
    }

    /// Something of an uplink's happened while everything ends.
    pub(super) fn ending_uplinks(&mut self) {
        let now = Instant::now();
        for uplink in self.uplinks.values_mut() {
            uplink.flush(&self.epoll);
            let _ = uplink.hear(&self.epoll, now);
            uplink.reap(&self.epoll, now);
            uplink.hasten(now);
        }
    }
}

/// Of its two processes.
fn tokens(id: PortId) -> [(u64, u64); 2] {
    [0, 1].map(|n| (CHANNELS[n] | u64::from(id.0), PIDS[n] | u64::from(id.0)))
}

fn parse_vlans(list: Option<String>) -> Result<Option<Vlans>, String> {
    let parse = |list: String| list.parse::<Vlans>().map_err(|e| format!("VLANs {list}: {e}"));
    list.map(parse).transpose()
}

/// Where nobody says how interfaces are, all of them are taken to be up; so are tunnels, which have none.
fn link_state(links: Option<&Links>, spec: &SavedUplink) -> LinkState {
    let driver = spec.driver.as_deref().and_then(UplinkDriver::from_name);
    let links = links.filter(|_| !driver.is_some_and(UplinkDriver::is_tunnel));
    links.map_or(LinkState::Up, |links| links.state(&spec.device, driver == Some(UplinkDriver::Tap)))
}
