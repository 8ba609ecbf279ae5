//! Letters to a thread that sleeps.

use crate::mailbox::Mailbox;
use crate::sync::Epoll;
use crate::{check, spawn};
use std::sync::Arc;

/// One thread sends two letters and another one; the reader sleeps whenever it finds none. It gets all, those of one sender in order.
pub fn every_letter_arrives() {
    check(2, || {
        let mailbox = Arc::new(Mailbox::new().expect("a descriptor"));
        let epoll = Epoll::default();
        mailbox.register(&epoll, 0).expect("a descriptor");
        let senders = [1, 2].map(|sender| {
            let mailbox = mailbox.clone();
            spawn(move || (0..sender).for_each(|n| mailbox.send((sender, n))))
        });
        let mut got = Vec::new();
        while got.len() < 3 {
            let letters = mailbox.take();
            if letters.is_empty() {
                epoll.wait();
            }
            got.extend(letters);
        }
        assert_eq!(mailbox.waiting(), 0);
        for sender in [1, 2] {
            let numbers: Vec<i32> = got.iter().filter(|(from, _)| *from == sender).map(|(_, n)| *n).collect();
            assert_eq!(numbers, (0..sender).collect::<Vec<_>>(), "letters must not overtake each other");
        }
        senders.into_iter().for_each(|sender| sender.join().expect("it ends"));
    });
}

/// Another thread's letter takes the place of those before it that have not been read; one of another kind stays. The reader hears the last of each, if it sleeps whenever it finds none.
pub fn the_last_letter_of_a_kind_arrives() {
    check(2, || {
        let mailbox = Arc::new(Mailbox::new().expect("a descriptor"));
        let epoll = Epoll::default();
        mailbox.register(&epoll, 0).expect("a descriptor");
        let other = mailbox.clone();
        let sender = spawn(move || {
            other.send(("other", 0));
            (1..=2).for_each(|n| other.replace(("kind", n), |(kind, _)| *kind == "kind"));
        });
        let mut got = Vec::new();
        while !(got.contains(&("kind", 2)) && got.contains(&("other", 0))) {
            let letters = mailbox.take();
            if letters.is_empty() {
                epoll.wait();
            }
            got.extend(letters);
        }
        assert_eq!((got.last(), mailbox.waiting()), (Some(&("kind", 2)), 0));
        sender.join().expect("it ends");
    });
}
