//! Uplinks, and their queues.

use super::Drops;
use serde::{Deserialize, Serialize};
use zlink::introspect::CustomType;

/// An uplink: a port that is a network interface.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, CustomType)]
pub struct Uplink {
    /// Its name, which is that of its port.
    pub name: String,
    /// The number of its port.
    pub id: u32,
    /// Its interface.
    pub device: String,
    /// It is a guest's port (`port_add_device`), not an uplink.
    pub guest: bool,
    /// `tap`, `af_packet` or `af_xdp`; none before the interface was opened for the first time.
    pub driver: Option<String>,
    /// In which of the ways that the driver knows it is used.
    pub mode: Option<String>,
    /// `waiting` (there is no such interface yet), `down`, `no-carrier` (see `link`), `starting` (its process does not run, or has
    /// not opened the interface), `probing` (it is new, and listens whether it is on another one's segment), `blocked` (see
    /// `blocked_by`), or that of its port.
    pub state: String,
    /// What it waits for in this state, if it is about to carry frames.
    pub waits_for: Option<String>,
    /// How the interface is: `up`, `no-carrier` (its cable is pulled, or the other end is down), `down` (somebody has set it down)
    /// or `missing`. Unless it is up nothing goes out by it, and what is for it is dropped as `port_down`.
    pub link: String,
    /// What was last wrong with it.
    pub last_error: Option<String>,
    /// The uplink on the same network segment that carries the frames, so that this one must not; it is ready to take over.
    pub blocked_by: Option<String>,
    /// The interface's Ethernet address.
    pub mac: Option<String>,
    /// The interface's MTU in bytes.
    pub mtu: Option<u32>,
    /// Queue pairs.
    pub queues: u16,
    /// Its process's priority, as of nice(1).
    pub nice: i32,
    /// With `af_xdp`: TCP segments and UDP datagrams of a burst become one packet. With other drivers the kernel does that.
    pub gro: bool,
    /// The interface was made by the uplink and goes with it.
    pub created: bool,
    /// Its process.
    pub pid: Option<u32>,
    /// Another process has taken the place of one that ended so many times.
    pub restarts: u64,
    /// `ready` (a second process stands by to take over) or `starting`; none if none is wanted.
    pub spare: Option<String>,
    /// The VLANs that it carries, like `untagged:10:20-30`; none if it carries all, or is no uplink any more.
    pub vlans: Option<String>,
    /// Packets to the network and their bytes; one of 64 KiB counts once.
    pub to_network: Carried,
    /// Packets from the network.
    pub from_network: Carried,
    /// Frames from the network that became part of a packet before them (receive aggregation with `af_xdp`), and are not
    /// counted as packets themselves.
    pub merged: u64,
    /// Packets that the interface or its process did not carry, by reason; only reasons that occurred.
    pub drops: Vec<Drops>,
    /// Queues that busy guests have for themselves; empty where the uplink has no such queues. The first is the default
    /// queue, which the other guests share.
    pub guest_queues: Vec<GuestQueue>,
}

/// A queue of an uplink that a guest can have for itself.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, CustomType)]
pub struct GuestQueue {
    /// Its number.
    pub queue: u16,
    /// The Ethernet address of the guest that has it; none for the default queue and for one that is free. Of a guest with several the
    /// first.
    pub mac: Option<String>,
    /// The VLAN of that address, if it has one.
    pub vlan: Option<u16>,
    /// The port that has it whatever the load, because it was told so (`queue-of`).
    pub port: Option<String>,
    /// Packets that may wait in it: as many as its rings have room for, unless the port was told another number.
    pub size: u32,
    /// Packets from the network that it carried.
    pub packets: u64,
    /// Packets that it had no room for.
    pub dropped: u64,
    /// Packets to the network that it carried: those of a port that it is kept for, or of all that have none.
    pub sent: u64,
}

/// What an uplink carried one way.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, CustomType)]
pub struct Carried {
    /// Packets.
    pub packets: u64,
    /// Their bytes.
    pub bytes: u64,
}

/// All uplinks, or the one that a call was about.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, CustomType)]
pub struct UplinkList {
    /// These.
    pub uplinks: Vec<Uplink>,
}
