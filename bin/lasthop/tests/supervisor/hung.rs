//! Children that hang.

use crate::{Place, connect};
use std::io::Write;

/// Control never has much to do in one go, so one that is busy for seconds is of no use any more. It was left alone.
pub fn a_control_that_spins_is_replaced() {
    let place = Place::new();
    let mut lasthop = place.ready(&["--port", &place.port("a"), "--watchdog", "500"]);
    lasthop.wait(&["control[", "heard the switch"]);
    let first = place.ask("pid");
    let mut client = connect(&place.path("run/api.sock"));
    client.write_all(b"spin\n").unwrap();
    lasthop.wait(&["control[", "spinning as told"]);
    lasthop.wait(&["lasthop-control (pid", "has been busy with one thing", "replacing it"]);
    lasthop.wait(&["control[", "heard the switch"]);
    assert_ne!(place.ask("pid"), first);
    assert_eq!(place.ask("ports"), "1=a");
    lasthop.end();
}
