//! What actions come to, one step after the other: the one place that says it, for packets of a burst and for those that waited.

use lasthop_flow::Action;
use lasthop_frame::Edit;
use lasthop_types::{DropReason, PortId};

/// What one action comes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step<'a> {
    /// The packet goes to this port, as it is now.
    To(PortId),
    /// It counts as dropped.
    Drop(DropReason),
    /// It is changed. What is planned of it goes as it was before.
    Edit(&'a Edit),
    /// Its first bytes go to this port.
    Part(PortId, u16),
    /// This port gets a copy of it, as it is now.
    Copy(PortId),
    /// It stays as it is and goes on, as [`Forwarder::aside`](crate::burst::Forwarder::aside) says.
    Aside(&'a Action),
}

impl<'a> Step<'a> {
    /// Of a packet from `from`.
    #[inline]
    pub(crate) fn of(action: &'a Action, from: PortId) -> Self {
        match action {
            Action::Output(to) if *to == from => Self::Drop(DropReason::Hairpin),
            Action::Output(to) => Self::To(*to),
            Action::Drop(reason) => Self::Drop(*reason),
            action => Self::beyond(action, from),
        }
    }

    /// The same of actions that flows of plain outputs do not have: what those cost stays as it is.
    #[inline(never)]
    fn beyond(action: &'a Action, from: PortId) -> Self {
        match action {
            Action::Edit(edit) => Self::Edit(edit),
            Action::Truncated(to, _) if *to == from => Self::Drop(DropReason::Hairpin),
            Action::Truncated(to, len) => Self::Part(*to, *len),
            Action::Copy(to) => Self::Copy(*to),
            Action::LimitFlood | Action::Meter(_) | Action::Sample(..) | Action::ToControl(_) => Self::Aside(action),
            _ => Self::Drop(DropReason::BadAction),
        }
    }
}

/// How far a packet has come in a list of actions.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Steps {
    /// Actions carried out, or left out.
    pub(crate) done: usize,
    /// How often the packet was delivered or dropped by them.
    pub(crate) ends: usize,
    pub(crate) failed: bool,
}

impl Steps {
    /// The next step of a packet from `from`, until there are no more. Actions that neither deliver the packet nor drop it are a flow
    /// that drops.
    pub(crate) fn next<'a>(&mut self, actions: &'a [Action], from: PortId) -> Option<Step<'a>> {
        let step = match actions.get(self.done) {
            _ if self.failed => return None,
            Some(action) => Step::of(action, from),
            None if self.ends > 0 => return None,
            None => Step::Drop(DropReason::Policy),
        };
        self.done += 1;
        self.ends += usize::from(matches!(step, Step::To(_) | Step::Drop(_) | Step::Part(..)));
        Some(step)
    }

    /// The step was an edit that cannot be made, or a limit that is reached: the packet is dropped, and there are no more steps. A copy
    /// for control that finds no place is dropped alone.
    pub(crate) fn fail(&mut self, reason: DropReason) {
        self.ends += 1;
        self.failed = reason != DropReason::MissQueueFull;
    }

    /// There are no more steps.
    pub(crate) fn is_over(mut self, actions: &[Action], from: PortId) -> bool {
        self.next(actions, from).is_none()
    }
}

/// Whether a packet goes to one port and nowhere else, and there as all edits have left it: then it may wait for that port's buffers, to
/// be read, and go through all actions but copies, once more.
pub(crate) fn is_one_output(actions: &[Action]) -> bool {
    let stays = |pair: &[Action]| {
        matches!(pair, [Action::Edit(_) | Action::Copy(_), _] | [Action::Sample(_, 1), Action::Copy(_)])
    };
    matches!(actions, [.., Action::Output(_)]) && actions.windows(2).all(stays)
}
