//! VMs and the world outside: a veth pair, on one end of it the switch's uplink, on the other a network namespace with
//! TCP servers.
//!
//! ```text
//!  VM ─ vhost-user ─ switch, uplink ─ net0 ═ net1 ─ servers outside
//!   └── QEMU's TAP ─ br0 ─────────────┘
//! ```

use crate::contender::Contender;
use crate::cpus::Cpus;
use crate::guests::vms::{ask, per_second};
use crate::switch::lasthop::Ours;
use crate::switch::ovs::Ovs;
use crate::switch::uplink::{Device, Uplink};
use crate::switch::{Extras, Switch};
use lasthop_harness::stop::{Outcome, check, failed, pause, until};
use lasthop_harness::{Backend, Netns, Nic, Port, Vm, VmConfig, guest_program, proc, scratch, spawn};
use serde_json::Value;
use std::path::Path;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

const OUTSIDE: &str = "10.9.0.100";

/// The first VM's server; the next has the next port.
const STREAMS: u16 = 5201;

/// What VMs see of their cards.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Interface {
    /// Frames, finished and in one piece.
    Plain,
    /// Checksums are left to the other side; with them Linux hands over packets in pieces (scatter/gather).
    Checksum,
    /// Packets of up to 64 KiB too, both ways.
    Whole,
}

/// VMs, their cards, and what is between them and the world outside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// How the network interface is used, and what it can do.
    pub device: Device,
    /// What VMs see.
    pub interface: Interface,
    /// Their memory is the host's pages of 2 MiB; which pages a VM's own kernel has in its table does not depend on it.
    pub huge: bool,
    /// How many there are.
    pub vms: u8,
    /// What they send lies in a file (sendfile), so that a card which takes packets in pieces saves its copy.
    pub sendfile: bool,
}

impl Place {
    /// One VM, all offloads, small pages, streams from a program's memory.
    pub const fn new(device: Device) -> Self {
        Self { device, interface: Interface::Whole, huge: false, vms: 1, sendfile: false }
    }

    /// What iperf3 is told of a stream to the outside, and of one from there.
    fn options(self) -> [&'static str; 2] {
        [if self.sendfile { "-Z" } else { "" }, "-R"]
    }

    /// VM `i`, with this card.
    fn vm(self, i: usize, nic: Nic) -> VmConfig {
        let nic = match self.interface {
            Interface::Plain => nic.plain(),
            Interface::Checksum => nic.without_tso(),
            Interface::Whole => nic,
        };
        let config = VmConfig::new(&format!("vm{i}"), [nic]);
        if self.huge { config.huge() } else { config }
    }
}

/// Everything that is plugged together.
pub struct Outside {
    // In this order: who sends ends before what it sends through.
    vms: Vec<Vm>,
    /// Those of streams, one for each VM, and then that of transactions.
    servers: Vec<Child>,
    switch: Option<Box<dyn Switch>>,
    /// What iperf3 is told of a stream to the outside, and of one from there.
    options: [&'static str; 2],
    site: Netns,
    far: Netns,
    dir: tempfile::TempDir,
}

/// What a stream was like.
struct Stream {
    gbit_per_second: f64,
    /// Processor time for each Gbit of all programs and the kernel, in milliseconds.
    all: f64,
    /// Without the VM's processor and the program at the other end.
    between: f64,
    /// Of the uplink's process, in percent of a CPU.
    uplink: Option<f64>,
}

impl Outside {
    /// Makes the namespaces, starts the switch, boots the VMs.
    pub fn start(contender: Contender, cpus: Cpus, place: Place) -> Outcome<Self> {
        let (site, far, dir) = (Netns::new(), Netns::new(), scratch());
        join(&site, &far, place.device);
        site.ip("link set net0 up");
        far.ip("link set net1 up");
        far.ip(&format!("addr add {OUTSIDE}/24 dev net1"));
        let options = place.options();
        let mut here = Self { vms: Vec::new(), servers: Vec::new(), switch: None, options, site, far, dir };
        here.serve(place.vms)?;
        let nics = here.plug(contender, cpus, place)?;
        check()?;
        let launched: Vec<Vm> = nics.into_iter().enumerate().map(|(i, nic)| Vm::launch(place.vm(i, nic))).collect();
        here.vms = launched.into_iter().map(Vm::ready).collect();
        check()?;
        let waits = format!("until ping -c 1 -W 1 {OUTSIDE}; do usleep 50000; done");
        here.vms.iter().try_for_each(|vm| ask(vm, &waits, 20).map(drop))?;
        Ok(here)
    }

    /// The servers outside.
    fn serve(&mut self, vms: u8) -> Outcome<()> {
        let guest = guest_program().display().to_string();
        let ports: Vec<u16> = (0..u16::from(vms)).map(|i| STREAMS + i).collect();
        let streams = ports.iter().map(|port| ["iperf3", "-s", "-p", &port.to_string()].map(str::to_owned).to_vec());
        let transactions = [&guest, "tcp-serve", "7000"].map(str::to_owned).to_vec();
        for words in streams.chain([transactions]) {
            self.servers.push(spawn::spawn("KILL", "ip", |c| {
                c.args(["netns", "exec", self.far.name()]).args(words);
                c.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
            }));
        }
        until("the servers outside", Duration::from_secs(10), || {
            let listening = self.far.shell("cat /proc/net/tcp /proc/net/tcp6");
            let all = ports.iter().chain(&[7000]).all(|port| listening.contains(&format!(":{port:04X} ")));
            Ok(all.then_some(()))
        })
    }

    /// Starts what is between the VMs and the pair; the VMs' cards.
    fn plug(&mut self, contender: Contender, cpus: Cpus, place: Place) -> Outcome<Vec<Nic>> {
        let device = place.device;
        let numbers: Vec<u8> = (1..=place.vms).collect();
        let ports: Vec<Port> = numbers.iter().map(|n| Port::listen(&format!("vm{n}"), self.dir.path())).collect();
        let extras = Extras {
            large: device.is_large(),
            uplink: Some(Uplink { netns: &self.site, device }),
            ..Extras::default()
        };
        let cards = |card: fn(&Path, u8) -> Nic| ports.iter().zip(&numbers).map(|(p, n)| card(&p.socket, *n)).collect();
        match contender {
            Contender::Lasthop | Contender::Tap | Contender::NoGro | Contender::Changed(_) => {
                let change = if let Contender::Changed(change) = contender { Some(change) } else { None };
                self.switch = Some(Box::new(Ours::start(&ports, &cpus.both(), extras, change)?));
                if device == Device::Tap {
                    self.bridge(&["lh0".into()]);
                }
                Ok(cards(Nic::vhost_user))
            }
            Contender::Ovs(rules) => {
                let sockets: Vec<&Path> = ports.iter().map(|p| &*p.socket).collect();
                self.switch = Some(Box::new(Ovs::start(cpus.guests, &[cpus.switch], &sockets, rules, extras)?));
                Ok(cards(Nic::vhost_user_server))
            }
            Contender::LinuxBridge => {
                let taps: Vec<String> = numbers.iter().map(|n| format!("t{n}")).collect();
                taps.iter().for_each(|tap| self.site.ip(&format!("tuntap add {tap} mode tap vnet_hdr")));
                self.bridge(&taps);
                let netns = self.site.name();
                let card = |(ifname, n)| Nic::new(Backend::Tap { ifname, netns: netns.into() }, n);
                Ok(taps.into_iter().zip(numbers).map(card).collect())
            }
            _ => Err(failed("has no uplinks")),
        }
    }

    /// Puts the pair's end on a bridge with TAP devices.
    fn bridge(&self, taps: &[String]) {
        self.site.ip("link add br0 type bridge mcast_snooping 0");
        self.site.ip("link set br0 up");
        for end in ["net0"].into_iter().chain(taps.iter().map(String::as_str)) {
            self.site.ip(&format!("link set {end} master br0 up"));
        }
    }

    /// What VMs and the programs at the other end of their streams, all that the switch's CPUs do, and the uplink's process have taken so far, in
    /// milliseconds.
    fn times(&self, uplink: Option<u32>) -> [f64; 3] {
        let vms: u64 = self.vms.iter().map(|vm| processor_ns(vm.pid())).sum();
        let servers: u64 = self.servers.iter().take(self.vms.len()).map(|s| proc::cpu_ns(s.id())).sum();
        [busy_ms(), (vms + servers) as f64 / 1e6, uplink.map_or(0, proc::cpu_ns) as f64 / 1e6]
    }

    /// A stream to the outside and one from there, transactions, and what they cost.
    pub fn traffic(&mut self, seconds: u64) -> Outcome<Vec<Option<f64>>> {
        let [out, back] = self.options;
        let (sent, received) = (self.stream(seconds, out)?, self.stream(seconds, back)?);
        let vm = self.vms.first().ok_or_else(|| failed("no VM"))?;
        let text = ask(vm, &format!("lasthop-guest tcp-transactions {OUTSIDE}:7000 {seconds}"), seconds + 20)?;
        let rate = per_second(&text).ok_or_else(|| failed(format!("no count in {text:?}")))?;
        let uplink = sent.uplink.zip(received.uplink).map(|(a, b)| a.max(b));
        let figures = [sent.gbit_per_second, received.gbit_per_second, rate, sent.between, received.between];
        let rest = [Some(sent.all), Some(received.all), uplink];
        Ok(figures.into_iter().map(Some).chain(rest).collect())
    }

    /// One stream of each VM at the same time.
    fn stream(&mut self, seconds: u64, option: &str) -> Outcome<Stream> {
        // What the last one left in queues is gone by then.
        pause(Duration::from_millis(200))?;
        let uplink = self.switch.as_ref().and_then(|s| s.uplink());
        let (before, start) = (self.times(uplink), Instant::now());
        let command = |port: u16| format!("iperf3 -J -c {OUTSIDE} -p {port} -t {seconds} {option}");
        let running: Vec<_> = self.vms.iter().zip(STREAMS..).map(|(vm, port)| vm.spawn(&command(port))).collect();
        let mut said = Vec::new();
        for pending in &running {
            said.push(until("iperf3 in a VM", Duration::from_secs(seconds + 20), || Ok(pending.poll()))?);
        }
        let (after, elapsed) = (self.times(uplink), start.elapsed().as_secs_f64() * 1e3);
        let [busy, ends, uplink_ms] = [0, 1, 2].map(|i| (after[i] - before[i]).max(0.0));
        let (mut gbit, mut gbit_per_second) = (0.0, 0.0);
        for out in said {
            let json: Value = serde_json::from_str(&out.stdout).map_err(|e| failed(format!("iperf3: {e}: {out:?}")))?;
            let of = |what: &str| {
                let value = json["end"]["sum_received"][what].as_f64().filter(|v| *v > 0.0);
                value.ok_or_else(|| failed(format!("iperf3: {}", json["error"])))
            };
            gbit += of("bytes")? * 8.0 / 1e9;
            gbit_per_second += of("bits_per_second")? / 1e9;
        }
        Ok(Stream {
            gbit_per_second,
            all: busy / gbit,
            between: (busy - ends).max(0.0) / gbit,
            uplink: uplink.map(|_| 100.0 * uplink_ms / elapsed),
        })
    }
}

impl Drop for Outside {
    fn drop(&mut self) {
        self.vms.clear();
        for server in &mut self.servers {
            let _ = server.kill();
            let _ = server.wait();
        }
    }
}

/// Joins two namespaces by a veth pair, `net0` and `net1`, both down. Unless the switch may hand anything to its end, it is like a wire from the
/// other side: no packet longer than a frame comes from there, and checksums are finished.
pub fn join(site: &Netns, far: &Netns, device: Device) {
    let queues = device.queues();
    let queues = format!("numtxqueues {queues} numrxqueues {queues}");
    site.ip(&format!("link add net0 {queues} type veth peer name net1 {queues} netns {}", far.name()));
    if !device.offloads().is_empty() {
        far.shell("ethtool -K net1 tx off tso off gso off gro on");
        site.shell(&format!("ethtool -K net0 {}", device.offloads()));
    }
}

/// Processor time of QEMU without its main thread: what the guest itself takes. The main thread serves the devices.
fn processor_ns(qemu: u32) -> u64 {
    proc::cpu_ns(qemu).saturating_sub(proc::thread_ns(qemu, qemu))
}

/// Time that all processors have worked, in milliseconds (proc(5), /proc/stat: user, nice, system, irq, softirq; its ticks
/// are 10 ms).
fn busy_ms() -> f64 {
    let text = std::fs::read_to_string("/proc/stat").unwrap_or_default();
    let line = text.lines().next().unwrap_or_default();
    let columns: Vec<f64> = line.split_ascii_whitespace().skip(1).filter_map(|w| w.parse().ok()).collect();
    10.0 * [0, 1, 2, 5, 6].iter().filter_map(|i| columns.get(*i)).sum::<f64>()
}

#[cfg(test)]
mod tests {
    use super::{Device, Place};

    #[test]
    fn a_stream_is_sent_from_a_file_where_the_paper_does_so() {
        let as_written = Place::new(Device::Packet);
        assert_eq!(as_written.options(), ["", "-R"]);
        assert_eq!(Place { sendfile: true, ..as_written }.options(), ["-Z", "-R"]);
    }

    #[test]
    fn processors_have_worked() {
        assert!(super::busy_ms() > 0.0);
    }
}
