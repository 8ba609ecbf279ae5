//! The switch, as one connection sees it.

use lasthop_connection::{Answer, Ask};
use lasthop_sys::Foreign;

/// The switch is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lost;

/// Whoever does what only the switch can do: another process, or, in tests, [`crate::Local`].
pub trait Switch {
    /// Asks, with these descriptors, and waits for the answer. [`Answer::Ended`] answers any question.
    fn ask(&mut self, ask: Ask, fds: Vec<Foreign>) -> Result<Answer, Lost>;

    /// What it has said unasked, if it has: nothing is waited for.
    fn hear(&mut self) -> Result<Option<Answer>, Lost>;
}
