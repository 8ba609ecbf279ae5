//! First match among patterns, and the bits of the frame that it took to know: the mask of the widest flow that is still right.
//!
//! Before the pattern that matches, every pattern is shown not to match. Where bits that the mask already has show it, nothing
//! is added; otherwise the cheapest proof is: the beginning of an address or a port up to the first bit that differs,
//! or the protocol. So a thousand rules about other networks cost a flow a few bits of its addresses, and not the five
//! fields that an exact flow would have. Open vSwitch calls this un-wildcarding.
//!
//! The switch tries one mask after the other, so there must be few: prefixes are rounded up to steps ([`seen`]). Whoever
//! installs flows bounds the number of masks besides.
//!
//! | module | holds |
//! |---|---|
//! | [`pattern`] | what a rule asks of a frame, as numbers |
//! | [`addresses`] | many addresses that a pattern asks for together |
//! | [`seen`] | the bits of a frame that have been looked at |
//! | `frame` | a frame as numbers, and whether it meets a pattern |
//!
//! The time it takes is proportional to the patterns that are tried. No allocation, no I/O.

pub mod addresses;
mod frame;
pub mod pattern;
pub mod seen;

pub use addresses::Addresses;
pub use pattern::{Ether, Pattern, Proto, Range};
pub use seen::Seen;

use frame::Frame;
use lasthop_frame::FlowKey;
pub(crate) use lasthop_frame::ethertype::{IPV4, IPV6};
pub(crate) use lasthop_frame::proto::{SCTP, TCP, UDP};

/// What was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    /// The first pattern that matches, counted from 0.
    Pattern(usize),
    /// None does.
    Nothing,
    /// Headers are malformed, so that patterns which look at them cannot be trusted.
    Malformed,
}

/// Patterns in order, ready to find the first that matches.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Classifier {
    patterns: Vec<Pattern>,
    /// Some pattern looks behind the VLAN tags.
    deep: bool,
    /// Some pattern looks at ports or ICMP types.
    transport: bool,
}

impl FromIterator<Pattern> for Classifier {
    fn from_iter<T: IntoIterator<Item = Pattern>>(patterns: T) -> Self {
        let patterns: Vec<Pattern> = patterns.into_iter().collect();
        Self {
            deep: patterns.iter().any(|p| p.ether != Ether::Any),
            transport: patterns.iter().any(|p| p.transport),
            patterns,
        }
    }
}

impl Classifier {
    /// The first pattern that `key` meets. Adds to `seen` the bits that it took to know: every key that agrees with `key` in the
    /// bits seen meets the same pattern first.
    pub fn first_match(&self, key: &FlowKey, seen: &mut Seen) -> Found {
        if self.deep {
            seen.anomalies = true;
            seen.eth_type = true;
            if key.anomalies & seen::ANOMALIES != 0 {
                return Found::Malformed;
            }
        }
        seen.later |= self.transport;
        let frame = Frame::new(key);
        self.patterns.iter().position(|p| frame.meets(p, seen)).map_or(Found::Nothing, Found::Pattern)
    }
}

#[cfg(test)]
mod tests;
