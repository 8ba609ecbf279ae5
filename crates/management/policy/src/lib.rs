//! Policy: what the switch should do, computed as flows. A learning switch that needs no configuration,
//! and access lists (`acl`) in front of and behind it.
//!
//! Pure: no I/O, no clock (time is handed in as `now_ms`, milliseconds of any monotonic clock), no threads, no
//! `unsafe`. `lasthop-control` feeds it misses, port changes and flow statistics and carries out the [`Effects`].
//!
//! # The widest flow that is still right
//!
//! | packet | flow's mask | why no wider |
//! |---|---|---|
//! | ordinary | in port, source, destination, VLAN id | the source and its port must come to control to be learned or to move; the destination and its VLAN choose the output; the in port is what a flood leaves out and what tells a hairpin |
//! | group source | in port, the group bit | one flow per port refuses all 2^47 of them |
//! | may not enter, by an access list | in port, and the bits that it took to know | learning has no say |
//! | may not be sent from there, by the port's settings (`guard.rs`) | in port, and the bits that it took to know | learning has no say |
//! | ordinary, from a port that has such settings | as ordinary, and the bits that it took to know | another source, protocol or claim may be refused |
//! | ordinary, under access lists | as ordinary, and the bits that it took to know | a rule may ask for anything else |
//! | of a VLAN that its port is no member of | in port, VLAN id | learning has no say |
//! | without a VLAN, from or to a port with VLANs of its own that lets it pass | as ordinary, EtherType, inner VLAN id | a tag may be hidden behind a priority tag, or be cut off |
//! | of a connection that a list asked about | as ordinary, and all that names the connection; of TCP that SYN, FIN and RST are 0 | what ends it must come to control |
//! | denied by a list that asks about connections | what it took to know, and what makes it hide no connection (`learning/tracking.rs`) | |
//! | multicast of IP, while some port is told `snooping` | as ordinary, EtherType, IP protocol, of ICMPv6 the type | what says who wants which group must come to control |
//! | zero source | in port, source | |
//! | link-local destination | the 44 bits of 01:80:c2:00:00:0x | one flow for the whole switch |
//! | the same, while what some port's guest sends is copied by a mirror | and in port | the copy goes by it |
//! | from a mirror's destination | in port | |
//!
//! Flows carry no priority, so those that overlap must agree. They do, because each says what the same lists and the same
//! addresses say of every packet it matches: when either changes, flows that say otherwise go or are replaced in the same
//! step, and other lists remove them all. Those that refuse a packet whatever the lists say all drop, and so does what
//! they overlap with.
//!
//! # VLANs
//!
//! Addresses are learned per VLAN: the id of the outer tag, of either TPID; frames without a tag and
//! priority-tagged ones (id 0) share VLAN 0. Tags pass unchanged, unless a port has VLAN settings ([`PortSettings`]): then
//! `membership.rs` says in which VLAN its frames are and with which tag they leave. A port without settings is a member of every VLAN; an
//! uplink may carry some only ([`Vlans`]). Frames of a VLAN that a port is no member of do not enter there, teach nothing, and are not
//! sent there.
//!
//! # Limits against a hostile guest
//!
//! A port may hold `min(macs_per_port, macs / ports)` addresses; beyond, its packets are still forwarded, but their
//! sources are not learned, and counted. No other port's entry is ever evicted. Uplinks share room of their own in the
//! same way, with larger limits: behind one is a network, and a hostile one is at the cost of other uplinks at most. When a
//! port is added, the share of each falls; what one holds beyond it goes at the next tick, unseen for longest first, in use
//! or not. Flows have a limit per port too: the
//! least recently used flow *of that port* makes room. An address may move between ports [`MAX_MOVES`] times in
//! [`MOVE_WINDOW_MS`]; the next attempt sends it back to where it was before and holds it there for [`HOLD_MS`], so a
//! guest that fights a neighbour for its address loses. (A silent neighbour's address can still be taken until it
//! speaks: refusing that needs anti-spoofing rules, which are configuration.)
//!
//! What one event makes wrong is bounded by the flows that a port may have. So flows are put right little by little, fairly
//! between the ports they come from (`learning/stale.rs`), and a port that goes up and down more than [`MAX_FLAPS`] times in
//! [`FLAP_WINDOW_MS`] stays in floods while it is down.

pub mod acl;
mod batch;
mod explain;
mod flows;
mod guard;
mod label;
mod learning;
mod left_out;
mod mactable;
mod membership;
mod mirror;
mod name;
mod rate;
mod settings;
mod snooping;
mod statics;
mod vlan_mac;
mod vlans;

pub use batch::Batch;
pub use explain::Explanation;
pub use flows::{FLOWS_MAX, FLOWS_PER_PORT_MAX, MASKS_MAX};
pub use label::{LABEL_TPID, Label};
pub use lasthop_conntrack::{Cursor as ConnectionCursor, ProtoState, SctpState, TcpState, Tuple};
pub use learning::{
    CONNECTIONS, CONNECTIONS_RANGE, Change, ConnectionFilter, ConnectionStats, ConnectionView, Denied, DeniedBy,
    Effects, FLAP_WINDOW_MS, FlowUse, Headers, LOOK_MANY_MS, LOOK_MS, Learning, Limits, MANY_FLOWS, MAX_FLAPS, Mirrors,
    PortLists, PortView, Published, Recalls, Reconciled, RefusedSource, Resume, SetRound, Uplinks, Why,
};
pub use left_out::LeftOut;
pub use mactable::{AGEING_MS, HOLD_MS, MAX_MOVES, MOVE_WINDOW_MS, MacView};
pub use mirror::{MAX_MIRRORED, MAX_SAMPLE, Mirror, Mirrored};
pub use name::{check_name, check_new_name};
pub use rate::{Rate, Unit};
pub use settings::{
    ENGINE, FLAGS, MAX_ADDRESSES, MAX_CPU, MAX_CPU_TO, MIN_RATE, OF_SWITCH, OF_SWITCH_WORDS, OF_UPLINKS,
    OF_UPLINKS_WORDS, PortEngine, PortSettings, QUEUE_OF, QueueOf, RATE_TO, SETTINGS, STATIC_MAC, engine_name,
};
pub use snooping::{GROUPS_MAX, GROUPS_PER_PORT_MAX, GroupView, LEFT_MS, MEMBERSHIP_MS, ROUTER_MS};
pub use statics::{MAX_STATIC, StaticMac};
pub use vlans::{ParseVlansError, Vlans};

#[cfg(test)]
mod tests;
#[cfg(any(test, feature = "testutil"))]
pub mod testutil;
