//! What happens when the file under a mapping is truncated: reading past its new end raises SIGBUS.
//!
//! The handler replaces the whole mapping with private zero pages and marks it; whoever was copying goes on with zeros
//! and finds the mark afterwards. (The seeds' memory sharing does the same with a revoked page: PhD §3.4.3.)

use std::sync::Once;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// Mappings that can be watched at a time.
const SLOTS: usize = 8192;

struct Watched {
    start: AtomicUsize,
    len: AtomicUsize,
    faulted: AtomicBool,
}

static WATCHED: [Watched; SLOTS] =
    [const { Watched { start: AtomicUsize::new(0), len: AtomicUsize::new(0), faulted: AtomicBool::new(false) } };
        SLOTS];

/// A mapping's place in the table that the handler searches.
#[derive(Debug)]
pub(crate) struct Slot(usize);

impl Slot {
    /// Registers `[start, start + len)`. `None` when the table is full.
    pub(crate) fn claim(start: usize, len: usize) -> Option<Self> {
        for (i, w) in WATCHED.iter().enumerate() {
            if w.start.compare_exchange(0, start, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
                w.faulted.store(false, Ordering::Relaxed);
                w.len.store(len, Ordering::Release);
                return Some(Self(i));
            }
        }
        None
    }

    pub(crate) fn faulted(&self) -> bool {
        WATCHED[self.0].faulted.load(Ordering::Acquire)
    }

    pub(crate) fn release(&self) {
        WATCHED[self.0].len.store(0, Ordering::Release);
        WATCHED[self.0].start.store(0, Ordering::Release);
    }
}

/// Installs the handler, once per process; call before the first region is mapped.
pub fn install_fault_handler() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // SAFETY: sigaction with a zeroed, then filled-in struct; the handler only uses atomics and the mmap and
        // sigaction system calls, which are safe in a signal handler.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = on_sigbus as *const () as usize;
            action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_NODEFER;
            libc::sigemptyset(&mut action.sa_mask);
            libc::sigaction(libc::SIGBUS, &action, std::ptr::null_mut());
        }
    });
}

extern "C" fn on_sigbus(_: libc::c_int, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
    // SAFETY: the kernel passes a valid siginfo to an SA_SIGINFO handler; for SIGBUS it has an address.
    let addr = unsafe { (*info).si_addr() } as usize;
    for w in &WATCHED {
        let start = w.start.load(Ordering::Acquire);
        let len = w.len.load(Ordering::Acquire);
        if start == 0 || addr < start || addr - start >= len {
            continue;
        }
        // SAFETY: `[start, len)` is a live mapping of this crate: somebody is accessing it right now, and Region's
        // owner keeps it alive meanwhile. Replacing it keeps every pointer into it valid.
        let mapped = unsafe {
            libc::mmap(
                start as *mut libc::c_void,
                len,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_FIXED | libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
                -1,
                0,
            )
        };
        if mapped != libc::MAP_FAILED {
            w.faulted.store(true, Ordering::Release);
            return;
        }
    }
    // Not ours: the default action, when the instruction is tried again, is to die with a core dump.
    // SAFETY: as in `install_fault_handler`.
    unsafe { libc::signal(libc::SIGBUS, libc::SIG_DFL) };
}
