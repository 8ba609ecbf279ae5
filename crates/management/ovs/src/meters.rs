//! Meters. The switch has each one, and judges what it carries; what goes by here, one by one, is judged here, by one with the same rate.

use crate::Datapath;
use crate::requests::{Changes, DP_IFINDEX, Reply, Request};
use lasthop_ipc::FromControl;
use lasthop_ovs_abi::meter::{self, Counts, Meter, command};
use lasthop_ovs_abi::netlink::Writer;
use lasthop_ovs_abi::{Refused, family};
use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};

/// Most meters: the switch has room for as many.
const MOST: u32 = 4096;
const SECOND_NS: u64 = 1_000_000_000;

/// Meters of Open vSwitch's have numbers below; from here on are those of classes of interfaces.
pub(crate) const OWN: u64 = 1 << 32;

/// A meter.
#[derive(Debug)]
struct Held {
    /// As Open vSwitch sets it.
    meter: Meter,
    /// As the switch has rates.
    rates: [u64; 3],
    /// The switch's number for it.
    slot: u32,
    counts: Cell<Counts>,
    /// What the switch had counted when it last said so: what passed, and what was dropped.
    told: [[u64; 2]; 2],
    /// When all that has passed here would have passed at the meter's rate.
    paid_ns: Cell<u64>,
}

/// All of them, by Open vSwitch's numbers, and those of classes.
#[derive(Debug, Default)]
pub(crate) struct Meters(BTreeMap<u64, Held>);

/// Bytes and packets a second, and how much may be made up for, in nanoseconds: as the switch has rates.
fn rates(meter: &Meter) -> [u64; 3] {
    let Some(band) = meter.band else { return [0; 3] };
    let (rate, burst) = (u64::from(band.rate), u64::from(band.burst));
    // The switch lets a packet pass as soon as all before it is paid for, so one of the burst needs no credit.
    let credit = if meter.kilobits { burst } else { burst.saturating_sub(1) };
    let burst_ns = (u128::from(credit) * u128::from(SECOND_NS) / u128::from(rate.max(1))) as u64;
    if meter.kilobits { [rate * 125, 0, burst_ns] } else { [0, rate, burst_ns] }
}

impl Held {
    fn new(meter: Meter, rates: [u64; 3], slot: u32) -> Self {
        let (counts, told, paid_ns) = Default::default();
        Self { meter, rates, slot, counts, told, paid_ns }
    }

    fn told(&self) -> FromControl {
        FromControl::SetMeter { id: self.slot, rates: Some(self.rates) }
    }

    /// Whether a packet passes, at this time.
    fn admit(&self, bytes: usize, now_ms: u64) -> bool {
        let [byte_rate, packet_rate, burst_ns] = self.rates;
        let now_ns = now_ms.saturating_mul(1_000_000);
        let admitted = self.paid_ns.get().saturating_sub(burst_ns) <= now_ns;
        let mut counts = self.counts.get();
        let add = |sums: &mut [u64; 2]| *sums = [sums[0] + 1, sums[1] + bytes as u64];
        add(&mut counts.came);
        counts.used_ms = now_ms;
        if admitted {
            let cost = |amount: u64, rate: u64| amount.saturating_mul(SECOND_NS).checked_div(rate).unwrap_or(0);
            let cost_ns = cost(bytes as u64, byte_rate) + cost(1, packet_rate);
            self.paid_ns.set(self.paid_ns.get().max(now_ns).saturating_add(cost_ns));
        } else {
            add(&mut counts.dropped);
        }
        self.counts.set(counts);
        admitted
    }
}

impl Meters {
    /// The switch's number for a meter.
    pub fn slot(&self, id: u64) -> Option<u32> {
        self.0.get(&id).map(|held| held.slot)
    }

    /// Whether a packet of so many bytes passes.
    pub fn admit(&self, id: u64, bytes: usize, now_ms: u64) -> bool {
        self.0.get(&id).is_none_or(|held| held.admit(bytes, now_ms))
    }

    /// The switch says what its meter of this number has counted.
    pub fn counted(&mut self, slot: u32, now: [[u64; 2]; 2], now_ms: u64) {
        let Some(held) = self.0.values_mut().find(|held| held.slot == slot) else { return };
        let mut counts = held.counts.get();
        let mut more = [[0; 2]; 2];
        for ((more, now), before) in more.iter_mut().flatten().zip(now.iter().flatten()).zip(held.told.iter().flatten())
        {
            *more = now.saturating_sub(*before);
        }
        let [[passed, passed_bytes], [dropped, dropped_bytes]] = more;
        held.told = now;
        counts.came = [counts.came[0] + passed + dropped, counts.came[1] + passed_bytes + dropped_bytes];
        counts.dropped = [counts.dropped[0] + dropped, counts.dropped[1] + dropped_bytes];
        if passed + dropped > 0 {
            counts.used_ms = now_ms;
        }
        held.counts.set(counts);
    }

    /// One of Open vSwitch's, as a request that makes it; its sequence number is the switch's number for it.
    fn write(&self, id: u32, to: &mut Writer) {
        let Some(held) = self.0.get(&id.into()) else { return };
        to.begin(family::METER.id, 0, held.slot, 0);
        to.ovs_header(command::SET, family::METER.version, DP_IFINDEX);
        meter::write_set(id, &held.meter, to);
        to.end();
    }

    /// All of Open vSwitch's.
    pub fn write_all(&self, to: &mut Writer) {
        self.0.keys().filter_map(|id| u32::try_from(*id).ok()).for_each(|id| self.write(id, to));
    }

    fn free_slot(&self) -> Option<u32> {
        let taken = self.taken();
        (0..MOST).find(|slot| !taken.contains(slot))
    }

    fn taken(&self) -> BTreeSet<u32> {
        self.0.values().map(|held| held.slot).collect()
    }

    /// What has passed a meter, packets and bytes, and what it has dropped.
    pub fn passed(&self, id: u64) -> [[u64; 2]; 2] {
        let Counts { came, dropped, .. } = self.0.get(&id).map(|held| held.counts.get()).unwrap_or_default();
        [[came[0] - dropped[0], came[1] - dropped[1]], dropped]
    }
}

impl Datapath {
    /// What another process makes a meter of, or that there is none any more.
    pub(crate) fn note_meter(&self, id: u32, to: &mut Writer) {
        if self.meters.0.contains_key(&id.into()) {
            return self.meters.write(id, to);
        }
        to.begin(family::METER.id, 0, 0, 0);
        to.ovs_header(command::DEL, family::METER.version, DP_IFINDEX);
        to.number(meter::ID, id);
        to.end();
    }

    /// Takes what another process has noted of a meter, with the switch's number for it: flows of the switch's name that until they are made anew.
    pub(crate) fn restore_meter(&mut self, request: &Request<'_>, slot: u32) -> Option<()> {
        let id = meter::id_of(request.attributes).ok()?;
        self.meters.0.remove(&id.into());
        if request.command == command::SET {
            let meter = Meter::read(request.attributes).ok()?;
            let is_free = slot < MOST && self.meters.0.values().all(|held| held.slot != slot);
            let slot = if is_free { slot } else { self.meters.free_slot()? };
            self.meters.0.insert(id.into(), Held::new(meter, rates(&meter), slot));
        }
        Some(())
    }

    /// The switch is told of all meters; it counts anew from here on.
    pub(crate) fn tell_meters(&mut self) {
        let told = |held: &mut Held| {
            held.told = Default::default();
            held.told()
        };
        let all: Vec<_> = self.meters.0.values_mut().map(told).collect();
        all.into_iter().for_each(|message| self.tell_switch(message));
    }

    /// There are no meters of Open vSwitch's any more.
    pub(crate) fn forget_meters(&mut self) {
        let others = self.meters.0.split_off(&OWN);
        for held in std::mem::replace(&mut self.meters.0, others).into_values() {
            self.tell_switch(FromControl::SetMeter { id: held.slot, rates: None });
        }
    }

    /// A class's meter has these rates from here on. False: there is no room for one.
    pub(crate) fn set_class_meter(&mut self, id: u64, rates: [u64; 3]) -> bool {
        if self.meters.0.get(&id).is_some_and(|held| held.rates == rates) {
            return true;
        }
        let before = self.meters.0.remove(&id);
        let taken = self.meters.taken();
        // From the other end than Open vSwitch's, which keep theirs when this process is replaced.
        let slot = before.map(|held| held.slot).or_else(|| (0..MOST).rev().find(|slot| !taken.contains(slot)));
        let Some(slot) = slot else { return false };
        let held = Held::new(Meter { kilobits: true, band: None }, rates, slot);
        self.tell_switch(held.told());
        self.meters.0.insert(id, held);
        true
    }

    /// A class has no meter any more.
    pub(crate) fn remove_meter(&mut self, id: u64) {
        if let Some(gone) = self.meters.0.remove(&id) {
            self.tell_switch(FromControl::SetMeter { id: gone.slot, rates: None });
        }
    }

    pub(crate) fn meter_request(&mut self, request: &Request<'_>, changes: &mut Changes) -> Reply {
        if self.name.is_none() {
            return Err(Refused::NO_DEVICE);
        }
        let answer = |fill: &dyn Fn(&mut Writer)| {
            let told = request.answer(0, |to| {
                to.ovs_header(request.command, family::METER.version, DP_IFINDEX);
                fill(to);
            });
            Ok(vec![told])
        };
        if request.command == command::FEATURES {
            return answer(&|to| meter::write_features(MOST, to));
        }
        let id = meter::id_of(request.attributes)?;
        let at = u64::from(id);
        match request.command {
            command::GET => {
                let held = self.meters.0.get(&at).ok_or(Refused::NO_ENTRY)?;
                answer(&|to| meter::write(id, Some(&held.counts.get()), held.meter.band.is_some(), to))
            }
            command::SET => {
                let meter = Meter::read(request.attributes)?;
                let before = self.meters.0.get(&at).map(|held| held.slot);
                let slot = before.or_else(|| self.meters.free_slot()).ok_or(Refused::FULL)?;
                // Packets that a flow of the switch's let pass because there was none are to meet it.
                changes.all |= before.is_none();
                changes.told = true;
                let held = Held::new(meter, rates(&meter), slot);
                self.tell_switch(held.told());
                let before = self.meters.0.insert(at, held);
                let counts = before.as_ref().map(|held| held.counts.get());
                let has_band = before.is_some_and(|held| held.meter.band.is_some());
                answer(&|to| meter::write(id, counts.as_ref(), has_band, to))
            }
            command::DEL => {
                let gone = self.meters.0.remove(&at);
                if let Some(gone) = &gone {
                    (changes.all, changes.told) = (true, true);
                    self.tell_switch(FromControl::SetMeter { id: gone.slot, rates: None });
                }
                let counts = gone.as_ref().map(|held| held.counts.get());
                let has_band = gone.is_some_and(|held| held.meter.band.is_some());
                answer(&|to| meter::write(id, counts.as_ref(), has_band, to))
            }
            _ => Err(Refused::UNSUPPORTED),
        }
    }
}
