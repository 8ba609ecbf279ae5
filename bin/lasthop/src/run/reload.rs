//! SIGHUP: what is remembered in the state directory is read again, and becomes what there is.
//!
//! Somebody may have written `ports.json` or `acl.rules` by another way than the commands, which change the files and the switch
//! together. A terminal that goes away sends the same signal, and finds nothing changed. What ports are told is followed where the file
//! says something else of it than when it was last read or written: what the command line says need not be in the file.

use super::setup::check_new;
use super::store::{Again, Saved, SavedPort, SavedUplink};
use super::supervisor::{Supervisor, token};
use lasthop_policy::PortSettings;
use lasthop_policy::acl::Book;
use lasthop_text::counted;
use std::collections::BTreeMap;
use std::time::Instant;
use tracing::{info, warn};

impl Supervisor {
    /// Reads the files and follows them. If one cannot be understood, or has gone, nothing changes: to go on without access
    /// lists would open what somebody has closed. Ports of the command line stay.
    pub(super) fn reload(&mut self) {
        let ports_in_force = self.ports.values().any(|port| port.saved) || self.uplinks.values().any(|u| u.saved);
        let lists_in_force = !self.lists.is_empty() && self.lists != Book::default().to_text().as_bytes();
        let read = self.store.load_again(ports_in_force, lists_in_force);
        let Again { saved: Saved { ports, uplinks, mirrors, .. }, settings, lists } = match read {
            Ok(read) => read,
            Err(e) => return warn!("SIGHUP: nothing was reloaded: {e}"),
        };
        let removed = self.remove_ports_but(&ports);
        // Before there are new ports: those are not to carry a frame under other settings.
        let told = self.follow_settings(settings);
        let added = self.add_missing_ports(ports);
        if added + removed > 0 {
            self.tell_control_ports();
        }
        self.replace_mirrors(mirrors);
        // No file means no lists; a text without a line is none.
        let lists = if lists.is_empty() { Book::default().to_text().into_bytes() } else { lists };
        let other_lists =
            lists != self.lists && !(self.lists.is_empty() && lists == Book::default().to_text().as_bytes());
        if other_lists {
            self.lists = lists;
            self.tell_control_lists();
        }
        let lists = if other_lists { "other access lists" } else { "the same access lists" };
        let added = counted(added as u64, "port");
        let told = match told {
            0 => String::new(),
            told => format!(", {} told something else", counted(told as u64, "port")),
        };
        info!("SIGHUP: reloaded ports.json and acl.rules: {added} added, {removed} removed{told}, {lists}");
        for line in self.other_uplinks(&uplinks) {
            warn!("SIGHUP: {line}");
        }
    }

    /// What somebody has changed of ports' settings; those that are there hear of it.
    fn follow_settings(&mut self, changed: BTreeMap<String, PortSettings>) -> usize {
        let mut told = 0;
        for (name, settings) in changed {
            self.remember_settings(&name, settings);
            // Without a port of that name they wait for one.
            if let Some(port) = self.guest_port(&name).ok().or_else(|| self.uplink_port(&name)) {
                self.tell_port(port.id, &name);
                told += 1;
            }
        }
        told
    }

    /// Removes those that were remembered and are not any more, or are otherwise now.
    fn remove_ports_but(&mut self, wanted: &[SavedPort]) -> usize {
        let gone: Vec<_> =
            self.ports.values().filter(|port| port.saved && !wanted.contains(&port.to_saved())).collect();
        let (given, gone): (Vec<_>, Vec<_>) =
            gone.into_iter().map(|port| (port.given, port.config.clone())).partition(|p| p.0);
        for (_, config) in given {
            if let Some(port) = self.ports.get_mut(&config.id.0) {
                port.saved = false;
            }
        }
        gone.iter().for_each(|(_, config)| self.forget_port(config));
        gone.len()
    }

    fn add_missing_ports(&mut self, wanted: Vec<SavedPort>) -> usize {
        let mut added = 0;
        for new in wanted {
            if let Some(there) = self.ports.values_mut().find(|port| port.to_saved() == new) {
                there.saved = true;
                continue;
            }
            let there: Vec<SavedPort> = self.ports.values().map(|port| port.to_saved()).collect();
            let uplink = self.uplinks.values().any(|uplink| uplink.spec.name == new.name);
            let taken = uplink.then(|| format!("there is an uplink {} already; choose another name", new.name));
            if let Err(e) = taken.map_or_else(|| check_new(there.iter(), &new), Err) {
                warn!("SIGHUP: port {} of ports.json is left out: {e}", new.name);
                continue;
            }
            let mut port = self.number(new, true);
            if let Err(e) = port.open(&self.epoll, &self.presence, token(&port)) {
                port.bind_later(Instant::now(), e);
            }
            self.take_in(port);
            added += 1;
        }
        added
    }

    /// What ports.json says of uplinks and of devices, and is not followed before the next start: one line each. Their processes
    /// carry the network's frames, and a slip of the pen would take it away.
    fn other_uplinks(&self, wanted: &[SavedUplink]) -> Vec<String> {
        let there: Vec<_> = self.uplinks.values().filter(|uplink| uplink.saved && !uplink.is_leaving()).collect();
        let mut lines = Vec::new();
        for uplink in wanted {
            let (kind, name) = (uplink.kind(), &uplink.name);
            match there.iter().find(|other| other.spec.name == *name) {
                Some(same) if same.spec == *uplink => {}
                Some(_) => lines.push(format!(
                    "{kind} {name} is otherwise in ports.json, and goes on as it was; to change it now, remove it and \
                     add it again"
                )),
                None => lines.push(format!(
                    "{kind} {name} is new in ports.json, and comes with the next start unless a command has written the file by then; \
                     `lasthop {}` makes it now",
                    if uplink.guest { "port add --device" } else { "uplink add" }
                )),
            }
        }
        for uplink in there.iter().filter(|there| !wanted.iter().any(|other| other.name == there.spec.name)) {
            let (kind, name) = (uplink.spec.kind(), &uplink.spec.name);
            lines.push(format!(
                "{kind} {name} is not in ports.json any more, and goes on until the next start; `lasthop {} del \
                 {name}` removes it now",
                if uplink.spec.guest { "port" } else { "uplink" }
            ));
        }
        lines
    }
}
