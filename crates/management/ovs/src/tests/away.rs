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
    assert_eq!(site.datapath.takers().collect::<std::collections::BTreeSet<_>>().len(), 1);
    site.put_flow(1, 0, |_| ());
    assert!(!site.datapath.takers_changed(), "a flow changes nothing of it");
    site.ask(family::DATAPATH.id, command::DEL, flag::ACK, |to| to.text(datapath::NAME, "ovs-system"));
    assert!(site.datapath.takers_changed() && !site.datapath.is_made());
}
