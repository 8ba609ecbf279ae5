//! What control knows of a data plane that is a device: the size of its table, and what goes over the bus.

use super::bus::{Messages, Ports};
use super::{Command, Core};
use lasthop_api::DeviceTable;
use lasthop_ipc::PortInfo;
use lasthop_policy::Recalls;

/// The device.
#[derive(Debug)]
pub(super) struct OfDevice {
    /// Places of its table.
    rules: usize,
    /// What has gone over the rings.
    pub bus: Messages,
    /// What its ports had counted when they were last asked.
    ports: Ports,
}

impl OfDevice {
    /// One with room for so many rules.
    pub fn new(rules: usize) -> Self {
        Self { rules, bus: Messages::default(), ports: Ports::default() }
    }

    /// It is about to be told this.
    pub fn says(&mut self, commands: &[Command]) {
        for command in commands {
            if let Command::Switch(message) = command {
                self.bus.goes(message);
            }
        }
    }
}

impl Core {
    /// These are all ports, as they are now.
    pub(super) fn note_device_ports(&mut self, ports: &[PortInfo]) {
        if let Some(device) = &mut self.device {
            let counted = ports.iter().map(|i| (&i.from_guest, &i.to_guest, self.uplinks.contains_key(&i.id)));
            device.ports = Ports::of(counted, &self.removed);
        }
    }

    /// As `lasthop device stats` shows it.
    pub(super) fn device_table(&self) -> Option<DeviceTable> {
        let Recalls { judged, recached, under_way } = self.policy.recalls();
        let OfDevice { rules, bus, ports } = self.device.as_ref()?;
        let bus = bus.account(ports);
        Some(DeviceTable { rules: *rules as u64, judged, recached, under_way, bus })
    }
}
