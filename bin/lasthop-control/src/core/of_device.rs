//! What control knows of a data plane that is a device: the size of its table, what goes over the bus, and the larger table that it walks.

use super::bus::{Beside, Messages, Ports};
use super::{Command, Core};
use lasthop_api::{Bus, DeviceDma, DeviceTable, DeviceWalk};
use lasthop_dma_counters::{Counts, DmaPage};
use lasthop_ipc::PortInfo;
use lasthop_larger_table::{Marks, Writer};
use lasthop_policy::{Published, Recalls};
use std::os::fd::OwnedFd;

/// Marks that are looked at in a part, and flows that were found in walks since they were looked at before: a tenth of a millisecond, and half of one.
const LOOKED_AT: u32 = 8192;
const FOUND: usize = 256;

/// The device.
#[derive(Debug)]
pub(super) struct OfDevice {
    /// Places of its table.
    rules: usize,
    /// What has gone over the rings.
    pub bus: Messages,
    /// What its ports had counted when they were last asked.
    ports: Ports,
    /// The bus that it would be behind, if one is named.
    model: Option<Bus>,
    /// Memory of the larger table and its marks, for when it is connected.
    given: [Option<OwnedFd>; 2],
    larger: Option<Larger>,
    /// Where its DMA engine counts.
    dma: Option<DmaPage>,
}

/// The table that it walks, with all flows.
#[derive(Debug)]
struct Larger {
    writer: Writer,
    marks: Marks,
    /// By number of the flow: how often it had been found when that was last looked at.
    seen: Vec<u64>,
    /// They are being looked at, from this one on.
    looks_at: Option<u32>,
    /// Flows that were left out, as they have more actions than there is room for: each time that one was put.
    left_out: u64,
}

impl OfDevice {
    /// One with room for so many rules, behind such a bus.
    pub fn new(rules: usize, model: Option<Bus>) -> Self {
        let (bus, ports) = (Messages::default(), Ports::default());
        Self { rules, bus, ports, model, given: [None, None], larger: None, dma: None }
    }

    /// There are marks to be looked at, a part at a time.
    pub fn is_looking(&self) -> bool {
        self.larger.as_ref().is_some_and(|larger| larger.looks_at.is_some())
    }
}

impl Larger {
    /// Does to the table what has become of flows.
    fn follow(&mut self, Published { all_gone, flows }: Published) {
        if all_gone {
            self.writer.clear();
            self.looks_at = None;
        }
        for (id, flow) in flows {
            let Some(flow) = flow else {
                self.writer.remove(id);
                continue;
            };
            self.left_out += u64::from(!self.writer.put(id, &flow));
            if self.seen.len() <= id as usize {
                self.seen.resize(id as usize + 1, 0);
            }
            // It may have been another's number.
            if let Some(seen) = self.seen.get_mut(id as usize) {
                *seen = self.marks.of(id);
            }
        }
    }

    /// Flows that were found in walks since they were looked at before, of some of all.
    fn found(&mut self) -> Vec<u32> {
        let mut found = Vec::new();
        let Some(from) = self.looks_at.take() else { return found };
        let until = from.saturating_add(LOOKED_AT);
        for id in from..until {
            let Some(seen) = self.seen.get_mut(id as usize) else { return found };
            let now = self.marks.of(id);
            if std::mem::replace(seen, now) != now {
                found.push(id);
            }
            if found.len() >= FOUND {
                self.looks_at = Some(id + 1);
                return found;
            }
        }
        self.looks_at = Some(until);
        found
    }
}

impl Core {
    /// What it is about to be told; what has become of flows is in the table before, so that it finds none there that it was told to remove.
    pub(super) fn say_to_device(&mut self) {
        let Some(device) = &mut self.device else { return };
        for command in &self.commands {
            if let Command::Switch(message) = command {
                device.bus.goes(message);
            }
        }
        if let Some(larger) = &mut device.larger {
            larger.follow(self.policy.published());
        }
    }

    /// Memory for a table that a device will walk, or for its marks, once the device is connected.
    pub fn larger_table(&mut self, marks: bool, memory: OwnedFd) {
        if let Some(device) = &mut self.device {
            device.given[usize::from(marks)] = Some(memory);
        }
    }

    /// Where the device's DMA engine counts.
    pub fn dma_counters(&mut self, page: OwnedFd) {
        if let Some(device) = &mut self.device {
            device.dma = DmaPage::map(page).inspect_err(|e| tracing::error!("a device's page of counters: {e}")).ok();
        }
    }

    /// The device is connected: it walks the table that was given for it, if one was, which has no flow yet.
    pub(super) fn begin_larger_table(&mut self) {
        let Some(device) = &mut self.device else { return };
        device.larger = None;
        let [Some(table), Some(marks)] = device.given.each_mut().map(Option::take) else { return };
        match Writer::new(table).and_then(|writer| Ok((writer, Marks::map(marks)?))) {
            Ok((writer, marks)) => {
                device.larger = Some(Larger { writer, marks, seen: Vec::new(), looks_at: None, left_out: 0 });
                self.policy.publish();
            }
            Err(e) => tracing::error!("the device walks no larger table: {e}"),
        }
    }

    /// Flows that walks have found are in use. When it `is_due`, all are looked at, a part in each turn.
    pub(super) fn look_at_marks(&mut self, is_due: bool, now_ms: u64) {
        let Some(larger) = self.device.as_mut().and_then(|device| device.larger.as_mut()) else { return };
        if is_due && larger.looks_at.is_none() {
            larger.looks_at = Some(0);
        }
        for id in larger.found() {
            self.policy.found_in_copy(id, now_ms);
        }
    }

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
        let OfDevice { rules, bus, ports, larger, dma, model, .. } = self.device.as_ref()?;
        let walk = larger.as_ref().map(|larger| {
            let lasthop_larger_table::Walks { walks, hits, ns, installed, bytes } = larger.marks.walks();
            let (flows, left_out) = (larger.writer.len() as u64, larger.left_out);
            DeviceWalk { flows, left_out, walks, hits, installed, ns, bytes }
        });
        let dma = dma.as_ref().map(dma_engine);
        let walks = walk.as_ref().map_or(0, |walk| walk.bytes);
        let bus = bus.account(ports, Beside { walks, copies: dma.as_ref().map_or(0, |dma| dma.copies) }, *model);
        Some(DeviceTable { rules: *rules as u64, judged, recached, under_way, bus, walk, dma })
    }
}

fn dma_engine(page: &DmaPage) -> DeviceDma {
    let Counts { copies, bytes, errors, overtaken, full, taken_back, lost, summed } = page.counts();
    let (engine, state) = ("software".into(), if page.is_given_up() { "hangs" } else { "runs" }.into());
    let threshold = page.threshold();
    DeviceDma { engine, state, threshold, copies, bytes, errors, overtaken, full, summed, taken_back, lost }
}
