//! Answers that wait until a client reads. Open vSwitch reads what it has asked for before it asks for more; who does not is let go when all clients together have
//! left too much unread.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// Most bytes of answers that wait for all clients together: some of the longest.
const MOST: usize = 32 << 20;
/// What each takes beside its bytes.
const EACH: usize = 64;

/// Bytes that wait for all clients together.
#[derive(Clone, Debug, Default)]
pub(crate) struct Unread(Arc<AtomicUsize>);

impl Unread {
    /// Somebody has to be let go.
    pub fn is_too_much(&self) -> bool {
        self.0.load(Relaxed) > MOST
    }
}

/// A client's.
#[derive(Debug)]
pub(crate) struct Answers {
    waiting: VecDeque<Vec<u8>>,
    bytes: usize,
    all: Unread,
}

impl Answers {
    /// None yet. They count as some of `all`.
    pub fn new(all: &Unread) -> Self {
        Self { waiting: VecDeque::new(), bytes: 0, all: all.clone() }
    }

    pub fn push(&mut self, answer: Vec<u8>) {
        self.bytes += answer.len() + EACH;
        self.all.0.fetch_add(answer.len() + EACH, Relaxed);
        self.waiting.push_back(answer);
    }

    /// The next. It stays until it is [taken](Answers::pop).
    pub fn front(&self) -> Option<&[u8]> {
        self.waiting.front().map(Vec::as_slice)
    }

    /// Takes the next.
    pub fn pop(&mut self) -> Option<Vec<u8>> {
        let answer = self.waiting.pop_front()?;
        self.bytes -= answer.len() + EACH;
        self.all.0.fetch_sub(answer.len() + EACH, Relaxed);
        Some(answer)
    }

    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// How much they take.
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

impl Drop for Answers {
    fn drop(&mut self) {
        self.all.0.fetch_sub(self.bytes, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_waits_for_all_is_what_waits_for_each() {
        let all = Unread::default();
        let [mut a, mut b] = [(); 2].map(|()| Answers::new(&all));
        a.push(vec![1; MOST / 2]);
        b.push(vec![2; MOST / 4]);
        b.push(vec![3; MOST / 4 - 4 * EACH]);
        assert!(!all.is_too_much() && a.bytes() == MOST / 2 + EACH && b.bytes() == MOST / 2 - 2 * EACH);
        b.push(vec![4; EACH]);
        assert!(all.is_too_much());
        assert_eq!((b.front().map(<[u8]>::len), b.pop().map(|taken| taken.len())), (Some(MOST / 4), Some(MOST / 4)));
        assert!(!all.is_too_much());
        b.push(vec![5; MOST]);
        assert!(all.is_too_much());
        drop(b);
        assert!(!all.is_too_much() && all.0.load(Relaxed) == a.bytes());
        assert!(a.pop().is_some() && a.pop().is_none() && a.is_empty() && all.0.load(Relaxed) == 0);
    }
}
