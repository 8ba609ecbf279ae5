//! What the switch and control say.

use super::owner::FileOwner;
use super::port::{Context, Port};
use super::settings_text::changed;
use super::store::SavedPort;
use super::supervisor::{LISTENER, Supervisor};
use super::upgrade::Wanted;
use super::uplink::Uplink;
use lasthop_ipc::SwitchToSupervisor;
use lasthop_management_ipc::{ControlToSupervisor, SupervisorToControl};
use lasthop_policy::Batch;
use lasthop_types::{PortId, ThreadNews};
use std::time::Instant;
use tracing::warn;

impl Supervisor {
    pub(super) fn hear_switch(&mut self) {
        let messages = self.switch.receive(&self.epoll, Instant::now());
        if self.switch.has_closed() {
            self.ports.values().for_each(Port::hang_up);
            self.uplinks.values_mut().for_each(Uplink::hang_up);
            self.sessions.switch_gone();
        }
        for message in messages {
            match message {
                SwitchToSupervisor::Ready => {
                    self.switch.set_ready();
                    self.announce();
                }
                SwitchToSupervisor::Thread(port, news) => self.hear_thread(port, news),
                SwitchToSupervisor::Log(line) => self.write_for_switch(&line, Instant::now()),
                SwitchToSupervisor::ControlBroke(what) => {
                    warn!("lasthop-control {what}; killing it");
                    self.control.kill_for(&format!("it {what}"));
                }
                SwitchToSupervisor::ConnectionClosed { port, reason } => self.connection_closed(port, &reason),
            }
        }
    }

    /// A front-end wants to connect.
    pub(super) fn hear_listener(&mut self, token: u64) {
        let (now, switch_up) = (Instant::now(), self.switch.is_up());
        let cx = Context { epoll: &self.epoll, presence: &self.presence, now, switch_up };
        let id = token.checked_sub(LISTENER).and_then(|id| u32::try_from(id).ok());
        if let Some(port) = id.and_then(|id| self.ports.get_mut(&id)) {
            port.accept(cx);
        }
    }

    /// A front-end's connection has ended.
    pub(super) fn connection_closed(&mut self, port: PortId, reason: &str) {
        self.monitor.forget(port.0);
        self.sessions.connection_closed(port);
        let now = Instant::now();
        if let Some(cgroup_accounting) = &mut self.cgroup_accounting {
            cgroup_accounting.set_vm(port.0, None, self.port_threads.of(port.0, self.switch.pid()));
        }
        self.followed.end(port.0);
        if let Some(uplink) = self.uplinks.get_mut(&port.0) {
            uplink.connection_closed(now, reason);
        } else if let Some(port) = self.ports.get_mut(&port.0) {
            port.connection_closed(now, reason);
        }
    }

    /// The switch's word: of ports that are none nothing is kept, or it could have us keep as much as it likes.
    pub(super) fn hear_thread(&mut self, port: PortId, news: ThreadNews) {
        if !self.ports.contains_key(&port.0) && !self.uplinks.contains_key(&port.0) {
            return;
        }
        // It is told at each attempt.
        let is_known = self.port_threads.refused(port.0).is_some();
        self.port_threads.heard(port.0, news);
        if let (Some(cgroup_accounting), Some(thread)) =
            (&mut self.cgroup_accounting, self.port_threads.last(port.0, self.switch.pid()))
        {
            cgroup_accounting.release(port.0, thread);
        }
        if let Some(why) = self.port_threads.refused(port.0).filter(|_| !is_known) {
            warn!("port {}: {why}", self.name_of_port(port.0));
        }
        if let (Some(cgroup_accounting), Some(thread)) =
            (&mut self.cgroup_accounting, self.port_threads.of(port.0, self.switch.pid()))
        {
            cgroup_accounting.place(port.0, thread);
        }
        self.place_thread(port);
    }

    pub(super) fn hear_control(&mut self) {
        for message in self.control.receive(&self.epoll, Instant::now()) {
            if let Some(message) = self.defer(message) {
                self.obey_control(message);
            }
        }
    }

    pub(super) fn obey_control(&mut self, message: ControlToSupervisor) {
        let (request, result) = match message {
            ControlToSupervisor::Ready => {
                self.control.set_ready();
                self.announce();
                return;
            }
            ControlToSupervisor::PortAdd { request, name, path, client, tx_batch, owner, settings } => {
                let tx_batch = tx_batch.map(|(us, packets)| Batch { us, packets });
                let owner = owner.map(|owner| owner.parse::<FileOwner>()).transpose();
                let spec = owner.map(|owner| SavedPort { name, path, client, tx_batch, owner });
                let settings = changed(None, &settings);
                (request, spec.and_then(|spec| self.add_port(spec, settings?)))
            }
            ControlToSupervisor::Upgrade { request, programs, messages, processes, all, attempt } => {
                self.begin_upgrade(Wanted { request, programs, messages, processes, all, attempt });
                return;
            }
            engines @ (ControlToSupervisor::EngineChange { .. } | ControlToSupervisor::EngineList { .. }) => {
                self.hear_of_engines(engines);
                return;
            }
            ControlToSupervisor::PortSet { request, name, settings } => (request, self.set_port(&name, &settings)),
            ControlToSupervisor::PortRename { request, name, to } => (request, self.rename_port(&name, &to)),
            ControlToSupervisor::PortDel { request, name } => match self.delete_device_port(request, &name) {
                true => return,
                false => (request, self.delete_port(&name)),
            },
            uplink @ (ControlToSupervisor::UplinkAdd { .. }
            | ControlToSupervisor::Limit { .. }
            | ControlToSupervisor::UplinkSet { .. }
            | ControlToSupervisor::UplinkDel { .. }
            | ControlToSupervisor::UplinkList { .. }
            | ControlToSupervisor::Announce { .. }
            | ControlToSupervisor::Owners(_)
            | ControlToSupervisor::Done(_)
            | ControlToSupervisor::TakesNothing { .. }) => {
                self.hear_of_uplinks(uplink);
                return;
            }
            ControlToSupervisor::CpuTimes { request } => {
                self.tell_cpu_times(request);
                return;
            }
            ControlToSupervisor::LogLevel { request, run, control } => {
                self.set_log_level(request, run, control);
                return;
            }
            ControlToSupervisor::MirrorAdd { request, mirror } => {
                self.add_mirror(request, mirror);
                return;
            }
            ControlToSupervisor::MirrorDel { request, name } => {
                self.delete_mirror(request, &name);
                return;
            }
            ControlToSupervisor::KeepLists(part) => {
                if part.is_empty() {
                    let result = self.keep_lists();
                    self.control.send(SupervisorToControl::ListsKept(result), None);
                }
                self.new_lists.extend(part);
                return;
            }
        };
        if result.is_ok() {
            self.tell_control_ports();
        }
        self.reply_once_it_holds(request, result);
    }
}
