//! Arguments of `lasthop run`.

mod device;

use super::engines::Engines;
use super::near::Near;
use super::open_vswitch::{Decides, is_interface};
use super::owner::FileOwner;
use super::settings_text::take_settings;
use super::store::SavedUplink;
use crate::size::Size;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use device::parse_device;
pub use device::{DeviceArg, WIRE};
use lasthop_api::Bus;
use lasthop_ipc::SwitchSettings;
use lasthop_log::Format;
use lasthop_management_ipc::Settings;
use lasthop_policy::{
    Batch, CONNECTIONS, CONNECTIONS_RANGE, OF_UPLINKS, OF_UPLINKS_WORDS, SETTINGS, check_name, check_new_name,
};
use lasthop_sys::{CpuList, ParseCpusError};
use lasthop_uplink_ipc::UplinkDriver;
use std::path::PathBuf;
use std::time::Duration;

/// Most queue pairs of an uplink.
const MAX_QUEUES: u16 = 16;

/// Flows that the switch holds; beyond, the least recently used goes.
const MAX_FLOWS: usize = 200_000;

/// Run the switch in the foreground until SIGTERM: a learning switch over the ports named here and those added later.
#[derive(Clone, Debug, clap::Args)]
pub struct RunArgs {
    /// File of ports, uplinks, mirrors, access lists and sets of addresses, in TOML, as `lasthop apply` reads it
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// What decides what becomes of packets
    #[arg(long, value_enum, default_value_t)]
    pub control: Decides,
    /// How many connections there is room for, 4096 to 1048576, those of all ports together: what stateful lists know, or Open
    /// vSwitch has tracked. About 300 bytes each once it is used, 600 under Open vSwitch. What has no flow in the switch, beyond
    /// some 98000, goes through control packet by packet
    #[arg(long, value_name = "N", default_value = "262144", value_parser = parse_connections, allow_negative_numbers = true)]
    pub connections: usize,
    /// CPUs the switch may use, like 0,2-3 [default: every CPU this process may use]
    #[arg(long, value_name = "LIST")]
    pub cpus: Option<String>,
    /// Directory of the API socket and the lock
    #[arg(long, value_name = "DIR", default_value = "/run/lasthop")]
    pub run_dir: PathBuf,
    /// A group of this host whose members may read everything and change nothing: `port list`, `uplink list`, `flow list`, `mac list`,
    /// `conntrack list`, `conntrack stats`, `acl show`, `stats`, `metrics`, `doctor`, `show`, `trace` and `attach`
    #[arg(long, value_name = "GROUP")]
    pub read_group: Option<String>,
    /// Directory where ports and uplinks added at run time, and access lists, are remembered
    #[arg(long, value_name = "DIR", default_value = "/var/lib/lasthop")]
    pub state_dir: PathBuf,
    /// A port and its vhost-user socket; lasthop listens there, or with ",client" connects to it. owner: the user, and perhaps the group,
    /// that alone may use it, besides root.
    /// SETTING: as of `lasthop port set`, like vlan=10, trunk=10:20-30, isolated or mac=MAC,mac=MAC,addr=IP.
    /// Or an interface of this host that is a guest, a container's veth for example:
    /// NAME=device:DEVICE[,driver=DRIVER][,queues=N][,nice=N][,spare][,SETTING=VALUE].
    /// With ",device=NAME" it is a port of that --device. May be repeated
    #[arg(long = "port", value_name = "NAME=PATH[,client][,owner=USER[:GROUP]][,device=NAME][,SETTING=VALUE]", value_parser = parse_port)]
    pub ports: Vec<PortArg>,
    /// A device: a switch of its own as a card would be one, a process with a small table of rules, engines and ports, which its own control
    /// fills. rules: places of the table, 16 to 65536 [default: 1024]. engines: CPUs that its engines have for themselves, like
    /// engines=2-3 or engines=2:4 [default: helpers, as without a device]. walk=on: where no rule matches, it looks
    /// for a flow in the table of all flows, in memory of the host, before it asks control. dma=on: a DMA engine, which here is a thread of its
    /// own, copies pieces of memory longer than dma-threshold bytes [default: 128] from port to port. bus=pcie3x8 (pcie1 to pcie5, x1 to x16): `lasthop device stats` says what
    /// its bytes come to on such a bus. wire=INTERFACE[:OPTION]: an uplink of its own, of the name "wire"; options are those of --uplink,
    /// with ':' between them, like wire=eth1:af_xdp:queues=2. cable=off: its ports and those of this lasthop do not reach each
    /// other; without, there is a cable between the port NAME here and the port "host" there. See `lasthop device list`. May be repeated
    #[arg(long = "device", value_name = "NAME[,rules=N][,engines=LIST][,walk=on][,dma=on][,dma-threshold=BYTES][,bus=BUS][,wire=INTERFACE][,cable=off]", value_parser = parse_device)]
    pub devices: Vec<DeviceArg>,
    /// An uplink: a port that is a network interface of this host. Drivers: tap, af_packet, af_xdp, tc (a representor); with driver=tap a TAP device
    /// that does not exist is made. Without: tap if it is a TAP device, else af_packet.
    /// gro=off: af_xdp does not make one packet of TCP segments or UDP datagrams. spare: a second process stands by to take over.
    /// Of several on one network segment the first carries; another takes over, and announces the VMs' addresses, when it is away.
    /// vlans: the VLANs that it carries, like vlans=untagged:10:20-30; all without.
    /// SETTING: as of `lasthop port set` of an uplink: rate-to=950M, engine=poll-3, or static-mac=MAC once for each address. May be repeated
    #[arg(long = "uplink", value_name = "NAME=DEVICE[,driver=DRIVER][,queues=N][,nice=N][,gro=off][,spare][,vlans=LIST][,SETTING=VALUE]", value_parser = parse_uplink_arg)]
    pub uplinks: Vec<UplinkArg>,
    /// Give established flows between ports with driver=tc to the kernel's classifier flower, and by it to the network card that knows it, as Open vSwitch does with
    /// hw-offload: their packets pass lasthop by, and are counted
    #[arg(long)]
    pub hw_offload: bool,
    /// Who carries such flows: none: the card if it can, else the kernel; skip_sw: the card alone; skip_hw: the kernel alone
    #[arg(long, value_name = "POLICY", default_value = "none", requires = "hw_offload", value_parser = ["none", "skip_sw", "skip_hw"])]
    pub tc_policy: String,
    /// How lines of the log are written: text, json (an object a line), or journald (a priority in front and no time, as journald reads standard
    /// error) [default: text]
    #[arg(long, value_name = "FORMAT", value_parser = log_formats())]
    pub log_format: Option<Format>,
    /// Milliseconds within which an uplink that hangs is found out and replaced
    #[arg(long, value_name = "MS", default_value = "2000", value_parser = parse_uplink_limit, allow_negative_numbers = true)]
    pub uplink_limit_ms: u64,
    /// About how many milliseconds a thread of the switch or of control may hang before its process is replaced; "off": for ever, for
    /// a debugger
    #[arg(long, value_name = "MS|off", default_value = "1000", value_parser = parse_watchdog, allow_negative_numbers = true)]
    pub watchdog: Watchdog,
    /// Send no probes on uplinks. Without, two uplinks on one network segment are not found, and broadcasts go out and come in twice
    #[arg(long)]
    pub no_uplink_probe: bool,
    #[command(flatten)]
    pub scheduling: Scheduling,
    /// Put the thread of each port into the control group of its VM, which then pays for what it causes
    #[arg(long, help_heading = "Scheduling")]
    pub vm_cgroup: bool,
    /// Most memory that one port's front-end may have mapped, in bytes or like 64G [default: the host's, swap included]
    #[arg(long, value_name = "BYTES", allow_negative_numbers = true)]
    pub max_guest_memory: Option<Size>,
    /// Do not load the eBPF program that watches which VMs run and which cores are idle
    #[arg(long, help_heading = "Scheduling")]
    pub no_bpf: bool,
    /// Directory of lasthop-switch, lasthop-control, lasthop-session and lasthop-uplink
    #[arg(long, value_name = "DIR", hide = true)]
    pub libexec: Option<PathBuf>,
    /// This process has been a lasthop before, whose state this descriptor has
    #[arg(long, value_name = "FD", hide = true)]
    pub take_over: Option<i32>,
    /// The program that should have taken over has not, for this reason
    #[arg(long, value_name = "WHY", hide = true)]
    pub take_over_refused: Option<String>,
    /// Where it is said which CPUs are near to which, in place of /sys/devices/system
    #[arg(long, value_name = "DIR", hide = true)]
    pub system: Option<PathBuf>,
    /// Say whether this program could take over from the one whose state is the standard input
    #[arg(long, hide = true)]
    pub take_over_check: bool,
    /// This is a device of another lasthop, with room for so many rules
    #[arg(long, value_name = "N", hide = true)]
    pub device_rules: Option<usize>,
    /// This is a device that walks the table of all flows before it asks control
    #[arg(long, hide = true, requires = "device_rules")]
    pub device_walk: bool,
    /// This is a device whose DMA engine copies what is longer than so many bytes
    #[arg(long, value_name = "BYTES", hide = true, requires = "device_rules")]
    pub device_dma: Option<usize>,
    /// This is a device that has run before: an interface that is missing now is waited for
    #[arg(long, hide = true, requires = "device_rules")]
    pub device_again: bool,
    /// This is a device of whose first start by the other lasthop this is the number: what it was told since holds when it is started again
    #[arg(long, value_name = "N", hide = true, requires = "device_rules")]
    pub device_start: Option<u32>,
    /// This is a device that would be behind such a bus
    #[arg(long, value_name = "BUS", hide = true, requires = "device_rules")]
    pub device_bus: Option<Bus>,
}

impl RunArgs {
    /// The program that is its data plane.
    pub fn data_plane(&self) -> &'static str {
        if self.device_rules.is_some() { "lasthop-device" } else { "lasthop-switch" }
    }

    /// The same for lasthop-switch, with these engines. `allowed` are CPUs that this process may use.
    pub fn for_switch(&self, engines: &Engines, allowed: &CpuList) -> SwitchSettings {
        let Scheduling { hysteresis, helper_class, congestion, tx_timer, .. } = &self.scheduling;
        let mut settings = SwitchSettings {
            helpers: Vec::new(),
            poll: Vec::new(),
            hysteresis_us: (hysteresis.0, hysteresis.1),
            not_idle: helper_class == "normal",
            cgroup_accounting: self.vm_cgroup,
            drawn_timer: tx_timer == "hyper-switch",
            idle_us: self.scheduling.thread_idle.saturating_mul(1000),
            patience_ms: (congestion.0, congestion.1),
            max_guest_memory: self.max_guest_memory.and_then(Size::bytes).unwrap_or_else(host_memory),
            max_flows: self.device_rules.unwrap_or(MAX_FLOWS),
        };
        engines.tell(&mut settings, allowed);
        settings
    }

    /// Where the kernel says which CPUs are near to which.
    pub fn system(&self) -> PathBuf {
        self.system.clone().unwrap_or_else(|| lasthop_hostview::topology::SYSTEM.into())
    }

    /// What else a device is told, as what is said of guests holds for those of devices too; one whose engines poll has no helpers: it keeps to its cores.
    pub fn for_device(&self, polls: bool) -> Vec<(&'static str, String)> {
        let Scheduling { helpers, near, congestion, tx_batch, rx_batch, tx_timer, .. } = &self.scheduling;
        let congestion = if congestion.0 == 0 { "off".into() } else { format!("{},{}", congestion.0, congestion.1) };
        let mut all = vec![("--congestion", congestion)];
        all.extend([("--tx-batch", tx_batch.to_string()), ("--rx-batch", rx_batch.to_string())]);
        all.push(("--tx-timer", tx_timer.clone()));
        all.extend(self.max_guest_memory.map(|most| ("--max-guest-memory", most.to_string())));
        let list = |Cpus(list): &Cpus| list.as_ref().map_or_else(|| "none".into(), ToString::to_string);
        all.extend(near.map(|near| ("--near", near.to_string())));
        all.extend(self.system.as_ref().map(|system| ("--system", system.display().to_string())));
        let helpers = if polls { Some("none".into()) } else { helpers.as_ref().map(list) };
        all.extend(helpers.map(|helpers| ("--helpers", helpers)));
        all
    }
}

/// Bytes of memory that this host has, huge pages and swap included: no guest can have more of it.
fn host_memory() -> u64 {
    let info = rustix::system::sysinfo();
    (info.totalram as u64).saturating_add(info.totalswap as u64).saturating_mul(u64::from(info.mem_unit))
}

/// How packets are moved. Each mechanism that has an option can be switched off alone.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Scheduling")]
pub struct Scheduling {
    /// CPUs on which a helper takes over the polling of busy rings, on cycles nobody else wants; "none" for no helpers
    /// [default: those of --cpus, but for those of --poll]
    #[arg(long, value_name = "LIST", value_parser = parse_cpus)]
    pub helpers: Option<Cpus>,
    /// CPUs to give to lasthop for good: each is polled on at 100 %, and has no helper. They have all ports that are not set to a thread of their own
    /// (`lasthop engine move PORT ports`)
    #[arg(long, value_name = "LIST", value_parser = parse_cpus)]
    pub poll: Option<Cpus>,
    /// How near to its VM the thread of a port is kept, where the host has several NUMA nodes or caches. It follows a VM that moves [default: node]
    #[arg(long, value_name = "WHAT", value_enum)]
    pub near: Option<Near>,
    /// Microseconds a helper looks for more packets before it sleeps, and the most it does so while packets come often
    #[arg(long, value_name = "US[,US]", default_value = "5,50", value_parser = parse_hysteresis, allow_negative_numbers = true)]
    pub hysteresis: Pair,
    /// Milliseconds after which the thread of a port that has nothing to do ends, until it has; 0: it stays
    #[arg(long, value_name = "MS", default_value_t = 10_000, value_parser = parse_thread_idle)]
    pub thread_idle: u32,
    /// The scheduling class of helpers. "normal": they compete with whatever else wants their core, instead of giving it up at once
    #[arg(long, value_name = "CLASS", default_value = "idle", value_parser = ["idle", "normal"])]
    pub helper_class: String,
    /// Milliseconds for which packets wait for a VM without receive buffers, and for which they do while packets for others wait
    /// behind them, before the VM counts as congested; "off": they are dropped at once
    #[arg(long, value_name = "MS[,MS]|off", default_value = "10,2", value_parser = parse_congestion, allow_negative_numbers = true)]
    pub congestion: Pair,
    /// Microseconds and packets for which a guest that sends a stream does not kick; "off": it kicks for each
    #[arg(long, value_name = "US[,PACKETS]", default_value = "125,64", allow_negative_numbers = true)]
    pub tx_batch: Batch,
    /// When the timer of a sender's batch is started. "hyper-switch": as figure 4.3 of the thesis draws it, with the first packet after silence too, and
    /// however often a packet has been alone. "lasthop": not for these
    #[arg(long, value_name = "RULE", default_value = "lasthop", value_parser = ["lasthop", "hyper-switch"])]
    pub tx_timer: String,
    /// Microseconds and packets for which a guest that runs is not interrupted again; "off": it is whenever it wants
    #[arg(long, value_name = "US[,PACKETS]", default_value = "125,64", allow_negative_numbers = true)]
    pub rx_batch: Batch,
}

/// Two numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pair(u32, u32);

/// A time, or none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Watchdog(pub Option<Duration>);

impl std::fmt::Display for Watchdog {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.map_or_else(|| "off".into(), |limit| limit.as_millis().to_string()).fmt(f)
    }
}

fn parse_watchdog(text: &str) -> Result<Watchdog, String> {
    match text.parse::<u64>() {
        Ok(ms @ 100..=3_600_000) => Ok(Watchdog(Some(Duration::from_millis(ms)))),
        _ if text == "off" => Ok(Watchdog(None)),
        _ => Err(format!("{text:?} is not a number from 100 to 3600000; write 1000, or off")),
    }
}

fn parse_uplink_limit(text: &str) -> Result<u64, String> {
    let limit = text.parse().ok().filter(|ms| (20..=3_600_000).contains(ms));
    limit.ok_or_else(|| format!("{text:?} is not a number from 20 to 3600000; write 2000"))
}

/// Reads one; shells complete their names.
fn log_formats() -> impl TypedValueParser<Value = Format> {
    let names = PossibleValuesParser::new(Format::ALL.map(Format::name));
    names.try_map(|name| Format::from_name(&name).ok_or("no such format"))
}

fn parse_connections(text: &str) -> Result<usize, String> {
    let (least, most) = CONNECTIONS_RANGE.into_inner();
    let number = text.parse().ok().filter(|n| CONNECTIONS_RANGE.contains(n));
    number.ok_or_else(|| {
        format!(
            "{text:?} is not a number from {least} to {most}; choose one of these, or leave it out for {CONNECTIONS}"
        )
    })
}

/// A list of CPUs, or none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cpus(pub Option<CpuList>);

fn parse_cpus(text: &str) -> Result<Cpus, String> {
    if text == "none" {
        Ok(Cpus(None))
    } else {
        text.parse().map(|l| Cpus(Some(l))).map_err(|e: ParseCpusError| e.to_string())
    }
}

/// Two numbers, or one, which stands for both: then the period is fixed.
fn parse_hysteresis(text: &str) -> Result<Pair, String> {
    let number = |digits: &str| match digits.parse::<u32>() {
        Ok(n) if n <= 1_000_000 => Ok(n),
        _ => Err(format!("{digits:?} is not a number from 0 to 1000000; write 5 or 5,50")),
    };
    let (base, limit) = text.split_once(',').unwrap_or((text, text));
    match (number(base)?, number(limit)?) {
        (base, limit) if limit < base => Err(format!("{limit} is less than {base}; write the most it may be second")),
        (base, limit) => Ok(Pair(base, limit)),
    }
}

/// A thread that is started for each packet costs more than one that sleeps.
fn parse_thread_idle(text: &str) -> Result<u32, String> {
    match text.parse() {
        Ok(0) => Ok(0),
        Ok(ms @ 100..=4_294_967) => Ok(ms),
        _ => Err("write milliseconds, from 100 to 4294967, or 0: threads stay".into()),
    }
}

/// Two numbers, or one, which stands for both, or `off`: none.
fn parse_congestion(text: &str) -> Result<Pair, String> {
    let number = |digits: &str| match digits.parse::<u32>() {
        Ok(n @ 1..=1000) => Ok(n),
        _ => Err(format!("{digits:?} is not a number from 1 to 1000; write 10 or 10,2, or off")),
    };
    if text == "off" {
        return Ok(Pair(0, 0));
    }
    let (alone, with_others) = text.split_once(',').unwrap_or((text, text));
    match (number(alone)?, number(with_others)?) {
        (alone, with_others) if alone < with_others => Err(format!(
            "{with_others} is more than {alone}; write the longer time first: packets wait less while others wait behind them"
        )),
        (alone, with_others) => Ok(Pair(alone, with_others)),
    }
}

/// One `--port`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortArg {
    /// Name; checked.
    pub name: String,
    /// Path as given.
    pub path: PathBuf,
    /// Whether lasthop connects.
    pub client: bool,
    /// The interface of this host that it is, instead of a socket.
    pub device: Option<SavedUplink>,
    /// Who may use it, if not whoever may open the socket.
    pub owner: Option<FileOwner>,
    /// What it is told to do; checked.
    pub settings: Settings,
    /// The device whose port it is, and the same argument without that.
    pub of_device: Option<(String, String)>,
}

/// One `--uplink`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UplinkArg {
    /// What it is; checked.
    pub spec: SavedUplink,
    /// What it is told; checked.
    pub settings: Settings,
}

/// The right spelling, if a path looks like an interface whose `device:` was forgotten or misspelt. A socket of that name can
/// still be had as `./PATH`. Otherwise lasthop would listen in the directory at hand, and say that all is well.
pub fn meant_device(path: &str) -> Option<&str> {
    let word = ["device:", "device=", "dev:", "dev="].into_iter().find_map(|word| path.strip_prefix(word));
    word.or_else(|| (!path.contains(['/', ':']) && is_interface(path)).then_some(path))
}

pub(super) fn parse_port(text: &str) -> Result<PortArg, String> {
    let (of_device, others): (Vec<_>, Vec<_>) = text.split(',').partition(|word| word.starts_with("device="));
    // A socket may have that name.
    if !others.first().is_some_and(|first| first.contains('=')) || of_device.is_empty() {
        return parse_own_port(text);
    }
    let [device] = of_device[..] else { return Err("a port is of one device; name it once".into()) };
    let (device, text) = (device.trim_start_matches("device="), others.join(","));
    check_name(device).map_err(|e| format!("device={device}: {e}"))?;
    let port = parse_own_port(&text)?;
    if port.device.is_some() {
        return Err("an interface of the host cannot be a port of a device; leave out device=".into());
    }
    Ok(PortArg { of_device: Some((device.into(), text)), ..port })
}

fn parse_own_port(text: &str) -> Result<PortArg, String> {
    let (name, rest) = text.split_once('=').ok_or("no '='; write NAME=PATH or NAME=PATH,client")?;
    check_new_name(name)?;
    let (rest, settings) = take_settings(rest, SETTINGS)?;
    if let Some(device) = rest.strip_prefix("device:") {
        let device = parse_uplink(&format!("{name}={device}"))?;
        if device.vlans.is_some() {
            return Err("vlans is for uplinks; a guest's port has vlan, trunk and native".into());
        }
        let device = Some(SavedUplink { guest: true, ..device });
        return Ok(PortArg {
            name: name.into(),
            path: PathBuf::new(),
            client: false,
            owner: None,
            device,
            settings,
            of_device: None,
        });
    }
    let mut words = rest.split(',');
    let path = words.next().unwrap_or_default();
    if let Some(device) = meant_device(path) {
        return Err(format!(
            "{path:?} looks like an interface; write {name}=device:{device}, or {name}=./{path} for a socket of that name"
        ));
    }
    let (name, path) = (name.into(), PathBuf::from(path));
    let mut port = PortArg { name, path, client: false, owner: None, device: None, settings, of_device: None };
    for word in words {
        match word.split_once('=') {
            None if word == "client" => port.client = true,
            Some(("owner", _)) if port.owner.is_some() => return Err(format!("{word}: there is an owner already")),
            Some(("owner", owner)) => port.owner = Some(owner.parse().map_err(|e| format!("{word}: {e}"))?),
            _ => {
                let hint = of_a_list(word);
                return Err(format!(
                    "unknown option {word:?}; {hint}there are \"client\", \"owner=USER[:GROUP]\", \"device=NAME\" and the settings of \
                     `lasthop port set` ({}), and a path has no comma",
                    SETTINGS.join(", ")
                ));
            }
        }
    }
    if port.path.as_os_str().is_empty() {
        return Err("no path after '='; write NAME=PATH".into());
    }
    Ok(port)
}

/// A comma ends a value on the command line: what is said of a word that looks like the rest of one.
fn of_a_list(word: &str) -> &'static str {
    let is_rest = word.starts_with(|first: char| first.is_ascii_digit()) || lasthop_text::parse_mac(word).is_ok();
    if is_rest {
        "between VLANs, or microseconds and packets, write `:`, and name a list of addresses once for each (mac=…,mac=…); "
    } else {
        ""
    }
}

/// The name of a port or an uplink to be made.
pub fn new_name(text: &str) -> Result<String, String> {
    check_name(text).and_then(|()| check_new_name(text)).map(|()| text.to_owned())
}

/// A driver of an uplink.
pub fn driver(text: &str) -> Result<String, String> {
    let known: Vec<_> = UplinkDriver::ALL.iter().filter(|d| !d.is_tunnel()).map(|d| d.name()).collect();
    let unknown =
        || format!("there is no driver {text:?}; {}choose one of {}, file:SIZE", of_a_list(text), known.join(", "));
    let driver = UplinkDriver::from_name(text).ok_or_else(unknown)?;
    super::open_vswitch::check_driver(driver).map(|()| text.to_owned())
}

/// Queue pairs of an uplink.
pub fn queues(text: &str) -> Result<u16, String> {
    let queues = text.parse().ok().filter(|n| (1..=MAX_QUEUES).contains(n));
    queues.ok_or_else(|| format!("no number of queues; use 1 to {MAX_QUEUES}"))
}

/// The priority of an uplink's processes.
pub fn nice(text: &str) -> Result<i32, String> {
    let nice = text.parse().ok().filter(|n| (-20..=19).contains(n));
    nice.ok_or_else(|| "no priority; use -20 (first) to 19 (last)".into())
}

/// A list of VLANs; checked, as it was written.
pub fn vlan_list(text: &str) -> Result<String, String> {
    text.parse::<lasthop_policy::Vlans>().map(|_| text.to_owned()).map_err(|e| e.to_string())
}

/// Checks an uplink's name, interface, driver and number of queues. The error says what is wrong and what would be right.
pub fn check_uplink(uplink: &SavedUplink) -> Result<(), String> {
    check_name(&uplink.name)?;
    let device = &uplink.device;
    if uplink.driver.as_deref().and_then(UplinkDriver::from_name) == Some(UplinkDriver::File) {
        return super::capture_file::check(uplink);
    }
    if device.is_empty()
        || device.len() > 15
        || device.contains(|c: char| c == '/' || c.is_whitespace() || c.is_control())
    {
        return Err(format!(
            "{device:?} cannot be an interface; its name has 1 to 15 characters, no '/' and no space{}",
            if device.starts_with('/') { "; of a capture file say driver file" } else { "" }
        ));
    }
    if let Some(driver) = &uplink.driver
        && UplinkDriver::from_name(driver).is_none()
    {
        let known = UplinkDriver::ALL.map(UplinkDriver::name).join(", ");
        let hint = of_a_list(driver);
        return Err(format!("there is no driver {driver:?}; {hint}choose one of {known}, file:SIZE"));
    }
    if !(1..=MAX_QUEUES).contains(&uplink.queues) {
        return Err(format!("queues={}; use 1 to {MAX_QUEUES}", uplink.queues));
    }
    if !(-20..=19).contains(&uplink.nice) {
        return Err(format!("nice {}; use -20 (first) to 19 (last)", uplink.nice));
    }
    if uplink.no_gro && uplink.driver.as_deref() != Some(UplinkDriver::AfXdp.name()) {
        return Err(
            "gro=off is for af_xdp; for other drivers the kernel aggregates: `ethtool -K DEVICE gro off`".into()
        );
    }
    if uplink.spare && uplink.queues > 1 && uplink.driver.as_deref() == Some(UplinkDriver::AfXdp.name()) {
        return Err(format!(
            "af_xdp with {} queues cannot have a spare: its device is not handed down; leave out spare, or use one queue",
            uplink.queues
        ));
    }
    Ok(())
}

fn parse_uplink_arg(text: &str) -> Result<UplinkArg, String> {
    let (text, settings) = take_settings(text, OF_UPLINKS)?;
    Ok(UplinkArg { spec: parse_uplink(&text)?, settings })
}

fn parse_uplink(text: &str) -> Result<SavedUplink, String> {
    let (name, rest) = text.split_once('=').ok_or("no '='; write NAME=DEVICE or NAME=DEVICE,DRIVER")?;
    let mut words = rest.split(',');
    let device = words.next().unwrap_or_default().into();
    let mut uplink = SavedUplink {
        name: name.into(),
        device,
        driver: None,
        queues: 1,
        nice: 0,
        no_gro: false,
        spare: false,
        vlans: None,
        guest: false,
        for_ovs: false,
    };
    for word in words {
        match word.split_once('=') {
            None if word == "spare" => uplink.spare = true,
            None if uplink.vlans.is_some()
                && (word == "untagged" || word.starts_with(|c: char| c.is_ascii_digit())) =>
            {
                return Err(format!("{word}: write ':' between VLANs, as in vlans=10:{word}"));
            }
            None if uplink.driver.is_some() => return Err(format!("{word}: there is a driver already")),
            None => uplink.driver = Some(driver(word)?),
            Some(("driver", _)) if uplink.driver.is_some() => return Err(format!("{word}: there is a driver already")),
            Some(("driver", name)) => uplink.driver = Some(driver(name)?),
            Some(("queues", n)) => uplink.queues = n.parse().map_err(|_| format!("{word}: not a number"))?,
            Some(("nice", n)) => uplink.nice = n.parse().map_err(|_| format!("{word}: not a number"))?,
            Some(("vlans", _)) if uplink.vlans.is_some() => {
                return Err(format!("{word}: there is a list of VLANs already"));
            }
            Some(("vlans", list)) => uplink.vlans = Some(list.parse().map_err(|e| format!("{word}: {e}"))?),
            Some(("gro", "on")) => uplink.no_gro = false,
            Some(("gro", "off")) => uplink.no_gro = true,
            Some(("gro", _)) => return Err(format!("{word}: write gro=on or gro=off")),
            Some(_) => {
                return Err(format!(
                    "unknown option {word:?}; there are driver=NAME, queues=N, nice=N, gro=off, spare, vlans=LIST, and of an uplink {OF_UPLINKS_WORDS}"
                ));
            }
        }
    }
    check_uplink(&uplink)?;
    check_new_name(&uplink.name)?;
    Ok(uplink)
}

#[cfg(test)]
mod tests;
