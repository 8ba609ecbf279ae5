//! What `lasthop run` says on the command line: descriptors and limits. No parser library in the data plane.

use lasthop_sys::inherited_fd;
use std::os::fd::OwnedFd;
use std::time::Duration;

/// The command line, its descriptors taken.
#[derive(Debug)]
pub struct Arguments {
    /// Channel to the supervisor.
    pub supervisor: OwnedFd,
    /// Memory that outlives this process.
    pub journal: Option<OwnedFd>,
    /// How long a worker looks for more before it sleeps.
    pub spin: Duration,
}

impl Arguments {
    /// Reads `--supervisor-fd N [--journal-fd N] [--spin-us N]`. Run first thing in `main`.
    pub fn take(mut words: impl Iterator<Item = String>) -> Result<Self, String> {
        let (mut supervisor, mut journal, mut spin) = (None, None, Duration::from_micros(5));
        while let Some(option) = words.next() {
            let value = words.next().ok_or_else(|| format!("{option} needs a value"))?;
            let number = || value.parse::<u32>().map_err(|_| format!("{option} {value}: not a number"));
            let descriptor = || {
                let fd = i32::try_from(number()?).ok().and_then(inherited_fd);
                fd.ok_or_else(|| format!("{option} {value}: no such descriptor"))
            };
            match option.as_str() {
                "--supervisor-fd" => supervisor = Some(descriptor()?),
                "--journal-fd" => journal = Some(descriptor()?),
                "--spin-us" => spin = Duration::from_micros(u64::from(number()?)),
                _ => return Err(format!("unknown option {option}")),
            }
        }
        let supervisor = supervisor.ok_or("--supervisor-fd is missing")?;
        Ok(Self { supervisor, journal, spin })
    }
}
