//! `lasthop port rename`: a port has another name, and all that goes by its name: settings, access lists, mirrors. Its number, its socket,
//! its front-end and its processes stay, and so do flows, addresses and connections, which go by the number.
//!
//! Two files are written. In between, and if this run ends there, the port's lists hold under both names: at no moment is there a port
//! without the lists that it had.

use super::capture_file;
use super::open_vswitch::PACKET_PORT;
use super::sessions;
use super::setup::{check_new, check_new_uplink};
use super::store::{SavedPort, SavedUplink};
use super::supervisor::Supervisor;
use super::uplink::Uplink;
use lasthop_management_ipc::{PortConfig, SupervisorToControl};
use lasthop_policy::Mirror;
use lasthop_policy::acl::{Book, Scope};
use lasthop_types::PortId;
use tracing::{info, warn};

/// Text of the access lists while a port is given another name, and after.
struct Lists {
    both: Vec<u8>,
    after: Vec<u8>,
}

impl Supervisor {
    /// Gives a port that is remembered another name. The error says what to do; then nothing is changed.
    pub(super) fn rename_port(&mut self, name: &str, to: &str) -> Result<PortConfig, String> {
        let id = self.port_to_rename(name, to)?;
        lasthop_policy::check_new_name(to)?;
        self.check_for_ovs(to)?;
        self.check_mirrors_with(name, to)?;
        let lists = self.lists_with(name, to)?;
        if let Some(lists) = &lists {
            self.store.save_lists(&lists.both)?;
        }
        let left_over = self.settings.get(to).cloned();
        self.call(id, name, to);
        if let Err(e) = self.save(None, None) {
            self.call(id, to, name);
            self.remember_settings(to, left_over.unwrap_or_default());
            if lists.is_some()
                && let Err(e) = self.store.save_lists(&self.lists)
            {
                warn!("access lists of port {name} are kept for a port {to} as well: {e}");
            }
            return Err(e);
        }
        if let Some(Lists { both, after }) = lists {
            self.lists = match self.store.save_lists(&after) {
                Ok(()) => after,
                Err(e) => {
                    warn!("access lists of port {to} are kept for a port {name} as well: {e}");
                    both
                }
            };
        }
        info!("port {name}: renamed to {to}");
        self.control.send(SupervisorToControl::Renamed { port: id, from: name.into(), to: to.into() }, None);
        let config = self.configs().into_iter().find(|config| config.id == id);
        config.ok_or_else(|| format!("there is no port {to}; `lasthop port list` shows those there are"))
    }

    /// The port of this name, if it can be called something else, and nothing else is called that.
    fn port_to_rename(&self, name: &str, to: &str) -> Result<PortId, String> {
        if name == to {
            return Err(format!("{name} is its name already"));
        }
        self.check_no_wire(to, "")?;
        let config = self.guest_port(name).map_err(|e| match self.uplink_port(name) {
            Some(_) => format!("{name} is an uplink; remove it, and add it under the other name"),
            None => e,
        })?;
        let given = format!(
            "port {name} is named by the command line of `lasthop run` or its --config, which would make it again at the next start; name \
             it {to} there"
        );
        let others: Vec<SavedPort> =
            self.ports.values().filter(|port| port.config.id != config.id).map(|port| port.to_saved()).collect();
        let uplinks = self.uplinks.values().filter(|uplink| uplink.config.id != config.id);
        if let Some(port) = self.ports.get(&config.id.0) {
            if port.given || !port.saved {
                return Err(given);
            }
            check_new(others.iter(), &SavedPort { name: to.to_owned(), ..port.to_saved() })?;
            if let Some(there) = self.uplinks.values().find(|uplink| uplink.spec.name == to) {
                return Err(format!("there is {} {to} already; choose another name", there.spec.kind()));
            }
        } else if let Some(uplink) = self.uplinks.get(&config.id.0) {
            if name == PACKET_PORT && self.ovs.is_some() {
                return Err(format!("Open vSwitch's packets come and go by {name}, whose name is fixed"));
            }
            if uplink.waiting.is_some() {
                return Err(format!("port {name} is just being made; try again in a second"));
            }
            if capture_file::is_pipe(&uplink.spec) {
                return Err(format!("port {name} is that of a `lasthop capture`, and goes with it; its name is fixed"));
            }
            if capture_file::is_file(&uplink.spec) && self.mirrors.iter().any(|m| m.name == name && m.to == name) {
                return Err(format!(
                    "port {name} is the file of mirror {name}, and goes with it; make another mirror instead: `lasthop mirror del {name}`, \
                     `lasthop mirror add {to} … --to {}`",
                    uplink.spec.device
                ));
            }
            if !uplink.saved {
                return Err(given);
            }
            let spec = SavedUplink { name: to.to_owned(), ..uplink.spec.clone() };
            check_new_uplink(others.iter(), uplinks.map(|uplink: &Uplink| &uplink.spec), &spec)?;
        }
        Ok(config.id)
    }

    /// Mirrors that would name one port twice are to be changed first.
    fn check_mirrors_with(&self, name: &str, to: &str) -> Result<(), String> {
        let mut renamed: Vec<Mirror> = Vec::new();
        for mirror in &self.mirrors {
            let mut mirror = mirror.clone();
            mirror.rename_port(name, to);
            mirror.check(&renamed).map_err(|e| format!("mirror {} would name {to}: {e}", mirror.name))?;
            renamed.push(mirror);
        }
        Ok(())
    }

    /// What the access lists become, if the port has some of its own.
    fn lists_with(&self, name: &str, to: &str) -> Result<Option<Lists>, String> {
        let text = String::from_utf8_lossy(&self.lists);
        // Reading a long text takes a while, and most ports have no lists of their own.
        if ![name, to].iter().any(|name| text.contains(&Scope::Port((*name).to_owned()).to_string())) {
            return Ok(None);
        }
        let mut book = Book::from_text(&text).map_err(|e| format!("access lists: {e}"))?;
        if book.has(&Scope::Port(to.to_owned()), None) {
            return Err(format!(
                "there are access lists for a port {to} already, and they would hold for this one; `lasthop acl clear --port {to}` removes them"
            ));
        }
        if !book.has(&Scope::Port(name.to_owned()), None) {
            return Ok(None);
        }
        book.share_with(name, to).map_err(|e| format!("access lists under both names: {e}"))?;
        let both = book.to_text().into_bytes();
        book.forget_port(name);
        Ok(Some(Lists { both, after: book.to_text().into_bytes() }))
    }

    /// All that goes by the name here goes by the other one.
    fn call(&mut self, id: PortId, from: &str, to: &str) {
        let settings = self.settings.remove(from).unwrap_or_default();
        self.remember_settings(to, settings);
        self.mirrors.iter_mut().for_each(|mirror| mirror.rename_port(from, to));
        if let Some(limits) = self.limited.remove(from) {
            self.limited.insert(to.to_owned(), limits);
        }
        self.sessions.rename(id, to);
        self.replaced.rename(&sessions::process(from), &sessions::process(to));
        if let Some(port) = self.ports.get_mut(&id.0) {
            to.clone_into(&mut port.config.name);
        }
        if let Some(uplink) = self.uplinks.get_mut(&id.0) {
            let before = uplink.process();
            uplink.rename(to);
            self.replaced.rename(&before, &uplink.process());
        }
    }
}
