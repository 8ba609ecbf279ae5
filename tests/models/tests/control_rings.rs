//! The rings between switch and control hold in every order, and the models see what each order is there for.

use lasthop_guestmem::Weak;
use lasthop_tests_models::control_rings::{Case, messages};
use lasthop_tests_models::finds_fault;

#[test]
fn no_doorbell_is_lost_and_nothing_is_read_early() {
    for count in [1, 2] {
        messages(Case { weak: None, messages: count, preemptions: 3 });
    }
}

/// More messages than the ring holds: places are used again, and the sender waits for room.
#[test]
fn a_ring_that_comes_round_loses_nothing() {
    messages(Case { weak: None, messages: 3, preemptions: 2 });
}

#[test]
#[ignore = "takes minutes: cargo xtask test --long"]
fn a_ring_that_comes_round_loses_nothing_long() {
    messages(Case { weak: None, messages: 5, preemptions: 3 });
}

/// Each order is there for something: without it a model fails.
#[test]
fn without_any_of_its_orders_the_handshake_fails() {
    for weak in [Weak::Acquire, Weak::Release, Weak::Fence].map(Some) {
        let case = Case { weak, messages: 3, preemptions: 2 };
        assert!(finds_fault(move || messages(case)), "{case:?}");
    }
}
