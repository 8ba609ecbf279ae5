use crate::ring::{Consumer, HEAD, LINE, PUBLISHED, Place, Producer, ROOM_AT, TAKEN, WAKE_AT};
use crate::sync::{AtomicU64, Ordering::Relaxed};
use proptest::prelude::*;
use std::collections::VecDeque;

const PLACE: Place = Place { head: 0, data: HEAD, lines: 16 };

fn memory() -> Vec<AtomicU64> {
    (0..HEAD + PLACE.lines as usize * LINE).map(|_| AtomicU64::new(0)).collect()
}

/// A message of so many bytes that tells itself from others.
fn message(len: usize, mark: u8) -> Vec<u8> {
    let mut bytes = vec![mark; len];
    bytes[4..8].copy_from_slice(&(len as u32).to_ne_bytes());
    bytes
}

fn bytes(words: &[u64], len: usize) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_ne_bytes()).take(len).collect()
}

#[test]
fn a_full_ring_takes_nothing_and_rings_when_half_is_free() {
    let memory = memory();
    let (mut producer, mut consumer, mut words) = (Producer::new(PLACE), Consumer::new(PLACE), Vec::new());
    let mut sent = 0;
    while producer.put(&memory, &message(64, sent), PLACE.lines).unwrap() {
        sent += 1;
    }
    assert_eq!(sent, 16);
    assert_eq!(consumer.take(&memory, &mut words), Ok(None), "not published");
    assert!(producer.publish(&memory), "who has never looked sleeps");
    for n in 0..16u8 {
        assert_eq!(consumer.take(&memory, &mut words), Ok(Some(64)));
        assert_eq!(bytes(&words, 64), message(64, n));
        assert_eq!(consumer.free(&memory), n == 8, "{n}");
    }
    assert_eq!(consumer.take(&memory, &mut words), Ok(None));
    assert_eq!(producer.put(&memory, &message(64, 0), PLACE.lines), Ok(true));
}

#[test]
fn one_sleep_is_one_doorbell() {
    let memory = memory();
    let (mut producer, mut consumer, mut words) = (Producer::new(PLACE), Consumer::new(PLACE), Vec::new());
    let put = |producer: &mut Producer| {
        producer.put(&memory, &message(16, 1), PLACE.lines).unwrap();
        producer.publish(&memory)
    };
    assert!(put(&mut producer));
    assert!(!put(&mut producer) && !put(&mut producer), "woken already");
    assert_eq!(consumer.rest(&memory), Ok(false), "there is something");
    while consumer.take(&memory, &mut words).unwrap().is_some() {}
    assert!(!put(&mut producer), "it is awake");
    assert_eq!(consumer.rest(&memory), Ok(false), "it came meanwhile");
    consumer.take(&memory, &mut words).unwrap();
    assert_eq!(consumer.rest(&memory), Ok(true));
    assert!(put(&mut producer) && !put(&mut producer));
}

#[test]
fn what_must_not_fill_the_ring_leaves_room_for_others() {
    let memory = memory();
    let mut producer = Producer::new(PLACE);
    let filled = (0..).take_while(|n| producer.put(&memory, &message(64, *n), 4).unwrap()).count();
    assert_eq!(filled, 4);
    assert_eq!(producer.put(&memory, &message(512, 9), PLACE.lines), Ok(true));
}

#[test]
fn a_producer_that_writes_nonsense_is_found_out() {
    let broken = |word: usize, value: u64| {
        let memory = memory();
        let (mut producer, mut consumer, mut words) = (Producer::new(PLACE), Consumer::new(PLACE), Vec::new());
        producer.put(&memory, &message(200, 1), PLACE.lines).unwrap();
        let _ = producer.publish(&memory);
        memory[word].store(value, Relaxed);
        let first = consumer.take(&memory, &mut words);
        assert!(words.len() <= PLACE.most() as usize * LINE);
        first.and_then(|_| consumer.rest(&memory))
    };
    assert!(broken(WAKE_AT, 77).is_ok() && broken(ROOM_AT, u64::MAX).is_ok(), "its own loss");
    // More than the ring holds; fewer than there were; a part of a message.
    for published in [17, u64::MAX, 1 << 40, 1, 3] {
        assert!(broken(PUBLISHED, published).is_err(), "{published}");
    }
    // No length, more than half of the ring, more than was published, all that a length can say.
    for len in [0, 9 * 64, 5 * 64, u64::from(u32::MAX)] {
        assert!(broken(HEAD, len << 32).is_err(), "{len}");
    }
    assert!(broken(HEAD, 1 << 32).is_ok(), "short, but there: it is for who decodes it");
}

#[test]
fn a_consumer_that_writes_nonsense_is_found_out() {
    for (taken, right) in [(0, true), (3, true), (4, false), (u64::MAX, false), (1 << 63, false)] {
        let memory = memory();
        let mut producer = Producer::new(PLACE);
        for n in 0..3 {
            producer.put(&memory, &message(64, n), PLACE.lines).unwrap();
        }
        let _ = producer.publish(&memory);
        // Not published: nobody can have taken it.
        producer.put(&memory, &message(64, 3), PLACE.lines).unwrap();
        memory[TAKEN].store(taken, Relaxed);
        let result = producer.put(&memory, &message(64, 4), 4);
        assert_eq!(result.is_ok(), right, "{taken}: {result:?}");
    }
    // It goes back.
    let memory = memory();
    let mut producer = Producer::new(PLACE);
    producer.put(&memory, &message(512, 0), PLACE.lines).unwrap();
    let _ = producer.publish(&memory);
    memory[TAKEN].store(8, Relaxed);
    assert_eq!(producer.put(&memory, &message(512, 0), 8), Ok(true));
    memory[TAKEN].store(7, Relaxed);
    assert!(producer.put(&memory, &message(512, 0), 8).is_err());
}

#[derive(Clone, Debug)]
enum Do {
    Put(usize),
    Publish,
    Take,
    Free,
    Rest,
}

fn steps() -> impl Strategy<Value = Vec<Do>> {
    let one = prop_oneof![
        4 => (8usize..=512).prop_map(Do::Put),
        2 => Just(Do::Publish),
        4 => Just(Do::Take),
        2 => Just(Do::Free),
        1 => Just(Do::Rest),
    ];
    proptest::collection::vec(one, 0..400)
}

proptest! {
    /// Whatever both do, it is a queue; and who waits is woken.
    #[test]
    fn it_is_a_queue(steps in steps()) {
        let memory = memory();
        let (mut producer, mut consumer, mut words) = (Producer::new(PLACE), Consumer::new(PLACE), Vec::new());
        let (mut inside, mut published, mut mark) = (VecDeque::new(), 0, 0u8);
        let (mut asleep, mut stuck) = (true, false);
        for step in steps {
            match step {
                Do::Put(len) => {
                    let lines: usize = inside.iter().map(|(len, _): &(usize, u8)| len.div_ceil(64)).sum();
                    let put = producer.put(&memory, &message(len, mark), PLACE.lines).unwrap();
                    if put {
                        prop_assert!(lines + len.div_ceil(64) <= 16);
                        inside.push_back((len, mark));
                        mark = mark.wrapping_add(1);
                    }
                    stuck = !put;
                }
                Do::Publish => {
                    let rings = producer.publish(&memory);
                    prop_assert!(rings || !asleep || published == inside.len());
                    published = inside.len();
                    asleep &= !rings;
                }
                Do::Take => {
                    let taken = consumer.take(&memory, &mut words).unwrap();
                    prop_assert_eq!(taken.is_some(), published > 0);
                    if let Some(len) = taken {
                        let (sent, mark) = inside.pop_front().unwrap();
                        published -= 1;
                        prop_assert_eq!(bytes(&words, len), message(sent, mark));
                    }
                }
                Do::Free => {
                    let rings = consumer.free(&memory);
                    // All is taken, and it knows.
                    prop_assert!(rings || !stuck || !inside.is_empty() || producer.put(&memory, &message(8, 0), 16).unwrap());
                    if rings {
                        stuck = false;
                    }
                    if inside.is_empty() {
                        // What was put to see is taken out again.
                        let _ = producer.publish(&memory);
                        while consumer.take(&memory, &mut words).unwrap().is_some() {}
                        let _ = consumer.free(&memory);
                        asleep = false;
                    }
                }
                Do::Rest => {
                    asleep = consumer.rest(&memory).unwrap();
                    prop_assert_eq!(asleep, published == 0);
                }
            }
        }
    }

    /// Whatever stands in the memory: a message of ours, or nothing more is believed.
    #[test]
    fn any_words_do_no_harm(words in proptest::collection::vec(prop_oneof![any::<u64>(), 0u64..40, (0u64..700).prop_map(|n| n << 32)], HEAD + 128), turns in 1usize..20) {
        let memory: Vec<_> = words.into_iter().map(AtomicU64::new).collect();
        let (mut producer, mut consumer, mut out) = (Producer::new(PLACE), Consumer::new(PLACE), Vec::new());
        for _ in 0..turns {
            if let Ok(Some(len)) = consumer.take(&memory, &mut out) {
                prop_assert!(len > 0 && len <= 512 && out.len() == len.div_ceil(8));
            }
            let _ = (consumer.free(&memory), consumer.rest(&memory));
            let _ = (producer.put(&memory, &message(300, 1), 16), producer.publish(&memory));
        }
    }
}
