//! Policing and classes of interfaces: what Open vSwitch says to the kernel, and what the switch and its ports do of that.

use super::*;
use lasthop_ipc::RateLimit;
use lasthop_ovs_abi::meter::{self, Band, Meter};
use lasthop_ovs_abi::traffic::{self, Class, HANDLE, INGRESS, PARAMETERS, ROOT, Rate};

/// So many bytes a second may pass a class.
fn class(parent: u32, bytes: u32) -> Class {
    let mut parameters = [0; PARAMETERS];
    parameters[8..12].copy_from_slice(&1500u32.to_ne_bytes());
    parameters[20..24].copy_from_slice(&bytes.to_ne_bytes());
    let rate = Rate { bytes: bytes.into(), packets: 0, burst_ns: 0 };
    Class { parent, least: 1500, priority: 0, rate, parameters }
}

impl Site {
    /// A message about an interface, as the library hands it over.
    fn traffic(&mut self, name: &str, kind: u16, flags: u16, fill: impl FnOnce(&mut Writer)) -> Vec<Vec<u8>> {
        let mut to = Writer::new();
        traffic::write_interface(name, &mut to);
        to.begin(kind, flags | 1, SEQUENCE, PID);
        fill(&mut to);
        to.end();
        self.datapath.request(PID, to.into_bytes());
        self.settle();
        std::mem::take(&mut self.answers)
    }

    fn discipline(&mut self, name: &str, kind: u16, parent: u32, what: &str) -> i32 {
        let handle = if parent == ROOT { HANDLE } else { 0xffff_0000 };
        let write = |to: &mut Writer| traffic::write_request(handle, parent, what, |_| {}, to);
        let answers = self.traffic(name, kind, flag::ACK, write);
        error_of(&answers)
    }

    fn put_class(&mut self, name: &str, handle: u32, class: &Class) -> i32 {
        let parameters = |to: &mut Writer| traffic::write_parameters(class, to);
        let write = |to: &mut Writer| traffic::write_request(handle, class.parent, "htb", parameters, to);
        let answers = self.traffic(name, traffic::NEW_CLASS, flag::ACK, write);
        error_of(&answers)
    }

    /// What is told of a class: how many packets have passed, and were dropped.
    fn class_counts(&mut self, name: &str, handle: u32) -> [u32; 2] {
        let write = |to: &mut Writer| traffic::write_request(handle, HANDLE, "htb", |_| {}, to);
        let answers = self.traffic(name, traffic::GET_CLASS, flag::ECHO, write);
        let message = only(&answers[0]);
        assert_eq!(message.kind, traffic::NEW_CLASS);
        let [.., stats] = table::<8>(&message.payload[20..]).unwrap();
        let [_, basic, _, queue] = table::<4>(stats.unwrap()).unwrap();
        let number = |bytes: &[u8]| u32::from_ne_bytes(bytes[8..12].try_into().unwrap());
        [number(basic.unwrap()), number(queue.unwrap())]
    }

    /// What the supervisor was told last of a port's limits.
    fn limited(&mut self) -> Option<(String, [Option<RateLimit>; 2])> {
        let told = std::mem::take(&mut self.to_supervisor).pop();
        told.map(|told| match told {
            ControlToSupervisor::Limit { name, from, to } => (name, [from, to]),
            other => panic!("{other:?}"),
        })
    }

    /// Packets from vm1 to vm2 are of this class.
    fn put_queue(&mut self, handle: u32) {
        let acts = |to: &mut Writer| {
            to.nest(3, |to| to.number(2, handle));
            output(2)(to);
        };
        assert_eq!(self.put_flow(1, 0, acts), 0);
    }
}

#[test]
fn what_comes_from_a_port_is_policed_by_its_rate() {
    let mut site = Site::new();
    let rate = Rate { bytes: 125_000, packets: 0, burst_ns: 8_000_000_000 };
    let police = |to: &mut Writer| {
        traffic::write_request(1, 0xffff_fff2, "matchall", |to| traffic::write_police(&rate, to), to);
    };
    assert_eq!(site.discipline("vm1", traffic::DEL_QDISC, INGRESS, "ingress"), Refused::NO_ENTRY.0);
    let without = site.traffic("vm1", traffic::NEW_FILTER, flag::ACK, police);
    assert_eq!(error_of(&without), Refused::NO_ENTRY.0);
    assert_eq!(site.discipline("vm1", traffic::NEW_QDISC, INGRESS, "ingress"), 0);
    let answers = site.traffic("vm1", traffic::NEW_FILTER, flag::ECHO, police);
    assert_eq!(only(&answers[0]).kind, traffic::NEW_FILTER, "who wants to hear what was made is told");
    let limit = RateLimit { bytes: 125_000, packets: 0, burst_ns: 8_000_000_000 };
    assert_eq!(site.limited(), Some(("vm1".into(), [Some(limit), None])));
    assert_eq!(site.discipline("vm1", traffic::NEW_QDISC, INGRESS, "ingress"), Refused::EXISTS.0);
    site.die();
    assert_eq!(site.limited(), Some(("vm1".into(), [Some(limit), None])));
    assert_eq!(site.discipline("vm1", traffic::DEL_QDISC, INGRESS, "ingress"), 0);
    assert_eq!(site.limited(), Some(("vm1".into(), [None, None])));
}

#[test]
fn what_is_not_the_switchs_is_the_kernels() {
    let mut site = Site::new();
    let kernels = traffic::FOR_THE_KERNEL.0;
    assert_eq!(site.discipline("eth7", traffic::NEW_QDISC, ROOT, "htb"), kernels, "no port of ours");
    site.datapath.devices.insert(VM2);
    assert_eq!(site.discipline("vm2", traffic::NEW_QDISC, ROOT, "htb"), kernels, "what goes there passes the kernel");
    assert_eq!(site.discipline("vm2", traffic::NEW_QDISC, INGRESS, "ingress"), 0);
    assert_eq!(site.discipline("vm1", traffic::NEW_QDISC, ROOT, "hfsc"), Refused::UNSUPPORTED.0);
    assert_eq!(site.discipline("vm1", traffic::NEW_QDISC, INGRESS, "clsact"), Refused::UNSUPPORTED.0);
    assert_eq!(site.limited(), None);
}

#[test]
fn classes_are_meters_and_all_of_them_a_rate() {
    let mut site = Site::new();
    // Another meter, so that numbers are not all the same.
    let meter = Meter { kilobits: false, band: Some(Band { rate: 1, burst: 1 }) };
    assert_eq!(site.discipline("vm2", traffic::NEW_QDISC, ROOT, "htb"), 0);
    site.ask(family::METER.id, meter::command::SET, flag::ECHO, |to| meter::write_set(5, &meter, to));
    assert_eq!(site.put_class("vm2", HANDLE | 0xfffe, &class(HANDLE, 1_000_000)), 0);
    let limit = RateLimit { bytes: 1_000_000, packets: 0, burst_ns: 65_536_000 };
    assert_eq!(site.limited(), Some(("vm2".into(), [None, Some(limit)])));
    for (queue, bytes) in [(1, 65_536), (2, 131_072)] {
        assert_eq!(site.put_class("vm2", HANDLE | (queue + 1), &class(HANDLE | 0xfffe, bytes)), 0);
    }
    let told = site.told();
    for (id, bytes) in [(4095, 65_536), (4094, 131_072)] {
        let rates = Some([bytes, 0, 65_536 * 1_000_000_000 / bytes]);
        assert!(told.contains(&FromControl::SetMeter { id, rates }), "{told:?}");
    }
    site.put_queue(HANDLE | 3);
    site.told();
    for _ in 0..3 {
        site.miss(VM1, &udp(60));
        assert_eq!(site.told_flow().actions, [Action::Meter(4094), Action::Output(VM2)]);
        site.metered = [(4094, [[7, 700], [3, 300]])].into();
        assert_eq!(site.class_counts("vm2", HANDLE | 3), [7, 3]);
        assert_eq!(site.class_counts("vm2", HANDLE | 2), [0, 0]);
        site.die();
        assert!(site.told().contains(&FromControl::SetMeter { id: 0, rates: Some([0, 1, 0]) }));
        site.to_supervisor.clear();
    }
    // Without its class it is of none: there is no default.
    let write = |to: &mut Writer| traffic::write_request(HANDLE | 3, 0, "", |_| {}, to);
    let answers = site.traffic("vm2", traffic::DEL_CLASS, flag::ACK, write);
    assert_eq!(error_of(&answers), 0);
    assert!(site.told().contains(&FromControl::SetMeter { id: 4094, rates: None }));
    site.miss(VM1, &udp(60));
    assert_eq!(site.told_flow().actions, [Action::Output(VM2)]);
    assert_eq!(site.put_class("vm2", HANDLE | 1, &class(HANDLE | 0xfffe, 65_536)), 0);
    site.told();
    site.miss(VM1, &udp(60));
    assert_eq!(site.told_flow().actions, [Action::Meter(4094), Action::Output(VM2)], "the first is that");
    // The port goes, and what limits it.
    site.ports(&[(VM1, "vm1"), (PACKETS, PACKET_PORT)]);
    site.collect();
    assert!(site.told().contains(&FromControl::SetMeter { id: 4094, rates: None }));
}

#[test]
fn what_a_class_drops_goes_elsewhere_all_the_same() {
    let mut site = Site::new();
    site.discipline("vm2", traffic::NEW_QDISC, ROOT, "htb");
    site.put_class("vm2", HANDLE | 1, &class(HANDLE | 0xfffe, 65_536));
    site.put_flow(1, 0, |to| {
        output(2)(to);
        output(1)(to);
    });
    site.goes_on(1, &udp(60));
    let (mut there, mut back) = (0, 0);
    for _ in 0..2000 {
        site.datapath.tick();
        site.datapath.frame(&tagged(1, &udp(60)));
        site.collect();
        for frame in std::mem::take(&mut site.frames) {
            if frame == tagged(2, &udp(60)) { there += 1 } else { back += 1 }
        }
    }
    assert_eq!(back, 2000);
    assert!(there < 1500, "{there}");
}
