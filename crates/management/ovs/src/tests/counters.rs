//! What flows and the datapath have counted.

use super::*;

/// Lookups that found a flow, and packets that met none.
fn lookups(site: &mut Site) -> (u64, u64) {
    let answers = site.ask(family::DATAPATH.id, command::GET, 0, |to| to.text(datapath::NAME, "ovs-system"));
    let stats = attributes(body(&only(&answers[0]))).map(Result::unwrap).find(|(kind, _)| *kind == datapath::STATS);
    let number = |at: usize| u64::from_ne_bytes(stats.unwrap().1[at..at + 8].try_into().unwrap());
    (number(0), number(8))
}

/// `ovs_dp_process_packet` of the kernel's counts each lookup of a packet that is looked up again.
#[test]
fn a_packet_is_as_many_hits_as_it_meets_flows() {
    let mut site = Site::new();
    site.miss(VM1, &udp(100));
    site.datapath.frame(&tagged(1, &udp(100)));
    assert_eq!(lookups(&mut site), (0, 1));
    site.put_flow(1, 0, |to| to.number(7, 50));
    site.put_flow(1, 50, output(2));
    site.told();
    site.miss(VM1, &udp(100));
    let flow = site.told_flow();
    assert_eq!(lookups(&mut site), (0, 1), "the switch counts the packet that its flow was made for");
    site.statistics(1, 0, &[info(&flow, 3)]);
    assert_eq!(lookups(&mut site), (6, 1));
    site.datapath.frame(&tagged(1, &udp(100)));
    assert_eq!(lookups(&mut site), (8, 1));
}

#[test]
fn a_packet_of_fragments_counts_as_these_before_it_is_put_together_and_whole_behind() {
    let mut site = Site::new();
    site.put_state(1, 0, 0, |to| {
        to.nest(12, |_| {});
        to.number(7, 1);
    });
    site.put_state(1, 1, 0x21, output(2));
    for fragment in site.datapath.fragments.get_mut().cut(udp(2042), 1500) {
        site.datapath.frame(&tagged(1, &fragment));
    }
    site.collect();
    let carried = |recirculation: u32, state: u8| {
        let mut id = ufid(1, recirculation);
        id[2] = state;
        let flow = site.datapath.table.find(None, Some(&id)).and_then(|id| site.datapath.table.get(id));
        flow.map(|flow| (flow.carried.packets, flow.carried.bytes))
    };
    assert_eq!(carried(0, 0), Some((2, 1514 + 562)));
    assert_eq!(carried(1, 0x21), Some((1, 2042)));
}
