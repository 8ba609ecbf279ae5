//! Two guests that are connected, and nothing said yet.

use super::{Guest, Lasthop, Options, Port, mac, scratch};

/// A lasthop with the ports `a` and `b`, and a guest at each: of `mac(1)` and `mac(2)`.
pub struct Pair {
    /// At `a` and at `b`.
    pub guests: [Guest; 2],
    /// Whose ports they are.
    pub lasthop: Lasthop,
    /// For files, and where the sockets are.
    pub dir: tempfile::TempDir,
}

impl Pair {
    /// Both ports are up.
    pub fn new() -> Self {
        let dir = scratch();
        let lasthop = Lasthop::start(&[Port::listen("a", dir.path()), Port::listen("b", dir.path())]);
        let guest = |name: &str, n| Guest::connect(&dir.path().join(name), mac(n), Options::default());
        let guests = [guest("a.sock", 1), guest("b.sock", 2)];
        ["a", "b"].into_iter().for_each(|name| lasthop.wait_for_state(name, "up"));
        Self { guests, lasthop, dir }
    }
}

impl Default for Pair {
    fn default() -> Self {
        Self::new()
    }
}
