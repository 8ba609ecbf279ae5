//! The table of a guest's I/O addresses, written as a session process does and read as the switch does. Oracle: a plain list of what was
//! said; nothing is found that was not said last, or may not be used like that, and what is known and wanted is found.

use crate::Input;

/// Runs one input.
pub(crate) fn run(input: &[u8]) {
    let steps = (input.len() / 9).min(200);
    let mut input = Input::new(input);
    lasthop_vhostuser::check_translations(steps, || input.u64());
}
