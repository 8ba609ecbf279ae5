//! Figures of devices, a few series for each. What their ports carry each device tells itself, asked with its run directory.

use super::text::{Family, Labels, Number, family, level, seconds};
use crate::device::Found;
use lasthop_api::{BusBytes, BusModel, DeviceDma, DeviceTable, SwitchStats};

pub fn families(devices: &[Found]) -> Vec<Family> {
    let up = |device: &Found| Some(level(device.stats.as_ref().is_some_and(|stats| stats.switch_connected).into()));
    let mut all = vec![
        family(
            "device_up",
            "Whether a device answers, and its data plane is connected to its control",
            each(devices, up),
        ),
        family("device_flows", "Flows that a device's control has", each(devices, |d| Some(level(stats(d)?.flows)))),
        family("device_rules_limit", "Places of a device's table", each(devices, |d| Some(level(d.table()?.rules)))),
    ];
    let misses = kinds(devices, "answer", |table: &DeviceTable| {
        counts([("judged", table.judged), ("recached", table.recached), ("under_way", table.under_way)])
    });
    all.push(family("device_misses", "Packets that met no rule in a device's table, and came to control", misses));
    let bytes = "Bytes that would have crossed the bus to a card";
    all.push(family("device_bus_bytes", bytes, kinds(devices, "kind", |table| of_bus(&table.bus.bus_bytes))));
    let dma = each(devices, |d| Some(Number::Count(d.table()?.bus.dma_bytes)));
    all.push(family(
        "device_dma_bytes",
        "Bytes that a DMA engine of the host has to move, whether there is one or not",
        dma,
    ));
    let whole = each(devices, |d| Some(Number::Count(d.table()?.bus.whole_frame_bytes)));
    all.push(family("device_whole_frame_bytes", "Bytes across the bus of a card that switches whole frames", whole));
    let busy = kinds(devices, "card", |table: &DeviceTable| table.bus.model.as_ref().map_or_else(Vec::new, of_model));
    all.push(family(
        "device_bus_busy_seconds",
        "How long the bus that is named would have been busy, the busier way",
        busy,
    ));
    let runs = each(devices, |d| Some(level((d.table()?.dma.as_ref()?.state == "runs").into())));
    all.push(family("device_dma_engine_up", "Whether a device's DMA engine runs; 0: it hangs", runs));
    let copies = kinds(devices, "by", |table| table.dma.as_ref().map_or_else(Vec::new, of_engine));
    all.push(family("device_dma_engine_copies", "Copies for a DMA engine, by what has made them", copies));
    all
}

fn stats(device: &Found) -> Option<&SwitchStats> {
    device.stats.as_ref()
}

fn labels(device: &Found) -> Labels {
    vec![("device", device.name.clone())]
}

/// A series for each device.
fn each(devices: &[Found], number: impl Fn(&Found) -> Option<Number>) -> Vec<(Labels, Number)> {
    devices.iter().filter_map(|device| Some((labels(device), number(device)?))).collect()
}

/// A series for each device and kind.
fn kinds(
    devices: &[Found],
    label: &'static str,
    of: impl Fn(&DeviceTable) -> Vec<(&'static str, Number)>,
) -> Vec<(Labels, Number)> {
    let one = |device: &Found| {
        let numbers = device.table().map(&of).unwrap_or_default();
        let device = labels(device);
        numbers.into_iter().map(move |(kind, number)| ([&device[..], &[(label, kind.to_owned())]].concat(), number))
    };
    devices.iter().flat_map(one).collect()
}

fn counts<const N: usize>(of: [(&'static str, u64); N]) -> Vec<(&'static str, Number)> {
    of.into_iter().map(|(kind, n)| (kind, Number::Count(n))).collect()
}

fn of_bus(of: &BusBytes) -> Vec<(&'static str, Number)> {
    let BusBytes { descriptors, headers, rules, walks, punts, talk, dma, signals, wire } = *of;
    let first = [("descriptors", descriptors), ("headers", headers), ("rules", rules), ("walks", walks)];
    let rest = [("punts", punts), ("talk", talk), ("dma", dma), ("signals", signals), ("wire", wire)];
    [counts(first), counts(rest)].concat()
}

fn of_model(of: &BusModel) -> Vec<(&'static str, Number)> {
    vec![("headers", seconds(of.busy_ns)), ("whole_frames", seconds(of.whole_frame_busy_ns))]
}

fn of_engine(of: &DeviceDma) -> Vec<(&'static str, Number)> {
    let processor = of.full.saturating_add(of.summed).saturating_add(of.taken_back);
    counts([("engine", of.copies), ("processor", processor), ("nobody", of.lost)])
}

/// One that answers, with an engine that hangs, and one that is away.
#[cfg(test)]
pub fn testutil() -> Vec<Found> {
    let dma = Some(DeviceDma { state: "hangs".into(), copies: 9, lost: 1, ..DeviceDma::default() });
    let mut table = DeviceTable { rules: 1024, judged: 3, dma, ..DeviceTable::default() };
    (table.bus.bus_bytes.headers, table.bus.dma_bytes) = (280, 1500);
    table.bus.model = Some(BusModel { busy_ns: 2_500_000_000, ..BusModel::default() });
    let stats = SwitchStats { switch_connected: true, device: Some(table), ..SwitchStats::default() };
    let away = Found { name: "nic1".into(), away: Some("no answer".into()), ..Found::default() };
    vec![Found { name: "nic0".into(), stats: Some(stats), ..Found::default() }, away]
}
