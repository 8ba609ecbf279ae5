//! The rings between switch and control: what is published is seen whole, and whoever sleeps is woken, for messages and for room.

use crate::ring::{Consumer, HEAD, LINE, Place, Producer};
use crate::sync::{AtomicU64, weaken};
use crate::{check, spawn};
use lasthop_guestmem::Weak;
use loom::sync::Notify;
use std::sync::Arc;

const PLACE: Place = Place { head: 0, data: HEAD, lines: 2 };

/// What a model runs with.
#[derive(Clone, Copy, Debug)]
pub struct Case {
    /// Without this order.
    pub weak: Option<Weak>,
    /// Messages that pass; with more than two the ring comes round.
    pub messages: u64,
    /// How often a thread may be interrupted.
    pub preemptions: usize,
}

/// One end sends, and sleeps when there is no room; the other sleeps when there is no message. Every message comes, in order and
/// whole. A doorbell is a message on a socket: it stays until it is read.
pub fn messages(case: Case) {
    weaken(case.weak);
    check(case.preemptions, move || {
        let memory: Arc<Vec<_>> = Arc::new((0..HEAD + 2 * LINE).map(|_| AtomicU64::new(0)).collect());
        let (sender_rung, reader_rung) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
        let (shared, rung, ring) = (memory.clone(), sender_rung.clone(), reader_rung.clone());
        let sends = spawn(move || {
            let mut producer = Producer::new(PLACE);
            for n in 1..=case.messages {
                let message = [(16u64 << 32 | n).to_ne_bytes(), n.to_ne_bytes()];
                while !producer.put(&shared, message.as_flattened(), PLACE.lines).expect("it keeps the rules") {
                    rung.wait();
                }
                if producer.publish(&shared) {
                    ring.notify();
                }
            }
        });
        let (mut consumer, mut words) = (Consumer::new(PLACE), Vec::new());
        for n in 1..=case.messages {
            while consumer.take(&memory, &mut words).expect("it keeps the rules").is_none() {
                if consumer.rest(&memory).expect("it keeps the rules") {
                    reader_rung.wait();
                }
            }
            assert_eq!(words, [16 << 32 | n, n], "a message must be whole");
            if consumer.free(&memory) {
                sender_rung.notify();
            }
        }
        sends.join().expect("it ends");
    });
    weaken(None);
}
