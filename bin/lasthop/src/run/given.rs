//! Ports and uplinks that `lasthop run` is given: by its command line, and by the file of `--config`.

use super::args::{PortArg, RunArgs};
use super::devices::{cable_ports, own_ports};
use super::engines::Engines;
use super::store::{Saved, SavedGiven, SavedPort, SavedUplink, Store};
use super::wires::forget_in_the_way;
use super::{RunError, RunError::Failed, RunError::Usage};
use crate::declared::{Declared, DeclaredEngines, in_book, in_mirrors};
use lasthop_management_ipc::Settings;
use lasthop_sys::CpuList;
use std::collections::BTreeSet;
use tracing::warn;

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
    /// Of a device the number of its first start.
    start: Option<u32>,
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
            start: args.device_start,
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
        let near = args.scheduling.near.is_some();
        for (option, given, field) in [
            ("--poll", poll, "poll"),
            ("--helpers", helpers, "helper"),
            ("--cpus", args.cpus.is_some(), "ports"),
            ("--near", near, "near"),
        ] {
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
    /// they did then. Names of those whose settings are remembered; nothing at a first start.
    pub fn recalled(&self, saved: &Saved, uplinks: &mut [SavedUplink]) -> Option<BTreeSet<String>> {
        if !self.again {
            return None;
        }
        // One whose first start could not be saved finds what is of an earlier one.
        let is_of_this = |of: &SavedGiven| Some(of.start) == self.start;
        for uplink in uplinks {
            match saved.given.get(&uplink.name) {
                Some(of) if is_of_this(of) => uplink.vlans.clone_from(&of.vlans),
                Some(of) if of.vlans != uplink.vlans => {
                    let [told, holds] = [&of.vlans, &uplink.vlans].map(|vlans| match vlans {
                        Some(vlans) => format!("vlans={vlans}"),
                        None => "vlans=all".to_owned(),
                    });
                    does_not_hold(&format!("uplink {}", uplink.name), &told, &holds);
                }
                _ => {}
            }
        }
        Some(saved.given.iter().filter(|(_, of)| is_of_this(of)).map(|(name, _)| name.clone()).collect())
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

/// Of a device that is started again: what was told at an earlier start, and what its option says.
pub fn does_not_hold(what: &str, told: &str, holds: &str) {
    let holds = if holds.is_empty() { "nothing" } else { holds };
    warn!(
        "{what} was told {told} before the host's lasthop run started this device for the first time, and that does not hold any more: {holds} does, as its option \
         says; tell it again if it is to"
    );
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Cli {
        #[command(flatten)]
        run: RunArgs,
    }

    /// The file of another release, as it lies on the disk.
    const FILE: &str = r#"{"version":1,"ports":[],"settings":{"a":"rate-to=20M"},
        "given":{"a":{"start":7},"wire":{"start":7,"vlans":"untagged:9"}}}"#;

    /// The VLANs of the wire of a device that was started so and finds such a file, and whose settings are remembered.
    fn recalled(file: &str, options: &str) -> (String, Option<BTreeSet<String>>) {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("ports.json"), file).unwrap();
        let line = format!(
            "run --device-rules 1024 {options} --port a=/a,rate-to=10M --uplink wire=v0,af_packet,vlans=untagged:7"
        );
        let given = Given::new(&Cli::try_parse_from(line.split_whitespace()).unwrap().run).unwrap();
        let mut devices = given.devices();
        let names = given.recalled(&Store::new(dir.path()).load().unwrap(), &mut devices);
        (devices[0].vlans.as_ref().map_or("all".to_owned(), ToString::to_string), names)
    }

    #[test]
    fn what_was_told_since_this_first_start_of_a_device_holds_and_nothing_of_before() {
        let names = |names: &[&str]| Some(names.iter().map(ToString::to_string).collect());
        let carries = |vlans: &str, told: &[&str]| (vlans.to_owned(), names(told));
        assert_eq!(recalled(FILE, "--device-start 7 --device-again"), carries("untagged:9", &["a", "wire"]));
        assert_eq!(recalled(FILE, "--device-start 8 --device-again"), carries("untagged:7", &[]));
        assert_eq!(recalled(FILE, "--device-again"), carries("untagged:7", &[]));
        assert_eq!(recalled(FILE, "--device-start 7"), ("untagged:7".to_owned(), None));
        let one = FILE.replace(r#""a":{"start":7}"#, r#""a":{"start":6}"#);
        assert_eq!(recalled(&one, "--device-start 7 --device-again"), carries("untagged:9", &["wire"]));
        let all = FILE.replace(r#","vlans":"untagged:9""#, "");
        assert_eq!(recalled(&all, "--device-start 7 --device-again"), carries("all", &["a", "wire"]));
    }
}
