//! TAP: the host's own stack, or a bridge of the host, as the network. Headers with offload requests pass both ways as they
//! are: the kernel's format is virtio's.

use super::{
    Device, DeviceError, Got, Kept, OpenError, SHORTEST, Sent, Wanted, about, denied, take_slot, whole_packets,
};
use crate::counters::{Counters, Reason};
use crate::memory::MemoryConfig;
use crate::pair::{Packet, Pair, VNET, at};
use crate::room::{Interface, Tun};
use crate::survival::progress::{Reading, UNREAD};
use lasthop_text::MacAddr;
use lasthop_uplink_ipc::{UplinkDevice, UplinkDriver};
use rustix::io::Errno;
use std::os::fd::{AsFd, BorrowedFd};

/// Frames read before the ring is looked at again.
const BURST: usize = 32;

/// What is known of a device in another namespace.
fn away(wanted: &Wanted, created: bool) -> UplinkDevice {
    UplinkDevice {
        driver: UplinkDriver::Tap,
        mode: "vnet_hdr".into(),
        mac: wanted.made.unwrap_or(MacAddr([0; 6])),
        mtu: 1500,
        queues: wanted.queues,
        created,
        made_now: false,
    }
}

/// One queue of a TAP device.
#[derive(Debug)]
pub struct Tap {
    tun: Tun,
    created: bool,
}

impl Tap {
    /// Opens the device with all its queues, or goes on with those kept. One that does not exist is made and lasts until
    /// [`Tap::end`], so that its addresses and routes outlive this process.
    pub(super) fn open(wanted: &Wanted, exists: bool, kept: Option<Kept>) -> Result<Device, OpenError> {
        let name = &wanted.device;
        let failed = |e: Errno| OpenError(denied(name, e));
        let is_known = |made| Interface::named(name).and_then(|i| i.mac()).is_ok_and(|mac| MacAddr(mac) == made);
        let created = !exists || wanted.ours || wanted.made.is_some_and(is_known);
        // One that is held and that nobody here sees has gone to another namespace, and is as good there.
        let is_away = kept.is_some() && !exists;
        let queues = match kept {
            Some(kept) => kept.descriptors.into_iter().map(Tun::kept).collect(),
            None => Self::attach(wanted, exists)?,
        };
        let mut uso = true;
        for queue in &queues {
            uso &= queue.set_offloads().map_err(failed)?;
            if created {
                queue.set_persistent(true).map_err(failed)?;
            }
        }
        if let Some(mac) = wanted.made.filter(|_| !exists) {
            // Without it, it is as good as a new one.
            let _ = Interface::named(name).and_then(|i| i.set_mac(mac.0));
        }
        // Nobody has set down what did not exist.
        let wanted = &Wanted { bring_up: wanted.bring_up || !exists, ..wanted.clone() };
        let about =
            if is_away { away(wanted, created) } else { about(wanted, UplinkDriver::Tap, "vnet_hdr", created)? };
        let about = UplinkDevice { made_now: !exists && !is_away, ..about };
        let queues = queues.into_iter().map(|tun| super::Queue::Tap(Self { tun, created })).collect();
        let (features, memory) = (whole_packets(uso), MemoryConfig::whole_packets(wanted.queues));
        Ok(Device { queues, about, features, memory, kept: None, steering: None })
    }

    /// One that its opener knows to be gone with its last descriptor.
    pub(super) fn passing(tun: Tun) -> Self {
        Self { tun, created: false }
    }

    fn attach(wanted: &Wanted, exists: bool) -> Result<Vec<Tun>, OpenError> {
        let name = &wanted.device;
        let several = wanted.queues > 1;
        let first = match Tun::attach(name, several) {
            // One that exists has several queues or one, and wants to be told.
            Err(Errno::INVAL) if exists && !several => Tun::attach(name, true),
            other => other,
        };
        let first = first.map_err(|e| match e {
            Errno::INVAL if several => {
                let again = "or remove it (`ip link del`) and have it made again";
                OpenError(format!("{name} was made with one queue; use one, make it with multi_queue, {again}"))
            }
            Errno::NOENT | Errno::NODEV | Errno::NXIO => {
                OpenError(format!("/dev/net/tun: {e}; load the kernel's module tun"))
            }
            e => OpenError(denied(name, e)),
        })?;
        let mut queues = vec![first];
        for _ in 1..wanted.queues {
            queues.push(Tun::attach(name, true).map_err(|e| OpenError(denied(name, e)))?);
        }
        Ok(queues)
    }

    pub(super) fn end(&self) {
        if self.created {
            // It goes with the last descriptor. If the kernel refuses, it stays, which harms nobody.
            let _ = self.tun.set_persistent(false);
        }
    }

    pub(super) fn send(
        &mut self,
        pair: &mut Pair,
        packets: &[Packet],
        counters: &Counters,
    ) -> Result<Sent, DeviceError> {
        let mut done = 0;
        for packet in packets {
            pair.progress.sending(packet.buffers(), 0);
            match pair.arena.write(&self.tun, &packet.runs) {
                Ok(_) => counters.sent(1, packet.frame_len() as u64),
                Err(e @ (Errno::INTR | Errno::AGAIN)) => {
                    pair.progress.sent(0);
                    return Ok(Sent { done, blocked: e == Errno::AGAIN });
                }
                // The interface was set down by somebody.
                Err(Errno::IO) => counters.dropped(Reason::DeviceDown),
                Err(Errno::NOBUFS | Errno::NOMEM) => counters.dropped(Reason::NoRoom),
                Err(Errno::BADFD | Errno::NODEV) => return Err(DeviceError::Gone),
                Err(Errno::INVAL | Errno::MSGSIZE | Errno::FAULT) => counters.dropped(Reason::Refused),
                Err(e) => return Err(DeviceError::Io(e)),
            }
            pair.progress.sent(packet.buffers());
            done += 1;
        }
        Ok(Sent { done, blocked: false })
    }

    pub(super) fn receive(&mut self, pair: &mut Pair, counters: &Counters) -> Result<Got, DeviceError> {
        let Pair { arena, from_network: way, memory, sieve, progress, .. } = pair;
        way.reclaim()?;
        let mut got = Got::More;
        for _ in 0..BURST {
            let Some(slot) = take_slot(way)? else {
                got = Got::Stalled;
                break;
            };
            let (run, position) = (way.slot(slot), way.position());
            at(memory, run).write(0, &[UNREAD]);
            progress.reading(position, position, Reading::Slot(slot));
            match arena.read(&self.tun, run) {
                Ok(n) if n >= VNET + SHORTEST => {
                    if !sieve.keeps(&at(memory, run).part(VNET, n - VNET), counters) {
                        way.add(slot, 0, n);
                        counters.received(1, (n - VNET) as u64);
                        progress.counted(position.wrapping_add(1), 0);
                        continue;
                    }
                }
                Ok(_) => counters.dropped(Reason::TooShort),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => got = Got::All,
                Err(Errno::BADFD | Errno::NODEV) => return Err(DeviceError::Gone),
                Err(e) => return Err(DeviceError::Io(e)),
            }
            progress.counted(position, 0);
            way.put_back(slot);
            if got == Got::All {
                break;
            }
        }
        way.publish();
        Ok(got)
    }
}

impl AsFd for Tap {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.tun.as_fd()
    }
}
