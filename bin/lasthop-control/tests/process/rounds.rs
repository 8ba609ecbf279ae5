//! Control has a full table behind thousands of rules to judge, and packets miss meanwhile.

use super::*;
use lasthop_flow::FlowSpec;
use lasthop_frame::FlowKey;
use lasthop_ipc::UpcallPacket;
use lasthop_policy::acl::{Book, Scope, read};
use lasthop_policy::{Change, Effects, Learning};
use std::time::Instant;

/// Lists of guests with so many rules, none of which matches.
fn book(rules: u32) -> Book {
    let text: String = (0..rules).map(|n| format!("deny udp from 192.168.{}.{} to any\n", n >> 8, n & 255)).collect();
    let mut book = Book::default();
    book.replace(&Scope::Guests, None, &read(&text, None).unwrap()).unwrap();
    book
}

fn key(n: u32) -> FlowKey {
    let mac = |kind: u8, n: u32| [2, kind, 0, 0, (n >> 8) as u8, n as u8];
    FlowKey {
        in_port: 1,
        eth_src: mac(0, n / 16),
        eth_dst: mac(1, n % 16),
        eth_type: 0x0800,
        ip_proto: 6,
        ..Default::default()
    }
}

/// The flows of so many pairs of stations, as a control would have them.
fn flows(book: &Book, many: u32) -> Vec<(FlowSpec, u64)> {
    let (mut policy, mut out) = (Learning::default(), Effects::default());
    for (id, name) in [(1, "vm1"), (2, "vm2")] {
        policy.set_lists(PortId(id), book.of_port(name, false));
        policy.port(PortId(id), true, 0, &mut out);
    }
    (0..many).for_each(|n| policy.miss(n.into(), &key(n), 0, &mut out));
    let put = |change| if let Change::Put(flow) = change { Some((flow, 0)) } else { None };
    out.changes.into_iter().filter_map(put).collect()
}

/// A control that has been told of the rules, beside a switch with these flows, which it has been told of as well.
fn comes_to(rules: u32, many: u32) -> (Control, Fake) {
    let book = book(rules);
    let (control, mut fake) = Control::start();
    fake.add_ports(&["vm1", "vm2"]);
    fake.lists = book.to_text();
    fake.announce_lists();
    (fake.flows, fake.parts_told) = (flows(&book, many), 0);
    assert_eq!(fake.flows.len(), many as usize);
    fake.attach();
    (control, fake)
}

fn miss(fake: &mut Fake, n: u32) {
    let key = FlowKey { in_port: 2, eth_src: [2, 2, 0, (n >> 16) as u8, (n >> 8) as u8, n as u8], ..key(n) };
    let missed = UpcallPacket { id: n.into(), copy: None, key, header: Vec::new(), frame_len: 60 };
    fake.tell(&ToControl::Upcall(missed));
}

/// It judged them all before it listened again: for seconds everybody's first packets waited.
#[test]
fn a_control_that_comes_to_a_full_table_answers_misses_before_it_has_judged_it() {
    let (_control, mut fake) = comes_to(5000, 4000);
    // The flow that is compared last is wrong.
    fake.flows[3999].0.actions = to(&[1]);
    let parts = fake.flows.len().div_ceil(100);
    fake.serve_until(|f| f.parts_told == parts);
    miss(&mut fake, 70_000);
    let mended = |f: &Fake| f.flows.iter().all(|(flow, _)| flow.key.in_port == 2 || flow.actions == to(&[2]));
    fake.serve_until(|f| !f.resumed.is_empty() || mended(f));
    assert!(!mended(&fake), "the packet waited until all flows were judged");
    fake.serve_until(|f| !f.resumed.is_empty());
    assert_eq!(fake.resumed, [(70_000, to(&[1]))]);
    fake.serve_until(mended);
}

/// Misses were always heard first: a call of the API waited until there were none for a moment.
#[test]
fn a_flood_of_misses_keeps_no_client_waiting() {
    const WAITING: usize = 200;
    let (_control, mut fake) = comes_to(5000, 0);
    let socket = fake.dir.path().join("api.sock");
    let flooded = |fake: &mut Fake, n: &mut u32| {
        while (*n as usize) - fake.resumed.len() < WAITING {
            miss(fake, *n % 1000);
            *n += 1;
        }
        fake.serve_for_a_moment();
    };
    let mut n = 0;
    while fake.resumed.len() < 1000 {
        flooded(&mut fake, &mut n);
    }
    let asks = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async move { connect(socket).await.unwrap().conntrack_stats().await.unwrap() })
    });
    while !asks.is_finished() {
        assert!(fake.resumed.len() < 40_000, "no answer while so many misses were answered");
        flooded(&mut fake, &mut n);
    }
    assert!(!asks.join().unwrap().unwrap().tracking);
}

/// Prints how long packets wait for control while it judges a full table: `cargo test --release -p lasthop-control --test process --
/// --ignored --nocapture longest_wait`.
#[test]
#[ignore = "prints figures"]
fn longest_wait_of_a_miss() {
    for rules in [0, 1000, 5000] {
        for what in ["comparing", "acl show --packets"] {
            let (_control, mut fake) = comes_to(rules, 65_536);
            let parts = fake.flows.len().div_ceil(100);
            fake.flows[65_535].0.actions = to(&[1]);
            fake.serve_until(|f| f.parts_told == parts);
            let (mut waits, begin, mut n) = (Vec::new(), Instant::now(), 0);
            let mut asks = None;
            let mut wait = |fake: &mut Fake, waits: &mut Vec<_>| {
                n += 1;
                let (before, sent) = (fake.resumed.len(), Instant::now());
                miss(fake, n);
                fake.serve_until(|f| f.resumed.len() > before);
                waits.push(sent.elapsed());
            };
            let wrong = |f: &Fake| f.flows.iter().any(|(f, _)| f.key.in_port == 1 && f.actions == to(&[1]));
            while wrong(&fake) {
                wait(&mut fake, &mut waits);
            }
            if what != "comparing" {
                waits.clear();
                let socket = fake.dir.path().join("api.sock");
                asks = Some(std::thread::spawn(move || {
                    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
                    runtime.block_on(async move {
                        let mut api = connect(socket).await.unwrap();
                        let mut pages = Box::pin(api.acl_show(&[], true).await.unwrap());
                        pages.next().await.unwrap().unwrap().map(|page| page.rules.len())
                    })
                }));
                while !asks.as_ref().unwrap().is_finished() {
                    wait(&mut fake, &mut waits);
                }
            }
            let answer = asks.map(|asks| asks.join().unwrap());
            waits.sort();
            println!(
                "{rules} rules, {what}: {:?} in all, {} misses meanwhile, median {:?}, longest {:?}; {answer:?}",
                begin.elapsed(),
                waits.len(),
                waits[waits.len() / 2],
                waits.last().unwrap()
            );
        }
    }
}
