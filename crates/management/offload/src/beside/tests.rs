use super::*;
use crate::Capabilities;
use lasthop_ipc::UpcallPacket;
use lasthop_types::CacheFigures;
use std::collections::BTreeMap;

/// A table that is told what has passed it by.
#[derive(Debug, Default)]
struct Played {
    flows: BTreeMap<u32, (FlowSpec, Carried)>,
    places: usize,
    cleared: usize,
    breaks: bool,
    looked: usize,
    /// A port whose flows it would not take.
    none_of: u32,
}

/// Of this port: its number is the flow's.
fn number(key: &FlowKey) -> u32 {
    key.in_port
}

impl Table for Played {
    fn capabilities(&self) -> Capabilities {
        let mask = FlowMask(FlowKey { in_port: u32::MAX, ..FlowKey::default() });
        let no = false;
        Capabilities {
            mask,
            places: self.places,
            acts: 16,
            several_outputs: no,
            vlan_edits: no,
            other_edits: no,
            other_actions: no,
        }
    }

    fn judge(&self, flow: &FlowSpec) -> Result<(), Why> {
        self.capabilities().can(flow)?;
        if flow.key.in_port == self.none_of { Err(Why::Port) } else { Ok(()) }
    }

    fn put(&mut self, flow: &FlowSpec) -> Result<(), NotPut> {
        if self.breaks {
            return Err(Lost("nobody knows".into()).into());
        }
        self.flows.insert(number(&flow.key), (flow.clone(), Carried::default()));
        Ok(())
    }

    fn delete(&mut self, key: &FlowKey, _: &FlowMask) -> Result<Carried, Lost> {
        if self.breaks {
            return Err(Lost("it does not".into()));
        }
        Ok(self.flows.remove(&number(key)).expect("it was put").1)
    }

    fn clear(&mut self) -> Result<(), Lost> {
        self.flows.clear();
        self.cleared += 1;
        Ok(())
    }

    fn statistics(&mut self, each: &mut dyn FnMut(&FlowKey, &FlowMask, Carried)) -> Result<(), Lost> {
        self.looked += 1;
        self.flows.values().for_each(|(flow, carried)| each(&flow.key, &flow.mask, *carried));
        Ok(())
    }
}

/// From the port with this number to port 9.
fn flow(from: u32) -> FlowSpec {
    let key = FlowKey { in_port: from, ..FlowKey::default() };
    let mask = FlowMask(FlowKey { in_port: u32::MAX, ..FlowKey::default() });
    FlowSpec { key, mask, actions: vec![Action::Output(PortId(9))], epoch: 0 }
}

fn put(from: u32) -> FromControl {
    FromControl::PutFlow(flow(from))
}

fn del(from: u32, tell: bool) -> FromControl {
    FromControl::DelFlow { key: flow(from).key, mask: flow(from).mask, tell }
}

fn info(from: u32) -> FlowInfo {
    FlowInfo { flow: flow(from), packets: 1, bytes: 60, idle_ms: 5000 }
}

fn beside() -> Beside<Played> {
    Beside::new(Played { places: 100, none_of: 77, ..Played::default() }).unwrap()
}

/// With these flows in the table.
fn with(flows: &[u32]) -> Beside<Played> {
    let mut beside = beside();
    for from in flows {
        beside.from_control(&put(*from)).unwrap();
    }
    assert!(!beside.step(100).unwrap());
    beside
}

fn carries(beside: &mut Beside<Played>, from: u32, packets: u64) {
    let carried = &mut beside.table.flows.get_mut(&from).expect("it is there").1;
    (carried.packets, carried.bytes, carried.idle_ms) = (carried.packets + packets, carried.bytes + 100 * packets, 20);
}

fn ask(beside: &mut Beside<Played>, request: u64, question: DatapathRequest) {
    beside.from_control(&FromControl::Ask { request, question }).unwrap();
}

/// What control hears of these flows.
fn hears(beside: &mut Beside<Played>, request: u64, flows: &[u32], next: Option<Position>) -> Vec<(u64, u64, u64)> {
    let flows = flows.iter().map(|from| info(*from)).collect();
    let mut message = ToControl::Reply { request, last: true, reply: DatapathReply::Flows { flows, next } };
    beside.to_control(&mut message).unwrap();
    let ToControl::Reply { reply: DatapathReply::Flows { flows, .. }, .. } = message else { panic!("{message:?}") };
    flows.iter().map(|info| (info.packets, info.bytes, info.idle_ms)).collect()
}

fn there(beside: &Beside<Played>) -> Vec<u32> {
    beside.table.flows.keys().copied().collect()
}

const ALL: DatapathRequest = DatapathRequest::Flows { after: FIRST };

#[test]
fn flows_go_there_and_leave_before_the_word_that_they_go_passes() {
    let mut beside = with(&[1, 2, 3]);
    assert_eq!((there(&beside), beside.table.cleared), (vec![1, 2, 3], 1), "a new one is emptied first");
    beside.from_control(&del(2, false)).unwrap();
    assert_eq!(there(&beside), [1, 3]);
    // One that is put anew is not there while the word passes.
    beside.from_control(&put(1)).unwrap();
    assert_eq!(there(&beside), [3]);
    beside.step(100).unwrap();
    assert_eq!(there(&beside), [1, 3]);
    // One that waits and goes never comes there.
    beside.from_control(&put(4)).unwrap();
    beside.from_control(&del(4, false)).unwrap();
    beside.step(100).unwrap();
    assert_eq!(there(&beside), [1, 3]);
    beside.from_control(&put(5)).unwrap();
    beside.from_control(&FromControl::ClearFlows).unwrap();
    assert!(!beside.step(100).unwrap() && there(&beside).is_empty());
    // Nor does one whose port goes.
    let mut beside = with(&[1, 2]);
    beside.to_control(&mut ToControl::PortGone(PortId(1))).unwrap();
    assert_eq!(there(&beside), [2]);
    beside.to_control(&mut ToControl::PortGone(PortId(9))).unwrap();
    assert!(there(&beside).is_empty(), "it was the receiver's");
}

#[test]
fn what_it_has_carried_is_added() {
    let mut beside = with(&[1, 2]);
    carries(&mut beside, 1, 10);
    ask(&mut beside, 7, ALL);
    assert_eq!(hears(&mut beside, 7, &[1, 2, 3], None), [(11, 1060, 20), (1, 60, 5000), (1, 60, 5000)]);
    carries(&mut beside, 1, 5);
    // And what the flow has carried since then, when it ends.
    beside.from_control(&del(1, true)).unwrap();
    let mut ended = ToControl::Ended(Box::new(info(1)));
    beside.to_control(&mut ended).unwrap();
    let ToControl::Ended(ended) = ended else { panic!("{ended:?}") };
    assert_eq!((ended.packets, ended.bytes), (16, 1560));
    let mut again = ToControl::Ended(Box::new(info(1)));
    beside.to_control(&mut again).unwrap();
    assert!(matches!(again, ToControl::Ended(info) if info.packets == 1), "once");
    // Ports have theirs, and those that are gone.
    let removed = |beside: &mut Beside<Played>| {
        let (from_guest, to_guest, caches) = (PortTotals::default(), PortTotals::default(), CacheFigures::default());
        let reply = DatapathReply::Removed { from_guest, to_guest, caches };
        let mut message = ToControl::Reply { request: 8, last: true, reply };
        beside.to_control(&mut message).unwrap();
        let ToControl::Reply { reply: DatapathReply::Removed { from_guest, to_guest, .. }, .. } = message else {
            panic!("{message:?}")
        };
        [from_guest, to_guest].map(|totals| [totals.packets, totals.bytes])
    };
    assert_eq!(removed(&mut beside), [[0; 2]; 2]);
    assert_eq!(beside.ports[&PortId(1)], [[15, 1500], [0, 0]]);
    assert_eq!(beside.ports[&PortId(9)], [[0, 0], [15, 1500]]);
    beside.to_control(&mut ToControl::PortGone(PortId(1))).unwrap();
    assert_eq!(removed(&mut beside), [[15, 1500], [0, 0]]);
    assert_eq!((beside.figures().packets, beside.figures().bytes), (15, 1500));
}

#[test]
fn what_the_data_plane_has_let_go_of_leaves() {
    let mut beside = with(&[1, 2, 3]);
    ask(&mut beside, 1, ALL);
    hears(&mut beside, 1, &[1], Some((5, 5, 3)));
    // Another walk, which ends first; and a flow that comes meanwhile.
    ask(&mut beside, 2, ALL);
    beside.from_control(&put(4)).unwrap();
    beside.step(9).unwrap();
    assert_eq!(there(&beside), [1, 2, 3, 4]);
    ask(&mut beside, 3, DatapathRequest::Flows { after: (5, 5, 3) });
    hears(&mut beside, 3, &[3], None);
    assert_eq!(there(&beside), [1, 3, 4], "2 is nowhere, and 4 came later");
    hears(&mut beside, 2, &[1, 3], None);
    assert_eq!(there(&beside), [1, 3, 4]);
    // An answer whose question nobody here has heard says nothing.
    hears(&mut beside, 77, &[], None);
    assert_eq!(there(&beside), [1, 3, 4]);
}

#[test]
fn what_it_cannot_take_stays_and_is_counted() {
    let mut beside = with(&[1]);
    let says = |flow: FlowSpec| FromControl::PutFlow(flow);
    let drop = FlowSpec { actions: Vec::new(), ..flow(2) };
    let flood = FlowSpec { actions: vec![Action::LimitFlood, Action::Output(PortId(9))], ..flow(3) };
    let mut deep = flow(4);
    deep.mask.0.ip_proto = 255;
    let copies = FlowSpec { actions: vec![Action::Copy(PortId(8)), Action::Output(PortId(9))], ..flow(5) };
    for flow in [drop, flood, deep, copies] {
        beside.from_control(&says(flow)).unwrap();
    }
    beside.table.places = 2;
    for from in [6, 7, 8] {
        beside.from_control(&put(from)).unwrap();
    }
    beside.step(100).unwrap();
    assert_eq!(there(&beside), [1, 6]);
    let stayed = beside.figures().stayed;
    let of = |why: Why| stayed[why.number()];
    assert_eq!([Why::Refuses, Why::Floods, Why::Match, Why::Action, Why::Full].map(of), [1, 1, 1, 1, 2]);
    assert_eq!(stayed.iter().sum::<u64>(), 6);
    // So many at a time.
    let mut beside = with(&[]);
    (0..5).for_each(|from| beside.from_control(&put(from)).unwrap());
    assert!(beside.step(2).unwrap());
    assert_eq!(there(&beside), [0, 1]);
}

#[test]
fn what_is_withdrawn_is_counted_if_it_stays() {
    let mut beside = with(&[1, 2]);
    beside.withdraw(PortId(1), Some(Why::Rate)).unwrap();
    assert_eq!((there(&beside), beside.figures().stayed[Why::Rate.number()]), (vec![2], 1));
    beside.withdraw(PortId(9), None).unwrap();
    assert_eq!((there(&beside), beside.figures().stayed.iter().sum::<u64>()), (vec![], 1));
}

#[test]
fn a_table_that_does_not_let_go_is_lost() {
    let mut beside = with(&[1]);
    beside.table.breaks = true;
    assert!(beside.from_control(&del(1, false)).is_err(), "the word must not pass");
}

#[test]
fn all_else_passes_as_it_is() {
    let mut beside = with(&[1]);
    let key = FlowKey::default();
    let upcall = UpcallPacket { id: 3, copy: None, key, header: vec![1, 2], frame_len: 60 };
    for message in [ToControl::Hello, ToControl::Upcall(upcall)] {
        let mut passed = message.clone();
        beside.to_control(&mut passed).unwrap();
        assert_eq!(passed, message);
    }
    beside.from_control(&FromControl::Resume { id: 3, actions: Vec::new() }).unwrap();
    assert_eq!(there(&beside), [1]);
}

#[test]
fn a_flow_that_nobody_knows_to_be_there_is_the_end() {
    let mut beside = beside();
    beside.from_control(&put(1)).unwrap();
    beside.table.breaks = true;
    assert!(beside.step(100).is_err());
}

/// The word that put it came before the walk began, whenever the table is given it.
#[test]
fn what_waits_while_a_walk_passes_without_it_does_not_come_there() {
    for given in [false, true] {
        let mut beside = beside();
        beside.from_control(&put(1)).unwrap();
        beside.from_control(&put(2)).unwrap();
        ask(&mut beside, 1, ALL);
        if given {
            beside.step(100).unwrap();
        }
        beside.from_control(&put(3)).unwrap();
        hears(&mut beside, 1, &[1], None);
        beside.step(100).unwrap();
        assert_eq!(there(&beside), [1, 3], "the data plane has let go of 2; given: {given}");
    }
}

#[test]
fn what_a_flow_has_carried_counts_on_while_the_data_plane_has_it() {
    let mut beside = with(&[1, 2]);
    carries(&mut beside, 1, 10);
    carries(&mut beside, 2, 10);
    // It is put anew, with other actions; the other comes back as its port has a rate now.
    beside.from_control(&put(1)).unwrap();
    beside.withdraw(PortId(2), Some(Why::Rate)).unwrap();
    ask(&mut beside, 1, ALL);
    assert_eq!(hears(&mut beside, 1, &[1, 2], None), [(11, 1060, 5000), (11, 1060, 5000)]);
    beside.step(100).unwrap();
    carries(&mut beside, 1, 5);
    ask(&mut beside, 2, ALL);
    assert_eq!(hears(&mut beside, 2, &[1, 2], None), [(16, 1560, 20), (11, 1060, 5000)]);
    // Until the end.
    beside.from_control(&del(1, true)).unwrap();
    let mut ended = ToControl::Ended(Box::new(info(1)));
    beside.to_control(&mut ended).unwrap();
    assert!(matches!(ended, ToControl::Ended(info) if (info.packets, info.idle_ms) == (16, 20)));
    // One that the data plane has let go of has carried nothing if it comes again; nor is an end waited for for ever.
    beside.from_control(&put(4)).unwrap();
    beside.step(100).unwrap();
    carries(&mut beside, 4, 1);
    beside.from_control(&del(4, true)).unwrap();
    assert_eq!((beside.ended.len(), beside.past.len()), (1, 1));
    ask(&mut beside, 3, ALL);
    hears(&mut beside, 3, &[], None);
    assert_eq!((beside.ended.len(), beside.past.len()), (0, 0));
}

#[test]
fn no_sender_has_all_places() {
    let mut beside = beside();
    let of = |from: u32, n: u8| {
        let mut flow = flow(from);
        flow.key.recirculation = n.into();
        flow
    };
    // Of those that wait, too, and whatever comes and goes leaves nothing behind.
    for n in 0..3 * WAITING {
        let flow = of(1, (n % 50) as u8);
        let (key, mask) = (flow.key, flow.mask);
        beside.from_control(&FromControl::PutFlow(flow)).unwrap();
        if n % 50 > 9 {
            beside.from_control(&FromControl::DelFlow { key, mask, tell: false }).unwrap();
        }
    }
    assert!(beside.order.len() <= 2 * WAITING && beside.waiting.len() == 10, "{}", beside.order.len());
    assert_eq!(beside.waiting_of.0.get(&PortId(1)), Some(&10));
    beside.from_control(&FromControl::ClearFlows).unwrap();
    beside.table.places = 10;
    // Flows that it would never take do not even wait.
    beside.from_control(&put(77)).unwrap();
    assert!(beside.waiting.is_empty() && beside.figures().stayed[Why::Port.number()] == 1);
    for n in 0..20 {
        beside.from_control(&FromControl::PutFlow(of(1, n))).unwrap();
    }
    beside.from_control(&FromControl::PutFlow(of(2, 0))).unwrap();
    beside.step(100).unwrap();
    let has = |beside: &Beside<Played>, port| beside.held.values().filter(|held| held.from == PortId(port)).count();
    assert_eq!([has(&beside, 1), has(&beside, 2)], [5, 1]);
    assert_eq!(beside.figures().stayed[Why::Full.number()], 15);
    beside.from_control(&FromControl::DelFlow { key: of(1, 0).key, mask: of(1, 0).mask, tell: false }).unwrap();
    assert_eq!(beside.held_by.0.get(&PortId(1)), Some(&4));
}

#[test]
fn the_table_is_not_asked_over_and_over() {
    let mut beside = with(&[1]);
    for request in 0..50 {
        ask(&mut beside, request, DatapathRequest::Ports);
    }
    assert!((1..=25).contains(&beside.table.looked), "{}", beside.table.looked);
    let looked = beside.table.looked;
    ask(&mut beside, 99, ALL);
    assert_eq!(beside.table.looked, looked + 1, "all flows are of now");
}
