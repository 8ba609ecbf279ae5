//! Two Linux VMs on one switch: what their users would measure.

use crate::contender::Contender;
use crate::cpus::Cpus;
use crate::switch::lasthop::Ours;
use crate::switch::ovs::Ovs;
use crate::switch::{Extras, Spent, Switch};
use lasthop_harness::stop::{Outcome, check, failed, pause, until};
use lasthop_harness::{Bridge, Nic, Port, Vm, VmConfig, scratch};
use serde_json::Value;
use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

/// Bytes of a payload, those of the thesis' figures 4.9 and 4.10.
pub const PAYLOADS: [u32; 6] = [64, 256, 1024, 4096, 16384, 65536];

/// How long the idle guests are watched.
const IDLE: Duration = Duration::from_secs(5);

/// Two VMs and what they are plugged into.
pub struct Pair {
    vms: [Vm; 2],
    switch: Option<Box<dyn Switch>>,
    _bridge: Option<Bridge>,
    _dir: tempfile::TempDir,
}

impl Pair {
    /// Starts the switch, then boots both VMs.
    pub fn boot(contender: Contender, cpus: Cpus) -> Outcome<Self> {
        let dir = scratch();
        let ports = ["a", "b"].map(|name| Port::listen(name, dir.path()));
        let (mut switch, mut bridge): (Option<Box<dyn Switch>>, _) = (None, None);
        let nics = match contender {
            Contender::Lasthop | Contender::Changed(_) => {
                let change = if let Contender::Changed(change) = contender { Some(change) } else { None };
                switch = Some(Box::new(Ours::start(&ports, &cpus.both(), Extras::default(), change)?));
                [1, 2].map(|n| Nic::vhost_user(&ports[n - 1].socket, n as u8))
            }
            Contender::Ovs(rules) => {
                let sockets = [&*ports[0].socket, &*ports[1].socket];
                let extras = Extras { large: true, ..Extras::default() };
                switch = Some(Box::new(Ovs::start(cpus.guests, &[cpus.switch], &sockets, rules, extras)?));
                [1, 2].map(|n| Nic::vhost_user_server(&ports[n - 1].socket, n as u8))
            }
            Contender::LinuxBridge => {
                let started = bridge.insert(Bridge::start(2));
                [1, 2].map(|n| started.nic(n))
            }
            _ => return Err(failed("no switch that VMs could use")),
        };
        check()?;
        let [a, b] = nics;
        let vms = Vm::boot_all([VmConfig::new("a", [a]), VmConfig::new("b", [b])]);
        check()?;
        Ok(Self { vms, switch, _bridge: bridge, _dir: dir })
    }

    /// Gbit/s of one TCP connection, TCP transactions per second, and the mean of 50 pings in microseconds, if none was lost.
    pub fn traffic(&self, seconds: u64) -> Outcome<Vec<Option<f64>>> {
        let address = self.vms[1].config.nics[0].ip4();
        self.vms[1].background("iperf3 -s");
        self.vms[1].serve();
        self.ask(1, "until netstat -ltn | grep -q :5201; do usleep 50000; done", 10)?;
        // Without any answer it fails; what follows says by itself whether the VMs reach each other.
        let ping = mean_us(&self.ask(0, &format!("ping -c 50 -i 0.02 -q {address} || true"), 20)?);
        let text = self.ask(0, &format!("lasthop-guest tcp-transactions {address}:7000 {seconds}"), seconds + 20)?;
        let rate = per_second(&text).ok_or_else(|| failed(format!("no count in {text:?}")))?;
        let stream = received(&self.ask(0, &format!("iperf3 -J -c {address} -t {seconds}"), seconds + 20)?)?;
        Ok(vec![Some(stream), Some(rate), ping])
    }

    /// By [`PAYLOADS`], Gbit/s of one TCP connection that is written to in pieces of that length, then TCP transactions a second of
    /// requests of that length.
    pub fn payloads(&self, seconds: u64) -> Outcome<Vec<Option<f64>>> {
        let address = self.vms[1].config.nics[0].ip4();
        self.vms[1].background("iperf3 -s");
        self.vms[1].serve();
        self.ask(1, "until netstat -ltn | grep -q :5201; do usleep 50000; done", 10)?;
        let (mut streams, mut transactions) = (Vec::new(), Vec::new());
        for bytes in PAYLOADS {
            streams.push(Some(received(&self.ask(0, &pieces(address, seconds, bytes), seconds + 20)?)?));
            let command = format!("lasthop-guest tcp-transactions {address}:7000 {seconds} {bytes}");
            let text = self.ask(0, &command, seconds + 20)?;
            transactions.push(Some(per_second(&text).ok_or_else(|| failed(format!("no count in {text:?}")))?));
        }
        Ok(streams.into_iter().chain(transactions).collect())
    }

    /// Processor time of the switch while nobody says anything, in percent of one CPU, and how often its threads wake up,
    /// a second and port.
    pub fn idle(&mut self) -> Outcome<Vec<Option<f64>>> {
        let Some(switch) = &mut self.switch else { return Ok(vec![None; 2]) };
        // IPv6 announces itself for some seconds after an interface comes up.
        pause(Duration::from_secs(3))?;
        switch.begin()?;
        let (start, before) = (Instant::now(), switch.wake_ups());
        pause(IDLE)?;
        let (elapsed, wake_ups) = (start.elapsed(), switch.wake_ups().saturating_sub(before));
        let Spent { cpu_ns, .. } = switch.spent(0.0)?;
        let percent = 100.0 * cpu_ns / elapsed.as_nanos() as f64;
        let each = wake_ups as f64 / elapsed.as_secs_f64() / self.vms.len() as f64;
        Ok(vec![Some(percent), Some(each)])
    }

    /// Runs a command in one of the VMs, for at most so many seconds.
    fn ask(&self, vm: usize, command: &str, seconds: u64) -> Outcome<String> {
        ask(&self.vms[vm], command, seconds)
    }
}

/// A stream that is written in pieces of so many bytes, as the thesis' netperf writes it: from a file (sendfile), and without `TCP_NODELAY`,
/// so that the kernel may gather small pieces while an answer is due.
fn pieces(address: Ipv4Addr, seconds: u64, bytes: u32) -> String {
    format!("iperf3 -J -Z -c {address} -t {seconds} -l {bytes}")
}

/// Gbit/s that came, of what iperf3 says.
fn received(text: &str) -> Outcome<f64> {
    let json: Value = serde_json::from_str(text).map_err(|e| failed(format!("iperf3: {e}: {text:?}")))?;
    let bits = json["end"]["sum_received"]["bits_per_second"].as_f64();
    Ok(bits.ok_or_else(|| failed(format!("iperf3: {}", json["error"])))? / 1e9)
}

/// Runs a command in a VM, for at most so many seconds.
pub fn ask(vm: &Vm, command: &str, seconds: u64) -> Outcome<String> {
    let pending = vm.spawn(command);
    let out = until(command, Duration::from_secs(seconds), || Ok(pending.poll()))?;
    if out.code != 0 {
        return Err(failed(format!("{command}: exit code {}\n{}{}", out.code, out.stdout, out.stderr)));
    }
    Ok(out.stdout)
}

/// Of busybox's summary: `round-trip min/avg/max = 0.271/0.404/0.812 ms`. Nothing when a reply was lost.
fn mean_us(text: &str) -> Option<f64> {
    text.contains(" 0% packet loss").then_some(())?;
    let (_, times) = text.split_once("min/avg/max = ")?;
    Some(times.split('/').nth(1)?.parse::<f64>().ok()? * 1000.0)
}

/// Of `COUNT in MICROSECONDS us`.
pub fn per_second(text: &str) -> Option<f64> {
    let (count, time) = text.trim().strip_suffix(" us")?.split_once(" in ")?;
    Some(count.parse::<f64>().ok()? * 1e6 / time.parse::<f64>().ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_sent_from_a_file_and_may_be_gathered() {
        let command = pieces(Ipv4Addr::new(10, 0, 0, 2), 3, 64);
        let has = |word: &str| command.split(' ').any(|w| w == word);
        assert!(has("-Z") && has("64") && !has("-N"), "{command}");
    }

    #[test]
    fn what_the_tools_print_is_understood() {
        let ping = |loss: u8| {
            format!("50 packets received, {loss}% packet loss\nround-trip min/avg/max = 0.271/0.404/0.812 ms\n")
        };
        assert_eq!(mean_us(&ping(0)), Some(404.0));
        assert_eq!(mean_us(&ping(20)), None);
        assert_eq!(per_second("9000 in 3000000 us\n"), Some(3000.0));
        assert_eq!(per_second("damaged"), None);
    }
}
