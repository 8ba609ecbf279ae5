//! Whose the queues of an AF_XDP uplink are: ports that have one whatever the load (`port set --queue-of`), and guests that have the same
//! address in different VLANs. The wire is a veth pair with several queues in a network namespace, a lasthop at each end.

use lasthop_tests_process::{
    Guest, Lasthop, Netns, Options, PATIENCE, Port, mac, number_of, numbered, proc, release, scratch, wait_for,
};
use lasthop_text::MacAddr;
use rustix::process::Signal;
use serde_json::Value;

const QUEUES: u16 = 3;
/// Frames at a time: fewer than anybody has buffers.
const SOME: u32 = 24;

/// A frame with a tag of this VLAN in front of what it was.
fn tagged(vlan: u16, frame: &[u8]) -> Vec<u8> {
    [&frame[..12], &[0x81, 0], &vlan.to_be_bytes(), &frame[12..]].concat()
}

/// Two ends of a wire: at one the guests of some ports, each with its address and settings; at the other one guest.
struct Wire {
    left: Lasthop,
    right: Lasthop,
    guests: Vec<Guest>,
    outside: Guest,
    dir: tempfile::TempDir,
    netns: Netns,
}

impl Wire {
    fn new(ports: &[(&str, MacAddr, &[&str])], arguments: &[&str]) -> Self {
        let netns = Netns::new();
        let several = format!("numtxqueues {QUEUES} numrxqueues {QUEUES}");
        netns.ip(&format!("link add v0 {several} type veth peer name v1 {several}"));
        netns.ip("link add w0 type veth peer name w1");
        ["v1", "w1"].into_iter().for_each(|end| netns.ip(&format!("link set {end} up")));
        let dir = scratch();
        let far = [Port::listen("outside", dir.path())];
        let right = Lasthop::start_in(Some(&netns), &far, &["--uplink", &format!("net=v1,af_xdp,queues={QUEUES}")]);
        let left = Lasthop::start_in(Some(&netns), &[], &[&Self::uplink()[..], arguments].concat());
        [&left, &right].into_iter().for_each(|lasthop| lasthop.wait_for_state("net", "up"));
        let socket = |name: &str| dir.path().join(format!("{name}.sock"));
        for (name, _, settings) in ports {
            left.command(&[&["port", "add", name, &socket(name).display().to_string()], *settings].concat());
        }
        let guest = |(name, mac, _): &(&str, MacAddr, &[&str])| Guest::connect(&socket(name), *mac, Options::default());
        let guests = ports.iter().map(guest).collect();
        let outside = Guest::connect(&socket("outside"), mac(0xee), Options::default());
        Self { left, right, guests, outside, dir, netns }
    }

    fn uplink() -> [&'static str; 2] {
        ["--uplink", "net=v0,af_xdp,queues=3"]
    }

    /// The uplink as it is listed.
    fn net(&self) -> Value {
        let all = self.left.json(&["uplink", "list"])["uplinks"].as_array().cloned().unwrap_or_default();
        all.into_iter().find(|uplink| uplink["name"] == "net").unwrap_or_default()
    }

    /// The queue of which this is true.
    fn queue(&self, is: impl Fn(&Value) -> bool) -> Option<Value> {
        self.net()["guest_queues"].as_array()?.iter().find(|queue| is(queue)).cloned()
    }

    fn queue_of_port(&self, port: &str) -> Option<Value> {
        self.queue(|queue| queue["port"] == port)
    }

    /// Waits until the port has a queue to which frames for this address go.
    fn has_queue(&self, what: &str, port: &str, mac: MacAddr) {
        let address = mac.to_string();
        wait_for(what, PATIENCE, || self.queue_of_port(port).is_some_and(|queue| queue["mac"] == address.as_str()));
    }

    /// From outside: some frames to this guest, with a tag unless the VLAN is 0, which must all arrive in order.
    fn send(&mut self, guest: usize, vlan: u16) {
        let to = self.guests[guest].mac;
        for number in 1..=SOME {
            let frame = numbered(self.outside.mac, to, number, 100);
            self.outside.send(&if vlan == 0 { frame } else { tagged(vlan, &frame) });
        }
        for expected in 1..=SOME {
            let (_, frame) = self.guests[guest].recv("a frame", |_, f| number_of(f).is_some() && f[..6] == to.0);
            assert_eq!(number_of(&frame), Some(expected), "guest {guest}: out of order, lost or doubled");
        }
    }

    /// The uplink's process stands still while so many frames for this guest leave the other end, with numbers from 1 on.
    fn send_while_it_stands(&mut self, guest: usize, frames: u32) {
        let sent = |right: &Lasthop| right.json(&["uplink", "list"])["uplinks"][0]["to_network"]["packets"].as_u64();
        let pid = self.net()["pid"].as_u64().expect("it runs") as u32;
        proc::signal(pid, Signal::STOP);
        let (before, to) = (sent(&self.right).unwrap_or(0), self.guests[guest].mac);
        for number in 1..=frames {
            self.outside.send(&numbered(self.outside.mac, to, number, 100));
        }
        wait_for("all to have gone out", PATIENCE, || sent(&self.right) >= Some(before + u64::from(frames)));
        proc::signal(pid, Signal::CONT);
    }

    fn refused(&self, words: &[&str], why: &str) {
        let out = self.left.try_command(words);
        let said = String::from_utf8_lossy(&out.stderr).into_owned();
        assert!(!out.status.success() && said.contains(why), "{words:?}: {said}");
    }

    /// Another process of the uplink takes the place of the one there is.
    fn kill_uplink(&self) {
        let old = self.net()["pid"].as_u64().expect("it runs");
        proc::signal(old as u32, Signal::KILL);
        wait_for("another process to carry", PATIENCE, || {
            let now = self.net();
            now["state"] == "up" && now["pid"].as_u64().is_some_and(|pid| pid != old)
        });
    }
}

fn packets(queue: &Value) -> u64 {
    queue["packets"].as_u64().expect("a number")
}

#[test]
fn a_port_keeps_its_queue_whatever_the_load() {
    let mut wire = Wire::new(&[("a", mac(1), &[]), ("b", mac(2), &[])], &[]);
    wire.left.command(&["port", "set", "b", "--queue-of", "net"]);
    wait_for("the queue to be kept for b", PATIENCE, || wire.queue_of_port("b").is_some());
    assert!(wire.queue_of_port("b").unwrap()["mac"].is_null(), "it has said nothing yet");
    let Wire { guests, outside, .. } = &mut wire;
    guests.iter_mut().zip(100..).for_each(|(guest, number)| guest.greet(outside, number));
    wire.has_queue("its address to be known", "b", mac(2));
    let shown = wire.left.command(&["uplink", "list"]);
    assert!(shown.contains(&format!("(of b, {}, kept for it)", mac(2))), "{shown}");
    assert_eq!(wire.left.port("b")["settings"][0]["name"], "queue-of");
    // What is for it comes through its queue from the first frame on.
    let before = packets(&wire.queue_of_port("b").unwrap());
    wire.send(1, 0);
    assert_eq!(packets(&wire.queue_of_port("b").unwrap()) - before, u64::from(SOME));
    // It stays where it is while another one is far busier and gets the other queue.
    let number = wire.queue_of_port("b").unwrap()["queue"].clone();
    wait_for("the busy guest to have the other queue", PATIENCE, || {
        (0..8).for_each(|_| wire.send(0, 0));
        wire.queue(|queue| queue["mac"] == mac(1).to_string().as_str()).is_some()
    });
    wait_for("the busy guest to have given it back", PATIENCE, || {
        wire.queue(|queue| queue["mac"] == mac(1).to_string().as_str()).is_none()
    });
    assert_eq!(wire.queue_of_port("b").unwrap()["queue"], number);
    // Taken back, it is as before.
    wire.left.command(&["port", "set", "b", "--queue-of", "none"]);
    wait_for("the queue to be free", PATIENCE, || {
        wire.queue(|q| !q["mac"].is_null() || !q["port"].is_null()).is_none()
    });
    wire.send(1, 0);
}

/// Whatever process ends, and whatever takes its place, the port has its queue before its guest has said another word.
#[test]
fn a_kept_queue_outlives_every_process() {
    let mut wire = Wire::new(&[("a", mac(1), &["--queue-of", "net"]), ("b", mac(2), &[])], &[]);
    let Wire { guests, outside, .. } = &mut wire;
    guests.iter_mut().zip(100..).for_each(|(guest, number)| guest.greet(outside, number));
    wire.has_queue("its queue", "a", mac(1));
    wire.kill_uplink();
    wire.has_queue("a new process of the uplink to know", "a", mac(1));
    let control = wire.left.child("lasthop-control");
    proc::signal(control, Signal::KILL);
    wait_for("another control", PATIENCE, || wire.left.try_command(&["port", "list"]).status.success());
    wire.has_queue("a new control to know", "a", mac(1));
    wire.left.command(&["port", "rename", "a", "c"]);
    wire.has_queue("the queue to go by its name", "c", mac(1));
    let programs = release(wire.dir.path(), "release").display().to_string();
    let upgraded = wire.left.try_command(&["upgrade", "--only", "run", "--programs", &programs]);
    assert!(upgraded.status.success(), "{}", String::from_utf8_lossy(&upgraded.stderr));
    wire.kill_uplink();
    wire.has_queue("another program of the supervisor to know", "c", mac(1));
    wire.send(0, 0);
    // Another run reads it from the state directory; nothing is known of addresses then.
    let Wire { left, netns, .. } = wire;
    let left = left.start_again(Some(&netns), &[], &Wire::uplink(), || ());
    let queues = || left.json(&["uplink", "list"])["uplinks"][0]["guest_queues"].clone();
    wait_for("the queue to be kept for it", PATIENCE, || {
        queues().as_array().is_some_and(|queues| queues.iter().any(|queue| queue["port"] == "c"))
    });
}

#[test]
fn who_cannot_have_a_queue_is_told_why() {
    let ports: Vec<(&str, MacAddr, &[&str])> =
        [("a", 1), ("b", 2), ("c", 3)].map(|(name, n)| (name, mac(n), &[][..])).to_vec();
    let wire = Wire::new(&ports, &["--uplink", "one=w0,af_xdp", "--uplink", "host=lh0,tap"]);
    let set = |port: &'static str, net: &'static str| ["port", "set", port, "--queue-of", net];
    wire.refused(&set("a", "nowhere"), "there is no uplink nowhere");
    wire.refused(&set("a", "b"), "there is no uplink b");
    wire.refused(&set("a", "one"), "one has one queue, which all share");
    wire.refused(&set("a", "host"), "only af_xdp with several queues has");
    wire.left.command(&set("a", "net"));
    wire.left.command(&set("b", "net"));
    wire.refused(&set("c", "net"), "net has 3 queues, of which one is shared and the others are kept for a, b");
    // What is not changed is not asked again, and one that is taken back makes room.
    wire.left.command(&["port", "set", "a", "--weight", "7"]);
    wire.left.command(&set("a", "none"));
    wire.left.command(&set("c", "net"));
    wait_for("both to have queues", PATIENCE, || ["b", "c"].iter().all(|port| wire.queue_of_port(port).is_some()));
    // Without the uplink it stays a wish, and the log says so; with one of that name again it is fulfilled.
    wire.left.command(&["uplink", "del", "net"]);
    wait_for("the line of it", PATIENCE, || {
        wire.left.log().contains("port c: it shares its uplink's queue with others")
    });
    wire.left.command(&["uplink", "add", "net", "v0", "--driver", "af_xdp", "--queues", "3"]);
    wait_for("both to have queues", PATIENCE, || ["b", "c"].iter().all(|port| wire.queue_of_port(port).is_some()));
}

/// What comes while nobody takes it waits, up to the size of the queue; what is older is dropped, and counted there.
#[test]
fn a_queue_keeps_as_many_frames_as_it_is_told() {
    let ports: [(&str, MacAddr, &[&str]); 1] = [("a", mac(1), &["--queue-of", "net:64"])];
    let mut wire = Wire::new(&ports, &["--uplink-limit-ms", "60000"]);
    wire.guests[0].greet(&mut wire.outside, 100);
    wire.has_queue("its queue", "a", mac(1));
    wire.send(0, 0);
    let (size, dropped) = (|wire: &Wire| wire.queue_of_port("a").unwrap()["size"].clone(), 200 - 64);
    assert_eq!(size(&wire), 64);
    wire.send_while_it_stands(0, 200);
    let number = |wire: &mut Wire| wire.guests[0].recv("a frame", |_, f| number_of(f).is_some() && f[..6] == mac(1).0);
    for expected in dropped + 1..=200 {
        assert_eq!(number_of(&number(&mut wire).1), Some(expected), "the newest stay, in order");
    }
    wait_for("the others to be counted", PATIENCE, || wire.queue_of_port("a").unwrap()["dropped"] == dropped);
    // It changes while frames pass, up to what the rings have room for.
    wire.refused(&["port", "set", "a", "--queue-of", "net:769"], "a queue of net keeps 768 frames at most");
    wire.left.command(&["port", "set", "a", "--queue-of", "net:200"]);
    wait_for("another size", PATIENCE, || size(&wire) == 200);
    wire.send_while_it_stands(0, 200);
    for expected in 1..=200 {
        assert_eq!(number_of(&number(&mut wire).1), Some(expected), "there is room for all");
    }
    wire.left.command(&["port", "set", "a", "--queue-of", "net"]);
    wait_for("all of the rings", PATIENCE, || size(&wire) == 768);
    assert_eq!(wire.queue_of_port("a").unwrap()["dropped"], dropped);
}

/// The file names a port before the uplink at which it has a queue, and another one that gives its queue back for it.
#[test]
fn a_file_may_say_whose_queues_are() {
    let wire = Wire::new(&[("a", mac(1), &["--queue-of", "net"])], &[]);
    let several = "numtxqueues 2 numrxqueues 2";
    wire.netns.ip(&format!("link add x0 {several} type veth peer name x1 {several}"));
    wire.netns.ip("link set x1 up");
    let (file, dir) = (wire.dir.path().join("lasthop.toml"), wire.dir.path().display().to_string());
    let text = |queue: &str| {
        format!(
            "[port.a]\nsocket = \"{dir}/a.sock\"\n[port.b]\nsocket = \"{dir}/b.sock\"\nqueue-of = \"{queue}\"\n\
             [uplink.two]\ndevice = \"x0\"\ndriver = \"af_xdp\"\nqueues = 2\n"
        )
    };
    let apply = |queue: &str| {
        std::fs::write(&file, text(queue)).unwrap();
        wire.left.command(&["apply", file.to_str().unwrap()])
    };
    let said = apply("two");
    assert!(said.contains("~ port a: queue-of net -> none") && said.contains("+ port b: "), "{said}");
    assert!(apply("two").contains("nothing to change"));
    assert_eq!((wire.left.port("a")["settings"].as_array().map(Vec::len), wire.queue_of_port("a")), (Some(0), None));
    let set = &wire.left.port("b")["settings"][0];
    assert_eq!((set["name"].as_str(), set["value"].as_str()), (Some("queue-of"), Some("two")));
    assert!(apply("net").contains("~ port b: queue-of two -> net"));
    wait_for("its queue", PATIENCE, || wire.queue_of_port("b").is_some());
}

/// The program reads the tag: the same address in two VLANs is two guests.
#[test]
fn the_same_address_in_two_vlans_has_two_queues() {
    let mut wire = Wire::new(&[("a", mac(1), &["--vlan", "10"]), ("b", mac(1), &["--vlan", "20"])], &[]);
    // Their own frames say where they live.
    for guest in &mut wire.guests {
        guest.send(&numbered(mac(1), wire.outside.mac, 5, 60));
    }
    let mut vlans: Vec<_> = (0..2)
        .map(|_| wire.outside.recv("a frame with a tag", |_, f| f[12..14] == [0x81, 0]).1[14..16].to_vec())
        .collect();
    vlans.sort();
    assert_eq!(vlans, [[0, 10], [0, 20]]);
    let of = |wire: &Wire, vlan: u16| wire.queue(|q| q["mac"] == mac(1).to_string().as_str() && q["vlan"] == vlan);
    wait_for("both to have a queue", PATIENCE, || {
        for _ in 0..8 {
            wire.send(0, 10);
            wire.send(1, 20);
        }
        of(&wire, 10).is_some() && of(&wire, 20).is_some()
    });
    let [before, other] = [10, 20].map(|vlan| of(&wire, vlan).expect("it has one"));
    assert!(before["queue"] != other["queue"] && before["queue"] != 0, "{before} {other}");
    wire.send(0, 10);
    let [after, same] = [10, 20].map(|vlan| of(&wire, vlan).expect("it has one"));
    assert_eq!((packets(&after) - packets(&before), packets(&same)), (u64::from(SOME), packets(&other)));
}
