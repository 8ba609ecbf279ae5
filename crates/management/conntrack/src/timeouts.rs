//! For how long a connection without packets is remembered, by protocol and state; and how many there may be.

use crate::refusal::Refusal;
use crate::sctp::SctpState;
use crate::tcp::TcpState;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

macro_rules! classes {
    ($($class:ident = $name:literal $seconds:literal,)*) => {
        /// What a time-out is for. Named as Linux names its own (`nf_conntrack_…_timeout_…`).
        #[allow(missing_docs)]
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(u8)]
        pub enum Class { $($class,)* }

        /// All classes, with their names and Linux's seconds.
        pub const CLASSES: &[(Class, &str, u32)] = &[$((Class::$class, $name, $seconds),)*];
    };
}

classes! {
    TcpSynSent = "tcp_syn_sent" 120,
    TcpSynRecv = "tcp_syn_recv" 60,
    TcpEstablished = "tcp_established" 432_000,
    TcpFinWait = "tcp_fin_wait" 120,
    TcpCloseWait = "tcp_close_wait" 60,
    TcpLastAck = "tcp_last_ack" 30,
    TcpTimeWait = "tcp_time_wait" 120,
    TcpClose = "tcp_close" 10,
    TcpRetransmitted = "tcp_max_retrans" 300,
    TcpUnacknowledged = "tcp_unacknowledged" 300,
    Udp = "udp" 30,
    UdpStream = "udp_stream" 120,
    Icmp = "icmp" 30,
    SctpClosed = "sctp_closed" 10,
    SctpCookieWait = "sctp_cookie_wait" 3,
    SctpCookieEchoed = "sctp_cookie_echoed" 3,
    SctpEstablished = "sctp_established" 210,
    SctpShutdown = "sctp_shutdown" 3,
    SctpHeartbeat = "sctp_heartbeat_sent" 30,
    Generic = "generic" 600,
}

impl Class {
    pub(crate) fn tcp(state: TcpState) -> Self {
        match state {
            TcpState::None | TcpState::SynSent | TcpState::SynSent2 => Self::TcpSynSent,
            TcpState::SynRecv => Self::TcpSynRecv,
            TcpState::Established => Self::TcpEstablished,
            TcpState::FinWait => Self::TcpFinWait,
            TcpState::CloseWait => Self::TcpCloseWait,
            TcpState::LastAck => Self::TcpLastAck,
            TcpState::TimeWait => Self::TcpTimeWait,
            TcpState::Close => Self::TcpClose,
        }
    }

    pub(crate) fn sctp(state: SctpState) -> Self {
        match state {
            SctpState::None | SctpState::Closed => Self::SctpClosed,
            SctpState::CookieWait => Self::SctpCookieWait,
            SctpState::CookieEchoed => Self::SctpCookieEchoed,
            SctpState::Established => Self::SctpEstablished,
            SctpState::HeartbeatSent => Self::SctpHeartbeat,
            _ => Self::SctpShutdown,
        }
    }
}

/// How many timeout policies there may be; 0 is the default one.
pub const POLICIES: usize = 256;

/// The policies, in seconds. Any thread.
#[derive(Debug)]
pub(crate) struct Timeouts([[AtomicU32; CLASSES.len()]; POLICIES]);

impl Default for Timeouts {
    fn default() -> Self {
        let own = |n: usize| AtomicU32::new(CLASSES.get(n).map_or(0, |(.., seconds)| *seconds));
        Self(std::array::from_fn(|_| std::array::from_fn(own)))
    }
}

impl Timeouts {
    pub(crate) fn set(&self, policy: usize, class: Class, seconds: u32) -> Option<()> {
        // Relaxed: a number by itself.
        self.0.get(policy)?.get(class as usize)?.store(seconds, Relaxed);
        Some(())
    }

    #[inline]
    pub(crate) fn get(&self, policy: u8, class: Class) -> u32 {
        self.0.get(usize::from(policy)).and_then(|p| p.get(class as usize)).map_or(0, |seconds| seconds.load(Relaxed))
    }
}

/// How many connections there are, and may be, of each of 65 536 zones or owners. A limit of 0 is none.
#[derive(Debug)]
pub(crate) struct Quota {
    used: Box<[AtomicU32]>,
    limits: Box<[AtomicU32]>,
    refusal: Refusal,
}

impl Quota {
    pub(crate) fn new(refusal: Refusal) -> Self {
        let zeros = || (0..1 << 16).map(|_| AtomicU32::new(0)).collect();
        Self { used: zeros(), limits: zeros(), refusal }
    }

    pub(crate) fn set(&self, of: u16, limit: u32) {
        self.limits[usize::from(of)].store(limit, Relaxed);
    }

    pub(crate) fn limit(&self, of: u16) -> u32 {
        self.limits[usize::from(of)].load(Relaxed)
    }

    pub(crate) fn used(&self, of: u16) -> u32 {
        self.used[usize::from(of)].load(Relaxed)
    }

    /// One more, if there may be. Relaxed, as everywhere here: a sum that is right whatever the order.
    pub(crate) fn take(&self, of: u16) -> Result<(), Refusal> {
        let (used, limit) = (self.used[usize::from(of)].fetch_add(1, Relaxed), self.limit(of));
        if limit != 0 && used >= limit {
            self.give(of);
            return Err(self.refusal);
        }
        Ok(())
    }

    pub(crate) fn give(&self, of: u16) {
        self.used[usize::from(of)].fetch_sub(1, Relaxed);
    }
}
