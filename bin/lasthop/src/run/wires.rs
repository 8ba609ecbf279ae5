//! Wires of devices (`--device NAME,wire=INTERFACE`): each is an uplink of the device's `lasthop run`, which has it on its command line. Here is said
//! beforehand what that could not use: a device that does not begin is started several times, and says it as often.
//!
//! The device's own `lasthop run` remembers in its `ports.json` what there is of its command line, and which VLANs its wire carries: when it is started again, that holds. When the
//! host's starts it for the first time, the command line does. Each such start has a number of its own, beside which it is remembered: one that could not be remembered
//! finds what is of an earlier one.

use super::RunError::{self, Failed, Usage};
use super::args::{RunArgs, WIRE};
use super::devices::DEVICES_DIR;
use super::open_vswitch::is_interface;
use super::setup::is_same;
use super::store::{Saved, SavedGiven, SavedUplink, Store};
use super::supervisor::Supervisor;
use super::uplink::Claim;
use lasthop_policy::Vlans;
use lasthop_types::PortId;
use lasthop_uplink_ipc::UplinkDriver;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::{Duration, Instant};
use tracing::warn;

/// How long another lasthop that is ending may have the interface: as long as its directory.
const PATIENCE: Duration = Duration::from_secs(3);
/// How soon that is looked at again, at first.
const LOOK: Duration = Duration::from_millis(50);

/// Checks all wires of the command line, beside interfaces that this lasthop has itself.
pub fn check<'a>(args: &RunArgs, own: impl Iterator<Item = &'a SavedUplink> + Clone) -> Result<(), RunError> {
    let wires = args.devices.iter().filter_map(|device| Some((device, &device.wire.as_ref()?.0)));
    for (at, (device, wire)) in wires.clone().enumerate() {
        let (name, interface) = (&device.name, &wire.device);
        let option = format!("--device {name},wire={interface}");
        if let Some((other, _)) = wires.clone().take(at).find(|(_, other)| other.device == *interface) {
            let other = &other.name;
            return Err(Usage(format!("{option}: it is the wire of device {other} already; name another interface")));
        }
        if let Some(used) = own.clone().find(|own| own.device == *interface) {
            let (kind, used) = (used.kind(), &used.name);
            return Err(Usage(format!(
                "{option}: it is {kind} {used} of the host's switch; name another interface, or leave that {kind} out (one that is remembered \
                 `lasthop {kind} del {used}` removes)"
            )));
        }
        let is_made = wire.driver.as_deref() == Some(UplinkDriver::Tap.name());
        if !is_made && !is_interface(interface) {
            return Err(Failed(format!(
                "{option}: there is no interface {interface}; `ip link` lists those there are, and wire={interface}:tap makes a TAP device"
            )));
        }
        check_remembered(args, name, wire).map_err(|why| Failed(format!("{option}: {why}")))?;
        claim(interface).map_err(|why| Failed(format!("{option}: {why}")))?;
    }
    Ok(())
}

/// What the device remembers must not be in the way: it would not begin. What else is wrong with its file it says itself.
fn check_remembered(args: &RunArgs, device: &str, wire: &SavedUplink) -> Result<(), String> {
    let below = |dir: &Path| dir.join(DEVICES_DIR).join(device);
    let (state_dir, run_dir) = (below(&args.state_dir), below(&args.run_dir));
    let saved = Store::new(&state_dir).load().unwrap_or_default();
    let port = saved.ports.iter().find(|port| port.name == wire.name).map(|port| ("port", &port.name, &port.path));
    let uplink = saved.uplinks.iter().find(|saved| is_in_the_way(wire, saved));
    let Some((kind, name, of)) = port.or_else(|| uplink.map(|of| (of.kind(), &of.name, &of.device))) else {
        return Ok(());
    };
    Err(format!(
        "device {device} remembers {kind} {name} of {of} ({}); start without wire=, remove that with `lasthop {kind} del {name} --run-dir {}`, \
         and start with it again",
        state_dir.join("ports.json").display(),
        run_dir.display()
    ))
}

fn is_in_the_way(wire: &SavedUplink, saved: &SavedUplink) -> bool {
    (saved.name == wire.name || saved.device == wire.device) && !is_same(wire, saved)
}

/// In a device that is started again, what it remembers beside its wire is forgotten if it is in the way: it is to start.
pub fn forget_in_the_way(saved: &mut Saved, given: &[SavedUplink]) {
    for wire in given {
        for other in saved.uplinks.extract_if(.., |other| is_in_the_way(wire, other)) {
            let (kind, name, interface) = (other.kind(), other.name, other.device);
            warn!("remembered {kind} {name} of {interface} is forgotten: {} is this device's wire", wire.device);
        }
        for port in saved.ports.extract_if(.., |port| port.name == wire.name) {
            warn!(
                "remembered port {} of {} is forgotten: that is the name of this device's wire",
                port.name, port.path
            );
        }
    }
}

/// Whether another lasthop uses it. The device's own process claims it.
fn claim(interface: &str) -> Result<(), String> {
    let until = Instant::now() + PATIENCE;
    // Who has it answers few that ask at a time.
    let mut pause = LOOK;
    loop {
        match Claim::take(interface) {
            Ok(_) => return Ok(()),
            Err(why) if Instant::now() >= until => return Err(why),
            Err(_) => std::thread::sleep(pause),
        }
        pause *= 2;
    }
}

/// This lasthop is a device of another one.
#[derive(Debug)]
pub struct OfDevice {
    /// The interface that is its wire, if it has one.
    wire: Option<String>,
    /// Ports and uplinks of its command line.
    given: BTreeSet<String>,
    /// The number of its first start.
    start: Option<u32>,
}

impl OfDevice {
    pub fn new(args: &RunArgs) -> Option<Self> {
        let wire = args.uplinks.first().map(|uplink| uplink.spec.device.clone());
        let uplinks = args.uplinks.iter().map(|uplink| &uplink.spec.name);
        let given = args.ports.iter().map(|port| &port.name).chain(uplinks).cloned().collect();
        args.device_rules.map(|_| Self { wire, given, start: args.device_start })
    }
}

impl Supervisor {
    /// An interface that a device has cannot be an uplink or a port of this lasthop as well; and in the device nothing else has its wire's name.
    pub(super) fn check_no_wire(&self, name: &str, interface: &str) -> Result<(), String> {
        let own = self.of_device.as_ref().and_then(|device| device.wire.as_deref());
        if let Some(own) = own.filter(|own| *own == interface || name == WIRE) {
            return Err(format!(
                "{WIRE} is this device's wire, of {own}, which is there again when the device starts anew; start the host's `lasthop run` with \
                 another wire= behind --device instead, or choose another name and interface"
            ));
        }
        match self.devices.iter().find(|device| device.wire() == Some(interface)) {
            None => Ok(()),
            Some(device) => Err(format!(
                "{interface} is the wire of device {0} (--device {0},wire=); name another interface, or start `lasthop run` without that",
                device.name()
            )),
        }
    }

    /// Of a device: what is there of its command line, by name.
    pub(super) fn given_of_device(&self, except: Option<PortId>) -> BTreeMap<String, SavedGiven> {
        let started = self.of_device.as_ref().and_then(|device| Some((device, device.start?)));
        let Some((device, start)) = started else { return BTreeMap::new() };
        let ports = self.ports.values().map(|port| (&port.config, None));
        let uplinks = self.uplinks.values().filter(|uplink| !uplink.is_leaving());
        let all = ports.chain(uplinks.map(|uplink| (&uplink.config, uplink.spec.vlans.as_ref())));
        let given = all.filter(|(config, _)| Some(config.id) != except && device.given.contains(&config.name));
        let saved = |vlans: Option<&Vlans>| SavedGiven { start, vlans: vlans.cloned() };
        given.map(|(config, vlans)| (config.name.clone(), saved(vlans))).collect()
    }
}
