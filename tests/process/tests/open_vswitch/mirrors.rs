//! Mirrors of the database: copies by port and by VLAN, to a port and to a VLAN.

use super::*;

impl Site {
    /// A third port of the bridge, and a guest at it.
    pub(super) fn third(&self) -> Guest {
        let socket = self.dir.path().join("vm3.sock");
        self.lasthop.command(&["port", "add", "vm3", &socket.display().to_string()]);
        let guest = Guest::connect(&socket, mac(3), Options::default());
        self.lasthop.wait_for_state("vm3", "up");
        self.vsctl("add-port br0 vm3 -- set interface vm3 ofport_request=3");
        guest
    }

    /// Packets and bytes that the mirror `m` has had, as the database says from time to time.
    fn mirrored(&self) -> [u64; 2] {
        let told = self.vsctl("get mirror m statistics");
        ["tx_packets=", "tx_bytes="].map(|name| {
            let digits = told.split(name).nth(1).map(|rest| rest.chars().take_while(char::is_ascii_digit).collect());
            digits.map_or(0, |digits: String| digits.parse().expect("a number"))
        })
    }

    fn mirror(&self, what: &str) {
        self.vsctl(&format!(
            "-- --id=@vm1 get port vm1 -- --id=@vm3 get port vm3 -- --id=@m create mirror name=m {what} -- set bridge br0 mirrors=@m"
        ));
        self.appctl(&["revalidator/wait"]);
    }
}

#[test]
fn a_mirror_copies_what_a_port_sends_and_gets() {
    let mut site = Site::new();
    let mut c = site.third();
    let rules = [
        "priority=9,in_port=1,dl_dst=02:00:00:00:00:55,actions=mod_vlan_vid:5,output:2",
        "priority=9,in_port=2,dl_dst=02:00:00:00:00:66,actions=mod_dl_dst:02:00:00:00:00:01,output:1",
    ];
    rules.iter().for_each(|rule| drop(site.ofctl(&["add-flow", rule])));
    site.mirror("select_src_port=@vm1 select_dst_port=@vm1 output_port=@vm3");
    c.drain();
    let [a, b] = &mut site.guests;
    // It is in force a moment later, and then nothing else comes there: all that does is to be counted.
    let mut copies = Vec::new();
    wait_for("copies", PATIENCE, || {
        a.send(&numbered(mac(1), mac(2), 0, 60));
        b.send(&numbered(mac(2), mac(1), 0, 60));
        copies.extend(c.drain());
        !copies.is_empty()
    });
    drop([a.drain(), b.drain()]);
    let mut copy = |frame: &[u8]| {
        c.expect(frame);
        copies.push(frame.to_vec());
    };
    let to = |last| MacAddr([2, 0, 0, 0, 0, last]);
    for (number, len) in (1..21).zip([61, 192, 193, 1514].into_iter().cycle()) {
        // What the port sends is copied as it came, what it gets as it is sent.
        let frame = numbered(mac(1), to(0x55), number, len);
        a.send(&frame);
        b.expect(&in_vlan(5, &frame));
        copy(&frame);
        let frame = numbered(mac(2), to(0x66), number, len);
        b.send(&frame);
        let changed = [&[2, 0, 0, 0, 0, 1][..], &frame[6..]].concat();
        a.expect(&changed);
        copy(&changed);
        let frame = numbered(mac(1), mac(2), number, len);
        pass(a, b, &frame);
        copy(&frame);
    }
    // Open vSwitch may take its flows back when it learns, and makes them anew with the next packet.
    let mut left = 50;
    loop {
        let ours = site.lasthop.command(&["flow", "list"]);
        if ours.contains("vm3,vm2") || ours.contains("vm2,vm3") {
            break;
        }
        left -= 1;
        assert!(left > 0, "not by one flow of the switch's: {ours}");
        let [a, b] = &mut site.guests;
        let frame = numbered(mac(1), mac(2), 100 + left, 61);
        pass(a, b, &frame);
        c.expect(&frame);
        copies.push(frame);
    }
    let all = [copies.len() as u64, copies.iter().map(|copy| copy.len() as u64).sum()];
    // Told every five seconds.
    wait_for("statistics", PATIENCE, || site.mirrored()[0] >= all[0]);
    assert_eq!(site.mirrored(), all);
    site.lasthop.check_sums();
}

#[test]
fn a_mirror_takes_a_vlan_to_another() {
    let mut site = Site::new();
    let mut c = site.third();
    site.vsctl("set port vm1 tag=10 -- set port vm2 trunks=10,20 -- set port vm3 trunks=99");
    site.mirror("select_all=true select_vlan=10 output_vlan=99");
    let [a, b] = &mut site.guests;
    let send = |a: &mut Guest, b: &mut Guest, number: u32| {
        let frame = numbered(mac(1), MacAddr::BROADCAST, number, 300);
        a.send(&frame);
        let (_, came) = b.recv("the frame", |_, got| got.ends_with(&frame[14..]));
        assert_eq!(came, in_vlan(10, &frame));
        frame
    };
    wait_for("copies", PATIENCE, || {
        a.send(&numbered(mac(1), MacAddr::BROADCAST, 0, 60));
        c.recv_within(Duration::from_millis(200)).is_some()
    });
    drop([a, b, &mut c].map(Guest::drain));
    let [a, b] = &mut site.guests;
    for number in 1..20 {
        // What is in another VLAN has no copy: the next one is of what is in this.
        b.send(&in_vlan(20, &numbered(mac(2), MacAddr::BROADCAST, number, 400)));
        let frame = send(a, b, number);
        c.expect(&in_vlan(99, &frame));
        // Copies of the VLAN's are of what comes from the other side, too.
        let frame = numbered(mac(2), mac(1), number, 500);
        b.send(&in_vlan(10, &frame));
        a.expect(&frame);
        c.expect(&in_vlan(99, &frame));
    }
    assert!(c.drain().is_empty(), "no other copies");
}

#[test]
fn a_mirror_may_be_cut() {
    let mut site = Site::new();
    let mut c = site.third();
    site.mirror("select_src_port=@vm1 output_port=@vm3 snaplen=100");
    let [a, b] = &mut site.guests;
    wait_for("copies", PATIENCE, || {
        a.send(&numbered(mac(1), mac(2), 0, 300));
        c.recv_within(Duration::from_millis(200)).is_some_and(|(_, got)| got.len() == 100)
    });
    drop([a, b, &mut c].map(Guest::drain));
    let [a, b] = &mut site.guests;
    for (number, len) in (1..21).zip([61, 100, 101, 1514].into_iter().cycle()) {
        let frame = numbered(mac(1), mac(2), number, len);
        pass(a, b, &frame);
        c.expect(&frame[..len.min(100)]);
    }
}
