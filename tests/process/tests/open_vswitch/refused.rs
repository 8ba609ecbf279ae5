//! What lasthop refuses, so that Open vSwitch does it itself or says so: NSH.

use super::*;

impl Site {
    fn rules_of_nsh(&self, rules: &[&str]) {
        let bridge = format!("unix:{}", self.dir.path().join("br0.mgmt").display());
        self.ofctl(&["del-flows"]);
        for rule in rules {
            vswitch::run(self.dir.path(), &["ovs-ofctl", "-O", "OpenFlow13", "add-flow", &bridge, rule]);
        }
        self.appctl(&["revalidator/wait"]);
    }
}

/// A frame that NSH wraps another in (RFC 8300): metadata of type 1, path 0x123456, 255 hops left.
fn nsh(path: u8, inner: &[u8]) -> Vec<u8> {
    let header = [&[0x0f, 0xc6, 1, 3, 0x12, 0x34, path, 255][..], &[0; 16]].concat();
    [&[2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 0x89, 0x4f], &header[..], inner].concat()
}

impl Site {
    /// A line of Open vSwitch's log has all of these. It says no more than a few things a second, so few are to be said before.
    fn wait_for_line(&self, parts: &[&str]) {
        wait_for(&format!("the log to say {parts:?}"), PATIENCE, || {
            self.logs().lines().any(|line| parts.iter().all(|part| line.contains(part)))
        });
    }
}

/// Rules that look at NSH work, because Open vSwitch looks at each such packet itself; what would take it off goes nowhere, and the log says so.
#[test]
fn nsh_is_told_apart_and_not_taken_off() {
    let mut site = Site::new();
    site.rules_of_nsh(&[
        "priority=9,in_port=1,dl_type=0x894f,nsh_spi=0x123456,actions=output:2",
        "priority=9,in_port=1,dl_type=0x894f,nsh_spi=0x123477,actions=decap(),decap(),output:2",
        "priority=8,in_port=1,dl_type=0x894f,actions=drop",
        "priority=1,actions=NORMAL",
    ]);
    site.guests[0].send(&nsh(0x77, &numbered(mac(1), mac(2), 0, 100)));
    site.wait_for_line(&["execute", "pop_nsh()", "failed (Invalid argument)"]);
    let [a, b] = &mut site.guests;
    for n in 1..20 {
        let inner = numbered(mac(1), mac(2), n, 100);
        a.send(&nsh(0x57, &inner));
        a.send(&nsh(0x77, &inner));
        // Only this one comes, and what has nothing to do with it.
        for frame in [nsh(0x56, &inner), numbered(mac(1), mac(2), n, 200)] {
            a.send(&frame);
            let is_of_these = |frame: &[u8]| frame[12..14] == [0x89, 0x4f] || number_of(frame).is_some();
            assert_eq!(b.recv("a frame", |_, frame| is_of_these(frame)).1, frame);
        }
    }
    site.lasthop.check_sums();
}

#[test]
fn nsh_is_not_put_on_and_the_log_says_so() {
    let mut site = Site::new();
    site.rules_of_nsh(&[
        "priority=9,in_port=1,dl_dst=02:00:00:00:00:55,actions=encap(nsh(md_type=1)),set_field:0x1234->nsh_spi,encap(ethernet),output:2",
        "priority=1,actions=NORMAL",
    ]);
    let [a, _] = &mut site.guests;
    a.send(&numbered(mac(1), MacAddr([2, 0, 0, 0, 0, 0x55]), 1, 300));
    site.wait_for_line(&["failed to put[create] (Invalid argument)", "push_nsh("]);
    site.wait_for_line(&["execute", "push_nsh(", "failed (Invalid argument)"]);
    let [a, b] = &mut site.guests;
    pass(a, b, &numbered(mac(1), mac(2), 2, 200));
    site.lasthop.check_sums();
}
