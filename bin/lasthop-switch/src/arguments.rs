//! What `lasthop run` says on the command line: descriptors and limits. No parser library in the data plane.

use lasthop_schedule::Settings;
use lasthop_schedule::policy::{Batch, Hysteresis};
use lasthop_sys::{CpuList, inherited_fd};
use std::os::fd::OwnedFd;

/// The command line, its descriptors taken.
#[derive(Debug)]
pub struct Arguments {
    /// Channel to the supervisor.
    pub supervisor: OwnedFd,
    /// Memory that outlives this process.
    pub journal: Option<OwnedFd>,
    /// CPUs to stay on.
    pub cpus: Option<CpuList>,
    /// How packets are moved.
    pub settings: Settings,
}

impl Arguments {
    /// Reads `--supervisor-fd N [--journal-fd N] [--cpus LIST] [--helpers LIST] [--poll LIST] [--hysteresis US,US]
    /// [--tx-batch US,PACKETS] [--rx-batch US,PACKETS]`. Run first thing in `main`.
    pub fn take(mut words: impl Iterator<Item = String>) -> Result<Self, String> {
        let (mut supervisor, mut journal, mut cpus, mut helpers) = (None, None, None, None);
        let (mut poll, mut hysteresis) = (CpuList::default(), Hysteresis::default());
        let (mut transmit, mut receive) = (Batch::default(), Batch::default());
        while let Some(option) = words.next() {
            let value = words.next().ok_or_else(|| format!("{option} needs a value"))?;
            let wrong = |why: &dyn std::fmt::Display| format!("{option} {value}: {why}");
            let descriptor = || {
                let fd = value.parse().ok().and_then(inherited_fd);
                fd.ok_or_else(|| wrong(&"no such descriptor"))
            };
            let list = || value.parse::<CpuList>().map_err(|e| wrong(&e));
            let two = || {
                let numbers = value.split_once(',').and_then(|(a, b)| Some((a.parse::<u32>().ok()?, b.parse().ok()?)));
                numbers.ok_or_else(|| wrong(&"not two numbers"))
            };
            let batch = || two().map(|(us, packets)| Batch { period_ns: u64::from(us) * 1000, packets });
            match option.as_str() {
                "--supervisor-fd" => supervisor = Some(descriptor()?),
                "--journal-fd" => journal = Some(descriptor()?),
                "--cpus" => cpus = Some(list()?),
                "--helpers" if value == "none" => helpers = Some(CpuList::default()),
                "--helpers" => helpers = Some(list()?),
                "--poll" => poll = list()?,
                "--hysteresis" => {
                    let (base, limit) = two()?;
                    hysteresis = Hysteresis { base_ns: u64::from(base) * 1000, limit_ns: u64::from(limit) * 1000 };
                }
                "--tx-batch" => transmit = batch()?,
                "--rx-batch" => receive = batch()?,
                _ => return Err(format!("unknown option {option}")),
            }
        }
        let supervisor = supervisor.ok_or("--supervisor-fd is missing")?;
        let all = || cpus.clone().or_else(|| CpuList::allowed().ok()).unwrap_or_default();
        let helpers = helpers.unwrap_or_else(all);
        Ok(Self { supervisor, journal, cpus, settings: Settings { helpers, poll, hysteresis, transmit, receive } })
    }
}
