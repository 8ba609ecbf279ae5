//! Network devices as an uplink uses them: one queue of a device for each queue pair.
//!
//! Whatever a device cannot do (segmentation, checksums, scatter/gather) is done at the
//! last moment: by the kernel, after the one copy that the switch makes, or by the switch in that copy (AF_XDP).

mod backlog;
mod file;
mod packet;
mod tap;
mod tc;
mod tunnel;
mod xdp;

pub use file::File;
pub use packet::Packets;
pub use tap::Tap;
pub use tunnel::Tunnels;
pub use xdp::Xdp;

use crate::counters::{Counters, Reason};
use crate::memory::{KeptMemory, MemoryConfig, SharedMemory};
use crate::pair::{FromNetwork, Packet, Pair, PairError};
use crate::room::{Interface, interface_names};
use crate::survival::progress::{self, Progress};
use lasthop_guest_queues::steering::Steering;
use lasthop_text::MacAddr;
use lasthop_uplink_ipc::{UplinkDevice, UplinkDriver};
use lasthop_vhostuser::Features;
use rustix::io::Errno;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

/// When to look again for frames that the device keeps until they are sent.
const SOON: Duration = Duration::from_millis(1);

/// Most queues of a device.
pub const MAX_QUEUES: u16 = 16;

/// What is to be opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// The interface.
    pub device: String,
    /// How to use it; `None`: TAP if it is one, else AF_PACKET. Only a TAP device that is asked for by its driver is made.
    pub driver: Option<UplinkDriver>,
    /// Queue pairs.
    pub queues: u16,
    /// We made it in an earlier life, so it is removed in the end.
    pub ours: bool,
    /// The address of a TAP device of this name that we made in an earlier run. One that has it is ours; one that is made now
    /// gets it, so that neighbours and DHCP servers know it again.
    pub made: Option<MacAddr>,
    /// AF_XDP: receive aggregation.
    pub gro: bool,
    /// Bring it up, if it is not.
    pub bring_up: bool,
    /// Of a capture file: how long it may be before it goes on in another, in bytes.
    pub max_size: Option<u64>,
    /// Of a capture that is read from a named pipe: the user whose pipe it must be, by number. It is never made.
    pub pipe: Option<u32>,
}

/// An open device as one process leaves it to the next: the same sockets, with what waits in them.
#[derive(Debug)]
pub struct Kept {
    /// What [`Device::to_keep`] named, in its order.
    pub descriptors: Vec<OwnedFd>,
    /// How it is used, as people are told.
    pub mode: String,
}

/// Why a device cannot be used. What is wrong; what to do.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct OpenError(String);

/// Something is wrong with the device that only opening it anew can mend.
#[derive(Debug, thiserror::Error)]
pub enum DeviceError {
    /// It has been removed.
    #[error("the device is gone")]
    Gone,
    /// The kernel says what we do not know what to do about.
    #[error("the device: {0}")]
    Io(Errno),
    /// The ring to the switch is broken.
    #[error(transparent)]
    Pair(#[from] PairError),
}

/// Where sending stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sent {
    /// So many packets are done with, sent or dropped and counted.
    pub done: usize,
    /// The device takes no more before it is writable.
    pub blocked: bool,
}

/// Where receiving stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Got {
    /// There is nothing more.
    All,
    /// There may be more.
    More,
    /// The switch has all slots: there may be more when it gives some back.
    Stalled,
}

/// One queue of a device.
#[derive(Debug)]
pub enum Queue {
    /// Of a TAP device.
    Tap(Tap),
    /// A packet socket.
    Packets(Packets),
    /// An AF_XDP socket.
    Xdp(Box<Xdp>),
    /// A capture file.
    File(Box<File>),
    /// Sockets of the host's stack.
    Tunnel(Box<Tunnels>),
}

impl Queue {
    /// Sends packets of the pair's memory. The buffers of the first [`Sent::done`] go back to the switch, now or when the device
    /// is done with them.
    pub fn send(&mut self, pair: &mut Pair, packets: &[Packet], counters: &Counters) -> Result<Sent, DeviceError> {
        let sent = match self {
            Self::Tap(tap) => tap.send(pair, packets, counters)?,
            Self::Packets(socket) => socket.send(pair, packets, counters)?,
            Self::Xdp(xdp) => return xdp.send(pair, packets, counters),
            Self::File(file) => file.send(pair, packets, counters)?,
            Self::Tunnel(tunnels) => tunnels.send(pair, packets, counters)?,
        };
        packets.iter().take(sent.done).for_each(|p| pair.to_network.give_back(p));
        Ok(sent)
    }

    /// Receives a burst into slots of the pair's memory and adds them to its ring.
    pub fn receive(&mut self, pair: &mut Pair, counters: &Counters) -> Result<Got, DeviceError> {
        match self {
            Self::Tap(tap) => tap.receive(pair, counters),
            Self::Packets(socket) => socket.receive(pair, counters),
            Self::Xdp(xdp) => xdp.receive(pair, counters),
            Self::File(file) => file.receive(),
            Self::Tunnel(tunnels) => tunnels.receive(pair, counters),
        }
    }

    /// Whether the device is still there: when it is removed, some say so only when they are asked.
    pub fn check(&self) -> Result<(), DeviceError> {
        match self {
            Self::Packets(socket) if !socket.is_bound() => Err(DeviceError::Gone),
            _ => Ok(()),
        }
    }

    /// Counts frames that the kernel had no room for. TAP devices count them themselves.
    pub fn count_overruns(&self, progress: &Progress, counters: &Counters) {
        let frames = match self {
            Self::Tap(_) | Self::File(_) | Self::Tunnel(_) => 0,
            Self::Packets(socket) => socket.overruns(),
            Self::Xdp(xdp) => progress.overruns(xdp.overruns()),
        };
        counters.dropped_several(Reason::Overrun, frames);
    }

    /// Something is under way that nothing will tell the end of, such as frames that the device sends: look again after this time.
    pub fn again(&self) -> Option<Duration> {
        match self {
            Self::Packets(socket) => socket.again(),
            Self::Xdp(xdp) => xdp.is_busy().then_some(SOON),
            _ => None,
        }
    }

    /// Readable when there is something to receive that [`AsFd`] does not tell of.
    pub fn others(&self) -> Option<BorrowedFd<'_>> {
        match self {
            Self::Xdp(xdp) => xdp.others(),
            Self::Tunnel(tunnels) => tunnels.others(),
            _ => None,
        }
    }

    /// Writable when the device takes more after it was [blocked](Sent::blocked); `None`: look [again](Self::again).
    pub fn writable(&self) -> Option<BorrowedFd<'_>> {
        match self {
            Self::Tunnel(tunnels) => Some(tunnels.writable()),
            Self::Packets(socket) if socket.again().is_some() => None,
            _ => Some(self.as_fd()),
        }
    }

    /// The device is to end with this process, if we made it.
    pub fn end(&self) {
        if let Self::Tap(tap) = self {
            tap.end();
        }
    }
}

impl AsFd for Queue {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Tap(tap) => tap.as_fd(),
            Self::Packets(socket) => socket.as_fd(),
            Self::Xdp(xdp) => xdp.as_fd(),
            Self::File(file) => file.as_fd(),
            Self::Tunnel(tunnels) => tunnels.as_fd(),
        }
    }
}

/// An open device.
#[derive(Debug)]
pub struct Device {
    /// Its queues, one for each queue pair.
    pub queues: Vec<Queue>,
    /// What people are told of it.
    pub about: UplinkDevice,
    /// Offloads to be negotiated with the switch.
    pub features: Features,
    /// What the memory shared with the switch must be like.
    pub memory: MemoryConfig,
    /// The memory, where the device was kept and it with it: then nothing may be done with either before the process that used
    /// them has ended.
    pub kept: Option<KeptMemory>,
    /// How guests get queues of their own; once it is [bound](Device::bind), and only where they can.
    pub steering: Option<Arc<Steering>>,
}

impl Device {
    /// Opens a device, makes it if it is to be made, and brings it up; or takes over one that is `kept` open. Needs rights that
    /// this process gives up afterwards.
    pub fn open(wanted: &Wanted, kept: Option<Kept>) -> Result<Self, OpenError> {
        let Some(mut kept) = kept else { return Self::open_as(wanted, None) };
        if kept.descriptors.len() < 2 {
            return Err(OpenError(format!("{}: what was kept of it is not whole", wanted.device)));
        }
        let mut first = kept.descriptors.drain(..2);
        let memory = first.next().zip(first.next()).map(|(memory, notes)| KeptMemory { memory, notes });
        drop(first);
        Ok(Self { kept: memory, ..Self::open_as(wanted, Some(kept))? })
    }

    fn open_as(wanted: &Wanted, kept: Option<Kept>) -> Result<Self, OpenError> {
        let name = &wanted.device;
        if wanted.queues == 0 || wanted.queues > MAX_QUEUES {
            return Err(OpenError(format!("{} queues; use 1 to {MAX_QUEUES}", wanted.queues)));
        }
        match wanted.driver {
            Some(UplinkDriver::File) => return File::open(wanted),
            Some(driver) if driver.is_tunnel() => return Tunnels::open(wanted, driver),
            _ => {}
        }
        let interface = match Interface::named(name) {
            Ok(interface) => Some(interface),
            Err(Errno::NODEV) => None,
            Err(Errno::NAMETOOLONG) => {
                return Err(OpenError(format!("{name:?}: an interface has a name of 1 to 15 characters")));
            }
            Err(e) => return Err(OpenError(format!("{name}: {e}"))),
        };
        let (exists, is_tap) = (interface.is_some(), interface.is_some_and(|i| i.is_tap()));
        let chosen = if is_tap { UplinkDriver::Tap } else { UplinkDriver::AfPacket };
        let driver = wanted.driver.unwrap_or(chosen);
        if exists && kept.is_none() && matches!(driver, UplinkDriver::AfPacket | UplinkDriver::AfXdp) {
            tc::leave(name)?;
        }
        match driver {
            // A name that was mistyped must not become a device: the real one could not be used, and nobody would be told.
            driver if !exists && (wanted.driver.is_none() || driver != UplinkDriver::Tap) => {
                Err(OpenError(missing(name, &interface_names(), wanted.driver)))
            }
            UplinkDriver::Tap if exists && !is_tap => {
                Err(OpenError(format!("{name} is no TAP device; use the driver af_packet, or another name")))
            }
            UplinkDriver::Tap => Tap::open(wanted, exists, kept),
            UplinkDriver::AfPacket => Packets::open(wanted, kept),
            UplinkDriver::AfXdp => Xdp::open(wanted, kept),
            UplinkDriver::Tc if is_tap => {
                Err(OpenError(format!("{name} is a TAP device, which nobody else has an end of; use the driver tap")))
            }
            UplinkDriver::Tc => tc::open(wanted, kept),
            UplinkDriver::File => File::open(wanted),
            driver @ (UplinkDriver::Vxlan | UplinkDriver::Geneve | UplinkDriver::Gre | UplinkDriver::Ip6gre) => {
                Tunnels::open(wanted, driver)
            }
        }
    }
}

impl Device {
    /// What the next process takes over. Nothing of a device with queues for guests: it is opened anew.
    pub fn to_keep<'a>(&'a self, memory: &'a SharedMemory) -> Vec<BorrowedFd<'a>> {
        let of = |queue: &'a Queue| match queue {
            Queue::Xdp(xdp) => xdp.to_keep(),
            // The next process begins another one, or binds the port anew.
            Queue::File(_) | Queue::Tunnel(_) => Vec::new(),
            other => vec![other.as_fd()],
        };
        let device: Vec<_> = self.queues.iter().flat_map(of).collect();
        if device.is_empty() { device } else { memory.to_keep().into_iter().chain(device).collect() }
    }

    /// Counts what was lost with the process that this device was kept of, if it was, and what that had not counted.
    pub fn examine(&self, counters: &Counters) -> Result<(), Errno> {
        let Some(kept) = &self.kept else { return Ok(()) };
        let shown = |queue: &Queue| if let Queue::Xdp(xdp) = queue { xdp.shown() } else { None };
        let shown: Vec<_> = self.queues.iter().map(shown).collect();
        progress::examine(kept, self.memory, &shown, counters)
    }

    /// Has what we made of the device removed with this process.
    pub fn end(&self) {
        self.queues.iter().for_each(Queue::end);
    }

    /// Gives the device the memory of the queue pairs, if it uses that itself. Needs the same rights as opening it.
    pub fn bind(&mut self, pairs: &mut [Pair], memory: &SharedMemory) -> Result<(), OpenError> {
        let mut queues: Vec<&mut Xdp> = Vec::new();
        for queue in &mut self.queues {
            if let Queue::Xdp(xdp) = queue {
                queues.push(xdp);
            }
        }
        if queues.is_empty() {
            return Ok(());
        }
        let mut bound = Vec::new();
        for (i, (queue, pair)) in queues.iter_mut().zip(pairs.iter_mut()).enumerate() {
            let refused = |e| OpenError(format!("queue {i}: {e}; has the interface so many queues (`ethtool -l`)?"));
            bound.push(queue.bind(pair, memory.ledger.as_ref()).map_err(refused)?);
        }
        let connected = Xdp::connect(&mut queues, bound, pairs);
        (self.steering, self.about.mode) = connected.map_err(|e| OpenError(format!("sockets: {e}")))?;
        Ok(())
    }
}

/// Offloads of a device that the kernel stands behind: whole packets of up to 64 KiB both ways, with checksums and segmentation
/// left for the kernel to do. UFO is left out: kernels have given it up.
fn whole_packets(uso: bool) -> Features {
    let mut wanted = Features::MRG_RXBUF
        | Features::CSUM
        | Features::HOST_TSO4
        | Features::HOST_TSO6
        | Features::HOST_ECN
        | Features::GUEST_CSUM
        | Features::GUEST_TSO4
        | Features::GUEST_TSO6
        | Features::GUEST_ECN;
    wanted.set(Features::HOST_USO | Features::GUEST_USO4 | Features::GUEST_USO6, uso);
    wanted
}

/// Brings the interface up, unless it is to stay as it is, and reads what people are told of it.
fn about(wanted: &Wanted, driver: UplinkDriver, mode: &str, created: bool) -> Result<UplinkDevice, OpenError> {
    let name = &wanted.device;
    let failed = |e: Errno| OpenError(denied(name, e));
    let interface = Interface::named(name).map_err(failed)?;
    let mac = interface.mac().map_err(|e| match e {
        Errno::OPNOTSUPP => OpenError(format!("{name} carries no Ethernet frames; name an interface that does")),
        e => failed(e),
    })?;
    if wanted.bring_up {
        interface.bring_up().map_err(failed)?;
    }
    let mtu = interface.mtu().map_err(failed)?;
    Ok(UplinkDevice {
        driver,
        mode: mode.into(),
        mac: MacAddr(mac),
        mtu,
        queues: wanted.queues,
        created,
        made_now: false,
    })
}

/// Most interfaces that an error names: a host with containers has hundreds.
const MOST_NAMED: usize = 12;

/// That there is no such interface, which there are, and how a TAP device is asked for where no driver was.
fn missing(name: &str, there: &[String], driver: Option<UplinkDriver>) -> String {
    let mut text = format!("there is no interface {name}; ");
    match there.len().checked_sub(MOST_NAMED) {
        _ if there.is_empty() => text += "there are none",
        None | Some(0) => text += &format!("there are: {}", there.join(", ")),
        Some(more) => text += &format!("there are: {} and {more} more (`ip link`)", there[..MOST_NAMED].join(", ")),
    }
    if driver.is_none() {
        text += "; to make a TAP device of that name, choose the driver tap";
    }
    text
}

fn denied(name: &str, e: Errno) -> String {
    match e {
        Errno::PERM | Errno::ACCESS => {
            format!("{name}: {e}; run lasthop as root, or with CAP_NET_ADMIN and CAP_NET_RAW")
        }
        Errno::BUSY => format!("{name} is in use by another process; stop that one or choose another device"),
        e => format!("{name}: {e}"),
    }
}

/// A frame shorter than its Ethernet header is none.
const SHORTEST: usize = 14;

/// Makes room for a burst: a slot, or why there is none.
fn take_slot(way: &mut FromNetwork) -> Result<Option<u32>, PairError> {
    if let Some(slot) = way.take() {
        return Ok(Some(slot));
    }
    way.reclaim_all()?;
    Ok(way.take())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_interface_is_named_beside_those_there_are() {
        let there = ["eth0", "eth1"].map(String::from);
        assert_eq!(
            missing("eno1", &there, None),
            "there is no interface eno1; there are: eth0, eth1; to make a TAP device of that name, choose the driver tap"
        );
        assert_eq!(
            missing("eno1", &there, Some(UplinkDriver::AfXdp)),
            "there is no interface eno1; there are: eth0, eth1"
        );
        assert_eq!(missing("eno1", &[], Some(UplinkDriver::AfPacket)), "there is no interface eno1; there are none");
        let many: Vec<String> = (0..500).map(|n| format!("veth{n}")).collect();
        let text = missing("eno1", &many, None);
        assert!(text.contains("veth11 and 488 more (`ip link`); to make") && text.len() < 300, "{text}");
    }
}
