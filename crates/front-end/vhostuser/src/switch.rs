//! The switch, as one connection sees it.

use lasthop_connection::{Answer, Ask};
use lasthop_sys::Foreign;

/// The switch is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lost;

/// Whoever does what only the switch can do: another process, or, in tests, [`crate::Local`].
pub trait Switch {
    /// Asks, with these descriptors, and waits for the answer. [`Answer::Ended`] answers any question.
    fn ask(&mut self, ask: Ask, fds: Vec<Foreign>) -> Result<Answer, Lost> {
        self.tell(ask, fds)?;
        self.answer()
    }

    /// Asks, and leaves the answer to [`Switch::answer`]. More than one thing may be asked so before the first is answered, a few for each ring; none
    /// of them may change memory, for the answer to that may have to wait, and who asks before it is there breaks the rules.
    fn tell(&mut self, ask: Ask, fds: Vec<Foreign>) -> Result<(), Lost>;

    /// Waits for the answer to what was asked first and is not answered yet.
    fn answer(&mut self) -> Result<Answer, Lost>;

    /// What it has said unasked, if it has: nothing is waited for.
    fn hear(&mut self) -> Result<Option<Answer>, Lost>;
}
