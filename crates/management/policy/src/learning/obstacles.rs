//! What would keep a packet from opening a connection that lists let it open: for `lasthop trace`, which must not promise what is then dropped.

use super::Learning;
use super::nat::{Passage, with};
use super::tracking::{Track, tuple};
use crate::membership::Tag;
use lasthop_frame::{FlowKey, FlowMask};
use lasthop_types::PortId;

/// Why a connection would not begin. Nothing is counted by asking.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Obstacle {
    /// Its port has opened as many as it may: how many there are, and may be.
    Owner(u32, u32),
    /// Its port holds its share of a translated address's ports, which are so many.
    Share(u32),
    /// No address and port is free to translate it to.
    NoTranslation,
    /// There are as many connections as may be, all ports' together. Another gives way, or there will be none.
    Full(usize),
}

impl Learning {
    /// What would keep this packet, if lists let it go to these ports, from opening a connection. What it is translated to becomes what is free now.
    pub(crate) fn obstacle(
        &self,
        key: &FlowKey,
        vlan: u16,
        track: &Track,
        passage: &mut Passage,
        (outputs, now_ms): (&[(PortId, Tag)], u64),
    ) -> Option<Obstacle> {
        let opens = matches!(track, Track::New(None) | Track::Displaces(_));
        let asked =
            passage.is_translated() || self.tracks(key.port()) || outputs.iter().any(|(to, _)| self.tracks(*to));
        let outside = self.is_outside(key, &mut FlowMask::default());
        let unasked = outside && self.is_unasked(track, passage);
        let connections = self.connections.as_ref().filter(|_| opens && !unasked && (asked || outside))?;
        if let Some(held) = self.full_share(key, vlan, &passage.nat) {
            return Some(Obstacle::Share(held));
        }
        let (open, limit) = (connections.owned(key.port()), self.connection_limit(key.port()));
        if limit > 0 && open >= limit {
            return Some(Obstacle::Owner(open, limit));
        }
        // One that is displaced gives back what it has.
        if passage.is_translated() && *track == Track::New(None) {
            match connections.tracker.foresee(&passage.nat, &tuple(key, vlan), now_ms) {
                Some(sent) => passage.delivered = with(key, &sent),
                None => return Some(Obstacle::NoTranslation),
            }
        }
        let totals = connections.tracker.totals();
        (totals.connections >= totals.capacity).then_some(Obstacle::Full(totals.capacity))
    }
}
