//! What was measured.

use hdrhistogram::Histogram;

/// Whose time it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Account {
    /// The guests' own.
    Guest,
    /// The switch at normal priority.
    Normal,
    /// Helpers that did something.
    Idle,
    /// Helpers that looked in vain.
    Polling,
}

/// Counted after the warm-up, but for the four that conservation needs.
pub struct Stats {
    /// Packets that guests have put into their rings, ever.
    pub sent: u64,
    /// Packets that guests have taken out of theirs, ever.
    pub received: u64,
    /// Packets dropped because too many waited for their receiver, ever.
    pub dropped: u64,
    /// Bytes of data received.
    pub bytes: u64,
    /// Packets with data received.
    pub packets: u64,
    /// Transactions.
    pub transactions: u64,
    /// From the sender's ring until the receiver begins with it, in nanoseconds.
    pub latency: Histogram<u64>,
    /// Time by account: guests, normal, idle, polling.
    pub time_ns: [u64; 4],
    /// Guests left guest mode to kick.
    pub kicks: u64,
    /// Guests were interrupted.
    pub interrupts: u64,
    /// Threads of the switch woken.
    pub thread_wakes: u64,
    /// Helpers woken.
    pub helper_wakes: u64,
    /// Helpers whose core was wanted.
    pub taken_away: u64,
    /// Packets copied by helpers.
    pub copied_by_helpers: u64,
    /// Events handled, ever.
    pub events: u64,
}

impl Default for Stats {
    fn default() -> Self {
        Self {
            sent: 0,
            received: 0,
            dropped: 0,
            bytes: 0,
            packets: 0,
            transactions: 0,
            // Three digits up to a minute: a constant that the library takes.
            latency: Histogram::new_with_bounds(1, 60_000_000_000, 3).expect("bounds of a histogram"),
            time_ns: [0; 4],
            kicks: 0,
            interrupts: 0,
            thread_wakes: 0,
            helper_wakes: 0,
            taken_away: 0,
            copied_by_helpers: 0,
            events: 0,
        }
    }
}

impl Stats {
    /// Forgets what the warm-up counted.
    pub fn begin(&mut self) {
        let old = std::mem::take(self);
        *self = Self {
            sent: old.sent,
            received: old.received,
            dropped: old.dropped,
            events: old.events,
            ..std::mem::take(self)
        };
    }

    /// Nanoseconds of an account.
    pub fn time(&self, account: Account) -> u64 {
        self.time_ns[account as usize]
    }
}
