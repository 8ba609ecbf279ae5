//! Network service headers (RFC 8300) by the distribution's Open vSwitch: put on, told apart, changed and taken off.

use super::*;

/// Path and index that rules here speak of.
const PATH: u32 = 0x12_3456;

impl Site {
    fn rules_of_nsh(&self, rules: &[&str]) {
        let bridge = format!("unix:{}", self.dir.path().join("br0.mgmt").display());
        self.ofctl(&["del-flows"]);
        for rule in rules {
            vswitch::run(self.dir.path(), &["ovs-ofctl", "-O", "OpenFlow13", "add-flow", &bridge, rule]);
        }
        self.appctl(&["revalidator/wait"]);
    }

    /// Of what this suite's rules ask, nothing is refused.
    fn check_log(&self) {
        let refused = self.logs().lines().find(|line| line.contains("Invalid argument")).map(String::from);
        assert_eq!(refused, None);
    }
}

/// A header of metadata of type 1 in front of this, 63 hops left.
fn header(path: u32, index: u8, context: u32, next: u8, inner: &[u8]) -> Vec<u8> {
    let path = (path << 8 | u32::from(index)).to_be_bytes();
    [&[0x0f, 0xc6, 1, next][..], &path, &context.to_be_bytes(), &[0; 12], inner].concat()
}

/// It comes from the first guest, goes to the second, and begins with such a header.
fn served(path: u32, index: u8, context: u32, inner: &[u8]) -> Vec<u8> {
    [&numbered(mac(1), mac(2), 0, 60)[..12], &[0x89, 0x4f], &header(path, index, context, 3, inner)].concat()
}

/// A frame is wrapped, and comes back as it was; one of another path does not.
#[test]
fn nsh_is_put_on_told_apart_and_taken_off() {
    let mut site = Site::new();
    site.rules_of_nsh(&[
        "in_port=1,actions=encap(nsh(md_type=1)),set_field:0x123456->nsh_spi,set_field:0x11223344->nsh_c1,encap(ethernet),set_field:02:00:00:00:00:01->eth_src,set_field:02:00:00:00:00:02->eth_dst,output:2",
        "in_port=2,dl_type=0x894f,nsh_spi=0x123456,nsh_c1=0x11223344,actions=decap(),decap(),output:1",
        "priority=1,in_port=2,dl_type=0x894f,actions=drop",
    ]);
    let [a, b] = &mut site.guests;
    for n in 1..20 {
        let frame = numbered(mac(1), mac(2), n, 300);
        a.send(&frame);
        b.expect(&served(PATH, 255, 0x1122_3344, &frame));
        // None of these comes but the last.
        b.send(&served(PATH + 1, 255, 0x1122_3344, &frame));
        b.send(&served(PATH, 255, 0x1122_3345, &frame));
        b.send(&served(PATH, 255, 0x1122_3344, &frame)[..60]);
        b.send(&served(PATH, 255, 0x1122_3344, &frame));
        a.expect(&frame);
    }
    site.check_log();
    let flows = site.appctl(&["dpctl/dump-flows"]);
    for part in ["push_nsh(flags=0,ttl=63,mdtype=1,np=3,spi=0x123456,si=255,c1=0x11223344", "pop_nsh()", "nsh("] {
        assert!(flows.contains(part), "{part} is not in\n{flows}");
    }
    site.lasthop.check_sums();
}

/// A forwarder of a service chain: the index counts down, hops too, and the context changes.
#[test]
fn nsh_is_changed_where_it_is() {
    let mut site = Site::new();
    site.rules_of_nsh(&[
        "in_port=1,dl_type=0x894f,nsh_spi=0x123456,nsh_si=255,actions=set_field:0x123457->nsh_spi,set_field:254->nsh_si,set_field:7->nsh_c1,dec_nsh_ttl,output:2",
        "in_port=1,dl_type=0x894f,nsh_spi=0x123456,nsh_si=254,actions=output:2",
        "priority=1,in_port=1,dl_type=0x894f,actions=drop",
    ]);
    let [a, b] = &mut site.guests;
    for n in 1..20 {
        let inner = numbered(mac(1), mac(2), n, 200);
        a.send(&served(PATH, 253, 1, &inner));
        a.send(&served(PATH, 255, 1, &inner));
        let mut changed = served(PATH + 1, 254, 7, &inner);
        // 62 hops left.
        (changed[14], changed[15]) = (0x0f, 0x86);
        b.expect(&changed);
        a.send(&served(PATH, 254, 1, &inner));
        b.expect(&served(PATH, 254, 1, &inner));
    }
    site.check_log();
    site.lasthop.check_sums();
}

/// Metadata of type 2 goes in front of a packet whose Ethernet header has gone first; RFC 8300's next protocol is IPv4.
#[test]
fn metadata_of_type_2_is_put_on_packets_of_ip() {
    let mut site = Site::new();
    site.rules_of_nsh(&[
        "in_port=1,ip,actions=decap(),encap(nsh(md_type=2,tlv(0x1000,10,0x12345678))),set_field:0x123456->nsh_spi,encap(ethernet),set_field:02:00:00:00:00:22->eth_dst,output:2",
        "in_port=2,dl_type=0x894f,nsh_spi=0x123456,actions=decap(),decap(),encap(ethernet),set_field:02:00:00:00:00:11->eth_dst,output:1",
    ]);
    let [a, b] = &mut site.guests;
    for n in 1..20 {
        let frame = numbered(mac(1), mac(2), n, 300);
        let frame = [&frame[..12], &[8, 0, 0x45], &frame[15..]].concat();
        a.send(&frame);
        let (_, wrapped) = b.recv("a packet in a header", |_, got| got.ends_with(&frame[14..]));
        let header = [0x0f, 0xc4, 2, 1, 0x12, 0x34, 0x56, 255, 0x10, 0, 10, 4, 0x12, 0x34, 0x56, 0x78];
        assert_eq!((&wrapped[..6], &wrapped[12..14]), (&[2, 0, 0, 0, 0, 0x22][..], &[0x89, 0x4f][..]));
        assert_eq!((&wrapped[14..30], wrapped.len()), (&header[..], 30 + frame.len() - 14));
        b.send(&wrapped);
        let (_, back) = a.recv("the packet alone", |_, got| got.ends_with(&frame[14..]));
        assert_eq!((&back[..6], &back[12..]), (&[2, 0, 0, 0, 0, 0x11][..], &frame[12..]));
    }
    site.check_log();
    site.lasthop.check_sums();
}
