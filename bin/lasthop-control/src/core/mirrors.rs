//! Mirrors: kept by the supervisor under the names of their ports, carried out by policy where those are.

use super::{Answer, Command, Core, MAX_QUESTIONS, Unconfirmed, busy, give, refuse};
use lasthop_api::{ApiError, MirrorList};
use lasthop_ipc::PortState;
use lasthop_management_ipc::{ControlToSupervisor, MirrorConfig};
use lasthop_policy::{Effects, Mirror, Mirrors};
use lasthop_types::PortId;
use std::collections::BTreeMap;

/// What is wanted of mirrors.
#[derive(Debug)]
pub(crate) enum MirrorCall {
    Add(MirrorConfig),
    Del(String),
    List,
}

/// The mirrors, and those who have asked for others.
#[derive(Debug, Default)]
pub(super) struct Mirroring {
    mirrors: Vec<Mirror>,
    /// With what is answered when it is done.
    requests: BTreeMap<u64, (Answer<MirrorList>, Mirror)>,
}

impl Mirroring {
    /// A port that mirrors may name has another name.
    pub(super) fn rename_port(&mut self, from: &str, to: &str) {
        self.mirrors.iter_mut().for_each(|mirror| mirror.rename_port(from, to));
    }
}

impl Core {
    pub(super) fn mirror_call(&mut self, call: MirrorCall, answer: Answer<MirrorList>) {
        let refused = |message| ApiError::MirrorRefused { message };
        let (mirror, message): (_, fn(u64, MirrorConfig) -> ControlToSupervisor) = match call {
            MirrorCall::List => return give(answer, self.mirrors_now()),
            MirrorCall::Add(config) => match read(config) {
                Ok(mirror) => (mirror, |request, mirror| ControlToSupervisor::MirrorAdd { request, mirror }),
                Err(message) => return refuse(answer, refused(message)),
            },
            MirrorCall::Del(name) => match self.mirroring.mirrors.iter().find(|mirror| mirror.name == name) {
                Some(mirror) => {
                    (mirror.clone(), |request, mirror| ControlToSupervisor::MirrorDel { request, name: mirror.name })
                }
                None => {
                    let message = format!("there is no mirror {name}; `lasthop mirror list` shows those there are");
                    return refuse(answer, refused(message));
                }
            },
        };
        self.mirroring.requests.retain(|_, (answer, _)| !answer.is_closed());
        if self.mirroring.requests.len() >= MAX_QUESTIONS {
            return refuse(answer, busy());
        }
        self.next_number += 1;
        let request = self.next_number;
        self.commands.push(Command::Supervisor(message(request, written(&mirror))));
        self.mirroring.requests.insert(request, (answer, mirror));
    }

    /// The supervisor keeps it, or not.
    pub(super) fn mirror_reply(&mut self, request: u64, result: Result<(), String>, now_ms: u64) {
        let Some((answer, mirror)) = self.mirroring.requests.remove(&request) else { return };
        match result {
            Err(message) => refuse(answer, ApiError::MirrorRefused { message }),
            Ok(()) => {
                // What follows from it has been sent before.
                let list = self.mirror_list(&[mirror]);
                self.when_confirmed(Unconfirmed::Mirrors(list, answer), now_ms);
            }
        }
    }

    /// All mirrors that there are.
    pub(super) fn mirrors_are(&mut self, mirrors: Vec<MirrorConfig>, now_ms: u64, out: &mut Effects) {
        match mirrors.into_iter().map(read).collect() {
            Ok(mirrors) => self.mirroring.mirrors = mirrors,
            // The supervisor has read them, so this does not happen.
            Err(e) => return tracing::error!("mirrors: {e}; they go on as before"),
        }
        self.follow_mirrors(now_ms, out);
    }

    /// Ports may have come or gone that mirrors name, or become uplinks: these get no copies.
    pub(super) fn follow_mirrors(&mut self, now_ms: u64, out: &mut Effects) {
        let mut mirrors = Mirrors::default();
        for mirror in &self.mirroring.mirrors {
            if let Some(to) = self.destination(mirror) {
                let from: Vec<PortId> = mirror.from.iter().filter_map(|name| self.find(name)).collect();
                mirrors.add(&mirror.name, &from, to, mirror.direction, mirror.sample);
                if mirror.labelled {
                    let places = mirror.from.iter().zip(0..).filter_map(|(name, n)| self.find(name).map(|id| (id, n)));
                    mirrors.label(to, places);
                }
            }
        }
        self.policy.set_mirrors(mirrors, now_ms, out);
    }

    fn destination(&self, mirror: &Mirror) -> Option<PortId> {
        self.find(&mirror.to).filter(|id| !self.uplinks.contains_key(id))
    }

    /// All mirrors, and which of them copy nothing now. Of one that was made just now nobody says so: its port may come up in the next moment.
    fn mirrors_now(&self) -> MirrorList {
        let mut list = self.mirror_list(&self.mirroring.mirrors);
        let is_up = |name: &str| {
            self.find(name).and_then(|id| self.infos.get(&id)).is_some_and(|info| info.state() == PortState::Up)
        };
        for mirror in list.mirrors.iter_mut().filter(|mirror| !is_up(&mirror.to)) {
            let to = &mirror.to;
            let down = || format!("nothing is copied while {to} is not up; `lasthop show {to}` says why");
            mirror.note = mirror.note.take().or_else(|| Some(down()));
        }
        list
    }

    fn mirror_list(&self, mirrors: &[Mirror]) -> MirrorList {
        let shown = |mirror: &Mirror| {
            let missing = |name: &&String| self.find(name).is_none();
            let to_come: Vec<_> = mirror.from.iter().chain([&mirror.to]).filter(missing).cloned().collect();
            let to = &mirror.to;
            let note = if to_come.contains(to) {
                Some(format!("nothing is copied until there is a port {to}; a file has a `/` in its name"))
            } else if self.destination(mirror).is_none() {
                Some(format!("nothing is copied: {to} is an uplink, and a destination is a guest's port"))
            } else if !to_come.is_empty() {
                Some(format!("there is no port {} yet; it is mirrored when there is", to_come.join(", ")))
            } else {
                None
            };
            let (name, direction) = (mirror.name.clone(), mirror.direction.to_string());
            let (from, to, sample) = (mirror.from.clone(), to.clone(), mirror.sample);
            lasthop_api::Mirror { name, from, to, direction, sample, labelled: mirror.labelled, to_come, note }
        };
        MirrorList { mirrors: mirrors.iter().map(shown).collect() }
    }
}

fn read(config: MirrorConfig) -> Result<Mirror, String> {
    let MirrorConfig { name, from, to, direction, sample, labelled } = config;
    Ok(Mirror { name, from, to, direction: direction.parse()?, sample, labelled })
}

fn written(mirror: &Mirror) -> MirrorConfig {
    let Mirror { name, from, to, direction, sample, labelled } = mirror.clone();
    MirrorConfig { name, from, to, direction: direction.to_string(), sample, labelled }
}
