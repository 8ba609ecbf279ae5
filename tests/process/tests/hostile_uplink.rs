//! An uplink's process that has turned: to the switch it is one more guest, and can do no more than one.

use lasthop_frame::VnetHdr;
use lasthop_tests_process::{
    Bystanders, Guest, Lasthop, Netns, Options, PATIENCE, Port, Station, mac, number_of, numbered, proc, scratch,
    wait_for,
};
use lasthop_text::MacAddr;
use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, Signal, pidfd_getfd, pidfd_open};
use serde_json::Value;
use std::fs::{File, OpenOptions};
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;

/// lasthop with ports a, c and d, bystanders at c and d, and an uplink `net` with a station at the other end of its wire.
struct Site {
    // Gone before what they talk through is.
    bystanders: Bystanders,
    lasthop: Lasthop,
    guest: Guest,
    station: Station,
    _netns: Netns,
    _dir: tempfile::TempDir,
}

impl Site {
    fn new(more: &[&str]) -> Self {
        let (netns, dir) = (Netns::new(), scratch());
        netns.ip("link add u0 type veth peer name s0");
        netns.ip("link set s0 up");
        let ports = ["a", "c", "d"].map(|name| Port::listen(name, dir.path()));
        let arguments = [&["--uplink", "net=u0,af_packet"], more].concat();
        let lasthop = Lasthop::start_in(Some(&netns), &ports, &arguments);
        lasthop.wait_for_state("net", "up");
        let path = |name: &str| dir.path().join(format!("{name}.sock"));
        let bystanders = Bystanders::start(&path("c"), &path("d"), [mac(0xc), mac(0xd)]);
        let guest = Guest::connect(&path("a"), mac(1), Options::default());
        let station = Station::on(&netns, "s0");
        let mut site = Self { lasthop, bystanders, guest, station, _netns: netns, _dir: dir };
        site.greet(1);
        site
    }

    fn greet(&mut self, number: u32) {
        self.station.send(&numbered(mac(9), mac(1), number, 60));
        self.guest.expect_number(number);
        self.guest.send(&numbered(mac(1), mac(9), number, 60));
        self.station.recv("a greeting", |f| number_of(f) == Some(number));
    }

    fn uplink(&self) -> Value {
        self.lasthop.json(&["uplink", "list"])["uplinks"][0].clone()
    }

    fn pid(&self) -> u32 {
        self.uplink()["pid"].as_u64().unwrap_or(0) as u32
    }

    /// The numbers of the uplink's descriptors whose links begin like this.
    fn descriptors(&self, link: &str) -> Vec<i32> {
        let all = std::fs::read_dir(format!("/proc/{}/fd", self.pid())).unwrap().flatten().map(|d| d.path());
        let wanted = all.filter(|path| std::fs::read_link(path).is_ok_and(|to| to.to_string_lossy().starts_with(link)));
        wanted.filter_map(|path| path.file_name()?.to_str()?.parse().ok()).collect()
    }

    /// The memory that the uplink shares with the switch.
    fn memory(&self) -> File {
        let number = self.descriptors("/memfd:lasthop-uplink")[0];
        OpenOptions::new().read(true).write(true).open(format!("/proc/{}/fd/{number}", self.pid())).unwrap()
    }

    /// Everything by which the uplink wakes somebody.
    fn events(&self) -> Vec<OwnedFd> {
        let pid = Pid::from_raw(self.pid() as i32).expect("the uplink runs");
        let process = pidfd_open(pid, PidfdFlags::empty()).unwrap();
        let take = |number| pidfd_getfd(&process, number, PidfdGetfdFlags::empty()).unwrap();
        self.descriptors("anon_inode:[eventfd]").into_iter().map(take).collect()
    }
}

/// Where things are in that memory: two rings, the first to the network and the second from it, each with 512 entries and
/// begun on a page. The available ring follows the descriptors.
const RING_BYTES: u64 = 16 * 1024;
const AVAILABLE: u64 = 512 * 16;

/// One ring of an uplink.
struct Ring {
    memory: File,
    queue: u64,
}

impl Ring {
    fn write(&self, at: u64, bytes: &[u8]) {
        self.memory.write_all_at(bytes, self.queue * RING_BYTES + at).unwrap();
    }

    /// As if it had made so many more buffers available.
    fn advance(&self, by: u16) {
        let mut index = [0; 2];
        self.memory.read_exact_at(&mut index, self.queue * RING_BYTES + AVAILABLE + 2).unwrap();
        let index = u16::from_le_bytes(index).wrapping_add(by);
        self.write(AVAILABLE + 2, &index.to_le_bytes());
    }

    /// What was written is looked at: the switch may fill any buffer of the one ring, in the other it waits for the next.
    fn offer(&self) {
        if self.queue == 1 {
            self.advance(1);
        }
    }
}

fn kick(event: &OwnedFd) {
    // A full counter is a kick as well.
    let _ = rustix::io::write(event, &1u64.to_ne_bytes());
}

/// What is done to a ring, and what the switch must say of it.
struct Attack {
    what: &'static str,
    write: fn(&Ring),
    reason: &'static str,
}

const ATTACKS: [Attack; 3] = [
    Attack { what: "the available index jumps", write: |ring| ring.advance(5000), reason: "is more than 512 ahead of" },
    Attack {
        what: "a head beyond the ring",
        write: |ring| {
            ring.write(AVAILABLE + 4, &[0xff; 1024]);
            ring.offer();
        },
        reason: "descriptor 65535 is beyond the table's 512 entries",
    },
    Attack {
        what: "buffers outside of memory",
        write: |ring| {
            for entry in 0..512 {
                ring.write(entry * 16, &0xffff_ffff_0000_u64.to_le_bytes());
                ring.write(entry * 16 + 8, &100u32.to_le_bytes());
            }
            ring.offer();
        },
        reason: "100 bytes at guest address 0xffffffff0000",
    },
];

/// Its rings say what cannot be: its port breaks and says which ring and why, its process is replaced, the bystanders lose
/// nothing.
#[test]
fn rings_that_lie_break_the_port_and_the_uplink_is_replaced() {
    let mut site = Site::new(&["--uplink-limit-ms", "600000"]);
    let cases = ATTACKS.iter().flat_map(|attack| [(attack, 0), (attack, 1)]);
    for (n, (Attack { what, write, reason }, queue)) in (0..).zip(cases) {
        let what = format!("{what} (queue {queue})");
        let (old, switch) = (site.pid(), site.lasthop.switch());
        let (events, log) = (site.events(), site.lasthop.log().len());
        proc::signal(old, Signal::STOP);
        write(&Ring { memory: site.memory(), queue });
        wait_for(&format!("{what}: the port to break"), PATIENCE, || {
            events.iter().for_each(kick);
            // Buffers that the switch has seen already are used first, and a list of ports waits a moment for a process that is stopped.
            for _ in 0..32 {
                site.guest.try_send(VnetHdr::default(), &numbered(mac(1), mac(9), 5, 60));
            }
            site.lasthop.port("net")["state"] == "broken"
        });
        let port = site.lasthop.port("net");
        let says =
            |text: &Value, words: &[&str]| words.iter().all(|word| text.as_str().is_some_and(|t| t.contains(word)));
        assert!(says(&port["error"], &[&format!("queue {queue}"), reason]), "{what}: {}", port["error"]);
        for (ring, shown) in (0..).zip(port["queues"].as_array().expect("a list of rings")) {
            let right = if ring == queue { says(&shown["error"], &[reason]) } else { shown["error"].is_null() };
            assert!(right, "{what}: {shown}");
        }
        let said = |line: &str| ["port=net", &format!("queue={queue}"), reason].iter().all(|word| line.contains(word));
        let new = site.lasthop.log()[log..].to_owned();
        assert!(new.lines().any(said), "{what}: {new}");
        site.bystanders.still_exchange();
        proc::signal(old, Signal::CONT);
        wait_for(&format!("{what}: the uplink to be replaced"), PATIENCE, || !proc::alive(old));
        site.lasthop.wait_for_state("net", "up");
        assert_eq!(site.lasthop.switch(), switch, "{what}: the switch was restarted");
        wait_for("the restart to be counted", PATIENCE, || site.uplink()["restarts"] == n + 1);
        let why = site.uplink()["last_error"].clone();
        assert!(says(&why, &["ring"]), "{what}: {why}");
        site.bystanders.still_exchange();
        site.guest.drain();
        site.station.drain();
        site.greet(10 + n);
    }
    site.lasthop.check_sums();
}

/// It wakes the switch for nothing, as often as it can.
#[test]
fn an_uplink_that_kicks_without_end_stops_nobody() {
    let mut site = Site::new(&["--uplink-limit-ms", "600000"]);
    let (pid, events) = (site.pid(), site.events());
    for _ in 0..20 {
        for _ in 0..5000 {
            events.iter().for_each(kick);
        }
        site.bystanders.still_exchange();
    }
    // One of them says that a ring is broken, so the uplink may have been replaced.
    wait_for("the network to be back", PATIENCE, || site.lasthop.port("net")["state"] == "up");
    site.guest.drain();
    site.greet(2);
    assert!(site.pid() == pid || site.uplink()["restarts"] == 1, "{}", site.uplink());
    site.lasthop.check_sums();
}

/// It takes nothing any more: what is for it is bounded, dropped and counted, and guests go on among themselves.
#[test]
fn an_uplink_that_gives_nothing_back_harms_nobody() {
    let mut site = Site::new(&["--uplink-limit-ms", "600000"]);
    let pid = site.pid();
    let before = proc::private_kib(site.lasthop.switch());
    proc::signal(pid, Signal::STOP);
    let dropped = || {
        let drops = site.lasthop.port("net")["to_guest"]["drops"].as_array().cloned().unwrap_or_default();
        drops.iter().find(|d| d["reason"] == "no_buffers").map_or(0, |d| d["packets"].as_u64().unwrap_or(0))
    };
    let mut sent = 0;
    wait_for("its ring to be full", PATIENCE, || {
        for _ in 0..500 {
            sent += u64::from(site.guest.try_send(VnetHdr::default(), &numbered(mac(1), mac(9), 7, 1000)));
        }
        dropped() > 1000
    });
    assert!(sent < 1_000_000, "{sent}");
    site.bystanders.still_exchange();
    let grown = proc::private_kib(site.lasthop.switch()).saturating_sub(before);
    assert!(grown < 4096, "the switch has grown by {grown} KiB");
    proc::signal(pid, Signal::CONT);
    site.station.drain();
    site.greet(2);
    assert_eq!((site.pid(), site.uplink()["restarts"].as_u64()), (pid, Some(0)));
    site.lasthop.check_sums();
}

/// It sends what it likes, as fast as it can: here what its network sends it, broadcasts with ever new addresses.
#[test]
fn an_uplink_that_floods_fills_its_own_share_only() {
    let mut site = Site::new(&[]);
    let mut n = 0u32;
    while site.lasthop.port("net")["sources_over_limit"] == 0 {
        assert!(n < 1_000_000, "{}", site.lasthop.port("net"));
        for _ in 0..4000 {
            n += 1;
            let source = MacAddr([2, 3, 0, (n >> 16) as u8, (n >> 8) as u8, n as u8]);
            site.station.send(&numbered(source, if n.is_multiple_of(3) { mac(1) } else { MacAddr::BROADCAST }, n, 60));
        }
        site.bystanders.still_exchange();
    }
    site.guest.drain();
    let port = site.lasthop.port("net");
    assert_eq!(port["macs"], port["mac_limit"], "{port}");
    let macs = site.lasthop.json(&["mac", "list"])["macs"].as_array().cloned().unwrap_or_default();
    for (mac, port) in [(mac(1), "a"), (mac(0xc), "c"), (mac(0xd), "d")] {
        let at = macs.iter().find(|m| m["mac"] == mac.to_string()).map(|m| m["port"].clone());
        assert_eq!(at, Some(port.into()), "{mac}");
    }
    site.greet(77);
    site.lasthop.check_sums();
}
