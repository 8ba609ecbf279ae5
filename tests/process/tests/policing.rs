//! What settings let pass and what they drop, packet by packet: floods (`--storm`), and what a guest gets (`--rate-to`). What a guest may send waits in its
//! ring (`port_settings.rs`); a mirror's copies are in `mirrors.rs`.

use lasthop_tests_process::{Guest, Lasthop, Options, PATIENCE, Port, mac, number_of, numbered, scratch, wait_for};
use lasthop_text::MacAddr;

const NAMES: [&str; 3] = ["a", "b", "c"];

/// With threads of ports and helpers, and with a core that polls.
const ENGINES: [&[&str]; 2] = [&[], &["--poll", "0"]];

/// Three guests, each of which the others know.
fn site(dir: &std::path::Path, arguments: &[&str]) -> (Lasthop, [Guest; 3]) {
    let lasthop = Lasthop::start_with(&NAMES.map(|name| Port::listen(name, dir)), arguments);
    let mut n = 0;
    let mut guests = NAMES.map(|name| {
        n += 1;
        Guest::connect(&dir.join(format!("{name}.sock")), mac(n), Options::default())
    });
    NAMES.iter().for_each(|name| lasthop.wait_for_state(name, "up"));
    let [a, b, c] = &mut guests;
    a.greet(b, 900_001);
    b.greet(c, 900_002);
    c.greet(a, 900_003);
    guests.iter_mut().for_each(|guest| drop(guest.drain()));
    (lasthop, guests)
}

fn dropped(lasthop: &Lasthop, port: &str, direction: &str, reason: &str) -> u64 {
    let drops = lasthop.port(port)[direction]["drops"].as_array().cloned().unwrap_or_default();
    drops.iter().find(|d| d["reason"] == reason).map_or(0, |d| d["packets"].as_u64().unwrap_or(0))
}

/// How many of the frames with these numbers a guest has got, when one with the last number has come.
fn got(guest: &mut Guest, numbers: std::ops::Range<u32>, last: u32) -> u64 {
    let mut got = 0;
    guest.recv("the frame behind them", |_, frame| {
        let number = number_of(frame);
        got += u64::from(number.is_some_and(|number| numbers.contains(&number)));
        number == Some(last)
    });
    got
}

#[test]
fn what_a_port_floods_is_limited_and_what_is_for_one_is_not() {
    ENGINES.into_iter().for_each(floods_are_limited);
}

fn floods_are_limited(arguments: &[&str]) {
    const SENT: u64 = 200;
    let dir = scratch();
    let (lasthop, [mut a, mut b, mut c]) = site(dir.path(), arguments);
    assert_eq!(lasthop.command(&["port", "set", "a", "--storm", "1pps:20"]), "port a: storm=1pps:20\n");
    // Broadcasts, multicasts and what nobody is known for, in turns; each is for both of the others.
    let floods = [MacAddr::BROADCAST, MacAddr([1, 0, 0x5e, 1, 2, 3]), mac(77)];
    for n in 0..SENT as u32 {
        a.send(&numbered(mac(1), floods[n as usize % 3], n, 60));
    }
    a.all_taken();
    a.send(&numbered(mac(1), mac(2), 1000, 60));
    a.send(&numbered(mac(1), mac(3), 1001, 60));
    let [to_b, to_c] = [got(&mut b, 0..SENT as u32, 1000), got(&mut c, 0..SENT as u32, 1001)];
    let lost = dropped(&lasthop, "a", "from_guest", "storm");
    assert_eq!((to_b, to_c), (SENT - lost, SENT - lost), "each is flooded to both or counted");
    assert!((20..60).contains(&to_b), "the burst, and what the seconds allow: {to_b}");
    // What is for one of them passes beside it, and others flood as they like.
    for n in 2000..2100 {
        a.send(&numbered(mac(1), mac(2), n, 60));
        c.send(&numbered(mac(3), MacAddr::BROADCAST, n + 1000, 60));
    }
    let mut came = [0, 0];
    b.recv("all of them", |_, frame| {
        let number = number_of(frame).unwrap_or(0);
        came[0] += u64::from((2000..2100).contains(&number));
        came[1] += u64::from((3000..3100).contains(&number));
        came == [100, 100]
    });
    assert_eq!(dropped(&lasthop, "c", "from_guest", "storm"), 0);
    let said = lasthop.command(&["stats", "--verbose"]);
    assert!(said.contains("from a  storm (storm="), "{said}");
    // Taken back, it drops nothing more.
    lasthop.command(&["port", "set", "a", "--storm", "none"]);
    let before = dropped(&lasthop, "a", "from_guest", "storm");
    for n in 4000..4100 {
        a.send(&numbered(mac(1), MacAddr::BROADCAST, n, 60));
    }
    a.all_taken();
    a.send(&numbered(mac(1), mac(2), 4100, 60));
    assert_eq!(got(&mut b, 4000..4100, 4100), 100);
    assert_eq!(dropped(&lasthop, "a", "from_guest", "storm"), before);
    lasthop.check_sums();
}

#[test]
fn what_a_limited_guest_does_not_get_waits_or_is_counted_there() {
    ENGINES.into_iter().for_each(what_is_more_waits_or_is_counted);
}

fn what_is_more_waits_or_is_counted(arguments: &[&str]) {
    let dir = scratch();
    let (lasthop, [mut a, mut b, mut c]) = site(dir.path(), arguments);
    lasthop.command(&["port", "set", "b", "--rate-to", "1pps:5"]);
    // One that has something for others as well: these get all, and what b may not get is lost there sooner or later.
    for n in 0..200 {
        a.send(&numbered(mac(1), if n % 2 == 0 { mac(2) } else { mac(3) }, n, 60));
    }
    let mut odd = 0;
    c.recv("all that is for it", |_, frame| {
        odd += u64::from(number_of(frame).is_some_and(|n| n < 200 && n % 2 == 1));
        odd == 100
    });
    let lost = || dropped(&lasthop, "b", "to_guest", "rate");
    wait_for("what b may not get to be lost", PATIENCE, || lost() > 0);
    // With no limit what still waits arrives.
    lasthop.command(&["port", "set", "b", "--rate-to", "none"]);
    a.all_taken();
    a.send(&numbered(mac(1), mac(2), 500, 60));
    let even = got(&mut b, 0..200, 500);
    assert_eq!(even + lost(), 100, "delivered or counted");
    assert!(even >= 5, "the burst: {even}");

    // One that has nothing for others waits for as long as it takes, and loses nothing. (Packets of the other do not wait for a while.)
    let before = lost();
    lasthop.command(&["port", "set", "b", "--rate-to", "13k:1"]);
    c.send(&numbered(mac(3), mac(2), 600, 1500));
    b.expect_number(600);
    for n in 601..650 {
        c.send(&numbered(mac(3), mac(2), n, 1500));
    }
    let said = lasthop.command(&[
        "trace",
        "--in-port",
        "c",
        "--eth-src",
        &mac(3).to_string(),
        "--eth-dst",
        &mac(2).to_string(),
    ]);
    assert!(said.contains("rate-to"), "{said}");
    lasthop.command(&["port", "set", "b", "--rate-to", "none"]);
    (601..650).for_each(|n| b.expect_number(n));
    assert_eq!(lost(), before);
    lasthop.check_sums();
}
