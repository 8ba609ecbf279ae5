//! What takes long is done in turns, and others are answered in between: tests.

use super::{Answer, Asker, Call, Command, Core, Event, SetCall};
use lasthop_frame::FlowKey;
use lasthop_ipc::{DatapathReply, DatapathRequest, FromControl, ToControl};
use lasthop_management_ipc::PortConfig;
use lasthop_management_ipc::SupervisorToControl;
use lasthop_policy::Effects;
use lasthop_policy::acl::{Scope, read, read_member};
use lasthop_types::PortId;
use std::sync::Arc;
use tokio::sync::oneshot;

const FLOWS: u32 = 20_000;

/// What has arrived for somebody who asked.
fn answer<T>(core: &mut Core, call: impl FnOnce(Answer<T>) -> Call) -> T {
    let (answer, mut arrives) = Answer::new(Asker::Owner);
    core.handle(Event::Call(call(answer)), 0);
    arrives.try_recv().unwrap().unwrap()
}

/// Lines are written when they are told, of what was there when somebody asked.
#[test]
fn lists_and_sets_are_shared_with_those_who_ask() {
    let mut core = core();
    let list = core.book.iter().next().unwrap().2.clone();
    let before = Arc::strong_count(&list);
    let rules = answer(&mut core, |answer| Call::AclShow { ports: Vec::new(), packets: false, answer });
    assert_eq!((rules.total(), Arc::strong_count(&list)), (2, before + 1), "the list itself");
    let members: Vec<_> = (1..300).map(|n| read_member(&format!("10.1.{}.{}", n / 256, n % 256)).unwrap()).collect();
    core.book.change_set("bad", &members, &[]).unwrap();
    core.book.change_set("unused", &[], &[]).unwrap();
    let sets = answer(&mut core, |answer| Call::Set(SetCall::List { name: None, answer }));
    core.book.change_set("bad", &[], &members).unwrap();
    let texts: Vec<_> = rules.map(|rule| (rule.number, rule.text)).collect();
    assert_eq!(texts, [(1, "deny ip from @bad".to_owned()), (0, "default permit".into())]);
    assert_eq!(sets.total(), 4);
    let sets: Vec<_> = sets.collect();
    let told: Vec<_> = sets.iter().map(|set| (set.name.as_str(), set.addresses.len(), set.used_by.len())).collect();
    assert_eq!(told, [("bad", 128, 1), ("bad", 128, 0), ("bad", 44, 0), ("unused", 0, 0)]);
    let mut all: Vec<_> = sets.into_iter().flat_map(|set| set.addresses).collect();
    all.sort();
    all.dedup();
    assert_eq!(all.len(), 300);
}

/// A control whose switch has many flows, of guests whose list names the set `bad`, with 10.0.0.0 in it.
fn core() -> Core {
    let mut core = Core::new(0);
    let config = |id| PortConfig {
        id: PortId(id),
        name: format!("vm{id}"),
        path: format!("/vm{id}"),
        client: false,
        tx_batch: (125, 64),
        rx_batch: (125, 64),
        owner: None,
    };
    core.handle(Event::SwitchAttached, 0);
    core.reconciled = true;
    core.book.change_set("bad", &[read_member("10.0.0.0").unwrap()], &[]).unwrap();
    core.book.replace(&Scope::Guests, None, &read("deny ip from @bad to any", None).unwrap()).unwrap();
    core.handle(Event::Supervisor(SupervisorToControl::Ports(vec![config(1), config(2)])), 0);
    let mut out = Effects::default();
    for id in [1, 2].map(PortId) {
        core.set_lists(id);
        core.policy.port(id, true, 0, &mut out);
    }
    (0..FLOWS).for_each(|n| core.policy.miss(n.into(), &key(n), 0, &mut out));
    assert_eq!(core.policy.flow_count(), FLOWS as usize);
    core.commands();
    core
}

/// From 10.0.0.n.
fn key(n: u32) -> FlowKey {
    let mut key = FlowKey {
        in_port: 1,
        eth_src: [2, 0, 0, 0, (n >> 8) as u8, n as u8],
        eth_dst: [255; 6],
        eth_type: 0x0800,
        ip_proto: 17,
        ..FlowKey::default()
    };
    key.ip_src[12..].copy_from_slice(&(0x0a00_0000 + n).to_be_bytes());
    key
}

/// What the switch is told; it answers barriers.
fn told(core: &mut Core) -> Vec<FromControl> {
    let mut told = Vec::new();
    for command in core.commands() {
        let Command::Switch(message) = command else { continue };
        if let FromControl::Ask { request, question: DatapathRequest::Barrier } = *message {
            let reply = ToControl::Reply { request, last: true, reply: DatapathReply::Barrier };
            core.hear_switch([reply].into_iter(), 0);
        }
        told.push(*message);
    }
    told
}

/// 200 000 flows were looked at in one go.
#[test]
fn a_set_that_changes_keeps_nobody_waiting_until_all_flows_are_looked_at() {
    let mut core = core();
    let (answer, mut arrives) = Answer::new(Asker::Owner);
    let (kept, _kept) = oneshot::channel();
    let add = vec!["10.0.0.5".to_owned(), "10.0.78.31".to_owned()];
    let call = SetCall::Change { name: "bad".into(), add, del: Vec::new(), kept, answer };
    core.handle(Event::Call(Call::Set(call)), 0);
    told(&mut core);
    core.handle(Event::Supervisor(SupervisorToControl::ListsKept(Ok(()))), 0);
    let (mut turns, mut removed) = (1, Vec::new());
    let changed = loop {
        removed.extend(told(&mut core).into_iter().filter(|m| matches!(m, FromControl::DelFlow { .. })));
        match arrives.try_recv() {
            Ok(changed) => break changed.unwrap(),
            Err(_) => assert_eq!(core.deadline_ms(), Some(0), "the rest is due"),
        }
        // Somebody else is answered, and a packet is judged by the set as it is now.
        let (answer, mut listed) = Answer::new(Asker::Reader);
        core.handle(Event::Call(Call::ConnectionStats { answer }), 0);
        assert!(listed.try_recv().is_ok(), "in turn {turns}");
        let mut out = Effects::default();
        core.policy.miss(1, &FlowKey { in_port: 2, ..key(5) }, 0, &mut out);
        assert!(matches!(out.resumes[0].actions[..], [lasthop_flow::Action::Drop(_)]), "{:?}", out.resumes);
        core.handle(Event::Timer, 0);
        turns += 1;
    };
    assert_eq!((changed.added, changed.flows), (2, removed.len() as u64));
    // Flows look at as many bits of the source as it takes: neighbours go with it.
    assert!((2..100).contains(&removed.len()), "{} flows", removed.len());
    assert_eq!(turns, FLOWS.div_ceil(4096), "4096 at a time");
    assert_ne!(core.deadline_ms(), Some(0));
}

/// The switch goes away in the middle: the next one forgets all flows, and whoever waits is told then.
#[test]
fn a_set_that_changes_while_the_switch_goes_away_is_confirmed_by_the_next() {
    let mut core = core();
    let (answer, mut arrives) = Answer::new(Asker::Owner);
    let (kept, _kept) = oneshot::channel();
    let call = SetCall::Change { name: "bad".into(), add: vec!["10.0.0.5".into()], del: Vec::new(), kept, answer };
    core.handle(Event::Call(Call::Set(call)), 0);
    core.handle(Event::Supervisor(SupervisorToControl::ListsKept(Ok(()))), 0);
    core.handle(Event::SwitchGone, 0);
    core.handle(Event::Timer, 0);
    assert!(arrives.try_recv().is_err() && core.deadline_ms() != Some(0));
    core.handle(Event::SwitchAttached, 0);
    core.commands();
    core.hear_switch([ToControl::Hello].into_iter(), 0);
    assert!(told(&mut core).iter().any(|message| matches!(message, FromControl::ClearFlows)));
    assert_eq!(arrives.try_recv().unwrap().unwrap().added, 1);
}
