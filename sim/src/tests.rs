//! What must hold of every run, and one that is small enough to be computed by hand.

use crate::host::Host;
use crate::inputs::{Costs, PAPER, TODAY};
use crate::setup::{Bursts, Carrier, Flow, Mechanisms, Setup, Traffic};
use crate::stats::Account;
use crate::today;
use crate::world::{Work, World};

const MS: u64 = 1_000_000;
const BURSTS: Bursts =
    Bursts { packets: 40.0, gap_ns: 2_000.0, silence_ns: 2_000_000.0, peers: 4, compute: 0.2, compute_ns: 100_000.0 };

fn bursts(mechanisms: Mechanisms, seed: u64) -> Setup {
    Setup {
        host: Host { cores: 16, per_unit: 2, per_cache: 8 },
        costs: Costs::parse(TODAY).unwrap(),
        carrier: Carrier::Lasthop,
        mechanisms,
        guests: vec![None; 24],
        services: Vec::new(),
        dedicated: None,
        traffic: Traffic::Bursts(BURSTS),
        variation: 0.1,
        warm_up_ns: MS,
        measure_ns: 20 * MS,
        seed,
    }
}

fn streams(carrier: Carrier, guests: usize) -> Setup {
    let services = if matches!(carrier, Carrier::Vhost | Carrier::Netback) { vec![Some(9), Some(11)] } else { vec![] };
    let flows = (0..guests).flat_map(|from| (0..guests).map(move |to| Flow { from, to, window: 8 }));
    Setup {
        costs: Costs::parse(if carrier == Carrier::Lasthop { TODAY } else { PAPER }).unwrap(),
        carrier,
        guests: (0..guests).map(|n| Some(n % 16)).collect(),
        services,
        traffic: Traffic::Streams { flows: flows.filter(|f| f.from != f.to).collect(), bytes: 65_226 },
        measure_ns: 10 * MS,
        ..bursts(Mechanisms::ALL, 1)
    }
}

fn every_kind() -> Vec<Setup> {
    let mut all: Vec<Setup> = today::ABLATIONS.iter().map(|(_, on)| bursts(*on, 3)).collect();
    for carrier in [Carrier::HyperSwitch, Carrier::Lasthop, Carrier::Vhost, Carrier::Netback] {
        all.extend([2, 5, 20].map(|guests| streams(carrier, guests)));
    }
    all.push(bursts(Mechanisms { cache: false, give_way: true, ..Mechanisms::ALL }, 4));
    all.push(Setup { dedicated: Some(15), ..streams(Carrier::HyperSwitch, 4) });
    all
}

/// Runs it; `check` sees the host after everything that happens.
fn watch(setup: Setup, mut check: impl FnMut(&World)) -> World {
    let mut world = World::new(setup);
    let end_ns = world.start();
    while world.step(end_ns) {
        check(&world);
    }
    world
}

#[test]
fn packets_that_go_in_come_out_or_are_dropped_or_are_on_their_way() {
    for setup in every_kind() {
        let name = format!("{:?} {:?} {} guests", setup.carrier, setup.mechanisms, setup.guests.len());
        let mut n = 0;
        let world = watch(setup, |world| {
            n += 1;
            if n % 64 == 0 {
                let stats = &world.stats;
                assert_eq!(stats.sent, stats.received + stats.dropped + world.in_flight(), "{name}");
            }
        });
        assert!(world.stats.received > 30, "{name}: {} packets", world.stats.received);
    }
}

#[test]
fn a_receiver_that_cannot_keep_up_costs_the_oldest_packets_and_no_more() {
    for carrier in [Carrier::Lasthop, Carrier::HyperSwitch, Carrier::Vhost] {
        let flows = (1..12).map(|from| Flow { from, to: 0, window: 200 }).collect();
        let traffic = Traffic::Streams { flows, bytes: 1514 };
        let world = watch(Setup { traffic, ..streams(carrier, 12) }, |_| {});
        let stats = &world.stats;
        assert!(stats.dropped > 0, "{carrier:?}");
        assert_eq!(stats.sent, stats.received + stats.dropped + world.in_flight(), "{carrier:?}");
        assert!(world.guests.iter().all(|guest| guest.queue.len() <= crate::world::WAITING));
    }
}

#[test]
fn a_helper_never_runs_while_a_normal_thread_wants_its_core_and_time_never_goes_back() {
    for setup in every_kind() {
        let mut last_ns = 0;
        watch(setup, |world| {
            assert!(world.clock.now_ns() >= last_ns);
            last_ns = world.clock.now_ns();
            for core in &world.cores {
                let helps = core.running.is_some_and(|task| world.tasks[task].is_helper());
                assert!(!helps || core.ready.is_empty());
            }
        });
    }
}

#[test]
fn no_thread_is_on_two_cores_and_no_core_that_could_work_is_idle() {
    watch(bursts(Mechanisms::ALL, 5), |world| {
        let mut seen = std::collections::BTreeSet::new();
        for (n, core) in world.cores.iter().enumerate() {
            for task in core.running.iter().chain(&core.ready) {
                assert!(seen.insert(*task), "thread {task} twice");
                assert_eq!(world.tasks[*task].core, n);
            }
            assert!(core.running.is_some() || core.ready.is_empty());
            assert_eq!(core.running.is_some(), core.step.is_some());
        }
    });
}

#[test]
fn time_adds_up() {
    for setup in every_kind() {
        let most_ns = setup.measure_ns * setup.host.cores as u64;
        let mut world = World::new(setup);
        world.run();
        let used_ns: u64 = world.stats.time_ns.iter().sum();
        assert!(used_ns > 0 && used_ns <= most_ns, "{used_ns} of {most_ns}");
    }
}

/// One transaction between two guests that sleep, on two cores, with nobody to help.
#[test]
fn a_transaction_computed_by_hand() {
    let mut costs = Costs::parse(PAPER).unwrap();
    (costs.guest_send, costs.guest_send_byte) = (200.0, 0.0);
    (costs.guest_receive, costs.guest_receive_byte) = (100.0, 0.0);
    (costs.guest_interrupt, costs.kick, costs.entry, costs.signal) = (60.0, 10.0, 20.0, 5.0);
    (costs.idle_exit, costs.context_switch) = (1000.0, 50.0);
    (costs.switch, costs.copy, costs.copy_byte) = (30.0, 40.0, 0.0);
    let mut world = World::new(Setup {
        costs,
        guests: vec![Some(0), Some(2)],
        mechanisms: Mechanisms { helpers: false, ..Mechanisms::ALL },
        traffic: Traffic::Transactions { flows: vec![Flow { from: 0, to: 1, window: 1 }] },
        variation: 0.0,
        warm_up_ns: 0,
        ..streams(Carrier::HyperSwitch, 2)
    });
    let end_ns = world.start();
    while world.stats.transactions == 0 && world.step(end_ns) {}
    // The sender wakes up (1000 + 50), sends (200): its packet is in the ring at 1250. It kicks (10), switches (30).
    // The receiver is blocked, so it is woken at once (1000 + 50), enters (20), copies (40), is interrupted (60) and
    // receives (100): 1310 after the packet was in the ring.
    assert_eq!(world.stats.latency.max(), 10 + 30 + 1050 + 20 + 40 + 60 + 100);
    // It answers (200, 10, 30); the sender has gone to sleep and wakes up the same way.
    let there = 1050 + 200 + 1310;
    assert_eq!(world.clock.now_ns(), there + 200 + 10 + 30 + 1050 + 20 + 40 + 60 + 100);
    assert_eq!((world.stats.kicks, world.stats.interrupts), (2, 2));
}

/// What the policy decides shows in what happens.
#[test]
fn each_mechanism_does_something() {
    let play = |mechanisms| {
        let mut world = World::new(bursts(mechanisms, 7));
        world.run();
        world.stats
    };
    const ALL: Mechanisms = Mechanisms::ALL;
    let all = play(ALL);
    let alone = play(Mechanisms { helpers: false, ..ALL });
    assert!(all.copied_by_helpers > 0 && all.time(Account::Idle) > 0 && all.helper_wakes > 0);
    assert_eq!((alone.copied_by_helpers, alone.time(Account::Idle), alone.helper_wakes), (0, 0, 0));
    assert!(play(Mechanisms { transmit_batching: false, ..ALL }).kicks > 2 * all.kicks);
    assert!(play(Mechanisms { receive_batching: false, ..ALL }).interrupts > all.interrupts);
    let fetched = play(Mechanisms { preemptive_copy: false, ..ALL });
    assert!(fetched.copied_by_helpers == 0 && fetched.interrupts > alone.interrupts * 3 / 2);
    assert!(fetched.latency.value_at_quantile(0.5) > alone.latency.value_at_quantile(0.5));
    assert!(play(Mechanisms { back_off: false, ..ALL }).taken_away > 2 * all.taken_away);
    let hasty = play(Mechanisms { hysteresis: false, ..ALL });
    assert!(hasty.time(Account::Polling) < all.time(Account::Polling) / 4);
    assert!(
        play(Mechanisms { before_blocking: false, ..ALL }).latency.value_at_quantile(0.9)
            > all.latency.value_at_quantile(0.9)
    );
}

#[test]
fn the_same_seed_makes_the_same_bytes() {
    let costs = Costs::parse(TODAY).unwrap();
    let scene = today::Scene {
        name: "small",
        title: "Small",
        host: Host { cores: 16, per_unit: 2, per_cache: 8 },
        guests: 40,
        bursts: BURSTS,
        measure_ns: 10 * MS,
    };
    let report = |seed| {
        let rows = today::ABLATIONS.map(|(name, on)| today::play(&scene, &costs, name, on, seed));
        today::report(&[(scene, rows.to_vec())], seed)
    };
    let one = report(1);
    assert_eq!(one, report(1));
    assert_eq!(one.drawings.len(), 1);
    assert_ne!(one.text.replace("Seed 1", ""), report(2).text.replace("Seed 2", ""));
}

#[test]
fn a_helper_that_is_taken_away_gives_back_what_it_held() {
    let mut broken_off = 0;
    watch(bursts(Mechanisms { back_off: false, ..Mechanisms::ALL }, 9), |world| {
        for (n, guest) in world.guests.iter().enumerate() {
            let held = |wanted: fn(&Work, usize) -> bool| {
                world.cores.iter().any(|c| c.step.as_ref().is_some_and(|step| wanted(&step.work, n)))
            };
            assert_eq!(guest.to_locked, held(|work, n| matches!(work, Work::Copy(p) if p.to == n)));
            assert_eq!(guest.from_locked, held(|work, n| matches!(work, Work::Switch(p) if p.from == n)));
        }
        broken_off = world.stats.taken_away;
    });
    assert!(broken_off > 10, "{broken_off}");
}
