//! Lists that are long, and written out as they are told.
//!
//! What an answer consists of is shared or counted when somebody asks; its lines are made page by page, when the client has read the page
//! before. So a call for 262 144 rules takes the thread that answers misses no longer than one for a few.

use std::fmt;

/// A list of lines to come.
pub(crate) struct Lines<T> {
    total: usize,
    lines: Box<dyn Iterator<Item = T>>,
}

impl<T> Lines<T> {
    /// `lines` makes one at a time, `total` in all.
    pub fn new(total: usize, lines: impl Iterator<Item = T> + 'static) -> Self {
        Self { total, lines: Box::new(lines) }
    }

    /// How many there are in all.
    pub fn total(&self) -> usize {
        self.total
    }
}

impl<T: 'static> From<Vec<T>> for Lines<T> {
    fn from(list: Vec<T>) -> Self {
        Self::new(list.len(), list.into_iter())
    }
}

impl<T> Iterator for Lines<T> {
    type Item = T;

    fn next(&mut self) -> Option<T> {
        self.lines.next()
    }
}

impl<T> fmt::Debug for Lines<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lines").field("total", &self.total).finish_non_exhaustive()
    }
}
