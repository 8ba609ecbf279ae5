//! An uplink that carries some VLANs only: what comes from the network and what guests send, tagged and not, before and
//! after control was killed.

use lasthop_tests_process::{
    Guest, Lasthop, Netns, Options, PATIENCE, Port, mac, number_of, numbered, scratch, wait_for,
};
use lasthop_text::MacAddr;
use std::path::Path;

/// A frame with a tag of this VLAN in front of what it was; 0: as it was.
fn tagged(vlan: u16, frame: &[u8]) -> Vec<u8> {
    let tag = [[0x81, 0x00], vlan.to_be_bytes()].concat();
    [&frame[..12], if vlan == 0 { &[] } else { &tag[..] }, &frame[12..]].concat()
}

/// VLAN and number of a numbered frame.
fn read(frame: &[u8]) -> Option<(u16, u32)> {
    match frame.get(12..16)? {
        [0x81, 0, high, low] => {
            let inner = [&frame[..12], &frame[16..]].concat();
            Some((u16::from_be_bytes([high & 0x0f, *low]), number_of(&inner)?))
        }
        _ => Some((0, number_of(frame)?)),
    }
}

/// Notes a frame; whether it is this one.
fn heard(frame: &[u8], wanted: (u16, u32), all: &mut Vec<(u16, u32)>) -> bool {
    all.extend(read(frame));
    read(frame) == Some(wanted)
}

/// Frames from the network that were dropped because of what the uplink carries. Others of the kernel's may be among them.
fn dropped(lasthop: &Lasthop) -> u64 {
    let port = lasthop.port("net");
    let drops = port["from_guest"]["drops"].as_array().cloned().unwrap_or_default();
    drops.iter().find(|d| d["reason"] == "vlan").map_or(0, |d| d["packets"].as_u64().unwrap())
}

/// Guests a and b, and a station at the other end of the uplink's wire: a guest of another lasthop, whose uplink carries
/// everything, because the kernel takes tags out of what it shows to a packet socket.
struct Site {
    lasthop: Lasthop,
    guests: [Guest; 2],
    station: Guest,
    next: u32,
    _outside: (Lasthop, Netns),
}

impl Site {
    fn new(dir: &Path, vlans: &str) -> Self {
        let netns = Netns::new();
        netns.ip("link add u0 type veth peer name s0");
        netns.ip("link set s0 up");
        let ports = ["a", "b", "s"].map(|name| Port::listen(name, dir));
        let lasthop = Lasthop::start_in(Some(&netns), &ports[..2], &[]);
        lasthop.command(&["uplink", "add", "net", "u0", "--driver", "af_packet", "--vlans", vlans]);
        let outside = Lasthop::start_in(Some(&netns), &ports[2..], &["--uplink", "net=s0,af_packet"]);
        [&lasthop, &outside].into_iter().for_each(|lasthop| lasthop.wait_for_state("net", "up"));
        let guest = |name: &str, n| Guest::connect(&dir.join(format!("{name}.sock")), mac(n), Options::default());
        let (guests, station) = ([guest("a", 1), guest("b", 2)], guest("s", 9));
        // Floods leave out who is not known to be there.
        ["a", "b"].into_iter().for_each(|port| lasthop.wait_for_state(port, "up"));
        outside.wait_for_state("s", "up");
        Self { lasthop, guests, station, next: 0, _outside: (outside, netns) }
    }

    /// Sends in all VLANs both ways, from the station `outside`, to everybody and to each other. Only what is `carried`
    /// crosses, and what does not is counted where it came in.
    fn check(&mut self, outside: MacAddr, carried: &[u16]) {
        let [a, b] = &mut self.guests;
        let before = dropped(&self.lasthop);
        let (mut refused, mut heard_inside, mut heard_outside) = (Vec::new(), Vec::new(), Vec::new());
        for vlan in [0, 10, 25, 40] {
            for to in [MacAddr::BROADCAST, a.mac] {
                self.next += 1;
                let frame = (vlan, self.next);
                self.station.send(&tagged(vlan, &numbered(outside, to, self.next, 60)));
                if carried.contains(&vlan) {
                    a.recv("a frame from outside", |_, f| heard(f, frame, &mut heard_inside));
                } else {
                    refused.push(frame);
                }
            }
            for to in [MacAddr::BROADCAST, MacAddr([1, 0, 0x5e, 0, 0, 9]), mac(0x77), outside] {
                self.next += 1;
                let frame = (vlan, self.next);
                a.send(&tagged(vlan, &numbered(a.mac, to, self.next, 60)));
                if carried.contains(&vlan) {
                    self.station.recv("a guest's frame", |_, f| heard(f, frame, &mut heard_outside));
                }
                // Where it is not carried nobody outside is known, and everybody inside hears all of it.
                if to != outside || !carried.contains(&vlan) {
                    b.recv("the other guest's frame", |_, f| heard(f, frame, &mut heard_inside));
                }
            }
        }
        let all = before + refused.len() as u64;
        wait_for("what is not carried to be counted", PATIENCE, || dropped(&self.lasthop) >= all);
        // The last frames were of a VLAN that is not carried, and b has them: what comes now comes behind them.
        self.next += 1;
        let last = (carried[0], self.next);
        a.send(&tagged(last.0, &numbered(a.mac, outside, last.1, 60)));
        self.station.recv("the last frame", |_, f| heard(f, last, &mut heard_outside));
        for guest in [a, b] {
            heard_inside.extend(guest.drain().iter().filter_map(|f| read(f)));
        }
        assert!(!heard_inside.iter().any(|frame| refused.contains(frame)), "{heard_inside:?}");
        assert!(heard_outside.iter().all(|(vlan, _)| carried.contains(vlan)), "{heard_outside:?}");
    }

    fn traced(&self, port: &str, src: MacAddr, vlan: &str) -> String {
        let (src, dst) = (src.to_string(), MacAddr::BROADCAST.to_string());
        self.lasthop.command(&["trace", "--in-port", port, "--eth-src", &src, "--eth-dst", &dst, "--vlan", vlan])
    }
}

#[test]
fn a_trunk_carries_its_vlans_and_survives_control() {
    let dir = scratch();
    let mut site = Site::new(dir.path(), "untagged:10:20-30");
    let carried = [10, 0, 25];
    site.check(mac(9), &carried);
    for (port, line) in
        [("net", "uplink net does not carry VLAN 40 (vlans=untagged:10:20-30): dropped"), ("a", "VLAN 40")]
    {
        let text = site.traced(port, mac(9), "40");
        assert!(text.contains(line), "{text}");
    }
    // With flows that were there before, and with new ones.
    site.lasthop.kill("lasthop-control");
    wait_for("control to be back", PATIENCE, || site.lasthop.try_command(&["uplink", "list"]).status.success());
    site.lasthop.wait_for_state("net", "up");
    site.check(mac(9), &carried);
    site.check(mac(10), &carried);
    site.lasthop.check_sums();
    assert_eq!(site.lasthop.json(&["uplink", "list"])["uplinks"][0]["vlans"], "untagged:10:20-30");
    assert!(site.lasthop.command(&["uplink", "list"]).contains("untagged:10:20-30"));
}

/// Nothing without a tag; a list that makes no sense is refused, and leaves nothing behind.
#[test]
fn a_trunk_without_untagged_frames() {
    let dir = scratch();
    let mut site = Site::new(dir.path(), "10:25");
    site.check(mac(9), &[10, 25]);
    site.lasthop.check_sums();
    // As a trunk of all VLANs, without a list.
    site.lasthop.command(&["uplink", "del", "net"]);
    let out = site.lasthop.try_command(&["uplink", "add", "net", "u0", "--vlans", "30-20"]);
    let error = String::from_utf8_lossy(&out.stderr).into_owned();
    assert!(!out.status.success() && error.contains("write 20-30"), "{error}");
    site.lasthop.command(&["uplink", "add", "net", "u0", "--driver", "af_packet"]);
    site.lasthop.wait_for_state("net", "up");
    assert!(site.lasthop.json(&["uplink", "list"])["uplinks"][0]["vlans"].is_null());
    site.check(mac(9), &[40, 0, 10, 25]);
}

/// Another list, while frames pass: in force for the first frame after the command, for flows that there were before too, and
/// remembered.
#[test]
fn the_vlans_of_a_trunk_are_changed() {
    let dir = scratch();
    let mut site = Site::new(dir.path(), "untagged:10");
    site.check(mac(9), &[10, 0]);
    for (list, carried, now) in [("25:10", &[10, 25][..], "VLANs 10:25"), ("all", &[40, 0, 10, 25], "all frames")] {
        let said = site.lasthop.command(&["uplink", "set", "net", "--vlans", list]);
        assert_eq!(said, format!("uplink net: carries {now}\n"));
        site.check(mac(9), carried);
    }
    for (arguments, wrong) in [
        (["uplink", "set", "net", "--vlans", "30-20"], "write 20-30"),
        (["uplink", "set", "nobody", "--vlans", "10"], "there is no uplink nobody"),
    ] {
        let out = site.lasthop.try_command(&arguments);
        let error = String::from_utf8_lossy(&out.stderr).into_owned();
        assert!(!out.status.success() && error.contains(wrong), "{error}");
    }
    site.lasthop.command(&["uplink", "set", "net", "--vlans", "untagged:20-30"]);
    let carried = [0, 25];
    site.check(mac(10), &carried);
    site.lasthop.kill("lasthop-control");
    wait_for("control to be back", PATIENCE, || site.lasthop.try_command(&["uplink", "list"]).status.success());
    site.lasthop.wait_for_state("net", "up");
    site.check(mac(10), &carried);
    site.lasthop.check_sums();
    let saved = std::fs::read_to_string(site.lasthop.state_file("ports.json")).unwrap();
    assert!(saved.contains("untagged:20-30"), "{saved}");
}
