//! How fast a guest may send, or get packets, so that these take no more processor time than they may: plain code over what was seen, with times handed in.
//!
//! What a packet costs differs by a factor of some sixty: a short one that meets its flow takes about 0.1 µs, one of 64 KiB 7 µs, one that meets no flow or goes to
//! many ports more. So the rate is not one of packets or of bytes but of both together ([`units`]): then what a guest sends or gets may change, and what that costs
//! changes little. What is left is found by looking: the rate follows from what was spent at the last one, so the law has to know neither the machine nor the
//! guest, and a cost per packet that rises when packets are fewer, because there are fewer in a burst, is found in some more looks.

use serde::{Deserialize, Serialize};

/// So many bytes cost what a packet costs beside its bytes: copying them takes 0.1 ns each, and all else 0.1 µs.
pub const BYTES: u64 = 1024;
/// Units a second that every guest may send or get, whatever they cost: 1000 short packets, or 8 Mbit/s of long ones.
pub const FLOOR: u64 = 1000;
/// A rate is left alone that is right within this part: each one that is set begins with a burst.
pub const DEAD: f64 = 0.05;
/// A rate that is too low by less than this factor is put right by half, as what is measured in a second is not exact. One that is too high is at once.
const FAR: f64 = 1.25;
/// A guest that is held to too little gets so many times that with the next look, at most.
const MOST_RISE: f64 = 2.0;
/// A guest that sends, or gets, less than this part of its rate is not held back by it.
const PART: f64 = 0.8;
/// So many looks in a row at such a guest, and it is held to nothing.
const CALM: u32 = 5;
/// What was spent beyond the bound is remembered as long as it takes to make up for it: else a guest that sends for a second and rests for five would never be
/// held back in time. It is no more than so many seconds of the bound, or than what was spent within one look if that is more, as it is with a small bound.
const MOST_OWED: f64 = 60.0;
/// The bound is not kept if this many times it was spent, for so many looks more than not.
const MISSED: f64 = 1.25;
const LOOKS: u32 = 5;

/// Packets and bytes as what they cost is about proportional to.
pub fn units(packets: u64, bytes: u64) -> f64 {
    packets as f64 + bytes as f64 / BYTES as f64
}

/// What was seen since the last time.
#[derive(Clone, Copy, Debug)]
pub struct Look {
    /// How long ago that is.
    pub seconds: f64,
    /// Nanoseconds of processor time that were spent, a second.
    pub spent: f64,
    /// What the guest has sent or got, in [`units`] a second.
    pub rate: f64,
}

/// What is known of a guest.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Law {
    /// What it is held to, in [`units`] a second.
    limit: Option<f64>,
    /// Nanoseconds that were spent beyond the bound and not made up for.
    owed: f64,
    calm: u32,
    /// Whether at the last look the guest had sent, or got, so much that its limit may have held it back.
    #[serde(default)]
    presses: bool,
    /// How often more was spent than the bound, less how often not.
    over: u32,
    missed: bool,
}

impl Law {
    /// What the guest is held to, in [`units`] a second.
    pub fn limit(&self) -> Option<f64> {
        self.limit
    }

    /// At the last look the guest had sent, or got, nearly what it is held to.
    pub fn presses(&self) -> bool {
        self.presses
    }

    /// The bound is not kept.
    pub fn is_missed(&self) -> bool {
        self.missed
    }

    /// The guest is held to as little as may be.
    pub fn is_at_floor(&self) -> bool {
        self.limit.is_some_and(|limit| limit <= FLOOR as f64)
    }

    /// Takes a look; `most`: nanoseconds that may be spent a second.
    pub fn look(&mut self, most: f64, look: Look) {
        let most_owed = self.owed.max(most * MOST_OWED).max(look.spent * look.seconds);
        self.owed = (self.owed + (look.spent - most) * look.seconds).clamp(0.0, most_owed);
        self.over = if look.spent > most * MISSED { (self.over + 1).min(LOOKS) } else { self.over.saturating_sub(1) };
        self.missed = if self.missed { self.over > 0 } else { self.over == LOOKS };
        let Some(limit) = self.limit else {
            if look.spent > most {
                (self.limit, self.calm) = (Some((look.rate * most / look.spent).max(FLOOR as f64)), 0);
            }
            return;
        };
        let presses = look.rate >= limit * PART;
        self.presses = presses;
        self.calm = if presses || look.spent > most * PART { 0 } else { self.calm + 1 };
        if self.calm >= CALM && self.owed == 0.0 {
            (self.limit, self.calm, self.presses) = (None, 0, false);
            return;
        }
        let least = most / MOST_RISE.powi(2);
        let ratio = most / look.spent.max(least);
        if (1.0 - DEAD..=1.0 + DEAD).contains(&ratio) || ratio > 1.0 && !presses {
            return;
        }
        // One that sends or gets less than it may is to have less than it does.
        let from = if presses { limit } else { limit.min(look.rate) };
        let step = if (1.0..=FAR).contains(&ratio) { ratio.sqrt() } else { ratio.min(MOST_RISE) };
        self.limit = Some((from * step).max(FLOOR as f64));
    }
}

#[cfg(test)]
mod tests;
