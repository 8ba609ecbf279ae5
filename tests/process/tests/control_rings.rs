//! The rings between switch and control: whatever control writes there, and whenever it is killed, nothing suffers but its own work.

use lasthop_frame::VnetHdr;
use lasthop_tests_process::{
    Guest, Lasthop, Options, PATIENCE, Port, binary, mac, number_of, numbered, proc, scratch, wait_for,
};
use lasthop_text::MacAddr;
use std::os::unix::fs::symlink;
use std::time::Duration;

const TURNS: [&str; 9] = [
    "publishes more than there can be",
    "publishes a little more than there can be",
    "has taken what was never sent",
    "sends a message without end",
    "sends a torn message",
    "sends a kind that there is not",
    "sends keys that are too long",
    "sends nonsense",
    "writes everywhere for ever",
];

/// The first control process has been taken over by somebody. It loses its connection and is replaced, and that is all.
#[test]
fn control_that_writes_nonsense_is_replaced() {
    let libexec = scratch();
    let at = |name: &str| libexec.path().join(name);
    symlink(binary("lasthop-switch"), at("lasthop-switch")).expect("a link");
    symlink(binary("lasthop-session"), at("lasthop-session")).expect("a link");
    symlink(env!("CARGO_BIN_EXE_turned-control"), at("lasthop-control")).expect("a link");
    std::fs::create_dir(at("real")).expect("a folder");
    symlink(binary("lasthop-control"), at("real/lasthop-control")).expect("a link");
    for turn in TURNS {
        println!("{turn}");
        std::fs::write(at("orders"), turn).expect("a file");
        let dir = scratch();
        let (path_a, path_b) = (dir.path().join("a.sock"), dir.path().join("b.sock"));
        let ports = [Port::listen("a", dir.path()), Port::listen("b", dir.path())];
        let lasthop = Lasthop::start_with(&ports, &["--libexec", libexec.path().to_str().expect("a name")]);
        let switch = lasthop.switch();
        let mut a = Guest::connect(&path_a, mac(1), Options::default());
        let mut b = Guest::connect(&path_b, mac(2), Options::default());
        // It may be what wakes the switch.
        a.greet_when_back(&mut b, 1);
        wait_for("the first control to be replaced", PATIENCE, || lasthop.log().contains("; killing it"));
        assert!(!at("orders").exists(), "{turn}: it was the first");
        a.greet_when_back(&mut b, 2);
        wait_for("the real control to answer", PATIENCE, || lasthop.try_command(&["stats"]).status.success());
        a.greet(&mut b, 3);
        lasthop.check_sums();
        assert_eq!(lasthop.switch(), switch, "{turn}: the switch goes on");
        assert!(proc::alive(switch));
        let log = lasthop.log();
        assert_eq!(log.matches("; killing it").count(), 1, "{turn}: once\n{log}");
    }
}

#[test]
fn control_killed_under_new_flows_loses_what_waited() {
    control_is_killed::<20>();
}

#[test]
#[ignore = "takes minutes: cargo xtask test --long"]
fn control_killed_a_hundred_times_under_new_flows_loses_what_waited() {
    control_is_killed::<100>();
}

/// So often, at any moment, while each packet is the first of a flow.
fn control_is_killed<const KILLS: u32>() {
    const EACH: u32 = 30;
    let dir = scratch();
    let ports = ["a", "b", "c"].map(|name| Port::listen(name, dir.path()));
    let lasthop = Lasthop::start(&ports);
    let guest =
        |name: &str, number| Guest::connect(&dir.path().join(format!("{name}.sock")), mac(number), Options::default());
    let (mut a, mut b, mut c) = (guest("a", 1), guest("b", 2), guest("c", 3));
    a.greet(&mut b, u32::MAX);
    let station = |n: u32| {
        let [.., x, y] = n.to_be_bytes();
        MacAddr([2, 1, 0, 0, x, y])
    };
    let (mut sent, mut arrived) = (0, vec![false; (KILLS * EACH) as usize]);
    let mut take = |b: &mut Guest| {
        while let Some((_, frame)) = b.try_recv() {
            if let Some(number) = number_of(&frame).filter(|number| *number < KILLS * EACH) {
                let before = std::mem::replace(&mut arrived[number as usize], true);
                assert!(!before, "frame {number} came twice");
            }
        }
    };
    for kill in 0..KILLS {
        for n in 0..EACH {
            // All moments, and those of few kills far from each other.
            if n == kill * 7 % EACH {
                lasthop.kill("lasthop-control");
            }
            let frame = numbered(station(sent), b.mac, sent, 60);
            while !a.try_send(VnetHdr::default(), &frame) {
                take(&mut b);
            }
            sent += 1;
            take(&mut b);
        }
        wait_for("control to be back", PATIENCE, || {
            take(&mut b);
            lasthop.try_command(&["mac", "list"]).status.success()
        });
    }
    a.all_taken();
    // Whoever waited has left, or has waited for too long.
    wait_for("nothing to wait", PATIENCE, || {
        take(&mut b);
        lasthop.json(&["stats"])["sum"]["waiting"] == 0
    });
    take(&mut b);
    lasthop.check_sums();
    let lost = arrived.iter().filter(|arrived| !**arrived).count() as u64;
    let drops = |reason: &str| {
        let port = lasthop.port("a");
        let drops = port["from_guest"]["drops"].as_array().expect("a list of drops");
        drops.iter().find(|d| d["reason"] == reason).map_or(0, |d| d["packets"].as_u64().unwrap_or(0))
    };
    let counted = drops("miss_timeout") + drops("miss_queue_full");
    assert_eq!(lost, counted, "what is lost has waited, and is counted");
    assert!(lost < u64::from(sent) / 2, "{lost} of {sent}");
    // Flows are right: what is learned goes where it lives, and nowhere else.
    a.greet(&mut b, u32::MAX - 1);
    c.drain();
    let last = station(sent + 1);
    a.send(&numbered(last, b.mac, u32::MAX - 2, 60));
    b.expect_number(u32::MAX - 2);
    for number in 0..100 {
        b.send(&numbered(b.mac, last, KILLS * EACH + number, 60));
        a.expect_number(KILLS * EACH + number);
    }
    let strays = std::iter::from_fn(|| c.recv_within(Duration::from_millis(100)));
    let strays: Vec<_> = strays.filter_map(|(_, frame)| number_of(&frame)).filter(|n| *n < u32::MAX - 2).collect();
    assert!(strays.is_empty(), "went to everybody: {strays:?}");
}
