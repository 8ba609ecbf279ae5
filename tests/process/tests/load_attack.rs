//! Guests of the load generator that do their worst, against a real switch: each attack is what it says, the switch's counters
//! show it, the same guests do nothing of it when they are tame, and everybody is well when it is over.

use lasthop_loadgen::{self as load, Attack, Report, Session, Settings, Socket};
use lasthop_tests_process::{Lasthop, PATIENCE, Port, scratch, wait_for};
use serde_json::Value;
use std::time::Duration;

/// What a switch and the generator saw.
struct Seen {
    report: Report,
    /// By port, since before: packets from it, packets to it, drops of packets to it for want of buffers.
    ports: Vec<[u64; 3]>,
    /// Addresses known.
    macs: u64,
    replicated: u64,
    /// Flows in the switch.
    flows: u64,
}

/// Rules about the networks that [`Attack::Headers`] sends to, none of which matches the bystanders.
const RULES: &str = "deny udp from 10.0.0.0/8 to 172.16.3.0/24 port 2048-2063\ndeny tcp from 10.1.0.0/16 to 10.2.77.0/24\n\
                     deny udp from any to 10.3.0.0/20 port 4096\n";

/// Two bystanders, whose ports come first, and attackers.
struct Field {
    session: Session<'static>,
    settings: Settings,
    lasthop: Lasthop,
    names: Vec<String>,
    _listening: load::Listening,
    _dir: tempfile::TempDir,
}

impl Field {
    fn new(attack: Attack) -> Self {
        let dir = scratch();
        let ports: Vec<Port> = (0..2 + attack.ports()).map(|i| Port::connect(&format!("p{i}"), dir.path())).collect();
        let mut sockets: Vec<_> = ports.iter().map(|p| Socket { path: p.socket.clone(), listen: true }).collect();
        let attackers = sockets.split_off(2);
        let settings = Settings {
            rate: Some(2000.0),
            latency: true,
            huge: Some(false),
            firsts: Some(500.0),
            attack: Some(attack),
            attackers,
            ..Settings::new(sockets, load::Pattern::BothWays)
        };
        let listening = load::listen(&settings).unwrap();
        let lasthop = Lasthop::start(&ports);
        if attack == Attack::Headers {
            let file = dir.path().join("list");
            std::fs::write(&file, RULES).unwrap();
            let out = lasthop.try_command(&["acl", "load", file.to_str().unwrap()]);
            assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
        }
        let session = Session::connect(&settings, &listening, &|| Ok(())).unwrap();
        let names = ports.into_iter().map(|p| p.name).collect();
        Self { session, settings, lasthop, names, _listening: listening, _dir: dir }
    }

    fn counters(&self) -> (Vec<[u64; 3]>, u64) {
        let stats = self.lasthop.json(&["stats"]);
        let number = |v: &Value| v.as_u64().unwrap_or_else(|| panic!("{stats}"));
        let of = |name: &String| {
            let all = stats["ports"].as_array().unwrap();
            let port = all.iter().find(|p| p["name"] == **name).unwrap_or_else(|| panic!("no {name}: {stats}"));
            let drops = port["to_guest"]["drops"].as_array().unwrap();
            let no_buffers = drops.iter().find(|d| d["reason"] == "no_buffers").map_or(0, |d| number(&d["packets"]));
            [number(&port["from_guest"]["packets"]), number(&port["to_guest"]["packets"]), no_buffers]
        };
        (self.names.iter().map(of).collect(), number(&stats["sum"]["replicated"]))
    }

    fn play(&mut self, tame: bool) -> Seen {
        let (before, replicated_before) = self.counters();
        let length = Duration::from_millis(400);
        // Files are sent once; the other attacks want a moment to unfold.
        let warmup = if self.settings.attack == Some(Attack::Regions) { Duration::ZERO } else { length };
        let settings = Settings { tame, warmup, length, ..self.settings.clone() };
        let report = self.session.play(&settings, &mut ()).unwrap();
        // Control may have a lot to do after such guests.
        wait_for("an answer", PATIENCE, || self.lasthop.try_command(&["stats"]).status.success());
        self.lasthop.check_sums();
        let (after, replicated) = self.counters();
        let since = |(now, before): (&[u64; 3], &[u64; 3])| std::array::from_fn(|i| now[i] - before[i]);
        let macs = self.lasthop.json(&["mac", "list"])["macs"].as_array().map_or(0, Vec::len) as u64;
        let ports = after.iter().zip(&before).map(since).collect();
        let flows = self.lasthop.json(&["stats"])["switch"]["flows"].as_u64().unwrap();
        Seen { report, ports, macs, replicated: replicated - replicated_before, flows }
    }
}

/// What the bystanders sent came back whole, whatever there was beside them.
fn expect_order(what: &str, seen: &Seen) {
    let r = &seen.report;
    assert_eq!(r.reordered + r.doubled + r.damaged, 0, "{what}: {r:?}");
    assert!(r.received > 0 && r.received_by_port.iter().all(|n| *n > 0), "{what}: {r:?}");
    assert!(r.first_packets.is_some_and(|l| l.packets > 0), "{what}: {r:?}");
}

/// Plays it tame and wild; what was seen of both.
fn both(attack: Attack) -> (Seen, Seen) {
    let mut field = Field::new(attack);
    let (switch, mut well) = (field.lasthop.switch(), field.names.clone());
    if attack == Attack::Regions {
        // Whoever wants all addresses may lose the connection.
        well.remove(2);
    }
    let (tame, wild) = (field.play(true), field.play(false));
    expect_order("tame", &tame);
    expect_order("wild", &wild);
    assert_eq!(tame.report.lost, 0, "{:?}", tame.report);
    assert_eq!(tame.report.attack.unwrap().tally.messages, 0);
    for port in well {
        let what = format!("{port} to be up when it is over");
        wait_for(&what, PATIENCE, || field.lasthop.port(&port)["state"] == "up");
    }
    assert_eq!(field.lasthop.switch(), switch, "the same process");
    (tame, wild)
}

#[test]
fn one_who_trickles_is_short_of_buffers_and_port_0_sends_to_him() {
    let (tame, wild) = both(Attack::Trickle);
    let [_, taken, short] = wild.ports[2];
    assert!(short > 0 && wild.ports[3][0] > taken, "{:?}", wild.ports);
    assert_eq!(tame.ports[2][2], 0, "{:?}", tame.ports);
    assert!(tame.ports[2][1] > 100, "port 0 sends to him in any case: {:?}", tame.ports);
}

#[test]
fn packets_become_thousands_of_segments_and_buffers_run_out() {
    let (tame, wild) = both(Attack::Segments);
    let (sent, [_, taken, short]) = (wild.ports[2][0], wild.ports[3]);
    let received = wild.report.attack.unwrap().tally.received;
    assert!(sent >= 64 && short + taken >= sent && received > 2037, "{:?} {:?}", wild.ports, wild.report);
    assert_eq!(tame.ports[3][2], 0, "{:?}", tame.ports);
}

#[test]
fn one_who_flaps_owns_flows_first() {
    let (_, wild) = both(Attack::Flap);
    assert!(wild.report.attack.unwrap().tally.messages > 10, "{:?}", wild.report);
    // Each was for an address that nobody has.
    assert!(wild.ports[2][0] > 1000 && wild.replicated > 1000, "{:?}", wild.ports);
}

#[test]
fn one_who_scans_comes_from_many_addresses() {
    let (tame, wild) = both(Attack::Scan);
    assert!(wild.macs > tame.macs + 500, "{} addresses, {} before", wild.macs, tame.macs);
    assert!(wild.ports[3][1] > 0, "half of it is for the second: {:?}", wild.ports);
}

#[test]
fn random_headers_want_flows_of_many_forms() {
    let (tame, wild) = both(Attack::Headers);
    assert!(wild.flows > tame.flows + 100, "{} flows, {} before", wild.flows, tame.flows);
    assert!(wild.ports[3][1] > 100, "what no rule denies is for the second: {:?}", wild.ports);
}

#[test]
fn a_storm_is_for_everybody() {
    for (attack, copies) in [(Attack::Storm, 1), (Attack::LargeStorm, 1)] {
        let (tame, wild) = both(attack);
        let sent = wild.ports[2][0];
        assert!(sent >= 64 && wild.replicated >= copies * sent, "{attack:?}: {sent}, {}", wild.replicated);
        assert!(tame.replicated < sent, "{attack:?}: {}", tame.replicated);
    }
}

#[test]
fn all_of_them_is_each_of_them() {
    let (tame, wild) = both(Attack::All);
    let attack = wild.report.attack.unwrap().tally;
    assert!(attack.messages > 0, "{attack:?}");
    // All but the second of each pair send something; of the trickling one it is the second.
    for port in [3, 4, 6, 8, 10, 12] {
        assert!(wild.ports[port][0] > tame.ports[port][0], "port {port}: {:?}, tame {:?}", wild.ports, tame.ports);
    }
}

#[test]
fn one_who_is_flooded_or_blocks_is_sent_to_by_port_0_too() {
    for attack in [Attack::Incast, Attack::Call] {
        let (tame, wild) = both(attack);
        assert!(wild.ports[3][0] > tame.ports[3][0] && wild.ports[2][1] > 0, "{attack:?}: {:?}", wild.ports);
        assert!(tame.ports[2][1] > 100, "port 0 sends to it in any case: {:?}", tame.ports);
    }
}

#[test]
fn a_front_end_sends_files_to_map() {
    let (tame, wild) = both(Attack::Regions);
    let messages = |seen: &Seen| seen.report.attack.unwrap().tally.messages;
    assert!(messages(&tame) == 0 && messages(&wild) > 0, "{:?}", wild.report.attack);
    assert_eq!(wild.report.lost, 0, "{:?}", wild.report);
}
