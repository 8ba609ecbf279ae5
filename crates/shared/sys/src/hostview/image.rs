//! The memory of a [`super::HostView`], written from user space: what the supervisor starts with, and what tests hand to
//! code that reads one.

pub mod layout;

use super::{CorePlace, CoreState, VmState};
use layout::{
    CORE_PLACE, CORE_SINCE, CORE_WHAT, CORE_WHO, HEAD_CORES, HEAD_LIVE, HEAD_VMS, IDLE, IDLE_CLASS, KNOWN, LINE, MAGIC,
    VM_CORE, VM_PREEMPTED, VM_RUNNING, VM_SINCE,
};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use rustix::io::{Errno, pread, pwrite};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// A memfd of that form. Views of it see every later `set_…` at once:
///
/// ```
/// use lasthop_sys::hostview::{HostView, VmState, image::HostImage};
/// let image = HostImage::new(4, 16)?;
/// image.set_live(true)?;
/// let view = HostView::map(&image)?;
/// image.set_vm(3, VmState::Running { core: 2 })?;
/// assert_eq!(view.vm(3), Some(VmState::Running { core: 2 }));
/// # Ok::<(), rustix::io::Errno>(())
/// ```
#[derive(Debug)]
pub struct HostImage {
    fd: OwnedFd,
    cores: usize,
    vms: usize,
}

impl HostImage {
    /// Nothing is known of `cores` cores and `vms` VM slots; each core is a physical one with a cache of its own.
    pub fn new(cores: usize, vms: usize) -> Result<Self, Errno> {
        let fd = memfd_create("lasthop-hostview", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        let image = Self { fd, cores, vms };
        ftruncate(&image.fd, image.len() as u64)?;
        image.put(0, 0, MAGIC)?;
        image.put(0, HEAD_CORES, cores as u64)?;
        image.put(0, HEAD_VMS, vms as u64)?;
        for core in 0..cores {
            image.set_place(core, CorePlace { llc: core as u32, physical: core as u32 })?;
        }
        Ok(image)
    }

    /// Length in bytes.
    fn len(&self) -> usize {
        (1 + self.cores + self.vms) * LINE
    }

    fn put(&self, line: usize, word: usize, value: u64) -> Result<(), Errno> {
        pwrite(&self.fd, &value.to_ne_bytes(), (line * LINE + word * 8) as u64).map(drop)
    }

    fn core_line(&self, core: usize) -> Result<usize, Errno> {
        if core < self.cores { Ok(1 + core) } else { Err(Errno::INVAL) }
    }

    /// Whether somebody keeps cores and VMs up to date.
    pub fn set_live(&self, live: bool) -> Result<(), Errno> {
        self.put(0, HEAD_LIVE, u64::from(live))
    }

    /// Where a core lies.
    pub fn set_place(&self, core: usize, place: CorePlace) -> Result<(), Errno> {
        let word = u64::from(place.physical) << 32 | u64::from(place.llc);
        self.put(self.core_line(core)?, CORE_PLACE, word)
    }

    /// What a core does.
    pub fn set_core(&self, core: usize, state: CoreState) -> Result<(), Errno> {
        let line = self.core_line(core)?;
        let bit = |set: bool, bit: u64| if set { bit } else { 0 };
        self.put(line, CORE_WHO, u64::from(state.tgid))?;
        self.put(line, CORE_SINCE, state.since_ns)?;
        self.put(line, CORE_WHAT, KNOWN | bit(state.idle, IDLE) | bit(state.idle_class_only, IDLE_CLASS))
    }

    /// What a VM does.
    pub fn set_vm(&self, slot: u32, state: VmState) -> Result<(), Errno> {
        if slot as usize >= self.vms {
            return Err(Errno::INVAL);
        }
        let line = 1 + self.cores + slot as usize;
        self.put(line, VM_PREEMPTED, 0)?;
        match state {
            VmState::Running { core } => {
                self.put(line, VM_CORE, u64::from(core))?;
                self.put(line, VM_RUNNING, 1)
            }
            VmState::Blocked { since_ns } => {
                self.put(line, VM_SINCE, since_ns)?;
                self.put(line, VM_RUNNING, 0)
            }
        }
    }

    /// All of it.
    pub fn bytes(&self) -> Result<Vec<u8>, Errno> {
        let mut bytes = vec![0; self.len()];
        let read = pread(&self.fd, &mut bytes[..], 0)?;
        if read == bytes.len() { Ok(bytes) } else { Err(Errno::IO) }
    }

    /// The memory, which nobody can change any more.
    pub fn into_frozen(self) -> Result<OwnedFd, Errno> {
        fcntl_add_seals(&self.fd, SealFlags::SHRINK | SealFlags::GROW | SealFlags::WRITE | SealFlags::SEAL)?;
        Ok(self.fd)
    }
}

impl AsFd for HostImage {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::super::HostView;
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        let image = HostImage::new(3, 2).unwrap();
        let view = HostView::map(&image).unwrap();
        assert_eq!((view.cores(), view.is_live()), (3, false));
        assert_eq!((view.core(0), view.vm(0)), (None, None), "nothing is known yet");
        assert_eq!(view.place(2), Some(CorePlace { llc: 2, physical: 2 }));
        image.set_place(2, CorePlace { llc: 0, physical: 1 }).unwrap();
        assert_eq!(view.place(2), Some(CorePlace { llc: 0, physical: 1 }));

        image.set_live(true).unwrap();
        let busy = CoreState { idle: false, idle_class_only: true, tgid: 7, since_ns: u64::MAX };
        let idle = CoreState { idle: true, ..CoreState::default() };
        image.set_core(0, busy).unwrap();
        image.set_core(2, idle).unwrap();
        assert_eq!((view.core(0), view.core(1), view.core(2)), (Some(busy), None, Some(idle)));
        for state in [VmState::Running { core: 2 }, VmState::Blocked { since_ns: 5 }, VmState::Running { core: 0 }] {
            image.set_vm(1, state).unwrap();
            assert_eq!(view.vm(1), Some(state));
        }
        image.put(1 + 3, VM_PREEMPTED, 1).unwrap();
        assert_eq!(view.vm(0), Some(VmState::Running { core: 0 }), "preempted is not blocked");
    }

    #[test]
    fn beyond_the_end_nothing_is_known() {
        let image = HostImage::new(2, 1).unwrap();
        image.set_live(true).unwrap();
        let view = HostView::map(&image).unwrap();
        for core in [2, 3, 4, 1 << 20, usize::MAX] {
            assert_eq!((view.core(core), view.place(core)), (None, None), "{core}");
        }
        assert_eq!((view.vm(1), view.vm(u32::MAX)), (None, None));
        assert!(view.vm(0).is_some());
        assert_eq!(image.set_core(2, CoreState::default()), Err(Errno::INVAL));
        assert_eq!(image.set_vm(1, VmState::Blocked { since_ns: 0 }), Err(Errno::INVAL));
    }

    #[test]
    fn other_memory_is_refused_and_frozen_memory_stays_as_it_is() {
        let other = crate::memfd("other", 4096).unwrap();
        assert_eq!(HostView::map(&other).unwrap_err(), Errno::INVAL);
        let frozen = HostImage::new(1, 1).unwrap().into_frozen().unwrap();
        assert_eq!(HostView::map(&frozen).unwrap().cores(), 1);
        assert_eq!(pwrite(&frozen, &[1], 0), Err(Errno::PERM));
    }
}
