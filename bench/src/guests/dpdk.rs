//! Two DPDK virtio-user ports in one testpmd play two guests that hand every packet back.
//!
//! A packet leaves guest 0, comes through the switch to guest 1, which is the same thread and sends it out of guest 0
//! again; the other way round likewise. Nothing is generated or dropped while the loop runs, so the slower of guests and
//! switch sets the pace. The guests listen on their sockets and the switch connects.

use lasthop_harness::stop::{Outcome, failed};
use lasthop_harness::testpmd::{Testpmd, number_after};
use std::path::Path;
use std::time::Instant;

/// Layout of the guests' rings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ring {
    /// Virtio 1.2, section 2.7.
    Split,
    /// Virtio 1.2, section 2.8.
    Packed,
}

/// What circulates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Frames {
    /// Frames of this many bytes, without checksum; as many as the rings accept, about 2048.
    Size(u16),
    /// 7 : 4 : 1 of 64, 594 and 1514 bytes, 361.5 on average; 768 each way.
    Imix,
}

/// Memory in huge pages the guests take, in MiB.
pub const MIB: u32 = 600;

/// The two guests.
pub struct Guests(Testpmd);

/// What both guests have received, at a time.
#[derive(Clone, Copy, Debug)]
pub struct Count {
    /// Frames.
    pub packets: f64,
    /// Bytes in them.
    pub bytes: f64,
    /// When that was read.
    pub at: Instant,
}

impl Guests {
    /// Starts both on one CPU and waits until the switch has connected to both.
    pub fn start(cpu: usize, sockets: [&Path; 2], ring: Ring) -> Outcome<Self> {
        let packed = if ring == Ring::Packed { ",packed_vq=1" } else { "" };
        let device = |i: usize| {
            let (path, mac) = (sockets[i].display(), mac(i));
            format!("net_virtio_user{i},path={path},server=1,queue_size=1024,mac={mac}{packed}")
        };
        let mut testpmd = Testpmd::start(
            &format!("0@{cpu},1@{cpu}"),
            MIB,
            &[device(0), device(1)],
            &[],
            &["--burst=64", "--no-flush-rx"],
        )?;
        testpmd.say("set fwd io")?;
        // Every frame is addressed to the other guest, as between real ones.
        for i in 0..2 {
            testpmd.say(&format!("set eth-peer {i} {}", mac(1 - i)))?;
        }
        Ok(Self(testpmd))
    }

    /// Lets the frames go round. A few go first, so that whoever learns has learned when the many come.
    pub fn circulate(&mut self, frames: Frames) -> Outcome<()> {
        self.send(64, 1, 1)?;
        lasthop_harness::stop::pause(std::time::Duration::from_millis(200))?;
        match frames {
            Frames::Size(size) => self.send(size, 64, 32),
            Frames::Imix => [(64, 7), (594, 4), (1514, 1)].into_iter().try_for_each(|(size, n)| self.send(size, 64, n)),
        }
    }

    fn send(&mut self, size: u16, burst: u16, bursts: u16) -> Outcome<()> {
        // What circulates already waits in the rings meanwhile.
        self.0.say("stop")?;
        self.0.say(&format!("set txpkts {size}"))?;
        self.0.say(&format!("set burst {burst}"))?;
        self.0.say(&format!("start tx_first {bursts}"))?;
        Ok(())
    }

    /// What has been received so far.
    pub fn count(&mut self) -> Outcome<Count> {
        let before = Instant::now();
        let text = self.0.say("show port stats all")?;
        let at = before + before.elapsed() / 2;
        let (packets, bytes) = received(&text).ok_or_else(|| failed(format!("no counters in {text:?}")))?;
        Ok(Count { packets, bytes, at })
    }
}

/// Packets and bytes of both ports.
fn received(text: &str) -> Option<(f64, f64)> {
    let ports: Vec<&str> = text.split("NIC statistics").skip(1).collect();
    let sum = |label| ports.iter().map(|p| number_after(p, label)).sum::<Option<f64>>();
    (ports.len() == 2).then_some(())?;
    Some((sum("RX-packets:")?, sum("RX-bytes:")?))
}

fn mac(guest: usize) -> String {
    format!("52:54:00:00:01:{guest:02x}")
}

#[cfg(test)]
mod tests {
    #[test]
    fn counters_of_both_ports_are_added() {
        let port = |n: u32| {
            format!(
                "  ######## NIC statistics for port {n}  ########\n  RX-packets: {}  RX-missed: 0  RX-bytes:  {}\n  \
                 RX-errors: 0\n  TX-packets: 9  TX-bytes: 9\n",
                n * 10 + 5,
                n * 100
            )
        };
        assert_eq!(super::received(&(port(0) + &port(1))), Some((20.0, 100.0)));
        assert_eq!(super::received(&port(0)), None);
        assert_eq!(super::received("Command not found\n"), None);
    }
}
