//! Meters and limits of zones: what Open vSwitch sets, what the switch is told, what is told of them.

use super::*;
use lasthop_ovs_abi::limit::{self, Limit};
use lasthop_ovs_abi::meter::{self, Band, Meter};

const METER_ACTION: u16 = 19;

/// So many packets a second, and so many at once.
pub(super) fn packets(rate: u32, burst: u32) -> Meter {
    Meter { kilobits: false, band: Some(Band { rate, burst }) }
}

impl Site {
    pub(super) fn set_meter(&mut self, id: u32, meter: &Meter) -> Vec<Vec<u8>> {
        self.ask(family::METER.id, meter::command::SET, flag::ECHO, |to| meter::write_set(id, meter, to))
    }

    fn meter(&mut self, command: u8, id: u32) -> Vec<Vec<u8>> {
        self.ask(family::METER.id, command, flag::ECHO, |to| to.number(1, id))
    }

    /// What a meter has counted: what came, and what its band dropped.
    pub(super) fn counted(&mut self, command: u8, id: u32) -> [Option<[u64; 2]>; 2] {
        counted(&self.meter(command, id))
    }

    pub(super) fn limits(&mut self, command: u8, limits: &[Limit]) -> Vec<Limit> {
        let answers = self.ask(family::CT_LIMIT.id, command, flag::ECHO, |to| {
            if !limits.is_empty() {
                Limit::write(limits, to)
            }
        });
        Limit::read(body(&only(&answers[0]))).unwrap()
    }
}

fn pair(bytes: &[u8]) -> [u64; 2] {
    let number = |at: usize| u64::from_ne_bytes(bytes[at..at + 8].try_into().unwrap());
    [number(0), number(8)]
}

fn counted(answers: &[Vec<u8>]) -> [Option<[u64; 2]>; 2] {
    let message = only(&answers[0]);
    let [_, _, _, came, bands] = table::<5>(body(&message)).unwrap();
    let band = bands.and_then(|bands| attributes(bands).next()).map(|band| table::<5>(band.unwrap().1).unwrap());
    [came.map(pair), band.and_then(|band| band[4]).map(pair)]
}

#[test]
fn a_meter_is_the_switchs_and_tells_what_that_has_counted() {
    let mut site = Site::new();
    let features = site.ask(family::METER.id, meter::command::FEATURES, flag::ECHO, |_| {});
    let message = only(&features[0]);
    let [.., most, bands] = table::<9>(body(&message)).unwrap();
    assert_eq!((most.map(u32_of), bands.map(u32_of)), (Some(Ok(4096)), Some(Ok(1))));
    site.set_meter(54_545_401, &packets(10, 3));
    let told = site.told();
    let rates = Some([0, 10, 200_000_000]);
    assert!(told.contains(&FromControl::SetMeter { id: 0, rates }), "two more than the first that passes: {told:?}");
    // 8 Mbit/s, and a megabit at once.
    site.set_meter(7, &Meter { kilobits: true, band: Some(Band { rate: 8000, burst: 1000 }) });
    let rates = Some([1_000_000, 0, 125_000_000]);
    assert!(site.told().contains(&FromControl::SetMeter { id: 1, rates }));
    site.metered.insert(0, [[5, 500], [2, 200]]);
    assert_eq!(site.counted(meter::command::GET, 54_545_401), [Some([7, 700]), Some([2, 200])]);
    site.metered.insert(0, [[6, 600], [2, 200]]);
    assert_eq!(site.counted(meter::command::GET, 54_545_401), [Some([8, 800]), Some([2, 200])]);
    assert_eq!(site.counted(meter::command::GET, 7), [Some([0, 0]), Some([0, 0])]);
    assert_eq!(error_of(&site.meter(meter::command::GET, 8)), Refused::NO_ENTRY.0);
    assert_eq!(site.counted(meter::command::DEL, 54_545_401), [Some([8, 800]), Some([2, 200])]);
    assert!(site.told().contains(&FromControl::SetMeter { id: 0, rates: None }));
    assert_eq!(site.counted(meter::command::DEL, 54_545_401), [None, None], "there is none, and that is no error");
}

#[test]
fn a_flow_with_a_meter_is_one_of_the_switchs_with_its_meter() {
    let mut site = Site::new();
    let acts = |to: &mut Writer| {
        to.number(METER_ACTION, 5);
        output(2)(to);
    };
    site.put_flow(1, 0, acts);
    site.miss(VM1, &udp(60));
    assert_eq!(site.told_flow().actions, [Action::Output(VM2)], "there is no such meter");
    site.set_meter(5, &packets(10, 1));
    assert!(site.told().contains(&FromControl::ClearFlows), "packets that pass so far are to meet it");
    site.miss(VM1, &udp(60));
    assert_eq!(site.told_flow().actions, [Action::Meter(0), Action::Output(VM2)]);
    site.set_meter(5, &packets(20, 1));
    let told = site.told();
    assert!(!told.contains(&FromControl::ClearFlows), "the same meter has another rate: {told:?}");
    // A switch that is new has none.
    site.datapath.hear_switch(&ToControl::Hello);
    site.collect();
    let told = site.told();
    assert_eq!(told[0], FromControl::SetMeter { id: 0, rates: Some([0, 20, 0]) }, "{told:?}");
}

#[test]
fn what_is_done_packet_by_packet_is_metered_as_well() {
    let mut site = Site::new();
    site.set_meter(5, &packets(10, 2));
    let acts = |to: &mut Writer| {
        to.number(METER_ACTION, 5);
        to.nest(20, output(2));
    };
    site.put_flow(1, 0, acts);
    let send = |site: &mut Site, at_ms: u64, n: usize| {
        site.datapath.set_now(at_ms);
        (0..n).for_each(|_| site.datapath.frame(&tagged(1, &udp(60))));
        site.collect();
        std::mem::take(&mut site.frames).len()
    };
    assert_eq!(send(&mut site, 1000, 5), 2, "a burst of two");
    assert_eq!(send(&mut site, 1100, 5), 1);
    assert_eq!(send(&mut site, 9000, 5), 2);
    let len = udp(60).len() as u64;
    assert_eq!(site.counted(meter::command::GET, 5), [Some([15, 15 * len]), Some([10, 10 * len])]);
}

#[test]
fn a_copy_of_a_packet_that_goes_on_is_no_miss() {
    let mut site = Site::new();
    site.put_flow(1, 0, output(2));
    let mut key = FlowKey::default();
    extract(&mut key, &udp(60), 60, Depth::Full);
    key.in_port = VM1.0;
    let upcall = UpcallPacket { id: 1 << 32, copy: Some(7), key, header: udp(60), frame_len: 60 };
    site.datapath.hear_switch(&ToControl::Upcall(upcall));
    assert_eq!(site.told(), []);
}

#[test]
fn a_cut_output_is_one_flow_of_the_switchs() {
    let mut site = Site::new();
    site.put_flow(1, 0, |to| {
        to.number(13, 100);
        output(2)(to);
    });
    site.miss(VM1, &udp(600));
    assert_eq!(site.told_flow().actions, [Action::Truncated(VM2, 100)]);
}

#[test]
fn zones_have_limits_of_their_own_or_that_of_all() {
    let mut site = Site::new();
    let limit = |zone, limit| Limit { zone, limit, count: 0 };
    assert_eq!(site.limits(limit::command::GET, &[]), [limit(None, 0)]);
    site.limits(limit::command::SET, &[limit(None, 10), limit(Some(0), 5), limit(Some(3), 7)]);
    let all = [limit(None, 10), limit(Some(0), 5), limit(Some(3), 7)];
    assert_eq!(site.limits(limit::command::GET, &[]), all);
    let asked = [limit(None, 0), limit(Some(3), 0), limit(Some(4), 0)];
    let told = [limit(None, 10), limit(Some(3), 7), limit(Some(4), 10)];
    assert_eq!(site.limits(limit::command::GET, &asked), told);
    site.limits(limit::command::DEL, &[limit(Some(3), 0)]);
    assert_eq!(site.limits(limit::command::GET, &asked)[1], limit(Some(3), 10));
}

/// A packet that goes on from where it waits would be metered by both.
#[test]
fn what_opens_a_connection_behind_a_meter_is_metered_once() {
    let mut site = Site::new();
    site.set_meter(7, &packets(10, 1));
    site.put_flow(1, 0, |to| {
        to.number(METER_ACTION, 7);
        connections::commit_to(2, None)(to);
    });
    let frame = lasthop_conntrack::testutil::Ends::v4(1000, 53).udp(20);
    site.told();
    site.miss(VM1, &frame);
    assert_eq!(site.told(), [FromControl::Resume { id: 5, actions: whole::fetch(1) }]);
    assert_eq!(site.connections().len(), 0);
    site.datapath.frame(&tagged(1, &frame));
    site.collect();
    assert_eq!((site.frames.len(), site.connections().len()), (1, 1));
}
