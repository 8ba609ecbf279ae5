//! Probes: small frames by which a lasthop finds two of its uplinks on one segment.
//!
//! ```text
//! byte  0  03:6c:61:73:74:68   a group that bridges forward and nobody listens to (locally administered)
//!       6  the device's address (TAP: one made of it, since the frame comes from the other end of that wire)
//!      12  88 b5                local experimental EtherType (IEEE Std 802, clause 9.2.4)
//!      14  "probe of lasthop"
//!      30  instance, 16 bytes   random, the same for all uplinks of one `lasthop run`
//!      46  token, 16 bytes      random, new for every probe, good for a few seconds; the supervisor alone knows whose it is
//!      62  VLAN, 2 bytes        the one that it was sent on, 0 without a tag; with another it does not count
//! ```
//!
//! On a VLAN there is an IEEE 802.1Q tag (TPID 0x8100) in front of the EtherType.
//!
//! Nobody can make up a token. Who can take one from one segment to another within its time is on both, and might as well
//! bridge them. No frame to that group reaches the switch, whoever sent it and whatever is in it.

use crate::counters::{Counters, Reason};
use crate::device::{Device, Kept};
use crate::room::{Interface, SendSocket};
use arrayvec::ArrayVec;
use lasthop_guestmem::GuestSlice;
use lasthop_sys::EventFd;
use lasthop_text::MacAddr;
use lasthop_uplink_ipc::{PROBED_VLANS, Token, UplinkDriver};
use rustix::io::Errno;
use std::io::IoSlice;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Where probes go.
pub const GROUP: [u8; 6] = *b"\x03lasth";
const ETHERTYPE: [u8; 2] = [0x88, 0xb5];
const TAG: &[u8; 16] = b"probe of lasthop";
/// Bytes of a probe.
pub const LEN: usize = 64;

/// Tokens that are reported at most within [`WINDOW`], so that nobody keeps us busy with probes.
const MOST: usize = 2 * PROBED_VLANS;
/// IEEE 802.1Q.
const TPID: [u8; 2] = [0x81, 0];
/// Of a tag: the VLAN's id, without priority and drop eligibility.
const VID: u16 = 0xfff;
const WINDOW: Duration = Duration::from_millis(100);

/// The frame for a VLAN, still without its tag.
pub fn frame(source: MacAddr, instance: &Token, token: &Token, vlan: u16) -> [u8; LEN] {
    let mut frame = [0; LEN];
    let parts: [&[u8]; 7] = [&GROUP, &source.0, &ETHERTYPE, TAG, instance, token, &vlan.to_be_bytes()];
    for (to, from) in frame.iter_mut().zip(parts.into_iter().flatten()) {
        *to = *from;
    }
    frame
}

/// With its tag.
fn tagged(frame: &[u8; LEN], vlan: u16) -> ArrayVec<u8, { LEN + 4 }> {
    let (addresses, rest) = frame.split_at(12);
    [addresses, &TPID, &(vlan & VID).to_be_bytes(), rest].into_iter().flatten().copied().collect()
}

/// Instance and token of a probe, and the VLAN it was sent and came on.
fn parse(frame: &GuestSlice<'_>) -> Option<(Token, Received)> {
    let (at, vlan) = match frame.read_array(12)? {
        TPID => (16, u16::from_be_bytes(frame.read_array(14)?) & VID),
        _ => (12, 0),
    };
    let is_probe = frame.read_array(at)? == ETHERTYPE
        && frame.read_array(at + 2)? == *TAG
        && frame.read_array(at + 50)? == vlan.to_be_bytes();
    if is_probe { Some((frame.read_array(at + 18)?, (frame.read_array(at + 34)?, vlan))) } else { None }
}

/// A token, and the VLAN it came on: 0 without a tag.
pub type Received = (Token, u16);

/// Sends frames of the uplink's own on a device: probes and announcements.
#[derive(Debug)]
pub struct Prober {
    way: Way,
    source: MacAddr,
}

#[derive(Debug)]
enum Way {
    /// Another descriptor of a TAP device's queue, where frames begin with virtio's header.
    Tap(OwnedFd),
    Socket(SendSocket),
    /// The device is no network.
    Nowhere,
}

impl Prober {
    /// Needs the rights that it takes to open the device.
    /// `kept`: the socket of the process before this one.
    pub fn open(name: &str, device: &Device, kept: Option<OwnedFd>) -> Result<Self, Errno> {
        let mac = device.about.mac;
        if let (UplinkDriver::Tap | UplinkDriver::Tc, Some(queue)) = (device.about.driver, device.queues.first()) {
            return Ok(Self {
                way: Way::Tap(queue.as_fd().try_clone_to_owned().map_err(errno)?),
                source: opposite(mac),
            });
        }
        if device.about.driver == UplinkDriver::File || device.about.driver.is_tunnel() {
            return Ok(Self { way: Way::Nowhere, source: mac });
        }
        let socket = match kept {
            Some(kept) => SendSocket::kept(kept),
            None => SendSocket::open(Interface::named(name)?.index()?)?,
        };
        Ok(Self { way: Way::Socket(socket), source: mac })
    }

    /// A socket of its own, to be kept with the device: the kernel takes its time to close one.
    pub fn to_keep(&self) -> Option<BorrowedFd<'_>> {
        match &self.way {
            Way::Tap(_) | Way::Nowhere => None,
            Way::Socket(socket) => Some(socket.as_fd()),
        }
    }

    /// Takes it from what was kept.
    pub fn take_kept(kept: &mut Kept, driver: Option<UplinkDriver>) -> Option<OwnedFd> {
        if matches!(driver, Some(UplinkDriver::Tap | UplinkDriver::Tc)) { None } else { kept.descriptors.pop() }
    }

    /// Sends one without a tag, and one on each of these VLANs. That the device is down or its queue full is nothing to worry
    /// about: others will follow.
    pub fn send(&self, instance: &Token, token: &Token, vlans: &[u16]) {
        let frame = |vlan| frame(self.source, instance, token, vlan);
        let _ = self.write(&frame(0));
        for vlan in vlans.iter().take(PROBED_VLANS) {
            let _ = self.write(&tagged(&frame(*vlan), *vlan));
        }
    }

    /// Sends an announcement, which counts as a packet to the network. One that the device does not take is dropped.
    pub fn announce(&self, frame: &[u8], counters: &Counters) {
        match self.write(frame) {
            Ok(()) => counters.sent(1, frame.len() as u64),
            Err(Errno::IO | Errno::NETDOWN) => counters.dropped(Reason::DeviceDown),
            Err(Errno::AGAIN | Errno::NOBUFS | Errno::NOMEM) => counters.dropped(Reason::NoRoom),
            Err(_) => counters.dropped(Reason::Refused),
        }
    }

    /// The device's own thread finds out if something is wrong with it.
    fn write(&self, frame: &[u8]) -> Result<(), Errno> {
        match &self.way {
            Way::Tap(fd) => {
                let header = [0; lasthop_frame::VnetHdr::LEN];
                rustix::io::writev(fd, &[IoSlice::new(&header), IoSlice::new(frame)]).map(drop)
            }
            Way::Socket(socket) => rustix::io::write(socket, frame).map(drop),
            Way::Nowhere => Ok(()),
        }
    }
}

fn errno(e: std::io::Error) -> Errno {
    Errno::from_io_error(&e).unwrap_or(Errno::MFILE)
}

/// The other end of a TAP device's wire needs an address of its own: a bridge at the device's end complains of frames that
/// come in from its own.
fn opposite(MacAddr([a, b, c, d, e, f]): MacAddr) -> MacAddr {
    MacAddr([(a | 2) & !1, b, c, d, e, f ^ 0x80])
}

/// Tokens of this instance that came in; any thread adds, the main thread takes.
#[derive(Debug)]
pub struct Heard {
    state: Mutex<Tokens>,
    signal: EventFd,
}

#[derive(Debug)]
struct Tokens {
    instance: Option<Token>,
    new: ArrayVec<Received, MOST>,
    /// How many came since then, up to [`MOST`].
    since: Instant,
    count: usize,
}

impl Heard {
    /// None yet. Nothing counts before it is known who we are.
    pub fn new() -> Result<Self, Errno> {
        let tokens = Tokens { instance: None, new: ArrayVec::new(), since: Instant::now(), count: 0 };
        Ok(Self { state: Mutex::new(tokens), signal: EventFd::new()? })
    }

    /// Probes of this instance count.
    pub fn expect(&self, instance: Token) {
        self.lock().instance = Some(instance);
    }

    /// What came since it was last asked.
    pub fn take(&self) -> ArrayVec<Received, MOST> {
        self.signal.drain();
        std::mem::take(&mut self.lock().new)
    }

    fn add(&self, (instance, received): (Token, Received), now: Instant) {
        let mut tokens = self.lock();
        if tokens.instance != Some(instance) || tokens.new.contains(&received) {
            return;
        }
        if now.saturating_duration_since(tokens.since) >= WINDOW {
            (tokens.since, tokens.count) = (now, 0);
        }
        if tokens.count < MOST && tokens.new.try_push(received).is_ok() {
            tokens.count += 1;
            self.signal.signal();
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Tokens> {
        // Nobody panics while holding it, and half a list would do no harm.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl AsFd for Heard {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.signal.as_fd()
    }
}

/// What is kept from the switch of what a device receives.
#[derive(Debug)]
pub struct Sieve {
    /// Everything is: the uplink only listens.
    pub listening: bool,
    heard: Arc<Heard>,
}

impl Sieve {
    /// Of one queue.
    pub(crate) fn new(heard: Arc<Heard>) -> Self {
        Self { listening: false, heard }
    }

    /// Whether this frame is kept from the switch; then it has been counted.
    pub(crate) fn keeps(&self, frame: &GuestSlice<'_>, counters: &Counters) -> bool {
        if frame.read_array(0) == Some(GROUP) {
            counters.dropped(Reason::Probe);
            if let Some(probe) = parse(frame) {
                self.heard.add(probe, Instant::now());
            }
        } else if self.listening {
            counters.dropped(Reason::Blocked);
        } else {
            return false;
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lasthop_guestmem::GuestMemory;

    fn keeps(sieve: &Sieve, bytes: &[u8], counters: &Counters) -> bool {
        let memory = GuestMemory::anonymous(4096).unwrap();
        let slice = memory.slice(0, bytes.len()).unwrap();
        slice.write(0, bytes);
        sieve.keeps(&slice, counters)
    }

    #[test]
    fn a_probe_of_ours_is_heard_and_no_probe_passes() {
        let (heard, counters) = (Arc::new(Heard::new().unwrap()), Counters::alone());
        let mut sieve = Sieve::new(heard.clone());
        let source = MacAddr([2, 0, 0, 0, 0, 1]);
        let on = |vlan, token| tagged(&frame(source, &[1; 16], &[token; 16], vlan), vlan);
        let probe = |instance, token| frame(source, &[instance; 16], &[token; 16], 0);
        // Nobody is known yet.
        assert!(keeps(&sieve, &probe(1, 1), &counters));
        heard.expect([1; 16]);
        assert!(keeps(&sieve, &probe(1, 2), &counters));
        assert!(keeps(&sieve, &probe(1, 2), &counters));
        assert!(keeps(&sieve, &probe(9, 3), &counters));
        // Cut short, with and without a tag, with two, or something else to the same group.
        let whole = probe(1, 4);
        let on_vlan = on(5, 4);
        let twice = [&on_vlan[..12], &on_vlan[12..16], &on_vlan[12..]].concat();
        let mut other = whole;
        other[20] ^= 1;
        // Tagged on its way, or its tag taken off or changed.
        let (now_tagged, now_untagged) = (tagged(&whole, 5), frame(source, &[1; 16], &[4; 16], 5));
        let moved = tagged(&now_untagged, 6);
        let cut = [&whole[..63], &whole[..14], &on_vlan[..67], &on_vlan[..15]];
        for frame in cut.into_iter().chain([&twice[..], &other, &now_tagged, &now_untagged, &moved]) {
            assert!(keeps(&sieve, frame, &counters), "{frame:?}");
        }
        assert_eq!(heard.take()[..], [([2; 16], 0)]);
        assert!(!keeps(&sieve, &[0xff; 60], &counters) && !keeps(&sieve, &[3; 5], &counters));
        sieve.listening = true;
        assert!(keeps(&sieve, &[0xff; 60], &counters) && keeps(&sieve, &probe(1, 5), &counters));
        // On VLANs, whatever the priority.
        let mut urgent = on(4094, 5);
        urgent[14] |= 0xe0;
        assert!(keeps(&sieve, &on_vlan, &counters) && keeps(&sieve, &urgent, &counters));
        assert_eq!(heard.take()[..], [([5; 16], 0), ([4; 16], 5), ([5; 16], 4094)]);
        let drops: Vec<_> = counters.snapshot().drops.into_iter().map(|d| (d.reason, d.packets)).collect();
        assert_eq!(drops, [("probe".to_owned(), 16), ("blocked".to_owned(), 1)]);
    }

    #[test]
    fn a_flood_of_probes_is_not_reported() {
        let heard = Heard::new().unwrap();
        heard.expect([1; 16]);
        let start = Instant::now();
        for n in 0..=255 {
            heard.add(([1; 16], ([n; 16], 0)), start + WINDOW);
            assert!(heard.take().len() <= 1);
        }
        heard.add(([1; 16], ([77; 16], 7)), start + WINDOW);
        assert!(heard.take().is_empty(), "more than {MOST} within {WINDOW:?}");
        heard.add(([1; 16], ([77; 16], 7)), start + 2 * WINDOW);
        assert_eq!(heard.take()[..], [([77; 16], 7)]);
    }

    #[test]
    fn the_other_end_of_a_tap_has_an_address_of_its_own() {
        let mac = MacAddr([0x52, 0x54, 0, 0, 0, 0xff]);
        assert_eq!(opposite(mac), MacAddr([0x52, 0x54, 0, 0, 0, 0x7f]));
        assert!(!opposite(MacAddr([1, 0, 0, 0, 0, 0])).is_multicast());
    }
}
