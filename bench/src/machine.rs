//! Where a run takes place, and what is missing there.

use crate::contender::Contender;
use crate::guests::dpdk;
use crate::guests::load::Setup;
use crate::switch::{bridge_tap, dpdk_vhost, ovs, tc};
use crate::work::Work;
use lasthop_harness::Lasthop;
use lasthop_harness::stop::{Outcome, pause};
use lasthop_sys::CpuList;
use serde::Serialize;
use std::fs::read_to_string;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// What a figure depends on besides the programs.
#[derive(Clone, Debug, Serialize)]
pub struct Machine {
    /// The processor's model.
    pub processor: String,
    /// How many the system has.
    pub cpus: usize,
    /// The kernel's release.
    pub kernel: String,
    /// Versions of the guests and peers.
    pub programs: Vec<String>,
    /// Load average over a minute before the run: what others were doing.
    pub load_before: f64,
    /// Part of the run's processor time that the hypervisor gave to others, in percent.
    pub stolen_percent: f64,
    /// Ticks at the start: all, and stolen.
    #[serde(skip)]
    start: (u64, u64),
}

impl Machine {
    /// Looks around; once, at the start.
    pub fn look() -> Self {
        let cpuinfo = read_to_string("/proc/cpuinfo").unwrap_or_default();
        let model = cpuinfo.lines().find_map(|l| l.strip_prefix("model name")?.split_once(": "));
        let version = |program: &str| {
            let out =
                Command::new(program).arg("--version").stdin(Stdio::null()).stderr(Stdio::null()).output().ok()?;
            Some(String::from_utf8_lossy(&out.stdout).lines().next()?.trim().to_owned())
        };
        let package = |name: &str| {
            let out = Command::new("dpkg-query").args(["-W", "-f=${Package} ${Version}", name]).output().ok()?;
            out.status.success().then(|| String::from_utf8_lossy(&out.stdout).into_owned())
        };
        let programs = [version(ovs::VSWITCHD), package("dpdk-dev"), version("qemu-system-x86_64")];
        Self {
            processor: model.map_or("unknown".into(), |(_, name)| name.to_owned()),
            cpus: cpuinfo.lines().filter(|l| l.starts_with("processor")).count(),
            kernel: read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default().trim().to_owned(),
            programs: programs.into_iter().flatten().collect(),
            load_before: first_word("/proc/loadavg").and_then(|w| w.parse().ok()).unwrap_or(0.0),
            stolen_percent: 0.0,
            start: ticks(),
        }
    }

    /// At the end of the run.
    pub fn finish(&mut self) {
        let (all, stolen) = ticks();
        let (all, stolen) = (all.saturating_sub(self.start.0), stolen.saturating_sub(self.start.1));
        self.stolen_percent = if all == 0 { 0.0 } else { 100.0 * stolen as f64 / all as f64 };
    }
}

/// The CPUs this process could use when it was first asked, before it kept to two.
pub fn cpus() -> &'static [usize] {
    static CPUS: OnceLock<Vec<usize>> = OnceLock::new();
    CPUS.get_or_init(|| CpuList::allowed().map(|list| list.iter().collect()).unwrap_or_default())
}

fn first_word(file: &str) -> Option<String> {
    read_to_string(file).ok()?.split_ascii_whitespace().next().map(String::from)
}

/// All CPUs' time and what of it was stolen.
fn ticks() -> (u64, u64) {
    let columns = columns();
    (columns.iter().sum(), columns.get(7).copied().unwrap_or(0))
}

/// All CPUs' time and what of it nobody wanted.
fn idle_ticks() -> (u64, u64) {
    let columns = columns();
    (columns.iter().sum(), columns.iter().skip(3).take(2).sum())
}

/// proc(5), /proc/stat: the first line's columns; the fourth and fifth are idle, the eighth is what was stolen, guests' time is in the
/// first two already.
fn columns() -> Vec<u64> {
    let text = read_to_string("/proc/stat").unwrap_or_default();
    let line = text.lines().next().unwrap_or_default();
    line.split_ascii_whitespace().skip(1).take(8).filter_map(|w| w.parse().ok()).collect()
}

/// The part of all CPUs' time below which others may go on while we measure.
const QUIET: f64 = 0.1;
/// How long others are watched.
const WATCHED: Duration = Duration::from_millis(250);

/// Waits until whatever else runs here takes next to nothing of the CPUs, at most until `limit` is over; at once where that is 0.
/// Nothing of ours may run meanwhile. Whether it was quiet at last.
pub fn wait_for_quiet(limit: Duration) -> Outcome<bool> {
    let end = Instant::now() + limit;
    while Instant::now() < end {
        let before = idle_ticks();
        pause(WATCHED)?;
        let after = idle_ticks();
        let (all, idle) = (after.0.saturating_sub(before.0), after.1.saturating_sub(before.1));
        if all > 0 && idle as f64 >= (1.0 - QUIET) * all as f64 {
            return Ok(true);
        }
    }
    Ok(limit.is_zero())
}

/// Why the scenario's guests cannot run here.
pub fn missing_guests(work: Work) -> Option<String> {
    match work {
        Work::Loop(..) => missing_program("dpdk-testpmd").or_else(|| missing_pages(dpdk::MIB)),
        Work::Load(Setup { spread: true, ports, .. }, _) => missing_cpus(ports),
        Work::Load(setup, _) => setup.outside.and_then(|_| ["ip", "ethtool"].into_iter().find_map(missing_program)),
        Work::Isolation(what) => missing_cpus(what.cpus()),
        Work::Minimum(_) => ["ip", "ethtool"].into_iter().find_map(missing_program),
        Work::Memory | Work::Attack(..) => None,
        Work::Vms | Work::Payloads | Work::Granted(_) | Work::Idle => missing_program("qemu-system-x86_64"),
        Work::Outside(_) => {
            ["qemu-system-x86_64", "iperf3", "ip", "ethtool"].into_iter().find_map(missing_program).or_else(|| {
                let program = lasthop_harness::try_guest_program();
                program.is_none().then(|| "lasthop-guest is not there; `make setup` (as root) makes it".into())
            })
        }
    }
}

/// Why a contender cannot run here, beside guests that can.
pub fn missing(contender: Contender, work: Work) -> Option<String> {
    // Our own guests take ordinary memory where there are no huge pages left.
    let guests = if matches!(work, Work::Loop(..)) { dpdk::MIB } else { 0 };
    let list = match work {
        Work::Load(setup, _) => setup.rules > 0,
        Work::Attack(_, rules) => rules > 0,
        _ => false,
    };
    match contender {
        Contender::Lasthop
        | Contender::Tap
        | Contender::NoGro
        | Contender::SharedQueue
        | Contender::Changed(_)
        | Contender::Device => (list && !Lasthop::knows("acl"))
            .then(|| "this lasthop has no access lists (there is no command `lasthop acl`)".into()),
        Contender::Driven(_) => {
            ["ip", "ovsdb-tool", "ovsdb-server", "ovs-vsctl", "ovs-ofctl"].into_iter().find_map(missing_program)
        }
        Contender::DpdkVhost if matches!(work, Work::Granted(_)) => {
            ["dpdk-testpmd", "cc"].into_iter().find_map(missing_program).or_else(|| missing_pages(dpdk_vhost::MIB))
        }
        Contender::DpdkVhost => missing_program("dpdk-testpmd").or_else(|| missing_pages(guests + dpdk_vhost::MIB)),
        Contender::BridgeTap | Contender::BridgeTc => {
            let classes = contender == Contender::BridgeTc;
            let programs =
                ["dpdk-testpmd", "ip"].into_iter().chain(list.then_some("nft")).chain(classes.then_some("tc"));
            let missing = programs.into_iter().find_map(missing_program).or_else(missing_devices);
            let missing = missing.or_else(|| if classes { missing_classes() } else { None });
            let guests = match work {
                Work::Load(setup, _) => setup.ports,
                Work::Isolation(what) => what.ports(),
                _ => 0,
            };
            let many = (guests > bridge_tap::MOST)
                .then(|| format!("DPDK has no more than {} ports, two a guest", 2 * bridge_tap::MOST));
            missing.or(many).or_else(|| missing_pages(bridge_tap::MIB))
        }
        Contender::BridgeNft => ["ip", "nft"].into_iter().find_map(missing_program).or_else(missing_devices),
        Contender::BridgeAlone => ["ip", "bridge"].into_iter().find_map(missing_program).or_else(missing_devices),
        Contender::LinuxBridge => ["ip", "unshare"].into_iter().find_map(missing_program).or_else(missing_devices),
        Contender::Ovs(_) => {
            let programs =
                ["ovsdb-tool", "ovsdb-server", "ovs-vsctl", "ovs-ofctl", "ovs-appctl", "unshare", ovs::VSWITCHD];
            programs.into_iter().find_map(missing_program).or_else(|| missing_pages(guests + ovs::MIB))
        }
    }
}

fn missing_program(name: &str) -> Option<String> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = if name.starts_with('/') {
        Path::new(name).exists()
    } else {
        std::env::split_paths(&path).any(|dir: PathBuf| dir.join(name).exists())
    };
    (!found).then(|| format!("{name} is not installed; `make setup` (as root) installs it on Debian"))
}

fn missing_cpus(needed: usize) -> Option<String> {
    // Some end up in 64-bit masks.
    let here = cpus().iter().filter(|c| **c < 64).count();
    (here < needed)
        .then(|| format!("it takes {needed} CPUs, and there are {here} among the first 64 that this process may use"))
}

/// Whether the kernel has what a bridge is made of; tried in a network namespace that goes with the command.
fn missing_devices() -> Option<String> {
    let devices = [("a bridge", "link add br0 type bridge"), ("a TAP device", "tuntap add t1 mode tap vnet_hdr")];
    devices.into_iter().find_map(|(what, words)| {
        let mut command = Command::new("unshare");
        let out = command.args(["--net", "--", "ip"]).args(words.split(' ')).stdin(Stdio::null()).output().ok()?;
        (!out.status.success()).then(|| {
            let why = String::from_utf8_lossy(&out.stderr);
            format!(
                "the kernel does not make {what} (ip {words}: {}): are the modules bridge and tun there?",
                why.trim()
            )
        })
    })
}

/// Whether the kernel has classes, and what tells packets apart; tried in a network namespace that goes with the command.
fn missing_classes() -> Option<String> {
    let words = format!("echo '{}' | tc -batch -", tc::Tree::trial().text());
    let out = Command::new("unshare").args(["--net", "--", "sh", "-c", &words]).stdin(Stdio::null()).output().ok()?;
    (!out.status.success()).then(|| {
        let why = String::from_utf8_lossy(&out.stderr);
        format!("the kernel does not make classes ({}): are the modules sch_htb and cls_u32 there?", why.trim())
    })
}

fn missing_pages(mib: u32) -> Option<String> {
    let meminfo = read_to_string("/proc/meminfo").unwrap_or_default();
    let of = |name: &str| -> Option<u64> {
        meminfo.lines().find_map(|l| l.strip_prefix(name))?.split_ascii_whitespace().next()?.parse().ok()
    };
    let free = of("HugePages_Free:").zip(of("Hugepagesize:")).map_or(0, |(pages, kib)| pages * kib / 1024);
    // DPDK takes a few pages more than it is told to.
    let needed = u64::from(mib) * 11 / 10;
    let pages = needed / 2;
    (free < needed).then(|| {
        format!(
            "{free} MiB of huge pages are free and {needed} needed; as root: echo {pages} >/proc/sys/vm/nr_hugepages"
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_there_is_named() {
        assert_eq!(missing_program("sh"), None);
        assert_eq!(missing_program("/proc/self/exe"), None);
        assert!(missing_program("no-such-program").is_some_and(|m| m.starts_with("no-such-program is not installed")));
        assert!(missing_pages(u32::MAX / 16).is_some_and(|m| m.contains("huge pages")));
        assert_eq!(missing_cpus(1), None);
        assert!(missing_cpus(5000).is_some_and(|m| m.starts_with("it takes 5000 CPUs, and there are ")));
    }

    #[test]
    fn whoever_waits_for_others_to_be_quiet_waits_no_longer_than_he_said() {
        assert_eq!(wait_for_quiet(Duration::ZERO), Ok(true), "nobody waits");
        let (start, limit) = (Instant::now(), Duration::from_millis(300));
        assert!(wait_for_quiet(limit).is_ok() && start.elapsed() >= WATCHED);
    }

    #[test]
    fn the_machine_is_known() {
        let mut machine = Machine::look();
        machine.finish();
        assert!(machine.cpus > 0 && !machine.kernel.is_empty() && (0.0..=100.0).contains(&machine.stolen_percent));
    }
}
