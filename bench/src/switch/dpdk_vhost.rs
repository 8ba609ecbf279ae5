//! DPDK's vhost library with nothing on top: testpmd passes packets between two vhost ports without looking at them. Not
//! a switch, but what one that copies twice cannot beat.

use super::{Extras, Spent, Switch};
use lasthop_harness::stop::{Outcome, failed};
use lasthop_harness::testpmd::{Testpmd, number_after};
use lasthop_harness::{proc, scratch};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

/// Memory in huge pages it takes, in MiB.
pub const MIB: u32 = 400;

/// A running testpmd between two vhost ports.
pub struct DpdkVhost {
    testpmd: Testpmd,
    begun: Instant,
    before: u64,
    _dir: Option<tempfile::TempDir>,
}

impl DpdkVhost {
    /// Its commands run on CPU `main`, its packets on CPU `cpu`.
    pub fn start(main: usize, cpu: usize, sockets: &[&Path], extras: Extras<'_>) -> Outcome<Self> {
        let queues = extras.queues.max(1);
        let large = if extras.large { ",tso=1" } else { "" };
        let translated = if extras.translated { ",iommu-support=1" } else { "" };
        let device = |(i, socket): (usize, &&Path)| {
            format!("net_vhost{i},iface={},client=1,queues={queues}{large}{translated}", socket.display())
        };
        let devices: Vec<String> = sockets.iter().enumerate().map(device).collect();
        let (rxq, txq) = (format!("--rxq={queues}"), format!("--txq={queues}"));
        let mut testpmd = Testpmd::start(
            &format!("0@{main},1@{cpu}"),
            MIB,
            &devices,
            &[],
            &["--burst=64", "--no-flush-rx", &rxq, &txq],
        )?;
        testpmd.say(if extras.translated { "set fwd io retry" } else { "set fwd io" })?;
        testpmd.say("set record-core-cycles on")?;
        testpmd.say("start")?;
        Ok(Self { testpmd, begun: Instant::now(), before: 0, _dir: None })
    }

    /// One for Linux VMs, which wait for it on the sockets: all they offload goes through, and addresses may be I/O addresses.
    ///
    /// It tries a packet again whose buffer is not translated yet; without that a VM with an IOMMU loses most of what is sent to it.
    pub fn start_for_vms(main: usize, cpu: usize, sockets: &[&Path]) -> Outcome<Self> {
        let dir = scratch();
        let cut = cut_invalidations(dir.path())?;
        let device = |(i, socket): (usize, &&Path)| {
            let offloads = "tso=1,legacy-ol-flags=1";
            format!("net_vhost{i},iface={},client=1,iommu-support=1,{offloads}", socket.display())
        };
        let devices: Vec<String> = sockets.iter().enumerate().map(device).collect();
        let lcores = format!("0@{main},1@{cpu}");
        let options = ["--burst=64", "--no-flush-rx"];
        let mut testpmd = Testpmd::start_preloaded(Some(&cut), &lcores, MIB, &devices, &[], &options)?;
        testpmd.say("set fwd io retry")?;
        testpmd.say("set burst tx delay 20 retry 500")?;
        testpmd.say("set record-core-cycles on")?;
        testpmd.say("start")?;
        Ok(Self { testpmd, begun: Instant::now(), before: 0, _dir: Some(dir) })
    }
}

/// Makes the library that lets a lazy guest's flushes reach DPDK's table.
fn cut_invalidations(dir: &Path) -> Outcome<PathBuf> {
    let (source, library) = (dir.join("cut.c"), dir.join("cut.so"));
    std::fs::write(&source, include_str!("cut_invalidations.c")).map_err(failed)?;
    let mut cc = Command::new("cc");
    let out = cc.args(["-O2", "-shared", "-fPIC", "-o"]).arg(&library).arg(&source).output();
    let out = out.map_err(|e| failed(format!("cc: {e}")))?;
    if !out.status.success() {
        return Err(failed(format!("cc: {}", String::from_utf8_lossy(&out.stderr).trim())));
    }
    Ok(library)
}

impl Switch for DpdkVhost {
    fn begin(&mut self) -> Outcome<()> {
        // A new start sets the cycle counts back; what circulates waits in the rings for a moment (--no-flush-rx).
        self.testpmd.say("stop")?;
        self.testpmd.say("start")?;
        (self.begun, self.before) = (Instant::now(), proc::cpu_ns(self.testpmd.pid()));
        Ok(())
    }

    fn spent(&mut self, packets: f64) -> Outcome<Spent> {
        let cpu_ns = proc::cpu_ns(self.testpmd.pid()).saturating_sub(self.before) as f64;
        let elapsed = self.begun.elapsed().as_nanos() as f64;
        let text = self.testpmd.say("stop")?;
        self.testpmd.say("start")?;
        let ns = ns_per_packet(&text).ok_or_else(|| failed(format!("no cycle counts in {text:?}")))?;
        // Its cycles go on while others have its CPU, whether it is idle or busy then; so the share is what to trust.
        Ok(Spent { cpu_ns, busy_ns: cpu_ns * (ns * packets / elapsed).min(1.0), idle_ns: 0.0 })
    }

    fn pids(&self) -> Vec<u32> {
        vec![self.testpmd.pid()]
    }

    fn told_ns(&self) -> u64 {
        proc::threads_ns(self.testpmd.pid(), "vhost-events")
    }

    fn memory_kib(&self) -> u64 {
        proc::private_kib(self.testpmd.pid())
    }
}

/// Of the last summary: `CPU cycles/packet=C (total cycles=…) at M MHz Clock`.
pub(super) fn ns_per_packet(text: &str) -> Option<f64> {
    let line = text.lines().rfind(|l| l.contains("CPU cycles/packet="))?;
    let mhz = number_after(line, " at ")?;
    Some(number_after(line, "CPU cycles/packet=")? * 1000.0 / mhz)
}

#[cfg(test)]
mod tests {
    #[test]
    fn cycles_become_nanoseconds() {
        let text = "  CPU cycles/packet=46.00 (total cycles=92 / total RX packets=2) at 2300 MHz Clock\n";
        assert_eq!(super::ns_per_packet(text), Some(20.0));
        assert_eq!(super::ns_per_packet("Forward statistics"), None);
    }
}
