//! The supervisor's uplinks: started, joined to the switch, restarted, added and removed.

use super::setup::check_new_uplink;
use super::store::SavedUplink;
use super::supervisor::Supervisor;
use super::uplink::{ENDING_LIMIT, LEAVING_LIMIT, Uplink, Waiting};
use super::{RunError, RunError::Failed};
use lasthop_ipc::{PortConfig, SupervisorToControl, SupervisorToSwitch, UplinkInfo};
use lasthop_policy::Vlans;
use lasthop_types::PortId;
use std::time::{Duration, Instant};
use tracing::{info, warn};

/// How long the counters of all uplinks may take.
const LIST_LIMIT: Duration = Duration::from_millis(200);

/// Channels of uplinks' processes, of which each has two: this plus the port's number; and their ends.
const CHANNELS: [u64; 2] = [2 << 32, 4 << 32];
const PIDS: [u64; 2] = [3 << 32, 5 << 32];

impl Supervisor {
    /// Those of the command line must work; a remembered one that does not is tried again and again.
    pub(super) fn make_uplinks(&mut self, given: Vec<(SavedUplink, bool)>, saved: Vec<SavedUplink>) {
        for (spec, saved) in given {
            let id = self.make_uplink(spec, saved);
            self.uplinks_needed.insert(id.0);
        }
        for spec in saved {
            self.make_uplink(spec, true);
        }
    }

    fn make_uplink(&mut self, spec: SavedUplink, saved: bool) -> PortId {
        let id = self.next_port();
        // Without one, starting it fails and says so.
        let program = self.uplink_program.clone().unwrap_or_else(|_| "lasthop-uplink".into());
        let tx_batch = (self.tx_batch.us, self.tx_batch.packets);
        let config = PortConfig { id, name: spec.name.clone(), path: String::new(), client: true, tx_batch };
        let tokens = [0, 1].map(|n| (CHANNELS[n] | u64::from(id.0), PIDS[n] | u64::from(id.0)));
        let uplink = Uplink::new(config, spec, saved, &program, tokens, self.uplink_limit);
        self.uplinks.insert(id.0, uplink);
        id
    }

    pub(super) fn step_uplinks(&mut self, now: Instant) {
        for uplink in self.uplinks.values_mut() {
            uplink.step(&self.epoll, &mut self.switch, now);
        }
    }

    /// An event of an uplink's; others are none of ours. Errors only before `ready` was printed.
    pub(super) fn uplink_event(&mut self, token: u64, now: Instant) -> Result<(), RunError> {
        let id = token as u32;
        let Some(uplink) = self.uplinks.get_mut(&id) else { return Ok(()) };
        // What it had to say comes first, even when it has ended.
        let name = uplink.spec.name.clone();
        match uplink.hear(&self.epoll, now) {
            Ok(_) if uplink.is_leaving() => {}
            Ok(false) => {}
            Ok(true) => {
                self.stand_by(id, now);
                self.uplink_is_ready(id);
            }
            Err(why) if self.uplinks_needed.contains(&id) => return Err(Failed(format!("uplink {name}: {why}"))),
            Err(why) => self.uplink_failed(id, &why),
        }
        if PIDS.contains(&(token & !u64::from(u32::MAX))) {
            let Some(uplink) = self.uplinks.get_mut(&id) else { return Ok(()) };
            let ended = uplink.reap(&self.epoll, now);
            if uplink.is_leaving() {
                if !uplink.remove_device(&self.epoll, now, LEAVING_LIMIT) {
                    self.uplink_is_gone(id);
                }
            } else if let Some(ended) = ended {
                warn!("{}; {}", ended.what, ended.remedy());
                self.uplink_failed(id, &ended.what);
                if self.uplinks_needed.contains(&id) {
                    self.restart_or_give_up(&ended)?;
                }
            }
        }
        Ok(())
    }

    fn uplink_is_ready(&mut self, id: u32) {
        self.uplinks_needed.remove(&id);
        self.announce();
        let Some(uplink) = self.uplinks.get_mut(&id) else { return };
        let Some(Waiting::Added(request)) = uplink.waiting.take_if(|w| matches!(w, Waiting::Added(_))) else { return };
        uplink.saved = true;
        let info = uplink.info();
        let result = self.save(None, None).map(|()| vec![info]);
        if result.is_err() {
            self.remove_uplink(id, None);
        }
        self.control.send(SupervisorToControl::UplinkReply { request, result }, None);
    }

    /// One that was just added and does not work is taken back.
    fn uplink_failed(&mut self, id: u32, why: &str) {
        let Some(uplink) = self.uplinks.get_mut(&id) else { return };
        let Some(Waiting::Added(request)) = uplink.waiting.take_if(|w| matches!(w, Waiting::Added(_))) else { return };
        self.remove_uplink(id, None);
        self.control.send(SupervisorToControl::UplinkReply { request, result: Err(why.to_owned()) }, None);
    }

    fn uplink_is_gone(&mut self, id: u32) {
        let Some(uplink) = self.uplinks.remove(&id) else { return };
        self.port_threads.forget(id);
        info!("uplink {} removed", uplink.spec.name);
        if let Some(Waiting::Deleted(request)) = uplink.waiting {
            self.control.send(SupervisorToControl::UplinkReply { request, result: Ok(vec![uplink.info()]) }, None);
        }
    }

    /// Takes its port away at once, and the process as soon as it has ended.
    fn remove_uplink(&mut self, id: u32, waiting: Option<Waiting>) {
        let Some(uplink) = self.uplinks.get_mut(&id) else { return };
        uplink.waiting = waiting;
        let now = Instant::now();
        uplink.leave(now, LEAVING_LIMIT);
        self.switch.send(SupervisorToSwitch::DelPort(PortId(id)), None);
        if !uplink.remove_device(&self.epoll, now, LEAVING_LIMIT) {
            self.uplink_is_gone(id);
        }
        self.tell_control_ports();
    }

    /// Somebody asks for a new one. Answered when it is ready, or cannot be.
    pub(super) fn add_uplink(&mut self, request: u64, spec: Result<SavedUplink, String>) {
        let ports: Vec<_> = self.ports.values().map(super::port::Port::to_saved).collect();
        let there = self.uplinks.values().map(|uplink| &uplink.spec);
        let program = self.uplink_program.as_ref().map(drop).map_err(String::clone);
        let checked = spec.and_then(|spec| {
            program.and_then(|()| check_new_uplink(ports.iter(), there, &spec))?;
            Ok(spec)
        });
        let spec = match checked {
            Ok(spec) => spec,
            Err(e) => {
                self.control.send(SupervisorToControl::UplinkReply { request, result: Err(e) }, None);
                return;
            }
        };
        let id = self.make_uplink(spec, false);
        let Some(uplink) = self.uplinks.get_mut(&id.0) else { return };
        uplink.waiting = Some(Waiting::Added(request));
        let config = uplink.config.clone();
        info!("uplink {} added: {}", uplink.spec.name, uplink.spec.device);
        self.tell_control_ports();
        self.switch.send(SupervisorToSwitch::AddPort(config), None);
    }

    /// Somebody wants one to carry other VLANs; none given: all. Control goes by it once it has heard.
    pub(super) fn set_vlans(&mut self, name: &str, vlans: Option<Vlans>) -> Result<Vec<UplinkInfo>, String> {
        let uplink = self.uplink_named(name)?;
        let before = std::mem::replace(&mut uplink.spec.vlans, vlans);
        let (id, saved) = (uplink.config.id, uplink.saved);
        if saved && let Err(e) = self.save(None, None) {
            self.uplink_named(name)?.spec.vlans = before;
            return Err(e);
        }
        info!("uplink {name}: other VLANs");
        // One that carries a VLAN of another one's on the same segment now is kept from the switch first.
        self.step_segments(Instant::now());
        self.tell_control_ports();
        Ok(self.uplinks.get(&id.0).map(Uplink::info).into_iter().collect())
    }

    fn uplink_named(&mut self, name: &str) -> Result<&mut Uplink, String> {
        let mut there = self.uplinks.values_mut();
        let found = there.find(|u| u.spec.name == name && !u.is_leaving() && u.waiting.is_none());
        found.ok_or_else(|| format!("there is no uplink {name}; `lasthop uplink list` shows those there are"))
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

    fn answer_uplink_list(&mut self, request: u64) {
        let uplinks: Vec<UplinkInfo> = self.uplinks.values().filter(|u| !u.is_leaving()).map(Uplink::info).collect();
        self.control.send(SupervisorToControl::UplinkReply { request, result: Ok(uplinks) }, None);
    }

    /// Asks all of them to end; those that do not are killed when they are dropped.
    pub(super) fn end_uplinks(&mut self) {
        let now = Instant::now();
        self.uplinks.values_mut().for_each(|uplink| uplink.leave(now, ENDING_LIMIT));
    }

    /// Something of an uplink's happened while everything ends.
    pub(super) fn ending_uplinks(&mut self) {
        let now = Instant::now();
        for uplink in self.uplinks.values_mut() {
            uplink.flush(&self.epoll);
            let _ = uplink.hear(&self.epoll, now);
            uplink.reap(&self.epoll, now);
            uplink.hasten(now);
            uplink.remove_device(&self.epoll, now, ENDING_LIMIT);
        }
    }
}
