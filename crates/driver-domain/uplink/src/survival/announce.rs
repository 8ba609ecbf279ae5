//! Announcements: frames by which the network outside learns that stations are to be found behind this uplink now, although
//! they say nothing themselves. As QEMU and Open vSwitch do it: a request of RARP (RFC 903) in each station's name, to all,
//! which every bridge on the way learns from and nobody answers.
//!
//! ```text
//! byte  0  ff:ff:ff:ff:ff:ff
//!       6  the station's address
//!      12  81 00, VLAN id         if it was learned on a VLAN; what follows is 4 bytes further on then
//!      12  80 35                  RARP
//!      14  1, 0x0800, 6, 4, 3     Ethernet, IPv4, their addresses' lengths, "request reverse"
//!      22  the station's address  sender, hardware
//!      28  0                      sender, protocol
//!      32  the station's address  target, hardware
//!      38  0                      target, protocol; then zeros up to Ethernet's 60 bytes
//! ```

use arrayvec::ArrayVec;
use lasthop_text::MacAddr;
use lasthop_uplink_ipc::VlanMac;
use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// Bytes of the longest announcement, which has a tag.
const LONGEST: usize = 64;
const SHORTEST: usize = 60;
const VLAN: [u8; 2] = [0x81, 0x00];
const RARP: [u8; 2] = [0x80, 0x35];
const REQUEST_REVERSE: [u8; 8] = [0, 1, 8, 0, 6, 4, 0, 3];

/// Sent at once, and then again each time [`PAUSE`] has passed: 6400 in a second.
const BURST: usize = 32;
const PAUSE: Duration = Duration::from_millis(5);
/// Most that wait; control knows no more addresses.
const MOST: usize = 65_536;

/// The frame.
fn frame((vlan, MacAddr(mac)): VlanMac) -> ArrayVec<u8, LONGEST> {
    let [high, low] = (vlan & 0xfff).to_be_bytes();
    let tag = [VLAN[0], VLAN[1], high, low];
    let tag = if vlan == 0 { &[][..] } else { &tag };
    let parts: [&[u8]; 8] = [&[0xff; 6], &mac, tag, &RARP, &REQUEST_REVERSE, &mac, &[0; 4], &mac];
    let padding = std::iter::repeat(&0);
    parts.into_iter().flatten().chain(padding).take(SHORTEST + tag.len()).copied().collect()
}

/// Stations that are still to be announced. No I/O; time is handed in.
#[derive(Debug, Default)]
pub struct Announcer {
    waiting: VecDeque<VlanMac>,
    next: Option<Instant>,
}

impl Announcer {
    /// After those that wait already. What is too much is left out.
    pub fn add(&mut self, macs: &[VlanMac], now: Instant) {
        let room = MOST.saturating_sub(self.waiting.len());
        self.waiting.extend(macs.iter().take(room));
        self.next.get_or_insert(now);
    }

    /// Forgets them: another uplink carries their frames.
    pub fn stop(&mut self) {
        *self = Self::default();
    }

    /// Hands the frames that are due to `send`.
    pub fn step(&mut self, now: Instant, mut send: impl FnMut(&[u8])) {
        if self.next.is_none_or(|at| at > now) {
            return;
        }
        let count = BURST.min(self.waiting.len());
        self.waiting.drain(..count).for_each(|station| send(&frame(station)));
        self.next = (!self.waiting.is_empty()).then_some(now + PAUSE);
    }

    /// When [`Announcer::step`] has something to do.
    pub fn deadline(&self) -> Option<Instant> {
        self.next
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STATION: MacAddr = MacAddr([0x52, 0x54, 0, 0, 0, 1]);

    #[test]
    fn a_request_of_rarp_in_the_stations_name() {
        let mut expected = vec![
            0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x52, 0x54, 0, 0, 0, 1, 0x80, 0x35, // Ethernet
            0, 1, 8, 0, 6, 4, 0, 3, // Ethernet, IPv4, request reverse
            0x52, 0x54, 0, 0, 0, 1, 0, 0, 0, 0, 0x52, 0x54, 0, 0, 0, 1, 0, 0, 0, 0,
        ];
        expected.resize(60, 0);
        assert_eq!(frame((0, STATION))[..], expected);
        expected.splice(12..12, [0x81, 0, 0x0a, 0xbc]);
        assert_eq!(frame((0xabc, STATION))[..], expected);
    }

    #[test]
    fn many_are_spread_over_time_and_too_many_are_left_out() {
        let mut announcer = Announcer::default();
        let mut now = Instant::now();
        assert_eq!(announcer.deadline(), None);
        announcer.step(now, |_| unreachable!("there is nobody"));
        announcer.add(&vec![(5, STATION); 70], now);
        announcer.add(&[(0, STATION)], now);
        let mut bursts = Vec::new();
        while let Some(at) = announcer.deadline() {
            now = now.max(at);
            let mut lengths = Vec::new();
            announcer.step(now, |frame| lengths.push(frame.len()));
            announcer.step(now, |_| unreachable!("too early"));
            bursts.push((lengths.len(), lengths.last().copied()));
        }
        assert_eq!(bursts, [(32, Some(64)), (32, Some(64)), (7, Some(60))]);
        announcer.add(&vec![(0, STATION); 40_000], now);
        announcer.add(&vec![(0, STATION); 40_000], now);
        assert_eq!(announcer.waiting.len(), MOST);
        announcer.stop();
        announcer.step(now, |_| unreachable!("they were forgotten"));
        assert_eq!(announcer.deadline(), None);
    }
}
