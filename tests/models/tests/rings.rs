//! The rings' handshakes hold in every order, and the models see what each order is there for.

use lasthop_guestmem::Weak;
use lasthop_tests_models::finds_fault;
use lasthop_tests_models::rings::{Case, calls, kicks};

fn cases(buffers: u16, preemptions: usize) -> impl Iterator<Item = Case> {
    let layouts = [(false, false), (false, true), (true, false), (true, true)];
    layouts.into_iter().map(move |(packed, event_idx)| Case { packed, event_idx, weak: None, buffers, preemptions })
}

#[test]
fn no_kick_is_lost_and_nothing_is_read_early() {
    cases(2, 1).for_each(kicks);
}

#[test]
#[ignore = "takes minutes: cargo xtask test --long"]
fn no_kick_is_lost_and_nothing_is_read_early_long() {
    cases(2, 2).for_each(kicks);
}

#[test]
fn no_interrupt_is_lost_and_nothing_is_read_early() {
    cases(2, 2).for_each(calls);
}

/// More buffers than the ring has entries.
#[test]
fn a_ring_that_comes_round_loses_nothing() {
    cases(3, 1).for_each(kicks);
    cases(3, 1).for_each(calls);
}

#[test]
#[ignore = "takes minutes: cargo xtask test --long"]
fn a_ring_that_comes_round_loses_nothing_long() {
    cases(3, 3).for_each(kicks);
    cases(3, 3).for_each(calls);
}

/// Each order is there for something: without it a model fails.
#[test]
fn without_any_of_its_orders_a_handshake_fails() {
    for case in cases(2, 2) {
        for weak in [Weak::Acquire, Weak::Release, Weak::Fence].map(Some) {
            let case = Case { weak, ..case };
            assert!(finds_fault(|| kicks(case)), "the model of kicks does not see what {case:?} lacks");
            assert!(finds_fault(|| calls(case)), "the model of calls does not see what {case:?} lacks");
        }
    }
}
