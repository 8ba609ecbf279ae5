//! What the switch's flows that are gone have carried.

use super::*;

#[test]
fn a_flow_that_goes_takes_the_switchs_with_it_before_that_is_answered() {
    let mut site = Site::new();
    site.put_flow(1, 0, output(2));
    site.miss(VM1, &udp(100));
    let flow = site.told_flow();
    site.send(family::FLOW.id, command::DEL, flag::ACK | flag::ECHO, |to| to.attribute(flow::UFID, &ufid(1, 0)));
    let gone = FromControl::DelFlow { key: flow.key, mask: flow.mask, tell: true };
    let barrier = |site: &mut Site| {
        let told = site.told();
        let [first, FromControl::Ask { request, question: DatapathRequest::Barrier }] = &told[..] else {
            panic!("{told:?}")
        };
        assert_eq!(*first, gone);
        *request
    };
    let request = barrier(&mut site);
    assert!(site.answers.is_empty(), "the switch may still go by it");
    // A packet that it had on its way makes one anew, which carries another.
    site.miss(VM1, &udp(100));
    assert_eq!(site.told_flow().key, flow.key);
    site.datapath.hear_switch(&ToControl::Ended(info(&flow, 4).into()));
    let done = |request| ToControl::Reply { request, last: true, reply: DatapathReply::Barrier };
    site.datapath.hear_switch(&done(request));
    site.collect();
    let request = barrier(&mut site);
    site.datapath.hear_switch(&ToControl::Ended(info(&flow, 2).into()));
    site.datapath.hear_switch(&done(request));
    site.collect();
    assert_eq!(site.told(), []);
    let found = table::<12>(body(&only(&site.answers[0]))).unwrap();
    assert_eq!(found[usize::from(flow::STATS)].unwrap()[..8], 6u64.to_ne_bytes());
    assert_eq!((site.answers.len(), site.finished > 0), (2, true));
}

/// There is another of the switch's that looks the same, and they count for themselves.
#[test]
fn what_has_gone_still_counts_for_the_flow_that_it_was_of() {
    let mut site = Site::new();
    site.put_flow(1, 0, output(2));
    site.miss(VM1, &udp(100));
    let flow = site.told_flow();
    assert_eq!(site.statistics(1, 0, &[info(&flow, 3)]), (3, 300));
    let id = *site.datapath.registry.idlest(1).first().unwrap();
    assert!(site.datapath.take_back(id) && !site.datapath.take_back(id));
    site.collect();
    assert_eq!(site.told(), [FromControl::DelFlow { key: flow.key, mask: flow.mask, tell: true }]);
    site.miss(VM1, &udp(100));
    let again = site.told_flow();
    site.datapath.hear_switch(&ToControl::Ended(info(&flow, 5).into()));
    assert_eq!(site.statistics(1, 0, &[info(&again, 1)]), (6, 600));
    // One that nobody asked about.
    site.datapath.hear_switch(&ToControl::Ended(info(&flow, 5).into()));
    assert_eq!(site.statistics(1, 0, &[info(&again, 1)]), (6, 600));
}
