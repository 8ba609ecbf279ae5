//! What Open vSwitch needs where it decides (`--control ovs`): a socket that it takes for the kernel's, a device by which packets get to
//! `lasthop-ovs` and from there whole, and for each VM's port a representor: a TAP device of the port's name, which Open vSwitch asks the
//! kernel about (is it there, its MTU, its carrier). No packet passes a representor.

use super::RunError::{self, Failed, Usage};
use super::handover::{Fd, Giver, Taker};
use super::served::{Served, Serves};
use super::setup::ApiSocket;
use super::store::{SavedPort, SavedUplink};
use super::supervisor::Supervisor;
use lasthop_policy::{Mirror, OF_SWITCH, OF_SWITCH_WORDS, PortSettings};
use lasthop_sys::{make_tap, memfd};
use lasthop_uplink_ipc::UplinkDriver;
use rustix::fs::OFlags;
use rustix::io::Errno;
use rustix::net::netdevice::name_to_index;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs::OpenOptions;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use tracing::{info, warn};

/// Name of the socket in the run directory.
const SOCKET_NAME: &str = "ovs.sock";
/// Beginning of the names of the files there that the next `lasthop run` goes on with.
const OUTLINE_NAME: &str = "ovs.datapath";
/// Name of the port whose device `lasthop-ovs` holds the other end of, and of that device.
pub const PACKET_PORT: &str = "ovs-packets";
/// Room for an interface's name and the zero behind it (linux/if.h).
const IF_NAMESIZE: usize = 16;
/// Beginnings of names that Open vSwitch has for its datapaths and for what tunnels leave through, and of ours.
const RESERVED: [&str; 8] =
    ["ovs-", "genev_sys", "vxlan_sys", "gre_sys", "ip6gre_sys", "erspan_sys", "ip6erspan_sys", "gtpu_sys"];
/// Its MTU: the most that a TAP device can have. Frames of 64 KiB are cut by the kernel.
const PACKET_MTU: u16 = 65_521;

/// What decides what becomes of packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Decides {
    /// lasthop's own learning switch, with VLANs, port security, access lists and mirrors
    #[default]
    Learning,
    /// The host's Open vSwitch, which takes lasthop for the kernel's datapath: `lasthop ovs exec`
    Ovs,
}

/// What lasthop is told, some of which is of no use to Open vSwitch.
#[derive(Debug)]
pub struct Told<'a> {
    /// Text of the access lists.
    pub lists: &'a [u8],
    /// Mirrors.
    pub mirrors: &'a [Mirror],
    /// Settings of ports, by name.
    pub settings: &'a BTreeMap<String, PortSettings>,
    /// Ports of the command line and the file.
    pub ports: &'a [SavedPort],
}

/// What there is for Open vSwitch.
#[derive(Debug)]
pub struct OpenVswitch {
    /// Where its programs connect to; among those that are looked after, once the supervisor has it.
    pub socket: Option<Served>,
    /// Opened once the first process needs it.
    frames: OwnedFd,
    /// Where a `lasthop-ovs` notes what the next one goes on with.
    record: [OwnedFd; 2],
    /// The same for the first `lasthop-ovs` of another `lasthop run`: the datapath and its ports.
    outline: [OwnedFd; 2],
    /// By name; none where there can be none.
    representors: BTreeMap<String, Option<OwnedFd>>,
}

/// What another program of this process goes on with.
#[derive(Debug, Serialize, Deserialize)]
pub struct OpenVswitchState {
    frames: Fd,
    record: [Fd; 2],
    outline: [Fd; 2],
    representors: Vec<(String, Option<Fd>)>,
}

impl OpenVswitch {
    /// Makes the socket and the device, if they are wanted. Refused where uplinks, lists, mirrors or settings of ports would have no effect.
    pub fn wanted<'a>(
        ovs: bool,
        run_dir: &Path,
        told: &Told<'_>,
        mut interfaces: impl Iterator<Item = &'a SavedUplink>,
    ) -> Result<Option<Self>, RunError> {
        if !ovs {
            check_left(interfaces)?;
            return Ok(None);
        }
        // One of a state directory of a version before may be one that Open vSwitch wanted.
        let is_of_use = |of: &SavedUplink| of.for_ovs || of.guest && of.name == of.device;
        let is_tunnel = |of: &SavedUplink| {
            of.driver.as_deref().and_then(UplinkDriver::from_name).is_some_and(UplinkDriver::is_tunnel)
        };
        check(told, interfaces.find(|of| !is_of_use(of) && !is_tunnel(of)))?;
        Self::new(run_dir).map(Some)
    }

    fn new(run_dir: &Path) -> Result<Self, RunError> {
        let socket = ApiSocket { path: run_dir.join(SOCKET_NAME), group: None, datagrams: true };
        let listener = socket.bind().map_err(Failed)?;
        let frames = make_tap(PACKET_PORT, Some(PACKET_MTU)).map_err(|e| {
            let again = if e == Errno::BUSY { "; is another lasthop with --control ovs running?" } else { "" };
            Failed(format!("--control ovs: cannot make the TAP device {PACKET_PORT}: {e}{again}"))
        })?;
        let file = || memfd("lasthop-ovs", 0).map_err(|e| Failed(format!("--control ovs: memory for a record: {e}")));
        let socket = Some(Served::new((socket, listener), Serves::OpenVswitch));
        let outline = [outline_file(run_dir, 1)?, outline_file(run_dir, 2)?];
        Ok(Self { socket, frames, record: [file()?, file()?], outline, representors: BTreeMap::new() })
    }

    /// What another program of this process goes on with.
    pub fn hand_over(&self, giver: &mut Giver) -> OpenVswitchState {
        let representors = self.representors.iter();
        OpenVswitchState {
            frames: giver.fd(&self.frames),
            record: self.record.each_ref().map(|file| giver.fd(file)),
            outline: self.outline.each_ref().map(|file| giver.fd(file)),
            representors: representors
                .map(|(name, tap)| (name.clone(), tap.as_ref().map(|tap| giver.fd(tap))))
                .collect(),
        }
    }

    /// Goes on with it. Its socket is among those that are looked after.
    pub fn resumed(state: OpenVswitchState, taker: &Taker) -> Result<Self, String> {
        let both = |[one, other]: [Fd; 2]| Ok::<_, String>([taker.fd(one)?, taker.fd(other)?]);
        let representors = state.representors.into_iter();
        let representors = representors.map(|(name, tap)| Ok((name, tap.map(|tap| taker.fd(tap)).transpose()?)));
        Ok(Self {
            socket: None,
            frames: taker.fd(state.frames)?,
            record: both(state.record)?,
            outline: both(state.outline)?,
            representors: representors.collect::<Result<_, String>>()?,
        })
    }

    /// What `lasthop-ovs` gets, behind the sockets whose clients it serves.
    pub fn descriptors(&self) -> [BorrowedFd<'_>; 5] {
        let [record, other] = self.record.each_ref().map(AsFd::as_fd);
        let [outline, other_outline] = self.outline.each_ref().map(AsFd::as_fd);
        [self.frames.as_fd(), record, other, outline, other_outline]
    }

    /// The port by which packets get there.
    pub fn uplink() -> SavedUplink {
        SavedUplink {
            name: PACKET_PORT.into(),
            device: PACKET_PORT.into(),
            driver: Some("af_packet".into()),
            queues: 1,
            nice: 0,
            no_gro: true,
            spare: false,
            vlans: None,
            guest: true,
            for_ovs: true,
        }
    }
}

/// One of the two files by which Open vSwitch's datapath outlives this process. It is in the run directory, so it goes with a reboot, as the kernel's datapath does.
fn outline_file(run_dir: &Path, number: u32) -> Result<OwnedFd, RunError> {
    let path = run_dir.join(format!("{OUTLINE_NAME}-{number}"));
    let mut options = OpenOptions::new();
    options
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .custom_flags(OFlags::NOFOLLOW.bits() as i32);
    let file = options.open(&path).map_err(|e| Failed(format!("--control ovs: {}: {e}", path.display())))?;
    Ok(file.into())
}

/// The program that decides.
pub fn program(ovs: bool) -> &'static str {
    if ovs { "lasthop-ovs" } else { "lasthop-control" }
}

/// The program that decides, and the descriptors that it is started with.
pub fn control(read_api: bool, ovs: bool) -> (&'static str, Vec<String>) {
    let mut options = vec!["--supervisor-fd", "--host-view-fd", "--api-fd"];
    options.extend(read_api.then_some("--read-api-fd"));
    let for_ovs = ["--ovs-fd", "--frames-fd", "--record-fd", "--other-record-fd", "--outline-fd", "--other-outline-fd"];
    options.extend(ovs.then_some(for_ovs).into_iter().flatten());
    let numbered = options.iter().zip(3..).flat_map(|(option, fd)| [(*option).to_owned(), fd.to_string()]);
    (program(ovs), numbered.collect())
}

/// Refuses the drivers that are of use to Open vSwitch alone, which asks for them itself.
pub fn check_driver(driver: UplinkDriver) -> Result<(), String> {
    if !driver.is_tunnel() {
        return Ok(());
    }
    let kind = driver.name();
    Err(format!(
        "{kind} is a tunnel of Open vSwitch's: `lasthop run --control ovs`, and `ovs-vsctl add-port BRIDGE NAME -- set interface NAME type={kind} \
         options:remote_ip=ADDRESS`"
    ))
}

/// Refuses what the learning switch alone does: nobody would be told that it has no effect.
fn check(told: &Told<'_>, uplink: Option<&SavedUplink>) -> Result<(), RunError> {
    for port in told.ports {
        check_name(&port.name).map_err(|e| Usage(format!("--port {}: {e}", port.name)))?;
    }
    if let Some(of @ SavedUplink { name, device, .. }) = uplink {
        let kind = of.kind();
        return Err(Usage(format!(
            "--control ovs: {kind} {name} would carry nothing; leave it out, or remove it while lasthop runs without --control, and tell Open \
             vSwitch: `ovs-vsctl add-port BRIDGE {device}`"
        )));
    }
    let is_other = |name: &str| !OF_SWITCH.contains(&name);
    let mut settings = told.settings.iter();
    let port = settings.find(|(_, settings)| settings.values().iter().any(|(name, _)| is_other(name)));
    let what = match port {
        _ if !told.lists.is_empty() => "access lists are loaded".to_owned(),
        _ if !told.mirrors.is_empty() => "there are mirrors".to_owned(),
        Some((port, _)) => format!("port {port} is told more than its {OF_SWITCH_WORDS}"),
        None => return Ok(()),
    };
    Err(Usage(format!(
        "--control ovs: {what}, which the learning switch alone knows; remove that while lasthop runs without --control, or choose another \
         --state-dir, and tell Open vSwitch"
    )))
}

/// Refuses to bridge, by the learning switch and without a rule of Open vSwitch's, what Open vSwitch has opened. Tunnels are forgotten.
fn check_left<'a>(interfaces: impl Iterator<Item = &'a SavedUplink>) -> Result<(), RunError> {
    let is_tunnel = |driver: &String| UplinkDriver::from_name(driver).is_some_and(UplinkDriver::is_tunnel);
    let left = interfaces.filter(|of| of.for_ovs && !of.driver.as_ref().is_some_and(is_tunnel));
    let names: Vec<_> = left.map(|of| of.name.as_str()).collect();
    if names.is_empty() {
        return Ok(());
    }
    Err(Usage(format!(
        "Open vSwitch has opened {} with this state directory, and the learning switch would join them without its rules; start with --control ovs, take them from Open \
         vSwitch's bridges first (`ovs-vsctl del-port NAME`, `ovs-vsctl del-br NAME`) while it decides, or choose another --state-dir",
        names.join(", ")
    )))
}

/// Whether there is an interface of this name. The kernel is asked, and not /sys, which may be that of another network namespace.
pub fn is_interface(name: &str) -> bool {
    let socket = socket_with(AddressFamily::UNIX, SocketType::DGRAM, SocketFlags::CLOEXEC, None);
    socket.is_ok_and(|socket| name_to_index(socket, name).is_ok())
}

/// Open vSwitch finds a VM's port by an interface of its name.
fn check_name(port: &str) -> Result<(), String> {
    if RESERVED.iter().any(|name| port.starts_with(name)) {
        return Err(format!("Open vSwitch makes interfaces of the name {port} itself; choose another name"));
    }
    if port.len() < IF_NAMESIZE {
        return Ok(());
    }
    Err("Open vSwitch finds a port by an interface of its name, which has at most 15 characters; choose a shorter name"
        .into())
}

impl Supervisor {
    /// Refuses a new port of a VM's that Open vSwitch could not use.
    pub(super) fn check_for_ovs(&self, port: &str) -> Result<(), String> {
        let Some(ovs) = &self.ovs else { return Ok(()) };
        check_name(port)?;
        // That of a port just removed goes in a moment.
        if !ovs.representors.contains_key(port) && is_interface(port) {
            return Err(format!(
                "there is an interface {port} on this host, which Open vSwitch would take instead of the VM; choose another name"
            ));
        }
        Ok(())
    }

    /// Makes representors of new ports, and removes those of ports that are gone.
    pub(super) fn step_representors(&mut self) {
        let Some(ovs) = &mut self.ovs else { return };
        let ports = &self.ports;
        ovs.representors.retain(|name, _| ports.values().any(|port| port.config.name == *name));
        for port in ports.values() {
            let name = &port.config.name;
            if ovs.representors.contains_key(name) {
                continue;
            }
            let made = make_tap(name, None);
            match &made {
                Ok(_) => info!("port {name}: Open vSwitch finds it as the interface {name}"),
                Err(e) => warn!(
                    "port {name}: no interface of that name for Open vSwitch, which cannot use the port: {e}; is there one of that name, or \
                     is the name longer than 15 characters? Remove the port, and choose another name"
                ),
            }
            ovs.representors.insert(name.clone(), made.ok());
        }
    }
}
