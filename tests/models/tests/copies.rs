//! Copies by a device's DMA engine, in every order, and the models see what each order is there for.

use lasthop_guestmem::Weak;
use lasthop_tests_models::copies::{Goes, each_copy_is_made_once, the_engine_is_woken};
use lasthop_tests_models::finds_fault;

#[test]
fn each_copy_is_made_once_whoever_takes_it_back_or_lets_its_memory_go() {
    [Goes::Source, Goes::Destination].into_iter().for_each(|goes| each_copy_is_made_once(goes, None, 1));
}

#[test]
fn the_engine_is_woken_for_work() {
    the_engine_is_woken(None, 2, 3);
}

#[test]
#[ignore = "takes minutes: cargo xtask test --long"]
fn each_copy_is_made_once_long() {
    [Goes::Source, Goes::Destination].into_iter().for_each(|goes| each_copy_is_made_once(goes, None, 2));
    the_engine_is_woken(None, 2, 5);
}

/// Each order is there for something: without it a model fails.
#[test]
fn without_any_of_their_orders_copies_are_wrong() {
    for weak in [Weak::Acquire, Weak::Release] {
        assert!(
            finds_fault(|| each_copy_is_made_once(Goes::Source, Some(weak), 1)),
            "the model does not see what is lacking: {weak:?}"
        );
    }
    for weak in [Weak::Acquire, Weak::Release, Weak::Fence] {
        assert!(
            finds_fault(|| the_engine_is_woken(Some(weak), 2, 3)),
            "the model does not see what is lacking: {weak:?}"
        );
    }
}
