//! What the bytes of the account would keep a bus busy with, and how long a packet would wait for it.
//!
//! PCI Express carries packets of its own, each with a header and a checksum; who reads asks first, by one the other way; each way has the bus's whole rate.
//! Nothing is taken for gathered: each descriptor, index, header and message is a transfer of its own. Cards fetch several descriptors at
//! once, so a real one needs less.

use super::{Beside, CHAIN, COMMAND, COMPLETION, DESCRIPTOR, Ports, SIGNAL, short};
use lasthop_api::{Bus, BusModel};

/// Bytes of a chain's entry in the ring of available buffers; the others are its used one's.
const AVAILABLE: u128 = 2;
/// Bytes that are read of the larger table at once: a cache line.
const LINE: u128 = 64;
/// A card reads a descriptor, and when it has that what it describes.
const ROUND_TRIPS: u64 = 2;

/// One way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Way {
    bytes: u128,
    transfers: u128,
}

/// Both ways, as the card does it: what it reads, and others write to it, comes to it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ways {
    to_card: Way,
    to_host: Way,
}

impl Ways {
    /// The card reads in the host's memory.
    pub fn read(&mut self, bytes: u128, transfers: u128) {
        self.to_card.add(bytes, transfers);
        self.to_host.add(0, transfers);
    }

    /// The card writes there.
    pub fn write(&mut self, bytes: u128, transfers: u128) {
        self.to_host.add(bytes, transfers);
    }

    fn join(&mut self, others: Self) {
        self.to_card.add(others.to_card.bytes, others.to_card.transfers);
        self.to_host.add(others.to_host.bytes, others.to_host.transfers);
    }

    /// How long the busier way is busy.
    fn busy_ns(&self, bus: Bus) -> u128 {
        [self.to_card, self.to_host].iter().map(|way| time_ns(bus, way.on(bus))).max().unwrap_or(0)
    }
}

impl Way {
    fn add(&mut self, bytes: u128, transfers: u128) {
        self.bytes = self.bytes.saturating_add(bytes);
        self.transfers = self.transfers.saturating_add(transfers);
    }

    /// Its bytes with what the bus puts around them: as many packets as there are transfers, and one more for each that is full.
    fn on(&self, bus: Bus) -> u128 {
        let packets = self.transfers.saturating_add(self.bytes / u128::from(bus.payload()));
        self.bytes.saturating_add(packets.saturating_mul(u128::from(bus.overhead())))
    }
}

fn time_ns(bus: Bus, bytes: u128) -> u128 {
    bytes.saturating_mul(8_000_000_000) / u128::from(bus.bits_per_second()).max(1)
}

/// What comes of the account's bytes on this bus, beside a card that switches whole frames.
pub fn modelled(bus: Bus, messages: Ways, ports: &Ports, beside: Beside, written: u128) -> BusModel {
    let Ports { hosts, wire } = ports;
    let chains = hosts.packets_from + hosts.descriptors_to;
    let descriptors = hosts.descriptors_from + hosts.descriptors_to;
    let mut rings = Ways::default();
    rings.read(descriptors * u128::from(DESCRIPTOR), descriptors);
    rings.read(chains * AVAILABLE, chains);
    rings.write(chains * (u128::from(CHAIN) - AVAILABLE), chains);
    rings.to_card.add(hosts.doorbells * u128::from(SIGNAL), hosts.doorbells);
    rings.write(hosts.interrupts * u128::from(SIGNAL), hosts.interrupts);

    let mut whole = rings;
    whole.read(hosts.bytes_from, hosts.packets_from);
    whole.write(hosts.bytes_to, hosts.frames_to);

    let mut card = rings;
    card.join(messages);
    card.read(hosts.headers, hosts.packets_from);
    card.write(written, hosts.frames_to);
    card.read(wire.bytes_to, wire.frames_to);
    card.write(wire.bytes_from, wire.packets_from);
    let (walks, copies) = (u128::from(beside.walks), u128::from(beside.copies));
    card.read(walks, walks.div_ceil(LINE));
    card.write(copies * u128::from(COMMAND), copies);
    card.read(copies * u128::from(COMPLETION), copies);

    let each = |bytes: u128, of: u128| bytes.checked_div(of).unwrap_or(0);
    let one = |bytes: u128| time_ns(bus, Way { bytes, transfers: 1 }.on(bus));
    let waits = u128::from(ROUND_TRIPS * bus.round_trip_ns());
    let packet_ns = waits + one(each(hosts.headers, hosts.packets_from)) + one(each(written, hosts.frames_to));
    let frame = one(each(hosts.bytes_from, hosts.packets_from)) + one(each(hosts.bytes_to, hosts.frames_to));
    BusModel {
        name: bus.to_string(),
        bits_per_second: bus.bits_per_second(),
        to_card_bytes: short(card.to_card.on(bus)),
        to_host_bytes: short(card.to_host.on(bus)),
        busy_ns: short(card.busy_ns(bus)),
        whole_frame_busy_ns: short(whole.busy_ns(bus)),
        packet_ns: short(packet_ns),
        whole_frame_packet_ns: short(waits + frame),
    }
}

#[cfg(test)]
mod tests {
    use super::super::Messages;
    use super::*;
    use lasthop_types::PortTotals;

    /// Ten packets of 1500 bytes, a descriptor at each end, without anything gathered.
    #[test]
    fn packets_of_1500_bytes_keep_a_bus_busy() {
        let from = PortTotals {
            packets: 10,
            bytes: 15_000,
            descriptors: 10,
            headers: 280,
            notifications: 10,
            ..PortTotals::default()
        };
        let to = PortTotals { headers: 0, ..from };
        let none = (PortTotals::default(), PortTotals::default());
        let ports = Ports::of([(&from, &none.1, false), (&none.0, &to, false)].into_iter(), &none);
        let bus: Bus = "pcie3x8".parse().unwrap();
        let of = |beside| Messages::default().account(&ports, beside, Some(bus)).model.unwrap();
        let model = of(Beside::default());
        // Twenty descriptors, twenty indices, ten headers and ten doorbells to the card; of what it reads, it asks for each.
        let to_card = 20 * (16 + 24) + 20 * (2 + 24) + 10 * (28 + 24) + 10 * (4 + 24);
        let to_host = 50 * 24 + 20 * (8 + 24) + 10 * (28 + 24) + 10 * (4 + 24);
        // For headers, whose bytes are more than one packet of the bus in all.
        assert!((to_card..to_card + 3 * 24).contains(&model.to_card_bytes), "{model:?}");
        assert!((to_host..to_host + 3 * 24).contains(&model.to_host_bytes), "{model:?}");
        assert_eq!(model.busy_ns, model.to_host_bytes * 8 * 1000 / 63_015);
        assert!((6..8).contains(&(model.whole_frame_busy_ns / model.busy_ns)), "{model:?}");
        assert!(model.packet_ns > 1000 && model.whole_frame_packet_ns > model.packet_ns + 300, "{model:?}");
        // Commands and completions of an engine cross it as well.
        let with = of(Beside { walks: 0, copies: 10 });
        assert!(with.to_host_bytes >= model.to_host_bytes + 10 * (64 + 24 + 24), "{with:?}");
    }
}
