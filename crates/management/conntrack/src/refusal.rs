//! Why a packet has no connection, or a connection was not made: each is counted under one of these.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

macro_rules! refusals {
    ($($(#[doc = $doc:literal])+ $variant:ident = $name:literal,)*) => {
        /// Reason for which a packet is invalid, or its connection was not committed.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(u8)]
        pub enum Refusal { $($(#[doc = $doc])+ $variant,)* }

        /// All reasons in the order of their numbers.
        pub const REFUSALS: &[Refusal] = &[$(Refusal::$variant,)*];

        impl Refusal {
            /// The name that people see.
            pub fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)* }
            }
        }
    };
}

refusals! {
    /// Neither IPv4 nor IPv6.
    NotIp = "not_ip",
    /// Headers that are cut short or contradict themselves, as the flow key says.
    Malformed = "malformed",
    /// TCP flags that no TCP sends together.
    TcpFlags = "tcp_flags",
    /// A segment that its connection's state has no place for, or that cannot be a connection's first.
    TcpState = "tcp_state",
    /// A segment out of its connection's window.
    TcpWindow = "tcp_window",
    /// A RST that its receiver would not believe.
    TcpReset = "tcp_reset",
    /// SCTP chunks that do not go together, or have the wrong verification tag, or that the association's state has no place for.
    Sctp = "sctp",
    /// An ICMP message that neither asks nor answers.
    IcmpType = "icmp_type",
    /// An ICMP error about a packet of no connection, or an answer that nobody asked for.
    Unrelated = "unrelated",
    /// Neighbour discovery and multicast listener messages are not tracked.
    Untracked = "untracked",
    /// A fragment whose first one has not been seen.
    Fragment = "fragment",
    /// As many connections as there may be in all, and none that could make room.
    Full = "full",
    /// As many as there may be in this zone.
    ZoneLimit = "zone_limit",
    /// As many as there may be of this owner.
    OwnerLimit = "owner_limit",
    /// Its answers would be taken for those of another connection.
    Clash = "clash",
    /// No address and port of the range is free, as far as was looked.
    NoTranslation = "no_translation",
    /// Its port holds its share of a translated address's ports already.
    AddressShare = "address_share",
    /// It was sent to a translated address, is of no connection, and nobody is published there.
    Unasked = "unasked",
    /// The connection changed too often while this packet was looked at.
    Contended = "contended",
}

/// How often each has occurred. Any thread.
#[derive(Debug)]
pub(crate) struct Counts([AtomicU64; REFUSALS.len()]);

impl Default for Counts {
    fn default() -> Self {
        Self(std::array::from_fn(|_| AtomicU64::new(0)))
    }
}

impl Counts {
    pub(crate) fn add(&self, refusal: Refusal) {
        if let Some(count) = self.0.get(refusal as usize) {
            // Relaxed: a count.
            count.fetch_add(1, Relaxed);
        }
    }

    pub(crate) fn get(&self, refusal: Refusal) -> u64 {
        self.0.get(refusal as usize).map_or(0, |count| count.load(Relaxed))
    }
}
