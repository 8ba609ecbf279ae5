//! Wires of devices (`--device NAME,wire=INTERFACE`): each is an uplink of the device's `lasthop run`, which has it on its command line. Here is said
//! beforehand what that could not use: a device that does not begin is started several times, and says it as often.

use super::RunError::{self, Failed, Usage};
use super::args::RunArgs;
use super::open_vswitch::is_interface;
use super::store::SavedUplink;
use super::supervisor::Supervisor;
use super::uplink::Claim;
use lasthop_uplink_ipc::UplinkDriver;
use std::time::{Duration, Instant};

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
        claim(interface).map_err(|why| Failed(format!("{option}: {why}")))?;
    }
    Ok(())
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

impl Supervisor {
    /// An interface that a device has cannot be an uplink or a port of this lasthop as well.
    pub(super) fn check_no_wire(&self, interface: &str) -> Result<(), String> {
        match self.devices.iter().find(|device| device.wire() == Some(interface)) {
            None => Ok(()),
            Some(device) => Err(format!(
                "{interface} is the wire of device {0} (--device {0},wire=); name another interface, or start `lasthop run` without that",
                device.name()
            )),
        }
    }
}
