//! What has to change so that a running lasthop is as a file says.

use super::minimums::value_there;
use super::{Declared, DeclaredEngines, DeclaredLists};
use crate::run::{Near, PACKET_PORT, PortArg, SavedUplink};
use lasthop_api::{AclRule, AddressSet, EngineList, Field, Port, Uplink};
use lasthop_policy::acl::{Book, Direction, Scope};
use lasthop_policy::{MIN_RATE, Mirror, OF_SWITCH, OF_SWITCH_WORDS, PortSettings, QUEUE_OF};
use lasthop_uplink_ipc::UplinkDriver;
use std::collections::BTreeSet;

/// A running lasthop.
#[derive(Clone, Debug, Default)]
pub(super) struct There {
    pub ports: Vec<Port>,
    pub uplinks: Vec<Uplink>,
    pub rules: Vec<AclRule>,
    pub mirrors: Vec<lasthop_api::Mirror>,
    pub sets: Vec<AddressSet>,
    pub engines: EngineList,
    /// Interfaces that are Open vSwitch's; none where the learning switch decides.
    pub open_vswitch: Option<Vec<String>>,
}

impl There {
    /// Leaves out what is Open vSwitch's own business: what it has made, and the port by which packets get to it.
    pub fn without_ovs(mut self) -> Self {
        if let Some(names) = &self.open_vswitch {
            let is_theirs = |name: &String| name == PACKET_PORT || names.contains(name);
            self.ports.retain(|port| !is_theirs(&port.name));
            self.uplinks.retain(|uplink| !is_theirs(&uplink.name));
        }
        self
    }

    /// Refuses lists that name a set which is neither there nor declared, and what would have no effect where Open vSwitch decides, before anything is
    /// changed.
    pub fn check(&self, declared: &Declared) -> Result<(), String> {
        let is_there = |name: &str| {
            self.sets.iter().any(|set| set.name == name) || declared.sets.iter().any(|set| set.name == name)
        };
        for lists in &declared.lists {
            if let Some(name) = lists.lists.sets().into_iter().find(|name| !is_there(name)) {
                return Err(format!(
                    "access lists of {}: they name the set @{name}, which is not there; write [set.{name}] with addr = [\"10.0.0.1\"], or [] for \
                     an empty one",
                    lists.scope
                ));
            }
        }
        let Some(names) = &self.open_vswitch else { return Ok(()) };
        if let Some(name) = declared.names().into_iter().find(|name| names.iter().any(|other| other == name)) {
            return Err(format!(
                "Open vSwitch has {name}; leave it out here, or remove it there: `ovs-vsctl del-port {name}`"
            ));
        }
        let is_other = |name: &str| !OF_SWITCH.contains(&name);
        let told = |port: &&PortArg| port.settings.iter().any(|(name, value)| is_other(name) && value != "none");
        let what = if !declared.lists.is_empty() || !declared.sets.is_empty() {
            "its access lists or sets".to_owned()
        } else if !declared.mirrors.is_empty() {
            "its mirrors".to_owned()
        } else if let Some(uplink) = declared.uplinks.first() {
            format!("its uplink {}", uplink.name)
        } else if let Some(port) = declared.ports.iter().find(told) {
            format!("settings of port {} other than {OF_SWITCH_WORDS}", port.name)
        } else {
            return Ok(());
        };
        Err(format!(
            "Open vSwitch decides here (`lasthop run --control ovs`), and {what} would have no effect; tell Open vSwitch"
        ))
    }
}

/// One change.
#[derive(Debug)]
pub(super) enum Step<'a> {
    /// Addresses that join a set and leave it.
    ChangeSet(&'a str, Vec<String>, Vec<String>),
    DelSet(String),
    LoadLists(&'a DeclaredLists),
    /// With what has it as it was, if another is to take its place.
    DelPort(String, Option<Box<PortArg>>),
    DelUplink(String, Option<SavedUplink>),
    AddPort(&'a PortArg),
    AddUplink(&'a SavedUplink),
    SetPort(&'a str, Vec<Field>),
    SetUplink(&'a SavedUplink),
    ClearLists(Scope),
    AddMirror(&'a Mirror),
    DelMirror(String),
    SetEngines(&'a DeclaredEngines),
    SetNear(Near),
}

/// A change, and how it is told.
#[derive(Debug)]
pub(super) struct Change<'a> {
    pub step: Step<'a>,
    /// What is there (`-`), what will be (`+`), or what becomes what (`~`), as a line for people.
    pub told: String,
}

/// All changes, in the order in which they are made, and what is left alone because the file does not name it.
#[derive(Debug, Default)]
pub(super) struct Plan<'a> {
    pub changes: Vec<Change<'a>>,
    pub left: Vec<String>,
}

impl<'a> Plan<'a> {
    /// Nothing opens on the way: sets and lists come first, and sets go last. What has to be removed goes before what is made, since it may be in its
    /// way. With `prune`, what the file does not name goes too.
    pub fn new(declared: &'a Declared, there: &There, prune: bool) -> Self {
        let mut plan = Self::default();
        plan.set_engines(declared, there);
        plan.change_sets(declared, there);
        plan.load_lists(declared, there);
        plan.remove_mirrors(declared, there, prune);
        let replaced = plan.remove(declared, there, prune);
        let there = &plan.free_macs(declared, there);
        plan.lower_minimums(declared, there, &replaced);
        plan.make_ports(declared, there, &replaced, false);
        for uplink in &declared.uplinks {
            match there.uplinks.iter().find(|u| u.name == uplink.name && !replaced.contains(&*u.name)) {
                None => plan.push(Step::AddUplink(uplink), format!("+ uplink {}: {}", uplink.name, uplink.device)),
                Some(uplink_there) => plan.set_uplink(uplink, uplink_there),
            }
        }
        plan.set_uplinks(declared, there, &replaced);
        plan.make_ports(declared, there, &replaced, true);
        plan.raise_minimums(declared, there, &replaced);
        plan.add_mirrors(declared, there);
        plan.clear_lists(declared, there, prune);
        plan.remove_sets(declared, there, prune);
        plan
    }

    /// Refuses what would fail after something was removed for it: an owner that nobody knows, a directory that is not there. Of interfaces
    /// only the running lasthop can tell, which may be in another network namespace.
    pub fn check(&self) -> Result<(), String> {
        self.changes.iter().try_for_each(|change| match change.step {
            Step::AddPort(port) => can_be_made(port).map_err(|e| format!("port {}: {e}", port.name)),
            _ => Ok(()),
        })
    }

    pub(super) fn push(&mut self, step: Step<'a>, told: String) {
        self.changes.push(Change { step, told });
    }

    fn load_lists(&mut self, declared: &'a Declared, there: &There) {
        for lists in &declared.lists {
            if lines_of(lists) != lines_there(&there.rules, &lists.scope) {
                let rules = lasthop_text::counted(lists.lists.len() as u64, "rule");
                self.push(Step::LoadLists(lists), format!("~ access lists of {}: {rules}", lists.scope));
            }
        }
    }

    fn clear_lists(&mut self, declared: &Declared, there: &There, prune: bool) {
        let scopes = there.rules.iter().map(|rule| match &rule.port {
            Some(port) => Scope::Port(port.clone()),
            None if rule.applies_to == Scope::Uplinks.to_string() => Scope::Uplinks,
            None => Scope::Guests,
        });
        let others: BTreeSet<_> = scopes.filter(|scope| !declared.lists.iter().any(|l| l.scope == *scope)).collect();
        for scope in others {
            let told = format!("access lists of {scope}");
            if prune {
                self.push(Step::ClearLists(scope), format!("- {told}"));
            } else {
                self.left.push(told);
            }
        }
    }

    /// Ports and uplinks that go, or that have to be made anew: their names.
    fn remove(&mut self, declared: &Declared, there: &There, prune: bool) -> BTreeSet<String> {
        let mut replaced = BTreeSet::new();
        let ports = there.ports.iter().filter(|port| !port.uplink).map(|port| (&port.name, true));
        for (name, is_port) in ports.chain(there.uplinks.iter().filter(|u| !u.guest).map(|u| (&u.name, false))) {
            let kind = if is_port { "port" } else { "uplink" };
            let step = |name: &str, again| match (is_port, again) {
                (true, again) => Step::DelPort(name.into(), again),
                (false, again) => Step::DelUplink(name.into(), again.and_then(|port: Box<PortArg>| port.device)),
            };
            match anew(declared, there, name, is_port) {
                None if prune => self.push(step(name, None), format!("- {kind} {name}")),
                None => self.left.push(format!("{kind} {name}")),
                Some(None) => {}
                Some(Some(why)) => {
                    let again = as_it_is(there, name).map(Box::new);
                    self.push(step(name, again), format!("- {kind} {name}: {why}; its connection ends"));
                    replaced.insert(name.clone());
                }
            }
        }
        replaced
    }

    /// Those with a queue of their own come behind the uplinks, one of which has that queue; and ports that are there get one then.
    fn make_ports(&mut self, declared: &'a Declared, there: &There, replaced: &BTreeSet<String>, with_queue: bool) {
        for port in &declared.ports {
            match there.ports.iter().find(|p| p.name == port.name && !replaced.contains(&*p.name)) {
                None if has_queue(port) != with_queue => {}
                None => self.push(Step::AddPort(port), format!("+ port {}: {}", port.name, place(port))),
                Some(port_there) => {
                    self.set_port(port, port_there, |name| (name == QUEUE_OF && has_queue(port)) == with_queue)
                }
            }
        }
    }

    fn set_port(&mut self, port: &'a PortArg, there: &Port, is_meant: impl Fn(&str) -> bool) {
        let wanted = settings_of(port);
        let is = |name: &str| value_there(&there.settings, name);
        let (mut changes, mut told) = (Vec::new(), Vec::new());
        for name in lasthop_policy::SETTINGS.iter().filter(|name| **name != MIN_RATE && is_meant(name)) {
            let value = wanted.iter().find(|(n, _)| n == name).map_or("none", |(_, value)| value.as_str());
            if value != is(name) {
                changes.push(Field { name: (*name).into(), value: value.into() });
                told.push(format!("{name} {} -> {value}", is(name)));
            }
        }
        if !changes.is_empty() {
            self.push(Step::SetPort(&port.name, changes), format!("~ port {}: {}", port.name, told.join(", ")));
        }
    }

    fn set_uplink(&mut self, uplink: &'a SavedUplink, there: &Uplink) {
        let wanted = uplink.vlans.as_ref().map(ToString::to_string);
        if wanted != there.vlans {
            let shown = |vlans: &Option<String>| vlans.clone().unwrap_or_else(|| "all".into());
            let told = format!("~ uplink {}: vlans {} -> {}", uplink.name, shown(&there.vlans), shown(&wanted));
            self.push(Step::SetUplink(uplink), told);
        }
    }
}

/// Whether something that is there has to be made anew, and why. `None`: the file does not name it at all.
fn anew(declared: &Declared, there: &There, name: &str, is_port: bool) -> Option<Option<String>> {
    let port = declared.ports.iter().find(|port| port.name == name);
    let uplink = declared.uplinks.iter().find(|uplink| uplink.name == name);
    let device_there = there.uplinks.iter().find(|uplink| uplink.name == name);
    match (port, uplink, is_port) {
        (Some(port), _, true) => {
            let port_there = there.ports.iter().find(|p| p.name == name)?;
            Some(match (&port.device, device_there) {
                (Some(device), Some(device_there)) => of_device(device, device_there),
                (Some(_), None) => Some("a device instead of a socket".into()),
                (None, Some(_)) => Some("a socket instead of a device".into()),
                (None, None) => of_socket(port, port_there),
            })
        }
        (_, Some(uplink), false) => Some(device_there.and_then(|there| of_device(uplink, there))),
        (Some(_), _, false) => Some(Some("a port instead of an uplink".into())),
        (_, Some(_), true) => Some(Some("an uplink instead of a port".into())),
        (None, None, _) => None,
    }
}

fn can_be_made(port: &PortArg) -> Result<(), String> {
    if let Some(owner) = &port.owner {
        owner.ids().map_err(|e| format!("owner {owner}: {e}"))?;
    }
    match port.path.parent().filter(|dir| port.device.is_none() && !port.client && !dir.is_dir()) {
        Some(dir) => Err(format!("there is no directory {}; create it or choose another path", dir.display())),
        None => Ok(()),
    }
}

/// A port or an uplink as it would have to be declared.
fn as_it_is(there: &There, name: &str) -> Option<PortArg> {
    let port = there.ports.iter().find(|port| port.name == name)?;
    let device = there.uplinks.iter().find(|uplink| uplink.name == name).map(|uplink| SavedUplink {
        name: name.into(),
        device: uplink.device.clone(),
        driver: driver_of(uplink),
        queues: uplink.queues.max(1),
        nice: uplink.nice,
        no_gro: !uplink.gro,
        spare: uplink.spare.is_some(),
        vlans: uplink.vlans.as_ref().and_then(|vlans| vlans.parse().ok()),
        guest: uplink.guest,
        for_ovs: false,
    });
    Some(PortArg {
        name: name.into(),
        path: port.path.clone().into(),
        client: port.client,
        device,
        owner: port.owner.as_ref().and_then(|owner| owner.parse().ok()),
        settings: port.settings.iter().map(|field| (field.name.clone(), field.value.clone())).collect(),
        of_device: None,
    })
}

fn of_socket(port: &PortArg, there: &Port) -> Option<String> {
    let path = port.path.display().to_string();
    let owner = port.owner.as_ref().map(ToString::to_string);
    let who = |owner: &Option<String>| owner.clone().unwrap_or_else(|| "anybody".into());
    let mode = |client| if client { "connects" } else { "listens" };
    if path != there.path {
        Some(format!("socket {} -> {path}", there.path))
    } else if port.client != there.client {
        Some(format!("{} -> {}", mode(there.client), mode(port.client)))
    } else {
        (owner != there.owner).then(|| format!("owner {} -> {}", who(&there.owner), who(&owner)))
    }
}

/// As it may be written: of a capture file with its size.
fn driver_of(there: &Uplink) -> Option<String> {
    let size = there.mode.as_deref().and_then(|mode| mode.strip_prefix("pcap, two files of ")?.strip_suffix(" bytes"));
    size.map(|size| format!("file:{size}")).or_else(|| there.driver.clone())
}

fn is_same_driver(wanted: &str, is: &str) -> bool {
    wanted == is || UplinkDriver::file_limit(wanted).is_some_and(|size| UplinkDriver::file_limit(is) == Some(size))
}

/// What is not known before the interface was opened is taken to be as it should.
fn of_device(device: &SavedUplink, there: &Uplink) -> Option<String> {
    let spare = there.spare.is_some();
    let on = |on: bool| if on { "on" } else { "off" };
    if device.device != there.device {
        Some(format!("device {} -> {}", there.device, device.device))
    } else if let (Some(wanted), Some(is)) = (&device.driver, driver_of(there))
        && !is_same_driver(wanted, &is)
    {
        Some(format!("driver {is} -> {wanted}"))
    } else if device.queues != there.queues && there.queues > 0 {
        Some(format!("queues {} -> {}", there.queues, device.queues))
    } else if device.nice != there.nice {
        Some(format!("nice {} -> {}", there.nice, device.nice))
    } else if device.spare != spare {
        Some(format!("spare {} -> {}", on(spare), on(device.spare)))
    } else {
        (device.no_gro == there.gro).then(|| format!("gro {} -> {}", on(there.gro), on(!device.no_gro)))
    }
}

/// As [`Port::settings`] has them.
pub(super) fn settings_of(port: &PortArg) -> Vec<(&'static str, String)> {
    let pairs = port.settings.iter().map(|(name, value)| (name.as_str(), value.as_str()));
    PortSettings::default().change(pairs).unwrap_or_default().values()
}

fn has_queue(port: &PortArg) -> bool {
    settings_of(port).iter().any(|(name, _)| *name == QUEUE_OF)
}

fn place(port: &PortArg) -> String {
    port.device.as_ref().map_or_else(|| port.path.display().to_string(), |device| format!("device {}", device.device))
}

/// Directions, rules and defaults of the lists of one scope, as `lasthop acl show` has them.
fn lines_of(lists: &DeclaredLists) -> Vec<(String, String)> {
    let mut book = Book::default();
    for set in lists.lists.sets() {
        // It is a name: the list was read.
        let _ = book.change_set(set, &[], &[]);
    }
    // A set too large for any lasthop is refused where it is loaded.
    let _ = book.replace(&lists.scope, None, &lists.lists);
    let lists = book.iter().flat_map(|(_, direction, list)| {
        let stateful = list.is_stateful().then(|| "stateful".to_owned());
        let nat = list.translations().iter().map(ToString::to_string);
        let rules = list.rules().iter().map(ToString::to_string);
        stateful
            .into_iter()
            .chain(nat)
            .chain(rules)
            .chain([format!("default {}", list.default())])
            .map(move |line| (direction.to_string(), line))
    });
    lists.collect()
}

fn lines_there(rules: &[AclRule], scope: &Scope) -> Vec<(String, String)> {
    let of_scope = |direction: Direction| {
        let (scope, direction) = (scope.to_string(), direction.to_string());
        rules.iter().filter(move |rule| rule.applies_to == scope && rule.direction == direction)
    };
    Direction::ALL.into_iter().flat_map(of_scope).map(|rule| (rule.direction.clone(), rule.text.clone())).collect()
}
