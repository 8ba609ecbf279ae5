//! Ports and uplinks that `lasthop run` is given: by its command line, and by the file of `--config`.

use super::args::{PortArg, RunArgs};
use super::devices::{cable_ports, own_ports};
use super::engines::Engines;
use super::store::{Saved, SavedGiven, SavedPort, SavedUplink, Store};
use super::wires::{forget_in_the_way, options};
use super::{RunError, RunError::Failed, RunError::Usage};
use crate::declared::{Declared, DeclaredEngines, in_book, in_mirrors};
use lasthop_management_ipc::Settings;
use lasthop_sys::CpuList;
use std::collections::{BTreeMap, BTreeSet};

/// All of them.
#[derive(Debug)]
pub struct Given {
    /// Ports.
    pub ports: Vec<PortArg>,
    /// Uplinks.
    pub uplinks: Vec<SavedUplink>,
    /// What uplinks of the command line are told there, by name.
    of_uplinks: Vec<(String, Settings)>,
    /// Of a device that is started again.
    again: bool,
    /// What is made of options of the command line, by name.
    options: BTreeMap<String, u64>,
    /// What the file says; nothing without one.
    file: Declared,
}

impl Given {
    /// Reads the file, which is part of the command line: trying again helps neither. A name that is in both is an error: nobody knows which is meant.
    pub fn new(args: &RunArgs) -> Result<Self, RunError> {
        let file = args.config.as_deref().map(Declared::read).transpose().map_err(Usage)?.unwrap_or_default();
        let in_file = file.names();
        let ports = args.ports.iter().map(|port| ("--port", &port.name));
        if let Some((option, name)) = ports
            .chain(args.uplinks.iter().map(|uplink| ("--uplink", &uplink.spec.name)))
            .chain(args.devices.iter().filter(|device| device.cable).map(|device| ("--device", &device.name)))
            .find(|(_, name)| in_file.contains(name.as_str()))
        {
            return Err(Usage(format!("{option} {name}: the file of --config names it too; name it in one place")));
        }
        Ok(Self {
            again: args.device_again,
            options: options(args),
            uplinks: args.uplinks.iter().map(|uplink| &uplink.spec).chain(&file.uplinks).cloned().collect(),
            ports: own_ports(&args.ports).chain(&file.ports).cloned().chain(cable_ports(args)).collect(),
            of_uplinks: args.uplinks.iter().map(|uplink| (uplink.spec.name.clone(), uplink.settings.clone())).collect(),
            file,
        })
    }

    /// Engines of the command line and of the file, and whether that says anything of them. `allowed`: CPUs that this process may use.
    pub fn engines(&self, args: &RunArgs, allowed: &CpuList) -> Result<(Engines, bool), RunError> {
        let of_file = &self.file.engines;
        let (poll, helpers) = (args.scheduling.poll.is_some(), args.scheduling.helpers.is_some());
        for (option, given, field) in
            [("--poll", poll, "poll"), ("--helpers", helpers, "helper"), ("--cpus", args.cpus.is_some(), "ports")]
        {
            if given && of_file.has(field) {
                return Err(Usage(format!("{option}: [engines] {field} of --config says it too; say it in one place")));
            }
        }
        Ok((Engines::given(args, of_file, allowed)?, *of_file != DeclaredEngines::default()))
    }

    /// All interfaces, those that are guests too.
    pub fn devices(&self) -> Vec<SavedUplink> {
        self.uplinks.iter().chain(self.ports.iter().filter_map(|port| port.device.as_ref())).cloned().collect()
    }

    /// What is remembered of ports and uplinks that the file says otherwise is forgotten: the file has been edited since. On the command
    /// line such a difference is an error.
    pub fn overrule(&self, saved: &mut Saved, ports: &[SavedPort], devices: &[SavedUplink]) {
        let in_file: BTreeSet<&str> = self.file.names();
        saved.ports.retain(|port| !in_file.contains(&*port.name) || ports.contains(port));
        saved.uplinks.retain(|uplink| !in_file.contains(&*uplink.name) || devices.contains(uplink));
        if self.again {
            forget_in_the_way(saved, devices);
        }
    }

    /// In a device that is started again what its ports and its wire were told since its first start holds, and not what their options say: its uplinks carry the VLANs that
    /// they did then. Names of those whose settings are remembered.
    pub fn recalled(&self, saved: &Saved, uplinks: &mut [SavedUplink]) -> BTreeSet<String> {
        if !self.again {
            return BTreeSet::new();
        }
        // One whose start could not be saved finds what is of an earlier one, whose options may have been others.
        let same = |(name, of): &(&String, &SavedGiven)| self.options.get(*name) == Some(&of.option);
        let given: BTreeMap<_, _> = saved.given.iter().filter(same).collect();
        for uplink in uplinks {
            if let Some(of) = given.get(&uplink.name) {
                uplink.vlans.clone_from(&of.vlans);
            }
        }
        given.into_keys().cloned().collect()
    }

    /// What ports and uplinks are told, by name.
    pub fn settings(&self) -> Vec<(String, Settings)> {
        let ports = self.ports.iter().filter(|port| !port.settings.is_empty());
        let uplinks = self.file.uplink_settings.iter().map(|of| (of.uplink.clone(), of.settings.clone()));
        let of_uplinks = self.of_uplinks.iter().filter(|(_, settings)| !settings.is_empty()).cloned();
        ports.map(|port| (port.name.clone(), port.settings.clone())).chain(uplinks).chain(of_uplinks).collect()
    }

    /// Adds the file's mirrors to those remembered; whether these are to be other ones from now on.
    pub fn mirrors(&self, saved: &mut Saved) -> Result<bool, RunError> {
        let mirrors = in_mirrors(&saved.mirrors, &self.file).map_err(Failed)?;
        let changes = mirrors != saved.mirrors;
        saved.mirrors = mirrors;
        Ok(changes)
    }

    /// The access lists remembered, with those of the file; and whether the former are to be other ones from now on.
    pub fn lists(&self, store: &Store) -> Result<(Vec<u8>, bool), RunError> {
        let remembered = store.load_lists().map_err(Failed)?;
        let lists = in_book(remembered.clone(), &self.file).map_err(Failed)?;
        let changes = lists != remembered;
        Ok((lists, changes))
    }
}
