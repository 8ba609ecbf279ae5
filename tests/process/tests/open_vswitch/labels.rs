//! MPLS by the distribution's Open vSwitch: labels pushed, told apart and popped, frames wrapped in them and unwrapped.

use super::*;

impl Site {
    fn label_rules(&self, rules: &[&str]) {
        let bridge = format!("unix:{}", self.dir.path().join("br0.mgmt").display());
        self.ofctl(&["del-flows"]);
        for rule in rules {
            vswitch::run(self.dir.path(), &["ovs-ofctl", "-O", "OpenFlow13", "add-flow", &bridge, rule]);
        }
        self.appctl(&["revalidator/wait"]);
    }
}

/// A frame of IPv4.
fn ip(number: u32) -> Vec<u8> {
    let frame = numbered(mac(1), mac(2), number, 300);
    [&frame[..12], &[8, 0, 0x45], &frame[15..]].concat()
}

/// The frame with one label in front of what it carries, the last.
fn labelled(frame: &[u8], label: u32) -> Vec<u8> {
    [&frame[..12], &[0x88, 0x47], &(label << 12 | 0x100).to_be_bytes(), &frame[14..]].concat()
}

#[test]
fn labels_are_pushed_and_popped() {
    let mut site = Site::new();
    site.label_rules(&[
        "in_port=1,dl_type=0x0800,actions=push_mpls:0x8847,set_field:3->mpls_label,set_mpls_ttl(0),output:2",
        "in_port=2,dl_type=0x8847,mpls_label=3,actions=pop_mpls:0x0800,output:1",
        "in_port=2,dl_type=0x8847,mpls_label=4,actions=drop",
    ]);
    let [a, b] = &mut site.guests;
    for n in 1..20 {
        let frame = ip(n);
        a.send(&frame);
        b.expect(&labelled(&frame, 3));
        b.send(&labelled(&frame, 4));
        b.send(&labelled(&frame, 3));
        a.expect(&frame);
    }
    site.wait_for_packets("mpls_label=4", 19);
    site.lasthop.check_sums();
}

#[test]
fn frames_are_wrapped_and_unwrapped() {
    let mut site = Site::new();
    site.label_rules(&[
        "in_port=1,actions=encap(mpls),set_field:2->mpls_label,encap(ethernet),set_field:02:00:00:00:00:22->eth_dst,output:2",
        "in_port=2,dl_type=0x8847,mpls_label=2,actions=decap(),decap(packet_type(ns=0,type=0)),output:1",
    ]);
    let [a, b] = &mut site.guests;
    for n in 1..20 {
        let frame = ip(n);
        a.send(&frame);
        let (_, wrapped) = b.recv("a frame in a frame", |_, got| got.ends_with(&frame));
        assert_eq!((&wrapped[..6], &wrapped[12..14]), (&[2, 0, 0, 0, 0, 0x22][..], &[0x88, 0x47][..]));
        assert_eq!((wrapped[14..17].to_vec(), wrapped.len()), (vec![0, 0, 0x21], 18 + frame.len()));
        b.send(&wrapped);
        a.expect(&frame);
    }
}
