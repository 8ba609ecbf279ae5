//! What `lasthop run` says on the command line: descriptors and limits. No parser library in the data plane.

use lasthop_forward::PATIENCE_MS;
use lasthop_schedule::Settings;
use lasthop_schedule::policy::{Batch, Hysteresis};
use lasthop_sys::hostview::HostView;
use lasthop_sys::{Prompter, inherited_fd, map_pulse};
use std::os::fd::OwnedFd;

/// The command line, its descriptors taken.
#[derive(Debug)]
pub struct Arguments {
    /// Channel to the supervisor.
    pub supervisor: OwnedFd,
    /// Memory that outlives this process.
    pub journal: Option<OwnedFd>,
    /// How packets are moved.
    pub settings: Settings,
    /// How long they wait for receivers without buffers.
    pub patience_ms: [u64; 2],
    /// Most memory that one front-end may have mapped, in bytes.
    pub max_guest_memory: u64,
}

impl Arguments {
    /// Reads `--supervisor-fd N [--journal-fd N] [--host-view-fd N] [--boost-fd N] [--pulse-fd N] [--helpers N,N…] [--poll N,N…]
    /// [--hysteresis US,US] [--rx-batch US,PACKETS] [--cgroup-accounting vm] [--congestion MS,MS]
    /// [--helper-class normal] [--max-guest-memory BYTES]`. Run first thing in `main`.
    pub fn take(mut words: impl Iterator<Item = String>) -> Result<Self, String> {
        let (mut supervisor, mut journal) = (None, None);
        let (mut settings, mut patience_ms) = (Settings::default(), PATIENCE_MS);
        let mut max_guest_memory = None;
        while let Some(option) = words.next() {
            let value = words.next().ok_or_else(|| format!("{option} needs a value"))?;
            let wrong = |why: &str| format!("{option} {value}: {why}");
            let descriptor = || value.parse().ok().and_then(inherited_fd).ok_or_else(|| wrong("no such descriptor"));
            let list = || value.split(',').map(str::parse).collect::<Result<Vec<usize>, _>>();
            let numbers = || list().map_err(|_| wrong("not a list of numbers"));
            let two = || <[usize; 2]>::try_from(numbers()?).map_err(|_| wrong("not two numbers"));
            match option.as_str() {
                "--supervisor-fd" => supervisor = Some(descriptor()?),
                "--journal-fd" => journal = Some(descriptor()?),
                "--host-view-fd" => {
                    let view = HostView::map(descriptor()?);
                    settings.view = view.inspect_err(|e| tracing::warn!("not known what cores and VMs do: {e}")).ok();
                }
                "--boost-fd" => settings.prompter = Some(Prompter::new(descriptor()?)),
                "--pulse-fd" => map_pulse(descriptor()?).map_err(|e| wrong(&e.to_string()))?,
                "--helpers" => settings.helpers = numbers()?,
                "--poll" => settings.poll = numbers()?,
                "--hysteresis" => {
                    let [base_ns, limit_ns] = two()?.map(|us| us as u64 * 1000);
                    settings.hysteresis = Hysteresis { base_ns, limit_ns };
                }
                "--congestion" => patience_ms = two()?.map(|ms| ms as u64),
                "--helper-class" => settings.not_idle = value == "normal",
                "--max-guest-memory" => {
                    max_guest_memory = Some(value.parse().map_err(|_| wrong("not a number of bytes"))?);
                }
                "--cgroup-accounting" => settings.cgroup_accounting = value == "vm",
                "--rx-batch" => settings.receive = two().map(|[us, packets]| Batch::new(us as u32, packets as u16))?,
                _ => return Err(format!("unknown option {option}")),
            }
        }
        let supervisor = supervisor.ok_or("--supervisor-fd is missing")?;
        let max_guest_memory = max_guest_memory.unwrap_or_else(host_memory);
        Ok(Self { supervisor, journal, settings, patience_ms, max_guest_memory })
    }
}

/// Bytes of memory that this host has, huge pages and swap included: no guest can have more of it.
fn host_memory() -> u64 {
    let info = rustix::system::sysinfo();
    (info.totalram as u64).saturating_add(info.totalswap as u64).saturating_mul(u64::from(info.mem_unit))
}
