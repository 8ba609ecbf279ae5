//! What the bytes of the account would keep a bus busy with, and how long a packet would wait for it.
//!
//! PCI Express carries packets of its own, each with a header and a checksum; who reads asks first, by packets the other way; each way has the bus's whole rate.
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

/// One way: bytes, and packets of the bus.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Way {
    bytes: u128,
    packets: u128,
}

/// Both ways, as the card does it: what it reads, and others write to it, comes to it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ways {
    to_card: Way,
    to_host: Way,
}

impl Ways {
    /// The card reads in the host's memory, so many bytes in so many transfers of one length. It asks for each by packets without bytes.
    pub fn read(&mut self, bytes: u128, transfers: u128) {
        self.to_card.add(bytes, transfers, Bus::PAYLOAD);
        self.to_host.packets = self.to_host.packets.saturating_add(packets(bytes, transfers, Bus::MOST_READ));
    }

    /// The card writes there.
    pub fn write(&mut self, bytes: u128, transfers: u128) {
        self.to_host.add(bytes, transfers, Bus::PAYLOAD);
    }

    fn join(&mut self, others: Self) {
        for (way, other) in [(&mut self.to_card, others.to_card), (&mut self.to_host, others.to_host)] {
            way.bytes = way.bytes.saturating_add(other.bytes);
            way.packets = way.packets.saturating_add(other.packets);
        }
    }

    /// How long the busier way is busy.
    fn busy_ns(&self, bus: Bus) -> u128 {
        [self.to_card, self.to_host].iter().map(|way| time_ns(bus, way.whole())).max().unwrap_or(0)
    }
}

impl Way {
    fn add(&mut self, bytes: u128, transfers: u128, most: u64) {
        self.bytes = self.bytes.saturating_add(bytes);
        self.packets = self.packets.saturating_add(packets(bytes, transfers, most));
    }

    /// Its bytes with what the bus puts around them.
    fn whole(&self) -> u128 {
        self.bytes.saturating_add(self.packets.saturating_mul(u128::from(Bus::OVERHEAD)))
    }
}

/// Packets of the bus, each with `most` bytes at most, for transfers of so many bytes in all: exact where they are of one length.
fn packets(bytes: u128, transfers: u128, most: u64) -> u128 {
    let longest = if transfers == 0 { 0 } else { bytes.div_ceil(transfers) };
    transfers.saturating_mul(longest.div_ceil(u128::from(most)).max(1))
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
    rings.to_card.add(hosts.doorbells * u128::from(SIGNAL), hosts.doorbells, Bus::PAYLOAD);
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
    let one = |bytes: u128| time_ns(bus, Way { bytes, packets: packets(bytes, 1, Bus::PAYLOAD) }.whole());
    let waits = u128::from(ROUND_TRIPS * Bus::ROUND_TRIP_NS);
    let packet_ns = waits + one(each(hosts.headers, hosts.packets_from)) + one(each(written, hosts.frames_to));
    let frame = one(each(hosts.bytes_from, hosts.packets_from)) + one(each(hosts.bytes_to, hosts.frames_to));
    BusModel {
        name: bus.to_string(),
        bits_per_second: bus.bits_per_second(),
        to_card_bytes: short(card.to_card.whole()),
        to_host_bytes: short(card.to_host.whole()),
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
        let to = PortTotals { headers: 0, ..from.clone() };
        let none = (PortTotals::default(), PortTotals::default());
        let ports = Ports::of([(&from, &none.1, false), (&none.0, &to, false)].into_iter(), &none);
        let bus: Bus = "pcie3x8".parse().unwrap();
        let of = |beside| Messages::default().account(&ports, beside, Some(bus)).model.unwrap();
        let model = of(Beside::default());
        // Twenty descriptors, twenty indices, ten headers and ten doorbells to the card; of what it reads, it asks for each.
        let to_card = 20 * (16 + 24) + 20 * (2 + 24) + 10 * (28 + 24) + 10 * (4 + 24);
        let to_host = 50 * 24 + 20 * (8 + 24) + 10 * (28 + 24) + 10 * (4 + 24);
        assert_eq!((model.to_card_bytes, model.to_host_bytes), (to_card, to_host), "{model:?}");
        assert_eq!(model.busy_ns, to_host * 8 * 1000 / 63_015);
        // A whole frame is six packets of the bus, and three to ask for it.
        let to_card = to_card - 10 * (28 + 24) + 10 * (1500 + 6 * 24);
        let to_host = to_host + 10 * 2 * 24 - 10 * (28 + 24) + 10 * (1500 + 6 * 24);
        assert_eq!(model.whole_frame_busy_ns, to_host.max(to_card) * 8 * 1000 / 63_015);
        assert!(model.packet_ns > 1000 && model.whole_frame_packet_ns > model.packet_ns + 300, "{model:?}");
        // Commands and completions of an engine cross it as well.
        let with = of(Beside { walks: 128, copies: 10 });
        assert_eq!(with.to_host_bytes, model.to_host_bytes + 10 * (64 + 24 + 24) + 2 * 24);
        assert_eq!(with.to_card_bytes, model.to_card_bytes + 10 * (32 + 24) + 2 * (64 + 24));
    }
}
