//! A Linux bridge with TAP devices in a network namespace of its own: the peer to compare with, and a switch that is known
//! to be right.

use crate::nic::{Backend, Nic};
use std::process::Command;

/// A bridge with TAP devices `t1` to `tN`. Dropping it removes the namespace.
pub struct Bridge {
    netns: String,
}

impl Bridge {
    /// With `taps` TAP devices.
    pub fn start(taps: u8) -> Self {
        let bridge = Self { netns: format!("lasthop-test-{}", std::process::id()) };
        ip(&format!("netns add {}", bridge.netns));
        let inside = format!("-n {}", bridge.netns);
        ip(&format!("{inside} link add br0 mtu 9000 type bridge"));
        ip(&format!("{inside} link set br0 up"));
        for i in 1..=taps {
            ip(&format!("{inside} tuntap add t{i} mode tap vnet_hdr"));
            ip(&format!("{inside} link set t{i} mtu 9000 master br0 up"));
        }
        bridge
    }

    /// A card on TAP device `t{number}`.
    pub fn nic(&self, number: u8) -> Nic {
        Nic::new(Backend::Tap { ifname: format!("t{number}"), netns: self.netns.clone() }, number)
    }
}

impl Drop for Bridge {
    fn drop(&mut self) {
        let _ = Command::new("ip").args(["netns", "del", &self.netns]).status();
    }
}

fn ip(arguments: &str) {
    let out = Command::new("ip").args(arguments.split(' ')).output().expect("ip (iproute2) is installed");
    assert!(out.status.success(), "ip {arguments}: {}", String::from_utf8_lossy(&out.stderr));
}
