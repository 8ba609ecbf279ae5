//! What a guest takes back is let go of, in every order, and the model sees what each order is there for.

use lasthop_guestmem::Weak;
use lasthop_tests_models::finds_fault;
use lasthop_tests_models::revocations::pages_are_let_go;

#[test]
fn a_page_that_is_taken_away_is_let_go_of() {
    assert_eq!(
        pages_are_let_go(2, 2, None, 3),
        (true, true),
        "the ring is found at rest, and at work, in some order each"
    );
}

#[test]
#[ignore = "takes minutes: cargo xtask test --long"]
fn a_page_that_is_taken_away_is_let_go_of_long() {
    assert_eq!(pages_are_let_go(3, 3, None, 5), (true, true));
}

/// Each order is there for something: without it the model fails.
#[test]
fn without_any_of_its_orders_a_page_is_used_on() {
    for weak in [Weak::Acquire, Weak::Release, Weak::Fence] {
        assert!(
            finds_fault(|| _ = pages_are_let_go(2, 2, Some(weak), 3)),
            "the model does not see what is lacking: {weak:?}"
        );
    }
}
