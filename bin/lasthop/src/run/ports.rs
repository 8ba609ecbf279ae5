//! Ports that come and go while lasthop runs; those of uplinks are in [`super::uplinks`].

use super::port::{Context, Port, Refused};
use super::sessions;
use super::setup::check_new;
use super::store::{Saved, SavedPort};
use super::supervisor::{Supervisor, token};
use super::uplink::Uplink;
use lasthop_ipc::SupervisorToSwitch;
use lasthop_management_ipc::PortConfig;
use lasthop_management_ipc::SupervisorToControl;
use lasthop_policy::PortSettings;
use lasthop_sys::sandbox::{Program, Report, limit};
use lasthop_types::PortId;
use rustix::process::Pid;
use std::os::fd::OwnedFd;
use std::time::Instant;
use tracing::{error, info, warn};

impl Supervisor {
    pub(super) fn add_port(&mut self, new: SavedPort, settings: PortSettings) -> Result<PortConfig, String> {
        check_new(self.ports.values().map(Port::there), &new)?;
        lasthop_policy::check_new_name(&new.name)?;
        self.check_static_addresses(&new.name, &settings)?;
        self.check_minimums(&new.name, &settings)?;
        self.check_queue_of(&new.name, &settings)?;
        self.engines.now.check_engine(settings.engine)?;
        self.check_for_ovs(&new.name)?;
        self.check_no_wire(&new.name, "")?;
        if self.uplinks.values().any(|uplink| uplink.spec.name == new.name) {
            return Err(format!("there is an uplink {} already; choose another name", new.name));
        }
        let mut port = self.number(new, true);
        port.open(&self.epoll, &self.presence, token(&port))?;
        self.remember_settings(&port.config.name, settings);
        if let Err(e) = self.save(Some(&port), None) {
            self.settings.remove(&port.config.name);
            return Err(e);
        }
        Ok(self.take_in(port))
    }

    /// A switch has just been started: it hears what it becomes, how it works, and of all ports.
    pub(super) fn tell_switch_all(&mut self) {
        let Some(pid) = self.switch.pid() else { return };
        let mut limits = Report::default();
        if let Some(process) = i32::try_from(pid).ok().and_then(Pid::from_raw) {
            limit(Some(process), &mut limits);
        }
        for left_out in limits.left_out {
            warn!("sandbox: lasthop-switch goes on without {left_out}");
        }
        match Program::SWITCH.confinement(pid) {
            Ok(confinement) => {
                self.switch.send(SupervisorToSwitch::Start(confinement, self.for_switch.clone()), None);
            }
            Err(e) => {
                error!("lasthop-switch cannot be confined: {e}");
                return self.switch.kill();
            }
        }
        for config in self.each_config().cloned().collect::<Vec<_>>() {
            self.switch.send(SupervisorToSwitch::AddPort(config.id, config.name.clone()), None);
            self.tell_limits(config.id, &config.name);
        }
    }

    /// From now on there is this port.
    pub(super) fn take_in(&mut self, port: Port) -> PortConfig {
        let config = port.config.clone();
        info!("port {} added: {}{}", config.name, config.path, if config.client { ", connecting" } else { "" });
        // Before the port: it is not to carry a frame under other settings.
        self.tell_settings(config.id, &config.name);
        self.tell_switch(SupervisorToSwitch::AddPort(config.id, config.name.clone()));
        self.insert(port);
        self.tell_limits(config.id, &config.name);
        config
    }

    pub(super) fn insert(&mut self, port: Port) {
        self.sessions.add(port.config.id, &port.config.name);
        self.ports.insert(port.config.id.0, port);
    }

    pub(super) fn delete_port(&mut self, name: &str) -> Result<PortConfig, String> {
        if self.uplinks.values().any(|uplink| uplink.spec.name == name) {
            return Err(format!("{name} is an uplink; remove it with `lasthop uplink del {name}`"));
        }
        let Some(port) = self.ports.values().find(|port| port.config.name == name) else {
            return Err(format!("there is no port {name}; `lasthop port list` shows those there are"));
        };
        let (config, saved) = (port.config.clone(), port.saved);
        self.check_no_cable(&config)?;
        let settings = self.settings.remove(name);
        // A device forgets with it what its own of the command line was told.
        if (saved || settings.is_some() || self.of_device.is_some())
            && let Err(e) = self.save(None, Some(config.id))
        {
            self.remember_settings(name, settings.unwrap_or_default());
            return Err(e);
        }
        self.limited.remove(name);
        self.forget_port(&config);
        Ok(config)
    }

    /// From now on there is no such port.
    pub(super) fn forget_port(&mut self, config: &PortConfig) {
        self.ports.remove(&config.id.0);
        self.sessions.forget(config.id);
        self.replaced.forget(&sessions::process(&config.name));
        self.monitor.forget(config.id.0);
        if let Some(cgroup_accounting) = &mut self.cgroup_accounting {
            // It ends with the port.
            let thread = self.port_threads.of(config.id.0, self.switch.pid());
            thread.into_iter().for_each(|thread| cgroup_accounting.release(config.id.0, thread));
            cgroup_accounting.forget(config.id.0);
        }
        self.port_threads.forget(config.id.0);
        self.cpu_bounds.forget(config.id);
        self.followed.forget(config.id.0);
        info!("port {} removed", config.name);
        self.tell_switch(SupervisorToSwitch::DelPort(config.id));
        self.port_cannot_move(config.id.0);
    }

    pub(super) fn step_ports(&mut self, now: Instant) {
        for port in self.ports.values_mut() {
            let id = port.config.id;
            match port.take_refused() {
                Some(Refused::Peer(reason)) => {
                    self.control.send(SupervisorToControl::PeerRefused { port: id, reason }, None)
                }
                Some(Refused::Second(who)) => {
                    self.control.send(SupervisorToControl::SecondRefused { port: id, who }, None)
                }
                None => {}
            }
            // Of a thousand ports one has something to do, for which its process has to be looked up.
            if !port.is_due(now) {
                continue;
            }
            let switch_up = self.switch.is_up() && self.sessions.is_up(id);
            let cx = Context { epoll: &self.epoll, presence: &self.presence, now, switch_up };
            if let Some(connection) = port.step(cx, token(port)) {
                let tgid = peer(&connection);
                let channel = match self.sessions.connect(id, connection) {
                    Ok(channel) => channel,
                    Err(e) => {
                        port.connection_closed(now, &format!("it cannot be handed to the switch: {e}"));
                        continue;
                    }
                };
                if let Some(cgroup_accounting) = &mut self.cgroup_accounting {
                    cgroup_accounting.set_vm(id.0, tgid, self.port_threads.of(id.0, self.switch.pid()));
                }
                self.followed.set_vm(id.0, tgid.unwrap_or(0));
                let tgid = tgid.filter(|_| self.monitor.is_live());
                let vm = tgid.and_then(|tgid| self.monitor.register(id.0, tgid));
                self.sessions.set_vm(id, vm);
                self.switch.send(SupervisorToSwitch::Connection(id, vm), Some(channel));
            }
        }
    }

    pub(super) fn save(&self, also: Option<&Port>, except: Option<PortId>) -> Result<(), String> {
        let kept = self.ports.values().filter(|port| port.saved && Some(port.config.id) != except);
        let ports = kept.chain(also).map(Port::to_saved).collect();
        let kept = self.uplinks.values().filter(|u| u.saved && !u.is_leaving() && Some(u.config.id) != except);
        let uplinks = kept.map(|u| u.spec.clone()).collect();
        let mirrors = self.mirrors.iter().filter(|mirror| !self.is_capture(&mirror.to)).cloned().collect();
        let (taps, settings, given) = (self.taps.clone(), self.settings.clone(), self.given_of_device(except));
        self.store.save(Saved { ports, uplinks, taps, settings, mirrors, given })
    }

    pub(super) fn next_port(&mut self) -> PortId {
        let id = PortId(self.next_id);
        // Four thousand million ports are not reached by adding one at a time.
        self.next_id = self.next_id.saturating_add(1);
        id
    }

    /// All ports, those of uplinks included; without how packets of each are gathered.
    pub(super) fn each_config(&self) -> impl Iterator<Item = &PortConfig> {
        let uplinks = self.uplinks.values().filter(|uplink| !uplink.is_leaving());
        self.ports.values().map(|port| &port.config).chain(uplinks.map(|u| &u.config))
    }

    /// All ports as control is told of them.
    pub(super) fn configs(&self) -> Vec<PortConfig> {
        let gathered = |config: &PortConfig| {
            let [tx_batch, rx_batch] = self.batches(config.id, &config.name).map(|batch| (batch.us, batch.packets));
            PortConfig { tx_batch, rx_batch, ..config.clone() }
        };
        self.each_config().map(gathered).collect()
    }

    /// A port with the next number.
    pub(super) fn number(&mut self, port: SavedPort, saved: bool) -> Port {
        Port::new(self.next_port(), port, saved, Instant::now())
    }

    pub(super) fn tell_control_ports(&mut self) {
        // Only the newest list matters.
        let is_list = |m: &_| matches!(m, SupervisorToControl::Ports(_) | SupervisorToControl::Uplinks(_));
        self.control.unsend(is_list);
        let vlans = |uplink: &Uplink| uplink.spec.vlans.as_ref().map(|vlans| vlans.as_bytes().to_vec());
        let uplinks = self.uplinks.values().filter(|uplink| !uplink.is_leaving() && !uplink.spec.guest);
        let uplinks = uplinks.map(|u| (u.config.id, vlans(u)));
        self.control.send(SupervisorToControl::Uplinks(uplinks.collect()), None);
        self.tell_owners();
        let configs = self.configs();
        self.tell_weights(&configs);
        self.control.send(SupervisorToControl::Ports(configs), None);
    }
}

/// The process at the other end: the one that called connect(2), or listen(2) where we did. That is the VMM, unless
/// somebody else made the socket for it. `None` if it is not seen, as from another PID namespace.
fn peer(connection: &OwnedFd) -> Option<u32> {
    lasthop_sys::peer(connection).ok()?.pid
}
