//! Another process goes on with what one has noted.

use super::*;

#[test]
fn another_process_knows_datapath_ports_and_flows() {
    let mut site = Site::new();
    assert_eq!(site.put_flow(1, 0, output(2)), 0);
    assert_eq!(site.put_flow(2, 0, output(1)), 0);
    assert_eq!(site.put_flow(1, 9, output(2)), 0);
    assert_eq!(site.add_port(&"x".repeat(99), vport::NETDEV), Refused::INVALID.0, "what is refused is not noted");
    // A flow that went is not there.
    let id = ufid(1, 9);
    site.ask(family::FLOW.id, command::DEL, flag::ACK, |to| to.attribute(flow::UFID, &id));

    let mut next = Datapath::new();
    assert_eq!(next.restore(&site.notes), (3, 2));
    assert_eq!(next.take(), []);
    assert_eq!(next.notes(), site.datapath.notes());
    let mut third = Datapath::new();
    third.restore(&next.notes());
    assert_eq!(third.notes(), next.notes());

    // It answers a miss by itself, once it is told of the switch's ports.
    site.datapath = next;
    site.datapath.hear_switch(&ToControl::Hello);
    site.ports(&[(VM1, "vm1"), (VM2, "vm2"), (PACKETS, PACKET_PORT)]);
    site.settle();
    site.told();
    site.miss(VM1, &udp(100));
    assert_eq!(site.told_flow().actions, [Action::Output(VM2)]);
    // What no flow knows goes to the client with the number that it had.
    site.datapath.connected(PID);
    site.datapath.frame(&tagged(1, &[&udp(100)[..12], &[8, 6], &[0; 40]].concat()));
    site.collect();
    assert_eq!(site.upcalls.len(), 1);
}

#[test]
fn a_datapath_that_was_removed_is_not_there() {
    let mut site = Site::new();
    site.ask(family::DATAPATH.id, command::DEL, flag::ACK, |to| to.text(datapath::NAME, "ovs-system"));
    let mut next = Datapath::new();
    assert_eq!(next.restore(&site.notes), (0, 0));
    assert_eq!(next.notes(), []);
}

proptest! {
    /// Whatever is in the file, restoring ends, and what it has made is noted as it is.
    #[test]
    fn any_notes_are_read(notes in prop::collection::vec(any::<u8>(), 0..300), at in any::<prop::sample::Index>(), value: u8) {
        let mut site = Site::new();
        site.put_flow(1, 0, output(2));
        let mut broken = site.notes.clone();
        let at = at.index(broken.len());
        broken[at] = value;
        for notes in [notes, broken] {
            let mut next = Datapath::new();
            next.restore(&notes);
            let mut third = Datapath::new();
            third.restore(&next.notes());
            prop_assert_eq!(third.notes(), next.notes());
        }
    }
}
