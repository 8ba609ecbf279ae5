//! Nobody is there to decide, or has no room for what is to be decided.

use super::*;
use lasthop_types::DropReason;

/// They were sent here whole, and vanished.
#[test]
fn what_nobody_would_take_is_dropped_where_it_waits() {
    let mut site = Site::new();
    let frame = lasthop_conntrack::testutil::Ends::v4(1000, 53).udp(20);
    let resumed = |site: &mut Site| {
        site.told();
        site.miss(VM1, &frame);
        let [FromControl::Resume { actions, .. }] = &site.told()[..] else { panic!("one") };
        actions.clone()
    };
    assert_eq!(resumed(&mut site), whole::fetch(1));
    // The other port floods.
    site.datapath.has_no_room(PID, 2);
    assert_eq!(resumed(&mut site), whole::fetch(1));
    site.datapath.has_no_room(PID, 1);
    assert_eq!(resumed(&mut site), [Action::Drop(DropReason::MissQueueFull)]);
    site.datapath.has_room(PID, 1);
    assert_eq!(resumed(&mut site), whole::fetch(1));
    site.datapath.disconnected(PID);
    assert_eq!(resumed(&mut site), [Action::Drop(DropReason::MissTimeout)]);
    assert_eq!(site.datapath.untaken(), 4, "two here, and two upcalls that had no room");
    assert_eq!(site.datapath.untaken_of().collect::<Vec<_>>(), [("vm1", 3), ("vm2", 1)]);
}

#[test]
fn who_takes_packets_is_told_when_that_may_have_changed() {
    let mut site = Site::new();
    assert!(site.datapath.takers_changed() && site.datapath.is_made());
    assert!(site.datapath.is_taker(PID) && !site.datapath.is_taker(0) && !site.datapath.is_taker(PID + 1));
    site.put_flow(1, 0, |_| ());
    assert!(!site.datapath.takers_changed(), "a flow changes nothing of it");
    site.ask(family::DATAPATH.id, command::DEL, flag::ACK, |to| to.text(datapath::NAME, "ovs-system"));
    assert!(site.datapath.takers_changed() && !site.datapath.is_made() && !site.datapath.is_taker(PID));
}

/// Each number that a new client could have was looked for among all of them: with so many it took minutes.
#[test]
fn ports_that_name_many_numbers_hold_up_nobody() {
    const EACH: u32 = 8192;
    const PORTS: u32 = 20;
    let mut site = Site::new();
    let names: Vec<_> = (0..PORTS).map(|n| format!("in{n}")).collect();
    let all: Vec<_> = (100..).map(PortId).zip(names.iter().map(String::as_str)).chain([(VM1, "vm1")]).collect();
    site.ports(&all);
    let numbers =
        |n: u32, len: u32| (100 + n * EACH..).take(len as usize).flat_map(u32::to_ne_bytes).collect::<Vec<u8>>();
    let mut port = |command, n: u32, numbers: &[u8]| {
        error_of(&site.ask(family::VPORT.id, command, flag::ACK, |to| {
            to.text(vport::NAME, &names[n as usize]);
            to.number(vport::TYPE, vport::NETDEV);
            to.attribute(vport::UPCALL_PID, numbers);
        }))
    };
    assert_eq!(port(command::NEW, 0, &numbers(0, EACH + 1)), Refused::INVALID.0);
    for n in 0..PORTS {
        assert_eq!(port(command::NEW, n, &numbers(n, EACH)), 0);
    }
    assert_eq!(port(command::SET, 0, &numbers(0, EACH / 2)), 0);
    assert_eq!(port(command::DEL, 1, &[]), 0);
    let named = (1..).take(100 + (EACH * PORTS) as usize).filter(|number| site.datapath.is_taker(*number)).count();
    assert_eq!(named as u32, 1 + EACH / 2 + (PORTS - 2) * EACH);
    let mut next = Datapath::new();
    next.restore(&site.datapath.outline());
    assert!(next.is_taker(100) && next.is_taker(99 + EACH * PORTS) && !next.is_taker(100 + EACH));
}
