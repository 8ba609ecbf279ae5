//! Guests on their way to another host: told as what they are, for nothing is wrong with them.

use super::facts::Facts;

/// What notes of control begin with that are no faults.
const BEGINS: [&str; 2] = ["migrating: ", "moved: "];

/// Whether a port's note is about a move.
pub fn is_move(note: &str) -> bool {
    BEGINS.iter().any(|begins| note.starts_with(begins))
}

/// A line for each guest that is being moved, or has been.
pub fn moves(facts: &Facts<'_>) -> Vec<String> {
    let named = facts.guests().filter(|port| facts.named.is_none_or(|name| port.name == name));
    let line = |port: &lasthop_api::Port| {
        let note = port.note.as_ref().filter(|note| is_move(note))?;
        Some(format!("{}: {note}", port.name))
    };
    named.filter_map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::super::facts::testutil::*;
    use super::*;
    use lasthop_api::Port;

    #[test]
    fn a_guest_that_moves_is_no_finding() {
        let with =
            |name: &str, state: &str, note: &str| Port { note: Some(note.into()), state: state.into(), ..up(name) };
        let now =
            seen(&[with("a", "up", "migrating: its memory"), with("b", "connected", "moved: it is gone"), up("c")]);
        let facts = facts(&now, &now);
        assert!(super::super::front_end::findings(&facts).is_empty());
        assert_eq!(moves(&facts), ["a: migrating: its memory", "b: moved: it is gone"]);
        assert_eq!(moves(&Facts { named: Some("b"), ..facts }), ["b: moved: it is gone"]);
    }
}
