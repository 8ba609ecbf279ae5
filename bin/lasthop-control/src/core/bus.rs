//! The bus between a device and its host: what would have crossed it, if the device were a card, and what the host's DMA engine would have
//! moved instead (Ram, PhD thesis, 5.2.3: "only the packet headers are initially copied, via DMA, to the hardware").
//!
//! Nothing is moved twice here, and the packet path counts two things for it alone: descriptors, and the bytes that it reads of packets to
//! decide about them. All else follows from what is counted anyway, and docs/device.md says how exactly.

mod model;

use lasthop_api::{Bus, BusBytes, DeviceBus};
use lasthop_ipc::{FromControl, ToControl};
use lasthop_types::PortTotals;
use model::{Ways, modelled};
use serde::Serialize;

/// Bytes of a descriptor (virtio 1.2, 2.7.5 and 2.8.13).
const DESCRIPTOR: u64 = 16;
/// Bytes by which a chain is made available and used in a split ring (2.7.6, 2.7.8): an index, and an index with a length.
const CHAIN: u64 = 2 + 8;
/// Bytes of a doorbell, and of a message-signalled interrupt: one word.
const SIGNAL: u64 = 4;
/// Bytes of the virtio-net header in front of each frame (5.1.6).
const VNET: u64 = 12;
/// Bytes of a message's first word in the rings (docs/control-rings.md).
const FIRST_WORD: u64 = 8;

/// Bytes of messages between control and the device, which lie in the host's memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Messages {
    rules: u64,
    punts: u64,
    talk: u64,
    /// Of packets that waited for control: whole frames, which are kept in the host's memory until there is an answer.
    punted: u64,
    /// All of them, by where they go.
    ways: Ways,
}

/// What else is counted that crosses the bus.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Beside {
    /// Bytes of the larger table that walks have read.
    pub walks: u64,
    /// Copies that the DMA engine has made.
    pub copies: u64,
}

/// Bytes of a command to the DMA engine, and of its completion record, in the layout of Intel's Data Streaming Accelerator. Both cross the bus: the
/// card writes one into the host's memory and reads the other.
const COMMAND: u64 = 64;
const COMPLETION: u64 = 32;

impl Messages {
    /// A message of control's.
    pub fn goes(&mut self, message: &FromControl) {
        let kind = match message {
            FromControl::PutFlow(_) | FromControl::DelFlow { .. } | FromControl::ClearFlows => &mut self.rules,
            FromControl::Resume { .. } => &mut self.punts,
            FromControl::Ask { .. } | FromControl::SetMeter { .. } => &mut self.talk,
        };
        let bytes = bytes(message);
        *kind += bytes;
        self.ways.read(bytes.into(), 1);
    }

    /// A message of the device's.
    pub fn came(&mut self, message: &ToControl) {
        let kind = match message {
            ToControl::Upcall(packet) => {
                self.punted += if packet.copy.is_none() { u64::from(packet.frame_len) } else { 0 };
                &mut self.punts
            }
            _ => &mut self.talk,
        };
        let bytes = bytes(message);
        *kind += bytes;
        self.ways.write(bytes.into(), 1);
    }

    /// All of it, with what ports have counted, and what else was; and what comes of it on such a `bus`.
    pub fn account(&self, ports: &Ports, beside: Beside, bus: Option<Bus>) -> DeviceBus {
        let Ports { hosts, wire } = ports;
        // Frames that were written, each behind as much of a header as was read of one on average.
        let written = hosts.frames_to.saturating_mul(hosts.headers + wire.headers);
        let written = written.checked_div(hosts.packets_from + wire.packets_from).unwrap_or(0);
        // The device writes them itself; the engine moves what is behind them, but for what has come from outside.
        let by_device = written.saturating_sub(hosts.frames_to * u128::from(VNET)) + wire.bytes_from;
        let dma = hosts.bytes_to.saturating_sub(by_device) + u128::from(self.punted);
        let descriptors = (hosts.descriptors_from + hosts.descriptors_to) * u128::from(DESCRIPTOR);
        let chains = (hosts.packets_from + hosts.descriptors_to) * u128::from(CHAIN);
        let bus_bytes = BusBytes {
            descriptors: short(descriptors + chains),
            headers: short(hosts.headers + written),
            rules: self.rules,
            walks: beside.walks,
            punts: self.punts,
            talk: self.talk,
            dma: beside.copies.saturating_mul(COMMAND + COMPLETION),
            signals: short((hosts.doorbells + hosts.interrupts) * u128::from(SIGNAL)),
            wire: short(wire.bytes_from + wire.bytes_to),
        };
        let model = bus.map(|bus| modelled(bus, self.ways, ports, beside, written));
        let whole_frame_bytes = short(hosts.bytes_from + hosts.bytes_to);
        DeviceBus { bus_bytes, dma_bytes: short(dma), whole_frame_bytes, model }
    }
}

/// What ports have counted: those of VMs and the cable, whose packets lie in the host's memory, and the device's own uplinks.
#[derive(Debug, Default)]
pub(super) struct Ports {
    hosts: Sums,
    wire: Sums,
}

impl Ports {
    /// Of the ports that there are, of which each is an uplink or not, and those that were removed, which are taken for ports of VMs.
    pub fn of<'a>(
        ports: impl Iterator<Item = (&'a PortTotals, &'a PortTotals, bool)>,
        removed: &(PortTotals, PortTotals),
    ) -> Self {
        let mut all = Self::default();
        all.hosts.add(&removed.0, &removed.1);
        for (from_guest, to_guest, is_uplink) in ports {
            let sums = if is_uplink { &mut all.wire } else { &mut all.hosts };
            sums.add(from_guest, to_guest);
        }
        all
    }
}

/// In numbers that no product of two overflows by much.
#[derive(Debug, Default)]
struct Sums {
    packets_from: u128,
    bytes_from: u128,
    bytes_to: u128,
    frames_to: u128,
    headers: u128,
    descriptors_from: u128,
    descriptors_to: u128,
    doorbells: u128,
    interrupts: u128,
}

impl Sums {
    fn add(&mut self, from: &PortTotals, to: &PortTotals) {
        self.packets_from += u128::from(from.packets);
        self.bytes_from += u128::from(from.bytes);
        self.bytes_to += u128::from(to.bytes);
        // Of a packet that was cut up each part is a frame.
        self.frames_to += u128::from(to.packets) + u128::from(to.segments);
        self.headers += u128::from(from.headers);
        self.descriptors_from += u128::from(from.descriptors);
        self.descriptors_to += u128::from(to.descriptors);
        self.doorbells += u128::from(from.notifications);
        self.interrupts += u128::from(to.notifications);
    }
}

fn short(n: u128) -> u64 {
    u64::try_from(n).unwrap_or(u64::MAX)
}

/// Bytes of a message as it lies in a ring.
fn bytes(message: &impl Serialize) -> u64 {
    FIRST_WORD + postcard::experimental::serialized_size(message).unwrap_or(0) as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use lasthop_frame::FlowKey;
    use lasthop_ipc::{ControlEnd, SwitchEnd, UpcallPacket, ring_pair};

    fn totals(packets: u64, bytes: u64, descriptors: u64, headers: u64, notifications: u64) -> PortTotals {
        PortTotals { packets, bytes, descriptors, headers, notifications, ..PortTotals::default() }
    }

    #[test]
    fn what_ports_count_comes_to_these_bytes() {
        // Ten packets of 1500 bytes in two descriptors each, whose receiver has buffers of one.
        let a = (totals(10, 15_000, 20, 10 * 28, 3), PortTotals::default());
        let b = (PortTotals::default(), totals(10, 15_000, 10, 0, 2));
        // An uplink's descriptors and headers are the card's own; 100 bytes went out, and 60 came in for the one that was removed.
        let wire = (totals(1, 60, 1, 28, 9), totals(1, 100, 1, 0, 9));
        let removed = (PortTotals::default(), totals(1, 60, 1, 0, 0));
        let all = [(&a.0, &a.1, false), (&b.0, &b.1, false), (&wire.0, &wire.1, true)];
        let messages = Messages { rules: 1, punts: 2, talk: 3, punted: 500, ..Messages::default() };
        let beside = Beside { walks: 4, copies: 5 };
        let account = messages.account(&Ports::of(all.into_iter(), &removed), beside, None);
        assert_eq!((account.bus_bytes.walks, account.bus_bytes.dma, &account.model), (4, 5 * 96, &None));
        let bus = account.bus_bytes;
        assert_eq!(bus.descriptors, 20 * 16 + 10 * 10 + 11 * (16 + 10));
        assert_eq!(bus.headers, 10 * 28 + 11 * 28);
        assert_eq!((bus.rules, bus.punts, bus.talk, bus.signals, bus.wire), (1, 2, 3, 5 * 4, 160));
        assert_eq!(account.dma_bytes, 15_060 - 11 * 16 - 60 + 500);
        assert_eq!(account.whole_frame_bytes, 15_000 + 15_060);
        assert_eq!(bus.sum(), bus.descriptors + bus.headers + 6 + 20 + 160 + 4 + 480);
    }

    #[test]
    fn no_count_however_large_is_too_large() {
        let most = || totals(u64::MAX, u64::MAX, u64::MAX, u64::MAX, u64::MAX);
        let removed = (most(), most());
        let ports = [(&removed.0, &removed.1, false); 2].into_iter();
        let beside = Beside { walks: u64::MAX, copies: u64::MAX };
        let account = Messages::default().account(&Ports::of(ports, &removed), beside, "pcie1x1".parse().ok());
        assert_eq!((account.whole_frame_bytes, account.bus_bytes.sum()), (u64::MAX, u64::MAX));
        assert_eq!(account.model.map(|model| (model.busy_ns, model.whole_frame_busy_ns)), Some((u64::MAX, u64::MAX)));
    }

    /// What is taken for the length of a message is what the rings say of it.
    #[test]
    fn a_message_is_as_long_as_in_a_ring() {
        let (ours, theirs) = ring_pair().unwrap();
        let (mut switch, mut control) = (SwitchEnd::new(ours).unwrap(), ControlEnd::new(theirs).unwrap());
        let key = FlowKey { in_port: 7, ..FlowKey::default() };
        let packet = UpcallPacket { id: 9, copy: None, key, header: vec![1; 150], frame_len: 1500 };
        let sent = ToControl::Upcall(packet.clone());
        switch.send(&sent).unwrap();
        switch.flush().unwrap();
        let mut messages = Messages::default();
        messages.came(&control.recv().unwrap());
        let written = postcard::to_allocvec(&sent).unwrap().len() as u64 + FIRST_WORD;
        let mut ways = Ways::default();
        ways.write(written.into(), 1);
        assert_eq!(messages, Messages { punts: written, punted: 1500, ways, ..Messages::default() });
        // A copy waits for nothing.
        messages.came(&ToControl::Upcall(UpcallPacket { copy: Some(3), ..packet }));
        assert_eq!(messages.punted, 1500);
        for message in [FromControl::ClearFlows, FromControl::Resume { id: 9, actions: Vec::new() }] {
            messages.goes(&message);
        }
        assert_eq!(messages.rules, FIRST_WORD + 1);
        assert!(messages.punts > 2 * written);
    }
}
