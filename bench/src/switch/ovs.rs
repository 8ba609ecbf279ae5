//! Open vSwitch with the DPDK datapath and one polling thread, as Debian packages it.
//!
//! Its daemons run in the foreground as our children and in a network namespace without a name, so its bridge device and
//! everything else is gone when they are.

use super::{Extras, Promise, Spent, Switch};
use crate::acl::{List, ONWARDS};
use crate::switch::uplink::Device;
use lasthop_harness::stop::{Outcome, check, failed, until};
use lasthop_harness::{proc, scratch, spawn};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// The daemon with DPDK linked in.
pub const VSWITCHD: &str = "/usr/lib/openvswitch-switch-dpdk/ovs-vswitchd-dpdk";

/// Memory in huge pages it takes, in MiB.
pub const MIB: u32 = 300;

const SCHEMA: &str = "/usr/share/openvswitch/vswitch.ovsschema";
/// The bridge that is measured.
pub(super) const BRIDGE: &str = "bench";

/// Devices of DPDK's that are an interface of the kernel's.
const PACKET_SOCKET: &str = "options:dpdk-devargs=net_af_packet0,iface=net0";
/// Bytes that may go at once by a rate: some frames.
const RATE_BURST: u64 = 1 << 15;

/// What it is told to do with packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rules {
    /// From one port to the other: its shortcut that looks at nothing but the port.
    PortToPort,
    /// The same behind two access rules that never match, which makes it look up a full key.
    Acl,
    /// A learning switch, behind an access list if there is one.
    Learning,
    /// A learning switch with a policer before each port that is to have one, which drops what is too much.
    Policed,
    /// A learning switch with a two-rate policer before its uplink, in which one port has a queue of its own.
    Promised,
    /// From one port to the other behind an access list.
    List,
}

/// A running Open vSwitch.
pub struct Ovs {
    vswitchd: Child,
    database: Child,
    dir: tempfile::TempDir,
    before: u64,
}

impl Ovs {
    /// A polling thread on each of the CPUs `polled` (of the first 64), everything else on CPU `main`. One that does not learn
    /// joins ports by pairs.
    pub fn start(main: usize, polled: &[usize], sockets: &[&Path], rules: Rules, extras: Extras<'_>) -> Outcome<Self> {
        let dir = scratch();
        let at = |file: &str| dir.path().join(file).display().to_string();
        run(Command::new("ovsdb-tool").args(["create", &at("conf.db"), SCHEMA]))?;
        let daemon = |program: &str, before: &[&str], arguments: &[&str]| {
            spawn::spawn("KILL", program, |c| {
                c.args(before).args(arguments);
                for variable in ["OVS_RUNDIR", "OVS_LOGDIR", "OVS_DBDIR", "OVS_SYSCONFDIR", "RUNTIME_DIRECTORY"] {
                    c.env(variable, dir.path());
                }
                c.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
            })
        };
        let remote = format!("unix:{}", at("db.sock"));
        let database = daemon(
            "ovsdb-server",
            &[],
            &[&at("conf.db"), &format!("--remote=p{remote}"), &format!("--unixctl={}", at("db.ctl")), "-vconsole:off"],
        );
        let log = format!("--log-file={}", at("log"));
        let netns = extras.uplink.map(|u| u.netns.name());
        let vswitchd = daemon(
            if netns.is_some() { "ip" } else { "unshare" },
            &netns.map_or(["--net", "--", VSWITCHD].to_vec(), |name| vec!["netns", "exec", name, VSWITCHD]),
            &[&remote, &format!("--unixctl={}", at("ctl")), &log, "-vconsole:off"],
        );
        let ovs = Self { vswitchd, database, dir, before: 0 };
        ovs.configure(main, polled, sockets, rules, extras).map_err(|e| match (e, check()) {
            (lasthop_harness::stop::Failure::Failed(why), Ok(())) => failed(format!("{why}\n{}", ovs.log())),
            _ => lasthop_harness::stop::Failure::Stopped,
        })?;
        Ok(ovs)
    }

    fn configure(
        &self,
        main: usize,
        polled: &[usize],
        sockets: &[&Path],
        rules: Rules,
        extras: Extras<'_>,
    ) -> Outcome<()> {
        self.appears("db.sock")?;
        let set = |key: &str, value: String| format!("other_config:{key}={value}");
        let config = [
            set("dpdk-init", "true".into()),
            set("dpdk-lcore-mask", format!("{:#x}", 1u64 << main)),
            set("pmd-cpu-mask", format!("{:#x}", polled.iter().fold(0, |mask, cpu| mask | 1u64 << cpu))),
            set("userspace-tso-enable", extras.large.to_string()),
            set("dpdk-extra", format!("--in-memory --no-pci --no-telemetry -m {MIB} --file-prefix={}", self.prefix())),
        ];
        let mut words = vec!["--no-wait", "init", "--", "set", "Open_vSwitch", "."];
        words.extend(config.iter().map(String::as_str));
        self.vsctl(&words)?;
        self.appears("ctl")?;
        self.vsctl(&["add-br", BRIDGE, "--", "set", "bridge", BRIDGE, "datapath_type=netdev"])?;
        for (i, socket) in sockets.iter().enumerate() {
            let (name, number) = (format!("v{i}"), format!("ofport_request={}", i + 1));
            let path = format!("options:vhost-server-path={}", socket.display());
            let kind = "type=dpdkvhostuserclient";
            let mut words = vec!["add-port", BRIDGE, &name, "--", "set", "Interface", &name, kind, &path, &number];
            if extras.large {
                words.push("mtu_request=9000");
            }
            self.vsctl(&words)?;
        }
        for bound in extras.police {
            let (port, rate) = (format!("v{}", bound.to), format!("other-config:cir={}", bound.bytes));
            let burst = format!("other-config:cbs={}", bound.burst());
            let policer = ["--id=@q", "create", "qos", "type=egress-policer", &rate, &burst];
            self.vsctl(&[&["set", "port", &port, "qos=@q", "--"][..], &policer].concat())?;
        }
        if let Some(uplink) = extras.uplink {
            let number = format!("ofport_request={}", sockets.len() + 1);
            let words = ["add-port", BRIDGE, "net0", "--", "set", "Interface", "net0", &number];
            match (uplink.device, extras.promise) {
                // It has no policers before an ordinary interface: this is a port of DPDK's, over a packet socket.
                (_, Some(_)) => self.vsctl(&[&words[..], &["type=dpdk", PACKET_SOCKET]].concat())?,
                (Device::Xdp, None) => {
                    self.vsctl(&[&words[..], &["type=afxdp", "options:xdp-mode=native"]].concat())?
                }
                _ => self.vsctl(&words)?,
            };
        }
        install(self.dir.path(), rules, extras.list, sockets.len() + usize::from(extras.uplink.is_some()))?;
        extras.promise.map_or(Ok(()), |promise| self.keep(promise))
    }

    /// Has one port's packets go by a queue of their own at the uplink, which keeps a promise.
    fn keep(&self, promise: Promise) -> Outcome<()> {
        let words = two_rates(promise);
        self.vsctl(&words.iter().map(String::as_str).collect::<Vec<_>>())?;
        let bridge = self.dir.path().join(format!("{BRIDGE}.mgmt")).display().to_string();
        let flow = format!("priority=1,in_port={},actions=set_queue:1,NORMAL", promise.port + 1);
        run(Command::new("ovs-ofctl").args(["add-flow", &bridge, &flow])).map(drop)
    }

    fn appears(&self, file: &str) -> Outcome<()> {
        let path = self.dir.path().join(file);
        until(&format!("Open vSwitch's {file}"), Duration::from_secs(20), || Ok(path.exists().then_some(())))
    }

    fn vsctl(&self, words: &[&str]) -> Outcome<String> {
        let database = format!("--db=unix:{}", self.dir.path().join("db.sock").display());
        run(Command::new("ovs-vsctl").args([&database, "--timeout=20"]).args(words))
    }

    fn appctl(&self, command: &str) -> Outcome<String> {
        run(Command::new("ovs-appctl").arg("-t").arg(self.dir.path().join("ctl")).args(["--timeout=20", command]))
    }

    /// Unique, as its directory is.
    fn prefix(&self) -> String {
        self.dir.path().file_name().unwrap_or_default().to_string_lossy().into_owned()
    }

    /// The warnings and errors it logged last.
    fn log(&self) -> String {
        let text = std::fs::read_to_string(self.dir.path().join("log")).unwrap_or_default();
        let lines: Vec<&str> =
            text.lines().filter(|l| ["|WARN|", "|ERR|", "|EMER|"].iter().any(|w| l.contains(w))).collect();
        lines[lines.len().saturating_sub(5)..].join("\n")
    }
}

impl Switch for Ovs {
    fn begin(&mut self) -> Outcome<()> {
        self.appctl("dpif-netdev/pmd-stats-clear")?;
        self.before = proc::cpu_ns(self.vswitchd.id());
        Ok(())
    }

    fn spent(&mut self, _packets: f64) -> Outcome<Spent> {
        let cpu_ns = proc::cpu_ns(self.vswitchd.id()).saturating_sub(self.before) as f64;
        let text = self.appctl("dpif-netdev/pmd-stats-show")?;
        // Its cycles go on while others have its CPU, whether it is idle or busy then; so the share is what to trust.
        let busy = busy_share(&text).ok_or_else(|| failed(format!("no cycle counts in {text:?}")))?;
        Ok(Spent { cpu_ns, busy_ns: busy * cpu_ns, idle_ns: 0.0 })
    }

    fn memory_kib(&self) -> u64 {
        proc::private_kib(self.vswitchd.id())
    }

    fn pids(&self) -> Vec<u32> {
        vec![self.vswitchd.id(), self.database.id()]
    }
}

impl Drop for Ovs {
    fn drop(&mut self) {
        for child in [&mut self.vswitchd, &mut self.database] {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// What `ovs-vsctl` is told of a promise: a policer (RFC 4115) of two levels. Queue 1 has its port's committed rate, whose packets
/// no other takes the place of; the excess rate above it is whose packet comes first, and of queue 0 nothing is committed.
fn two_rates(promise: Promise) -> Vec<String> {
    let (committed, excess) = (promise.least / 8, (promise.whole - promise.least) / 8);
    let rates = |cir: u64, eir: u64| {
        let of = |key: &str, value: u64| format!("other-config:{key}={value}");
        [of("cir", cir), of("cbs", RATE_BURST), of("eir", eir), of("ebs", RATE_BURST)]
    };
    let words = |text: &str| text.split(' ').map(str::to_owned).collect::<Vec<_>>();
    let mut all =
        words("set port net0 qos=@q -- --id=@q create qos type=trtcm-policer queues:0=@others queues:1=@promised");
    all.extend(rates(committed, excess));
    all.extend(words("-- --id=@others create queue"));
    all.extend(rates(0, excess));
    all.extend(words("-- --id=@promised create queue"));
    all.extend(rates(committed, excess));
    all
}

/// Gives the bridge, whose server has its files in `dir`, its flows: to and from so many ports.
pub(super) fn install(dir: &Path, rules: Rules, list: Option<&List>, ports: usize) -> Outcome<()> {
    let bridge = dir.join(format!("{BRIDGE}.mgmt")).display().to_string();
    // Behind a list, a learning one keeps its lowest rule, by which it learns.
    let learns = matches!(rules, Rules::Learning | Rules::Policed | Rules::Promised);
    if !learns {
        run(Command::new("ovs-ofctl").args(["del-flows", &bridge]))?;
    }
    if let Some(list) = list {
        let file = dir.join("list");
        std::fs::write(&file, list.flows()).map_err(failed)?;
        run(Command::new("ovs-ofctl").args(["add-flows", &bridge]).arg(file))?;
    }
    if learns {
        return Ok(());
    }
    let acl = ["priority=10,ip,nw_src=192.0.2.1,actions=drop", "priority=10,tcp,tp_dst=80,actions=drop"];
    let table = if list.is_some_and(List::has_tables) { ONWARDS } else { "" };
    let across = |(a, b)| format!("{table}priority=1,in_port={a},actions=output:{b}");
    let cross: Vec<String> = (1..ports).step_by(2).flat_map(|p| [(p, p + 1), (p + 1, p)]).map(across).collect();
    let cross = cross.iter().map(String::as_str);
    for flow in acl.into_iter().filter(|_| rules == Rules::Acl).chain(cross) {
        run(Command::new("ovs-ofctl").args(["add-flow", &bridge, flow]))?;
    }
    Ok(())
}

/// The part of the polling threads' cycles that went into packets, of `pmd-stats-show`.
fn busy_share(text: &str) -> Option<f64> {
    let sum = |label: &str| {
        let of = |line: &str| line.trim().strip_prefix(label)?.split_ascii_whitespace().next()?.parse::<f64>().ok();
        text.lines().filter_map(of).sum::<f64>()
    };
    let (idle, busy) = (sum("idle cycles:"), sum("processing cycles:") + sum("busy cycles:"));
    (idle + busy > 0.0).then(|| busy / (idle + busy))
}

/// Runs a short command; its complaint is the error.
pub(super) fn run(command: &mut Command) -> Outcome<String> {
    let name = command.get_program().to_string_lossy().into_owned();
    let out = command.stdin(Stdio::null()).output().map_err(|e| failed(format!("{name}: {e}")))?;
    check()?;
    if !out.status.success() {
        return Err(failed(format!("{name}: {}", String::from_utf8_lossy(&out.stderr).trim())));
    }
    Ok(String::from_utf8_lossy(&out.stdout).into_owned())
}

#[cfg(test)]
mod tests {
    #[test]
    fn idle_polls_are_told_apart() {
        let text = "pmd thread numa_id 0 core_id 1:\n  packets received: 20\n  idle cycles: 300 (75.00%)\n  \
                    processing cycles: 100 (25.00%)\n  avg processing cycles per packet: 5.00 (100/20)\nmain thread:\n  \
                    packets received: 0\n";
        assert_eq!(super::busy_share(text), Some(0.25));
        assert_eq!(super::busy_share("main thread:\n  packets received: 0\n"), None);
    }

    #[test]
    fn of_what_is_promised_nothing_is_committed_to_others() {
        let words = super::two_rates(super::Promise { port: 0, least: 140_000_000, whole: 200_000_000 }).join(" ");
        let parts: Vec<&str> = words.split(" -- ").collect();
        let of = |n: usize| {
            ["cir", "eir"].map(|key| {
                let (_, rest) = parts[n].split_once(&format!("other-config:{key}=")).unwrap();
                rest.split(' ').next().unwrap().parse::<u64>().unwrap()
            })
        };
        assert!(
            parts[0] == "set port net0 qos=@q" && parts[1].contains(" queues:0=@others queues:1=@promised "),
            "{words}"
        );
        assert_eq!(of(1), [17_500_000, 7_500_000], "all together");
        assert!(parts[2].starts_with("--id=@others ") && parts[3].starts_with("--id=@promised "), "{words}");
        assert_eq!([of(2), of(3)], [[0, 7_500_000], [17_500_000, 7_500_000]]);
    }
}
