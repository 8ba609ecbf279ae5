//! `lasthop device`: the devices of a running lasthop. Each answers for itself, at a socket of its own below that one's run directory.

pub mod ports;

use crate::SharedArgs;
use crate::client::{CliError, Instance, collect, running};
use crate::list::all_ports;
use crate::run::{DEVICES_DIR, FAR_SOCKET, HOST_SOCKET};
use crate::table::{Align, Table};
use lasthop_api::{
    BusBytes, BusModel, DeviceBus, DeviceDma, DeviceTable, DeviceWalk, Port, SwitchProxy, SwitchStats, Uplink,
    UplinkList,
};
use lasthop_text::counted;
use serde::Serialize;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// The program of a cable.
const CABLE: &str = "lasthop-cable";

#[derive(Debug, clap::Subcommand)]
pub enum DeviceCommand {
    /// Show all devices
    ///
    /// What a device has is shown by all other commands, too, if they are told its run directory, which this one prints with --json.
    #[command(after_help = "Examples:\n  lasthop device list\n  \
        lasthop port list --run-dir /run/lasthop/devices/nic0")]
    List(SharedArgs),
    /// Show what became of packets that met no rule in a device's table
    #[command(after_help = "Example:\n  lasthop device stats nic0")]
    Stats {
        /// Its name
        name: String,
        #[command(flatten)]
        shared: SharedArgs,
    },
}

/// `lasthop device list --json`
#[derive(Debug, Serialize)]
struct Devices {
    devices: Vec<Device>,
}

/// One of them, and `lasthop device stats --json`.
#[derive(Debug, Serialize)]
struct Device {
    name: String,
    run_dir: String,
    /// Why nothing else is known.
    away: Option<String>,
    #[serde(flatten)]
    figures: Option<Figures>,
}

#[derive(Debug, Serialize)]
struct Figures {
    /// Its data plane is connected to its control.
    connected: bool,
    ports: usize,
    /// Rules in the table.
    rules_used: usize,
    /// Flows that control has.
    flows: u64,
    /// Packets that met no rule.
    misses: u64,
    /// That of `wire=`, and those that were added.
    uplinks: Vec<DeviceUplink>,
    table: DeviceTable,
}

/// An uplink of a device's own.
#[derive(Debug, Serialize)]
struct DeviceUplink {
    name: String,
    interface: String,
    driver: Option<String>,
    state: String,
}

impl DeviceUplink {
    fn of(Uplink { name, device, driver, state, .. }: Uplink) -> Self {
        Self { name, interface: device, driver, state }
    }

    /// Its interface, and how it is unless it is up.
    fn text(&self) -> String {
        let state = Some(&self.state).filter(|state| *state != "up");
        state.map_or_else(|| self.interface.clone(), |state| format!("{} ({state})", self.interface))
    }
}

impl Figures {
    fn ask(run_dir: &Path) -> Result<Self, CliError> {
        let mut instance = Instance::connect(run_dir)?;
        let ports = all_ports(&mut instance)?.len();
        let rules_used = instance.ask(async |c| collect(c.flow_list().await, |page| page.flows).await)?.len();
        let SwitchStats { switch_connected, flows, misses, device, .. } = instance.ask(async |c| c.stats().await)?;
        let table = device.ok_or_else(|| CliError::new("it is no device"))?;
        let uplinks = uplinks(instance.ask(async |c| c.uplink_list().await)?).map(DeviceUplink::of).collect();
        Ok(Self { connected: switch_connected, ports, rules_used, flows, misses, uplinks, table })
    }
}

/// Those of a list that are no guests.
fn uplinks(list: UplinkList) -> impl Iterator<Item = Uplink> {
    list.uplinks.into_iter().filter(|uplink| !uplink.guest)
}

pub fn device(command: &DeviceCommand) -> Result<String, CliError> {
    match command {
        DeviceCommand::List(shared) => list(shared),
        DeviceCommand::Stats { name, shared } => stats(name, shared),
    }
}

/// Names of the devices there are, and of those that should be.
fn names(shared: &SharedArgs) -> Result<Vec<String>, CliError> {
    // Whether there is anybody to ask at all.
    shared.instance()?;
    Ok(found(&shared.run_dir).into_iter().map(|device| device.name).collect())
}

/// Whether a port is an end of a device's cable: of the host's lasthop, whose run directory this is, or of the device's.
pub fn is_cable(port: &Port, run_dir: &Path) -> bool {
    let run_dir = std::path::absolute(run_dir).unwrap_or_else(|_| run_dir.to_owned());
    let path = Path::new(&port.path);
    let is_hosts = |dir: &Path| dir.parent() == Some(&run_dir.join(DEVICES_DIR)) && path.ends_with(HOST_SOCKET);
    let is_devices = |dir: &Path| {
        let devices = run_dir.parent().and_then(Path::file_name);
        dir == run_dir && devices.is_some_and(|name| name == DEVICES_DIR) && path.ends_with(FAR_SOCKET)
    };
    path.parent().is_some_and(|dir| is_hosts(dir) || is_devices(dir))
}

/// A device as its directory shows it: its name, and whether it has a cable to the host.
#[derive(Clone, Debug)]
pub struct Found {
    pub name: String,
    pub has_cable: bool,
    /// Why its lasthop says nothing, if it was asked and did not.
    pub away: Option<String>,
    /// What it has counted, if it was asked and has answered.
    pub stats: Option<SwitchStats>,
    /// Its uplinks, if it was asked for them and has answered; or why it has not, if it was.
    pub uplinks: Result<Vec<Uplink>, String>,
    /// The process of its cable, if it was looked for and is there.
    pub cable: Option<CableProcess>,
}

impl Default for Found {
    fn default() -> Self {
        let (name, uplinks) = (String::new(), Ok(Vec::new()));
        Self { name, has_cable: false, away: None, stats: None, uplinks, cable: None }
    }
}

/// The process of a device's cable, as procfs shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CableProcess {
    pub pid: u32,
    /// By a signal.
    pub stopped: bool,
}

/// The process of a device's cable: it answers nobody, so procfs is asked. `None`: there is none now, or procfs does not show it.
pub fn cable_process(run_dir: &Path, device: &str) -> Option<CableProcess> {
    let file = |path: &Path| std::fs::metadata(path).ok().map(|of| (of.dev(), of.ino()));
    let socket = file(&run_dir.join(DEVICES_DIR).join(device).join(HOST_SOCKET))?;
    let run = running(run_dir)?.parse::<u32>().ok()?;
    let mut pids =
        std::fs::read_dir("/proc").ok()?.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.find_map(|pid: u32| {
        let line = std::fs::read(format!("/proc/{pid}/cmdline")).ok()?;
        let path = socket_of_cable(&line)?;
        let (parent, stopped) = parent_and_stopped(&std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?)?;
        // Anybody may call a process of his so; and the same socket may be called by another path.
        (parent == run && file(path)? == socket).then_some(CableProcess { pid, stopped })
    })
}

/// Of `/proc/PID/cmdline`, if that is of a cable: the socket on this host that it is plugged in to.
fn socket_of_cable(line: &[u8]) -> Option<&Path> {
    let mut words = line.split(|byte| *byte == 0).map(|word| Path::new(OsStr::from_bytes(word)));
    words.next()?.ends_with(CABLE).then(|| words.next())?
}

/// Of `/proc/PID/status`: its parent, and whether a signal has stopped it.
fn parent_and_stopped(status: &str) -> Option<(u32, bool)> {
    let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)?.split_whitespace().next());
    Some((field("PPid:")?.parse().ok()?, field("State:")? == "T"))
}

impl Found {
    fn ask(&mut self, run_dir: &Path, with_uplinks: bool, patience: Duration) {
        let until = Instant::now() + patience;
        let left = || until.saturating_duration_since(Instant::now());
        let instance = Instance::connect(&dir_of(run_dir, &self.name));
        let asked = instance.and_then(|mut it| Ok((it.ask_within(left(), async |c| c.stats().await)?, it)));
        match asked {
            Ok((stats, mut instance)) => {
                self.stats = Some(stats);
                if with_uplinks {
                    let list = instance.ask_within(left(), async |c| c.uplink_list().await);
                    self.uplinks = list.map(|list| uplinks(list).collect()).map_err(|e| e.to_string());
                }
            }
            Err(e) => self.away = Some(e.to_string()),
        }
    }

    /// Its table, its bus and its engine.
    pub fn table(&self) -> Option<&DeviceTable> {
        self.stats.as_ref()?.device.as_ref()
    }
}

/// Asks all how they are, at the same time, and each for so long at most: one that hangs holds up no other.
/// `with_uplinks`: for its uplinks, too, which takes it longer.
pub fn ask_all(devices: &mut [Found], run_dir: &Path, with_uplinks: bool, patience: Duration) {
    std::thread::scope(|scope| {
        for device in devices {
            scope.spawn(move || device.ask(run_dir, with_uplinks, patience));
        }
    });
}

/// A device's run directory.
pub fn dir_of(run_dir: &Path, name: &str) -> PathBuf {
    run_dir.join(DEVICES_DIR).join(name)
}

/// The devices that there are, or should be, below a run directory.
pub fn found(run_dir: &Path) -> Vec<Found> {
    let entries = std::fs::read_dir(run_dir.join(DEVICES_DIR)).into_iter().flatten().flatten();
    let of = |entry: std::fs::DirEntry| {
        let (name, dir) = (entry.file_name().into_string().ok()?, entry.path());
        dir.join("lock").exists().then(|| Found { name, has_cable: dir.join(FAR_SOCKET).exists(), ..Found::default() })
    };
    let mut all: Vec<Found> = entries.filter_map(of).collect();
    all.sort_by(|one, other| one.name.cmp(&other.name));
    all
}

fn one(name: &str, shared: &SharedArgs) -> Device {
    let run_dir = dir_of(&shared.run_dir, name);
    let figures = Figures::ask(&run_dir);
    let away = figures.as_ref().err().map(ToString::to_string);
    Device { name: name.into(), run_dir: run_dir.display().to_string(), away, figures: figures.ok() }
}

fn list(shared: &SharedArgs) -> Result<String, CliError> {
    let devices = names(shared)?.iter().map(|name| one(name, shared)).collect();
    shared.show(&Devices { devices }, |all| render(&all.devices))
}

fn render(devices: &[Device]) -> String {
    if devices.is_empty() {
        return "no devices; `lasthop run --device NAME` makes one\n".into();
    }
    let right = |name| (name, Align::Right);
    let mut table = Table::new(&[
        ("NAME", Align::Left),
        ("STATE", Align::Left),
        ("UPLINKS", Align::Left),
        right("PORTS"),
        right("RULES"),
        right("OF"),
        right("FLOWS"),
        right("MISSES"),
        right("JUDGED"),
        right("RE-CACHED"),
        right("BUS"),
        right("WHOLE"),
    ]);
    for device in devices {
        let uplinks = |f: &Figures| f.uplinks.iter().map(DeviceUplink::text).collect::<Vec<_>>().join(", ");
        let uplinks = device.figures.as_ref().map(uplinks).filter(|all| !all.is_empty()).unwrap_or_else(|| "-".into());
        let (state, numbers) = match &device.figures {
            None => ("away", vec!["-".to_owned(); 9]),
            Some(f) => {
                let numbers = [f.ports as u64, f.rules_used as u64, f.table.rules, f.flows, f.misses];
                let numbers = numbers.into_iter().chain([f.table.judged, f.table.recached]);
                let bytes = [f.table.bus.bus_bytes.sum(), f.table.bus.whole_frame_bytes].map(size);
                (if f.connected { "up" } else { "starting" }, numbers.map(|n| n.to_string()).chain(bytes).collect())
            }
        };
        table.row([device.name.clone(), state.into(), uplinks].into_iter().chain(numbers).collect());
    }
    table.render()
}

fn stats(name: &str, shared: &SharedArgs) -> Result<String, CliError> {
    if !names(shared)?.iter().any(|there| there == name) {
        return Err(CliError::new(format!("there is no device {name}; `lasthop device list` shows those there are")));
    }
    let device = one(name, shared);
    if let Some(away) = device.away {
        return Err(CliError::new(format!("device {name}: {away}")));
    }
    shared.show(&device, |device| device.figures.as_ref().map(text).unwrap_or_default())
}

fn text(f: &Figures) -> String {
    let DeviceTable { rules, judged, recached, under_way, bus, walk, dma } = &f.table;
    let (bus, walks) = (account(bus), walk.as_ref().map(walked).unwrap_or_default());
    let dma = dma.as_ref().map(copied).unwrap_or_default();
    format!(
        "table: {} of {rules} in use; control has {}\nmisses: {}: {judged} judged, {recached} re-cached without judging, {under_way} \
         answered while their rule was on its way\n{walks}{bus}{dma}",
        counted(f.rules_used as u64, "rule"),
        counted(f.flows, "flow"),
        f.misses,
    )
}

fn walked(of: &DeviceWalk) -> String {
    let DeviceWalk { flows, left_out, walks, hits, installed, ns, .. } = of;
    let none_for = if *left_out > 0 { format!(" ({left_out} times one had too many actions)") } else { String::new() };
    let each = ns.checked_div(*walks).unwrap_or(0);
    format!(
        "walks of the table with {}{none_for}: {walks}, {each} ns each; {hits} found a flow, {} put into the small table\n",
        counted(*flows, "flow"),
        counted(*installed, "rule"),
    )
}

fn copied(of: &DeviceDma) -> String {
    let DeviceDma { engine, state, threshold, copies, bytes, errors, overtaken, full, summed, taken_back, lost } = of;
    let hangs = if state == "runs" {
        String::new()
    } else {
        format!("; it hangs: {taken_back} copies taken back, {lost} lost, and the processor copies from now on")
    };
    format!(
        "DMA engine ({engine}): {copies} copies of more than {threshold} bytes, {} in all; {errors} failed, {overtaken} overtaken at most; by the \
         processor: {full} for want of room, {summed} with a checksum{hangs}\n",
        size(*bytes),
    )
}

fn account(of: &DeviceBus) -> String {
    let DeviceBus { bus_bytes, dma_bytes, whole_frame_bytes, model } = of;
    let BusBytes { descriptors, headers, rules, walks, punts, talk, dma, signals, wire } = *bus_bytes;
    let kinds = [
        ("descriptors", descriptors),
        ("headers", headers),
        ("rules", rules),
        ("walks", walks),
        ("packets to control", punts),
        ("other messages", talk),
        ("commands to the DMA engine", dma),
        ("doorbells and interrupts", signals),
        ("packets of uplinks", wire),
    ];
    let kinds = kinds.iter().filter(|(_, bytes)| *bytes > 0).map(|(kind, bytes)| format!("{kind} {}", size(*bytes)));
    format!(
        "bus: {} would have crossed it: {}\nwithin the host: {} by its DMA engine; whole frames, in and out of the card: {}\n{}",
        size(bus_bytes.sum()),
        kinds.collect::<Vec<_>>().join(", "),
        size(*dma_bytes),
        size(*whole_frame_bytes),
        model.as_ref().map(on_bus).unwrap_or_default(),
    )
}

fn on_bus(of: &BusModel) -> String {
    let ms = |ns: u64| format!("{}.{:03} ms", ns / 1_000_000, ns / 1000 % 1000);
    format!(
        "on {} ({} Mbit/s each way, nothing gathered): {} to the card and {} to the host, busy for {}, with whole frames for {}; a packet waits {} ns, as a whole \
         frame {} ns\n",
        of.name,
        of.bits_per_second / 1_000_000,
        size(of.to_card_bytes),
        size(of.to_host_bytes),
        ms(of.busy_ns),
        ms(of.whole_frame_busy_ns),
        of.packet_ns,
        of.whole_frame_packet_ns,
    )
}

/// Bytes in four figures at most.
fn size(bytes: u64) -> String {
    let units = ["B", "KiB", "MiB", "GiB", "TiB"];
    let fits = |unit: &usize| bytes < 9999u64 << (10 * unit);
    let unit = (0..units.len() - 1).find(fits).unwrap_or(units.len() - 1);
    format!("{} {}", bytes >> (10 * unit), units.get(unit).copied().unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ends_of_a_cable_are_told_by_their_sockets() {
        let is =
            |path: &str, run_dir: &str| is_cable(&Port { path: path.into(), ..Port::default() }, Path::new(run_dir));
        assert!(is("/run/lasthop/devices/nic0/cable.sock", "/run/lasthop"));
        assert!(is("/run/lasthop/devices/nic0/host.sock", "/run/lasthop/devices/nic0"));
        for (path, run_dir) in [
            ("/run/lasthop/cable.sock", "/run/lasthop"),
            ("/run/lasthop/host.sock", "/run/lasthop"),
            ("/run/lasthop/devices/nic0/vm1.sock", "/run/lasthop"),
            ("/run/other/devices/nic0/cable.sock", "/run/lasthop"),
            ("", "/run/lasthop"),
        ] {
            assert!(!is(path, run_dir), "{path} of {run_dir}");
        }
    }

    #[test]
    fn the_process_of_a_cable_is_told_by_its_socket() {
        let line = b"/usr/bin/lasthop-cable\0/run/devices/nic0/cable.sock\0/run/devices/nic0/host.sock\0";
        assert_eq!(socket_of_cable(line), Some(Path::new("/run/devices/nic0/cable.sock")));
        for other in [&b"vi\0/run/devices/nic0/cable.sock\0"[..], b"lasthop-cable", b""] {
            assert_eq!(socket_of_cable(other), None);
        }
        let status = "Name:\tlasthop-cable\nState:\tT (stopped)\nTgid:\t7\nPPid:\t12\n";
        assert_eq!(parent_and_stopped(status), Some((12, true)));
        assert_eq!(parent_and_stopped(&status.replace("T (stopped)", "t (tracing stop)")), Some((12, false)));
        assert_eq!(parent_and_stopped("Name:\tPPid:"), None);
    }

    #[test]
    fn sizes_are_short_and_none_is_too_large() {
        let sizes = [0, 9998, 9999, 9999 << 10, u64::MAX].map(size);
        assert_eq!(sizes, ["0 B", "9998 B", "9 KiB", "9 MiB", "16777215 TiB"]);
    }

    #[test]
    fn the_account_names_what_there_is() {
        let bus_bytes = BusBytes { headers: 4000, rules: 20_000, ..BusBytes::default() };
        let model = BusModel { name: "pcie3x8".into(), busy_ns: 1_234_567, packet_ns: 7, ..BusModel::default() };
        let bus = DeviceBus { bus_bytes, dma_bytes: 1 << 40, whole_frame_bytes: 2 << 40, model: Some(model) };
        let shown = account(&bus);
        assert_eq!(
            shown,
            "bus: 23 KiB would have crossed it: headers 4000 B, rules 19 KiB\n\
             within the host: 1024 GiB by its DMA engine; whole frames, in and out of the card: 2048 GiB\n\
             on pcie3x8 (0 Mbit/s each way, nothing gathered): 0 B to the card and 0 B to the host, busy for 1.234 ms, with whole frames for 0.000 ms; a packet waits 7 ns, \
             as a whole frame 0 ns\n"
        );
    }
}
