//! What threads of the switch say to each other arrives, in every order.

use lasthop_tests_models::{locks, mailboxes, owners};

#[test]
fn every_letter_arrives() {
    mailboxes::every_letter_arrives();
}

#[test]
fn the_last_letter_of_a_kind_arrives() {
    mailboxes::the_last_letter_of_a_kind_arrives();
}

#[test]
fn who_is_named_is_named_back() {
    locks::who_is_named_is_named_back();
}

#[test]
fn readers_and_a_writer() {
    locks::readers_and_a_writer();
}

#[test]
fn who_is_asked_for_is_not_idle() {
    locks::who_is_asked_for_is_not_idle();
}

#[test]
fn one_owner_at_a_time() {
    owners::one_owner_at_a_time();
}

#[test]
fn no_packet_is_left_behind() {
    for lost in [false, true] {
        for rounds in [1, 2] {
            owners::no_packet_is_left(lost, rounds, 1, 2);
        }
    }
}

#[test]
#[ignore = "takes minutes: cargo xtask test --long"]
fn no_packet_is_left_behind_long() {
    for lost in [false, true] {
        for rounds in [1, 2, 3] {
            owners::no_packet_is_left(lost, rounds, 1, 3);
            owners::no_packet_is_left(lost, rounds, 2, 2);
        }
    }
}
