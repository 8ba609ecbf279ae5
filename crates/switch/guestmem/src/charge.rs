//! What a port has mapped, counted until it is really unmapped.
//!
//! What a front-end replaces is unmapped by a thread that does nothing else, and that may take its time. All ports share one address
//! space, so until then it counts.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// What is mapped for one port: now, or still. It outlives the port's connections.
#[derive(Debug, Default)]
pub struct Mapped {
    bytes: AtomicU64,
    regions: AtomicUsize,
}

impl Mapped {
    /// Sum of the regions' sizes, in bytes.
    pub fn bytes(&self) -> u64 {
        // Acquire, as it is taken off with Release: what no longer counts has been unmapped.
        self.bytes.load(Ordering::Acquire)
    }

    /// Regions.
    pub fn regions(&self) -> usize {
        // As in `bytes`.
        self.regions.load(Ordering::Acquire)
    }
}

/// A region's part of it, until dropped.
#[derive(Debug)]
pub(crate) struct Charge {
    bytes: u64,
    to: Arc<Mapped>,
}

impl Charge {
    pub(crate) fn new(bytes: u64, to: &Arc<Mapped>) -> Self {
        // Relaxed: who adds is the one who compares with limits, a port's own session.
        to.bytes.fetch_add(bytes, Ordering::Relaxed);
        to.regions.fetch_add(1, Ordering::Relaxed);
        Self { bytes, to: to.clone() }
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.to.bytes.fetch_sub(self.bytes, Ordering::Release);
        self.to.regions.fetch_sub(1, Ordering::Release);
    }
}
