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
    named.filter_map(line).chain(addresses(facts)).collect()
}

/// Addresses that have left a port for another while this command looked: a guest that takes over from another, or one that pretends to be it.
fn addresses(facts: &Facts<'_>) -> Vec<String> {
    let named = facts.ports().filter(|port| facts.named.is_none_or(|name| port.name == name));
    let moved = named.map(|port| (port, facts.counter(port, |p| p.moves).now)).filter(|(_, now)| *now > 0);
    // Of a whole life it tells nothing.
    let moved = moved.filter(|_| !facts.before.ports.is_empty());
    let line = |(port, now): (&lasthop_api::Port, u64)| {
        let moved = lasthop_text::counted(now, "time");
        format!(
            "{}: an address of another port moved here, {moved} while this command looked; `{}` shows which live here. Is it no takeover that \
             somebody wants, bind addresses to their ports: `lasthop port set --mac`",
            port.name,
            facts.lasthop("mac list")
        )
    };
    moved.map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::super::facts::Seen;
    use super::super::facts::testutil::*;
    use super::*;
    use lasthop_api::Port;

    #[test]
    fn an_address_that_moves_is_told() {
        let with = |moves| seen(&[Port { moves, ..up("a") }]);
        let (before, now) = (with(1), with(3));
        let lines = moves(&facts(&before, &now));
        assert!(
            matches!(&lines[..], [line] if line.starts_with("a: an address of another port moved here, 2 times")),
            "{lines:?}"
        );
        assert!(moves(&facts(&now, &now)).is_empty() && moves(&facts(&Seen::default(), &now)).is_empty());
    }

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
