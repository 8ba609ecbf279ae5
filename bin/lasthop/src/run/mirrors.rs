//! Mirrors (`lasthop mirror`): checked and kept here, carried out by control.

use super::capture_file;
use super::supervisor::Supervisor;
use lasthop_management_ipc::{MirrorConfig, SupervisorToControl};
use lasthop_policy::Mirror;
use lasthop_text::counted;
use tracing::info;

impl Supervisor {
    /// Somebody wants a mirror. Its ports need not be there.
    pub(super) fn add_mirror(&mut self, request: u64, new: MirrorConfig) {
        let result = self.try_add_mirror(new);
        self.answer_mirror(request, result);
    }

    fn try_add_mirror(&mut self, new: MirrorConfig) -> Result<(), String> {
        let MirrorConfig { name, from, to, direction, sample, labelled } = new;
        let mirror = Mirror { name, from, to, direction: direction.parse()?, sample, labelled };
        mirror.check(&self.mirrors)?;
        let to = &mirror.to;
        if self.uplinks.values().any(|uplink| uplink.spec.name == *to && !uplink.spec.guest && !uplink.is_leaving()) {
            return Err(format!(
                "{to} is an uplink; copies go to a guest's port, which may be an interface of this host: `lasthop port add \
                 NAME --device DEVICE`"
            ));
        }
        info!("mirror {}: {} of {} to {to}", mirror.name, mirror.direction, mirror.from.join(","));
        let at = self.mirrors.partition_point(|other| other.name < mirror.name);
        self.mirrors.insert(at, mirror);
        self.save(None, None).inspect_err(|_| drop(self.mirrors.remove(at)))
    }

    pub(super) fn delete_mirror(&mut self, request: u64, name: &str) {
        let result = match self.mirrors.iter().position(|mirror| mirror.name == name) {
            None => Err(format!("there is no mirror {name}; `lasthop mirror list` shows those there are")),
            Some(at) => {
                let mirror = self.mirrors.remove(at);
                let saved = self.save(None, None);
                match saved {
                    Ok(()) => info!("mirror {name}: removed"),
                    Err(_) => self.mirrors.insert(at, mirror),
                }
                saved
            }
        };
        self.answer_mirror(request, result);
    }

    /// Whether a port of this name is the pipe of a `lasthop capture`.
    pub(super) fn is_capture(&self, name: &str) -> bool {
        self.uplinks.values().any(|uplink| uplink.spec.name == name && capture_file::is_pipe(&uplink.spec))
    }

    /// What is remembered comes in place of all mirrors but those of captures.
    pub(super) fn replace_mirrors(&mut self, mut mirrors: Vec<Mirror>) {
        mirrors.extend(self.mirrors.iter().filter(|mirror| self.is_capture(&mirror.to)).cloned());
        mirrors.sort_by(|one, other| one.name.cmp(&other.name));
        if mirrors != self.mirrors {
            info!("SIGHUP: {} in place of {}", counted(mirrors.len() as u64, "mirror"), self.mirrors.len());
            self.mirrors = mirrors;
            self.tell_mirrors();
        }
    }

    /// The port of a capture goes, and its mirror with it, whoever has asked for that.
    pub(super) fn delete_mirrors_to_capture(&mut self, name: &str) {
        if self.is_capture(name) {
            let count = self.mirrors.len();
            self.mirrors.retain(|mirror| mirror.to != name);
            if self.mirrors.len() < count {
                info!("mirror {name}: removed with its port");
                self.tell_mirrors();
            }
        }
    }

    fn answer_mirror(&mut self, request: u64, result: Result<(), String>) {
        if result.is_ok() {
            self.tell_mirrors();
        }
        self.control.send(SupervisorToControl::MirrorReply { request, result }, None);
    }

    /// Tells control.
    pub(super) fn tell_mirrors(&mut self) {
        let told = |mirror: &Mirror| {
            let Mirror { name, from, to, direction, sample, labelled } = mirror.clone();
            MirrorConfig { name, from, to, direction: direction.to_string(), sample, labelled }
        };
        let mirrors = self.mirrors.iter().map(told).collect();
        self.control.send(SupervisorToControl::Mirrors(mirrors), None);
    }
}
