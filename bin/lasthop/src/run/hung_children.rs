//! The switch and control, watched: one that hangs is killed, and one that cannot even end is gone on without.

use super::RunError;
use super::child::Ended;
use super::open_vswitch::program;
use super::supervisor::Supervisor;
use std::time::Instant;
use tracing::{info, warn};

impl Supervisor {
    /// Kills whichever hangs, and gives up what was killed and does not end.
    pub(super) fn end_hung_children(&mut self, now: Instant) -> Result<(), RunError> {
        self.switch.check_hang(now);
        self.control.check_hang(now);
        self.offload.iter_mut().for_each(|offload| offload.check_hang(now));
        let of_port = |thread: u32| {
            let port = i32::try_from(thread).ok().and_then(|thread| self.port_threads.port(thread))?;
            let config = self.ports.get(&port).map(|port| &port.config);
            config.or_else(|| self.uplinks.get(&port).map(|uplink| &uplink.config)).map(|config| &config.name)
        };
        let pids = [self.switch.pid(), self.control.pid()].map(Option::unwrap_or_default);
        let hung = [self.switch.kill_if_hung(now), self.control.kill_if_hung(now)];
        let names = [self.switch.name().to_owned(), program(self.ovs.is_some()).to_owned()];
        let limit_ms = self.watchdog.unwrap_or_default().as_millis();
        for ((name, pid), hung) in names.iter().zip(pids).zip(hung) {
            let Some(hung) = hung else { continue };
            let of = of_port(hung.thread).map_or(String::new(), |port| format!(" of port {port}"));
            let (thread, how, ms) = (&hung.name, &hung.how, hung.time.as_millis());
            warn!(
                "{name} (pid {pid}) hangs: its thread {thread}{of} {how}, for {ms} ms at least (--watchdog {limit_ms}); replacing it"
            );
        }
        if let Some(ended) = self.switch.give_up(&self.epoll, now) {
            self.switch_ended(&ended, now)?;
        }
        if let Some(ended) = self.control.give_up(&self.epoll, now) {
            self.control_ended(&ended, now)?;
        }
        Ok(())
    }

    /// The switch is gone, and all connections with it.
    pub(super) fn switch_ended(&mut self, ended: &Ended, now: Instant) -> Result<(), RunError> {
        self.undo_upgrade(format!("the switch before {} meanwhile", ended.why));
        for (id, port) in &mut self.ports {
            port.switch_gone(now);
            self.monitor.forget(*id);
        }
        self.port_threads.forget_all();
        self.followed.switch_ended(now);
        self.sessions.switch_gone();
        self.uplinks.values_mut().for_each(|uplink| uplink.switch_gone(now));
        self.replaced.note("switch", &ended.why, now);
        self.restart_or_give_up(ended)
    }

    /// Control is gone.
    pub(super) fn control_ended(&mut self, ended: &Ended, now: Instant) -> Result<(), RunError> {
        if ended.planned {
            info!("{}; its new program takes its place", ended.what);
            return Ok(());
        }
        self.replaced.note("control", &ended.why, now);
        self.restart_or_give_up(ended)
    }
}
