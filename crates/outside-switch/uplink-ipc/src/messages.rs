//! What the supervisor says to an uplink and hears from it.

use lasthop_text::MacAddr;
use serde::{Deserialize, Serialize};

/// To an uplink.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum SupervisorToUplink {
    /// A vhost-user socket travels with this message; the switch has the other end of it. It replaces one there is. The
    /// first makes a process that was given its predecessor's device the one that uses it: the predecessor has ended.
    Connection {
        /// For how long nobody may have carried packets, in milliseconds.
        away_ms: u64,
    },
    /// Are you alive? To be answered by everything that carries packets.
    Ping(u64),
    /// Exit with status 0. `remove`: take along a device that you have made.
    Shutdown {
        /// Whether the device goes too.
        remove: bool,
    },
    /// Send a probe on the device, without a tag and with each of these; probes of the same instance are to be reported from
    /// now on.
    Probe {
        /// Random bytes of this lasthop.
        instance: Token,
        /// Random bytes of this probe.
        token: Token,
        /// VLAN ids, at most [`PROBED_VLANS`].
        vlans: Vec<u16>,
    },
    /// Let go of the connection to the switch. Until there is another, look for probes in what the device receives and
    /// throw all of it away.
    Listen,
    /// The network outside is to learn that these addresses, at most [`MACS_PART`], are to be found here now. Whoever only
    /// listens ignores it.
    Announce(Vec<VlanMac>),
    /// These ports, and no others, have a queue of their own here whatever the load. After `Ready`, and after every change.
    Owners(Vec<QueueOwner>),
}

/// A port that has a queue of its own at an uplink because somebody says so.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct QueueOwner {
    /// Its number.
    pub port: u32,
    /// The addresses that are known to be behind it, at most [`OWNED_STATIONS`].
    pub stations: Vec<VlanMac>,
    /// Frames that its queue is to keep; if nothing is said, or more than it can, as many as it can.
    pub size: Option<u32>,
}

/// Frames that one of so many queue pairs of an AF_XDP device can keep of each of its queues.
pub fn xdp_ring(pairs: u16) -> u16 {
    (1024 / pairs.next_power_of_two()).max(128)
}

/// Most addresses whose frames go to one queue.
pub const OWNED_STATIONS: usize = 16;

/// Random bytes that nobody can guess.
pub type Token = [u8; 16];

/// The VLAN that an address was learned on, 0 without a tag, and the address.
pub type VlanMac = (u16, MacAddr);

/// Most VLANs that a probe is sent on at a time.
pub const PROBED_VLANS: usize = 32;

/// Most addresses in one message.
pub const MACS_PART: usize = 4096;

/// From an uplink.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum UplinkToSupervisor {
    /// A part of the open device travels with this message, to be given to the next process: before `Ready` only, which is
    /// before this process has heard anything from anybody.
    Keep,
    /// The device is open, the rights to open others are given up: ready for a connection.
    Ready(UplinkDevice),
    /// It cannot go on and ends: what is wrong, what to do.
    Failed(String),
    /// Answer to `Ping`.
    Pong {
        /// The ping's number.
        number: u64,
        /// What it has carried since it started.
        counters: UplinkCounters,
    },
    /// A probe of the same instance came in, with this token.
    Heard {
        /// The probe's.
        token: Token,
        /// The VLAN it came on, 0 without a tag.
        vlan: u16,
    },
    /// Which port each of its queues is kept for, by the queue's number, 0: for none. After each `Owners`, and when it is another one.
    QueueOwners(Vec<u32>),
}

/// How a device is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum UplinkDriver {
    /// A TAP device.
    Tap,
    /// A packet socket.
    AfPacket,
    /// An AF_XDP socket, with a program on the interface.
    AfXdp,
    /// A representor: a TAP device behind rules of the kernel's tc.
    Tc,
    /// A capture file, which things are only written to.
    File,
    /// A VXLAN tunnel's UDP port, for Open vSwitch.
    Vxlan,
    /// A Geneve tunnel's.
    Geneve,
    /// GRE over IPv4, for Open vSwitch.
    Gre,
    /// GRE over IPv6.
    Ip6gre,
}

impl UplinkDriver {
    /// All of them.
    pub const ALL: [Self; 9] = [
        Self::Tap,
        Self::AfPacket,
        Self::AfXdp,
        Self::Tc,
        Self::File,
        Self::Vxlan,
        Self::Geneve,
        Self::Gre,
        Self::Ip6gre,
    ];

    /// As people write it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Tap => "tap",
            Self::AfPacket => "af_packet",
            Self::AfXdp => "af_xdp",
            Self::Tc => "tc",
            Self::File => "file",
            Self::Vxlan => "vxlan",
            Self::Geneve => "geneve",
            Self::Gre => "gre",
            Self::Ip6gre => "ip6gre",
        }
    }

    /// A tunnel's, which is of use to Open vSwitch alone.
    pub fn is_tunnel(self) -> bool {
        matches!(self, Self::Vxlan | Self::Geneve | Self::Gre | Self::Ip6gre)
    }

    /// From how people write it: its name, `file:SIZE` (see [`UplinkDriver::file_limit`]) or `pipe:UID` (see [`UplinkDriver::pipe_owner`]).
    pub fn from_name(name: &str) -> Option<Self> {
        let is_file = Self::file_limit(name).is_some() || Self::pipe_owner(name).is_some();
        let is = |driver: &Self| driver.name() == name || *driver == Self::File && is_file;
        Self::ALL.into_iter().find(is)
    }

    /// Of `pipe:UID`: the user whose named pipe is written to. It must be there: none is made in its place.
    pub fn pipe_owner(name: &str) -> Option<u32> {
        let owner = name.strip_prefix("pipe:").filter(|owner| owner.bytes().all(|b| b.is_ascii_digit()))?;
        owner.parse().ok()
    }

    /// Of `file:SIZE`: how long the file may be before it goes on in another, in bytes; SIZE is a number, perhaps with K, M or G, which are
    /// multiples of 1024, and 64K at least.
    pub fn file_limit(name: &str) -> Option<u64> {
        let size = name.strip_prefix("file:")?;
        let (digits, unit) = match size.char_indices().last()? {
            (end, 'k' | 'K') => (size.get(..end)?, 1 << 10),
            (end, 'm' | 'M') => (size.get(..end)?, 1 << 20),
            (end, 'g' | 'G') => (size.get(..end)?, 1 << 30),
            _ => (size, 1),
        };
        let number: u64 = Some(digits).filter(|digits| digits.bytes().all(|b| b.is_ascii_digit()))?.parse().ok()?;
        number.checked_mul(unit).filter(|bytes| *bytes >= 64 << 10)
    }
}

/// A device that is open.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UplinkDevice {
    /// How it is used.
    pub driver: UplinkDriver,
    /// In which of the ways that the driver knows.
    pub mode: String,
    /// Its Ethernet address.
    pub mac: MacAddr,
    /// Its MTU in bytes when it was opened.
    pub mtu: u32,
    /// Queue pairs.
    pub queues: u16,
    /// The uplink made it.
    pub created: bool,
    /// This process made it: it is as new, without addresses.
    pub made_now: bool,
}

/// What an uplink has carried.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct UplinkCounters {
    /// Packets to the network; one of 64 KiB counts once.
    pub to_network_packets: u64,
    /// Their bytes.
    pub to_network_bytes: u64,
    /// Packets from the network.
    pub from_network_packets: u64,
    /// Their bytes.
    pub from_network_bytes: u64,
    /// Frames from the network that became part of a packet before them, and are not counted as packets themselves.
    pub merged: u64,
    /// Packets not carried, by reason.
    pub drops: Vec<UplinkDrops>,
    /// Queues that guests can have for themselves, by number; empty where they cannot.
    pub queues: Vec<UplinkQueue>,
}

/// A queue that a guest can have for itself. The first is the default queue, which is shared.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct UplinkQueue {
    /// The addresses of the guest that has it, as far as they are known.
    pub stations: Vec<VlanMac>,
    /// The port that has it because somebody says so.
    pub pinned: Option<u32>,
    /// Packets that it can keep.
    pub size: u32,
    /// Packets from the network that it carried.
    pub packets: u64,
    /// Packets that it had no room for.
    pub dropped: u64,
    /// Packets to the network that it carried.
    pub sent: u64,
}

/// Packets not carried for one reason.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct UplinkDrops {
    /// Name of the reason.
    pub reason: String,
    /// How many.
    pub packets: u64,
}
