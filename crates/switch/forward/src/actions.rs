//! What an action means: the one place that says it, for packets of a burst and for those that waited for control.

use lasthop_flow::Action;
use lasthop_types::{DropReason, PortId};

/// What one action comes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// The packet goes to this port. (All outputs of a packet are of its one snapshot: no action changes it yet.)
    To(PortId),
    /// It counts as dropped.
    Drop(DropReason),
}

impl Step {
    /// Of a packet from `from`. No action at all is a flow that drops.
    #[inline]
    pub(crate) fn of(action: Option<&Action>, from: PortId) -> Self {
        match action {
            Some(Action::Output(to)) if *to == from => Self::Drop(DropReason::Hairpin),
            Some(Action::Output(to)) => Self::To(*to),
            Some(Action::Drop(reason)) => Self::Drop(*reason),
            Some(_) => Self::Drop(DropReason::BadAction),
            None => Self::Drop(DropReason::Policy),
        }
    }
}
