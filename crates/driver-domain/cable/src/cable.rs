//! Both directions, and the thread that carries: in bursts while there is something, asleep while there is nothing.

use crate::memory::{MemoryError, SharedMemory};
use crate::plug::{PlugError, plug_in};
use crate::way::{Way, WayError};
use lasthop_sys::EventFd;
use lasthop_vhostuser::Frontend;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::time::Timespec;

/// Rounds with something to carry after which it is looked whether both switches are still there.
const ROUNDS: u32 = 64;
const AT_ONCE: Timespec = Timespec { tv_sec: 0, tv_nsec: 0 };

/// Why a cable ends.
#[derive(Debug, thiserror::Error)]
pub enum CableError {
    /// It could not be made.
    #[error(transparent)]
    Memory(#[from] MemoryError),
    /// The kernel refused.
    #[error("{0}")]
    Io(#[from] Errno),
    /// It could not be plugged in.
    #[error("end {end}: {source}")]
    Plug {
        /// 0 or 1.
        end: usize,
        /// Why.
        source: PlugError,
    },
    /// A switch broke the rules.
    #[error("a switch broke the rules: {0}")]
    Way(#[from] WayError),
    /// A switch is gone, or has another front-end.
    #[error("end {0} is gone")]
    Gone(usize),
    /// A switch finds a ring broken.
    #[error("end {0} finds a ring broken")]
    Broken(usize),
}

/// A cable with its memory.
#[derive(Debug)]
pub struct Cable {
    memory: SharedMemory,
    /// From the first switch to the second, and back.
    ways: [Way; 2],
    /// By end: signalled by its switch when it finds a ring broken.
    broken: [EventFd; 2],
}

impl Cable {
    /// Makes the memory, its rings and buffers.
    pub fn new() -> Result<Self, CableError> {
        let (memory, ways) = SharedMemory::new()?;
        Ok(Self { memory, ways, broken: [EventFd::new()?, EventFd::new()?] })
    }

    /// Plugs both ends in, the last first: whoever has to wait for its switch is named there.
    pub fn plug_in(&mut self, fronts: &mut [Frontend; 2]) -> Result<(), CableError> {
        let [there, back] = &mut self.ways;
        there.fill()?;
        back.fill()?;
        let rings = [[&there.receive, &back.send], [&back.receive, &there.send]];
        for end in [1, 0] {
            plug_in(&mut fronts[end], &self.memory, rings[end], &self.broken[end])
                .map_err(|source| CableError::Plug { end, source })?;
        }
        Ok(())
    }

    /// Carries packets until one of the ends is gone, or breaks the rules: the error says which.
    pub fn carry(mut self, fronts: &[Frontend; 2]) -> CableError {
        loop {
            if let Err(e) = self.carry_all().and_then(|more| self.sleep(fronts, more)) {
                return e;
            }
        }
    }

    /// Carries what there is; true if there may be more.
    fn carry_all(&mut self) -> Result<bool, CableError> {
        let [there, back] = &mut self.ways;
        for _ in 0..ROUNDS {
            if !(there.carry()? | back.carry()?) && !(there.prepare_to_sleep() | back.prepare_to_sleep()) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Looks whether the ends are still there; waits, unless there is more to carry.
    fn sleep(&mut self, fronts: &[Frontend; 2], more: bool) -> Result<(), CableError> {
        let [there, back] = &self.ways;
        let calls = [&there.receive, &there.send, &back.receive, &back.send].map(|end| &end.call);
        let [first, second] = &self.broken;
        // In the order in which what is found is reported: a switch that is gone says nothing more.
        let mut fds = [PollFd::new(&fronts[0], PollFlags::IN), PollFd::new(&fronts[1], PollFlags::IN)]
            .into_iter()
            .chain([PollFd::new(first, PollFlags::IN), PollFd::new(second, PollFlags::IN)])
            .chain(calls.into_iter().map(|call| PollFd::new(call, PollFlags::IN)))
            .collect::<arrayvec::ArrayVec<_, 8>>();
        match poll(&mut fds, more.then_some(&AT_ONCE)) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(e) => return Err(e.into()),
        }
        // A back-end has nothing to say unasked, but that it is gone.
        let heard = |n: usize| fds.get(n).is_some_and(|fd| !fd.revents().is_empty());
        for end in [0, 1] {
            if heard(end) {
                return Err(CableError::Gone(end));
            }
            if heard(end + 2) {
                return Err(CableError::Broken(end));
            }
        }
        drop(fds);
        self.ways.iter_mut().for_each(Way::awake);
        Ok(())
    }
}
