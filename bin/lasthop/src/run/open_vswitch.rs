//! What Open vSwitch needs where it decides (`--control ovs`): a socket that it takes for the kernel's, a device by which packets get to
//! `lasthop-ovs` and from there whole, and for each VM's port a representor: a TAP device of the port's name, which Open vSwitch asks the
//! kernel about (is it there, its MTU, its carrier). No packet passes a representor.

use super::RunError::{self, Failed, Usage};
use super::socket::Listener;
use super::store::SavedUplink;
use super::supervisor::Supervisor;
use lasthop_policy::{Mirror, PortSettings};
use lasthop_sys::{make_tap, memfd};
use lasthop_uplink_ipc::UplinkDriver;
use rustix::io::Errno;
use std::collections::BTreeMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use tracing::{info, warn};

/// Name of the socket in the run directory.
const SOCKET_NAME: &str = "ovs.sock";
/// Name of the port whose device `lasthop-ovs` holds the other end of, and of that device.
pub const PACKET_PORT: &str = "ovs-packets";
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

/// What there is for Open vSwitch.
#[derive(Debug)]
pub struct OpenVswitch {
    listener: Listener,
    /// Opened once the first process needs it.
    frames: OwnedFd,
    /// Where a `lasthop-ovs` notes what the next one goes on with.
    record: [OwnedFd; 2],
    /// By name; none where there can be none.
    representors: BTreeMap<String, Option<OwnedFd>>,
}

impl OpenVswitch {
    /// Makes the socket and the device, if they are wanted. Refused where lists, mirrors or settings of ports would have no effect.
    pub fn wanted(
        ovs: bool,
        run_dir: &Path,
        (lists, mirrors, settings): (&[u8], &[Mirror], &BTreeMap<String, PortSettings>),
    ) -> Result<Option<Self>, RunError> {
        if !ovs {
            return Ok(None);
        }
        check(lists, !mirrors.is_empty(), settings)?;
        Self::new(run_dir).map(Some)
    }

    fn new(run_dir: &Path) -> Result<Self, RunError> {
        let listener = Listener::bind_for_datagrams(&run_dir.join(SOCKET_NAME)).map_err(Failed)?;
        let frames = make_tap(PACKET_PORT, Some(PACKET_MTU)).map_err(|e| {
            let again = if e == Errno::BUSY { "; is another lasthop with --control ovs running?" } else { "" };
            Failed(format!("--control ovs: cannot make the TAP device {PACKET_PORT}: {e}{again}"))
        })?;
        let file = || memfd("lasthop-ovs", 0).map_err(|e| Failed(format!("--control ovs: memory for a record: {e}")));
        Ok(Self { listener, frames, record: [file()?, file()?], representors: BTreeMap::new() })
    }

    /// What `lasthop-ovs` gets.
    pub fn descriptors(&self) -> [BorrowedFd<'_>; 4] {
        let [record, other] = self.record.each_ref().map(AsFd::as_fd);
        [self.listener.as_fd(), self.frames.as_fd(), record, other]
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
        }
    }
}

/// The program that decides.
pub fn program(ovs: bool) -> &'static str {
    if ovs { "lasthop-ovs" } else { "lasthop-control" }
}

/// The program that decides, and the descriptors that it is started with.
pub fn control(read_api: bool, ovs: bool) -> (&'static str, Vec<String>) {
    let mut options = vec!["--supervisor-fd", "--host-view-fd", "--api-fd"];
    options.extend(read_api.then_some("--read-api-fd"));
    let for_ovs = ["--ovs-fd", "--frames-fd", "--record-fd", "--other-record-fd"];
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
fn check(lists: &[u8], has_mirrors: bool, settings: &BTreeMap<String, PortSettings>) -> Result<(), RunError> {
    let is_other = |name: &str| !matches!(name, "rate-from" | "rate-to");
    let told = settings.iter().find(|(_, settings)| settings.values().iter().any(|(name, _)| is_other(name)));
    let what = match told {
        _ if !lists.is_empty() => "access lists are loaded".to_owned(),
        _ if has_mirrors => "there are mirrors".to_owned(),
        Some((port, _)) => format!("port {port} is told more than its rates"),
        None => return Ok(()),
    };
    Err(Usage(format!(
        "--control ovs: {what}, which the learning switch alone knows; remove that while lasthop runs without --control, or choose another \
         --state-dir, and tell Open vSwitch"
    )))
}

impl Supervisor {
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
