//! bpf(2): as much of it as it takes to load a program, to attach it to a tracepoint or an interface, and to share memory
//! with it. Only for processes with CAP_BPF and CAP_PERFMON or CAP_NET_ADMIN (or root); everybody else gets `EPERM`.

pub mod assembler;
mod mapped;

pub use mapped::MappedValue;

use crate::sched::last_errno;
use rustix::io::Errno;
use std::ffi::CStr;
use std::mem::size_of;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

/// Numbers of linux/bpf.h, `enum bpf_cmd`.
mod command {
    pub(super) const MAP_CREATE: libc::c_int = 0;
    pub(super) const MAP_UPDATE_ELEM: libc::c_int = 2;
    pub(super) const MAP_DELETE_ELEM: libc::c_int = 3;
    pub(super) const PROG_LOAD: libc::c_int = 5;
    pub(super) const PROG_TEST_RUN: libc::c_int = 10;
    pub(super) const RAW_TRACEPOINT_OPEN: libc::c_int = 17;
    pub(super) const MAP_FREEZE: libc::c_int = 22;
    pub(super) const LINK_CREATE: libc::c_int = 28;
}

/// Kinds of map, `enum bpf_map_type` with the flags we make them with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MapKind {
    /// A hash table; it allocates nothing while programs run.
    Hash,
    /// An array that user space may map.
    MappedArray,
    /// A hash table that forgets what was not used for longest when it is full.
    LruHash,
    /// Descriptors of AF_XDP sockets by number.
    XdpSockets,
}

/// Kinds of program, `enum bpf_prog_type`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProgramKind {
    /// At a tracepoint, its arguments typed: the type `btf_trace_NAME` of the kernel's BTF has the number.
    TypedTracepoint(u32),
    /// Run by hand: [`BpfProgram::run_on`].
    RawTracepoint,
    /// On a network interface: [`BpfProgram::attach_to_interface`].
    Xdp,
}

/// A map: memory that programs and user space share.
#[derive(Debug)]
pub struct BpfMap {
    fd: OwnedFd,
    key: usize,
    value: usize,
}

impl BpfMap {
    /// Makes one with `entries` values of `value` bytes under keys of `key` bytes. `name` has at most 15 bytes.
    pub fn new(kind: MapKind, name: &CStr, key: usize, value: usize, entries: u32) -> Result<Self, Errno> {
        #[repr(C)]
        struct Create {
            kind: u32,
            key_size: u32,
            value_size: u32,
            max_entries: u32,
            flags: u32,
            inner_map: u32,
            numa_node: u32,
            name: [u8; 16],
        }
        let (kind, flags) = match kind {
            MapKind::Hash => (1, 0),
            MapKind::MappedArray => (2, 1 << 10),
            MapKind::LruHash => (9, 0),
            MapKind::XdpSockets => (17, 0),
        };
        let size = |bytes: usize| u32::try_from(bytes).map_err(|_| Errno::INVAL);
        let create = Create {
            kind,
            key_size: size(key)?,
            value_size: size(value)?,
            max_entries: entries,
            flags,
            inner_map: 0,
            numa_node: 0,
            name: short(name),
        };
        // SAFETY: MAP_CREATE reads the structure and no memory beyond it.
        let fd = unsafe { bpf(command::MAP_CREATE, &create)? };
        // SAFETY: the kernel has just made the descriptor for us.
        Ok(Self { fd: unsafe { OwnedFd::from_raw_fd(fd) }, key, value })
    }

    /// One that another process has made, with keys and values of so many bytes.
    pub fn kept(fd: OwnedFd, key: usize, value: usize) -> Self {
        Self { fd, key, value }
    }

    /// Puts a value under a key. `INVAL` if one of them has another length than the map's.
    pub fn put(&self, key: &[u8], value: &[u8]) -> Result<(), Errno> {
        if value.len() != self.value {
            return Err(Errno::INVAL);
        }
        self.element(command::MAP_UPDATE_ELEM, key, value.as_ptr() as u64)
    }

    /// Takes a key out; `NOENT` if it is not in.
    pub fn remove(&self, key: &[u8]) -> Result<(), Errno> {
        self.element(command::MAP_DELETE_ELEM, key, 0)
    }

    fn element(&self, command: libc::c_int, key: &[u8], value: u64) -> Result<(), Errno> {
        #[repr(C)]
        struct Element {
            map: RawFd,
            pad: u32,
            key: u64,
            value: u64,
            flags: u64,
        }
        if key.len() != self.key {
            return Err(Errno::INVAL);
        }
        let element = Element { map: self.fd.as_raw_fd(), pad: 0, key: key.as_ptr() as u64, value, flags: 0 };
        // SAFETY: the kernel reads as many bytes of key and value as the map was made for; both callers have checked that
        // they are there, or ask for a command that does not look at the value.
        unsafe { bpf(command, &element) }.map(drop)
    }

    /// Maps the only value of a [`MapKind::MappedArray`] into this process, to be read and written while programs do.
    pub fn mapped(&self) -> Result<MappedValue, Errno> {
        MappedValue::map(&self.fd, self.value)
    }

    /// From now on only programs may write; user space may read. Fails while a writable mapping exists.
    pub fn freeze(&self) -> Result<(), Errno> {
        let map = self.fd.as_raw_fd();
        // SAFETY: MAP_FREEZE reads the number of the descriptor.
        unsafe { bpf(command::MAP_FREEZE, &map) }.map(drop)
    }
}

impl AsFd for BpfMap {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Why the kernel refused a program.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{errno}{}", last_line(.log))]
pub struct LoadError {
    /// `PERM` without the capabilities, `INVAL` or `ACCES` when the verifier did not like it.
    pub errno: Errno,
    /// What the verifier said; empty if it did not come to that.
    pub log: String,
}

fn last_line(log: &str) -> String {
    let said = log.lines().rev().find(|line| !line.trim().is_empty() && !line.starts_with("processed "));
    said.map(|line| format!(" ({})", line.trim())).unwrap_or_default()
}

/// A loaded program.
#[derive(Debug)]
pub struct BpfProgram(OwnedFd);

impl BpfProgram {
    /// One that another program of this process has loaded.
    pub fn kept(fd: OwnedFd) -> Self {
        Self(fd)
    }

    /// Loads the instructions. `license` as the kernel knows it: many helpers want one compatible with the GPL.
    pub fn load(kind: ProgramKind, name: &CStr, license: &CStr, instructions: &[u64]) -> Result<Self, LoadError> {
        #[repr(C)]
        struct Load {
            kind: u32,
            count: u32,
            instructions: u64,
            license: u64,
            log_level: u32,
            log_size: u32,
            log: u64,
            kernel_version: u32,
            flags: u32,
            name: [u8; 16],
            ifindex: u32,
            attach_type: u32,
            btf: u32,
            func_info_size: u32,
            func_info: u64,
            func_info_count: u32,
            line_info_size: u32,
            line_info: u64,
            line_info_count: u32,
            attach_btf_id: u32,
        }
        /// `BPF_TRACE_RAW_TP` of `enum bpf_attach_type`.
        const TRACE_RAW_TP: u32 = 23;
        let (kind, attach_type, attach_btf_id) = match kind {
            ProgramKind::TypedTracepoint(id) => (26, TRACE_RAW_TP, id),
            ProgramKind::RawTracepoint => (17, 0, 0),
            ProgramKind::Xdp => (6, 0, 0),
        };
        let attempt = |log: &mut [u8]| {
            let load = Load {
                kind,
                count: u32::try_from(instructions.len()).map_err(|_| Errno::TOOBIG)?,
                instructions: instructions.as_ptr() as u64,
                license: license.as_ptr() as u64,
                log_level: u32::from(!log.is_empty()),
                log_size: log.len() as u32,
                log: if log.is_empty() { 0 } else { log.as_mut_ptr() as u64 },
                kernel_version: 0,
                flags: 0,
                name: short(name),
                ifindex: 0,
                attach_type,
                btf: 0,
                func_info_size: 0,
                func_info: 0,
                func_info_count: 0,
                line_info_size: 0,
                line_info: 0,
                line_info_count: 0,
                attach_btf_id,
            };
            // SAFETY: the kernel reads the structure, `count` instructions and the license, and writes at most `log_size`
            // bytes to the log; all are borrowed for longer than the call.
            let fd = unsafe { bpf(command::PROG_LOAD, &load)? };
            // SAFETY: the kernel has just made the descriptor for us.
            Ok(Self(unsafe { OwnedFd::from_raw_fd(fd) }))
        };
        attempt(&mut []).or_else(|first: Errno| {
            let mut log = vec![0; 256 * 1024];
            attempt(&mut log).map_err(|_| {
                let end = log.iter().position(|&b| b == 0).unwrap_or(0);
                LoadError { errno: first, log: String::from_utf8_lossy(&log[..end]).into_owned() }
            })
        })
    }

    /// Attaches it to the tracepoint it was loaded for, until the descriptor returned is closed.
    pub fn attach(&self) -> Result<OwnedFd, Errno> {
        #[repr(C)]
        struct Open {
            name: u64,
            program: RawFd,
            pad: u32,
        }
        let open = Open { name: 0, program: self.0.as_raw_fd(), pad: 0 };
        // SAFETY: RAW_TRACEPOINT_OPEN reads the structure; a typed tracepoint has no name to read.
        let fd = unsafe { bpf(command::RAW_TRACEPOINT_OPEN, &open)? };
        // SAFETY: the kernel has just made the descriptor for us.
        Ok(unsafe { OwnedFd::from_raw_fd(fd) })
    }

    /// Attaches it to the interface with this number, in its driver or in the kernel's generic path, until the descriptor
    /// returned is closed. `BUSY`: it has another program.
    pub fn attach_to_interface(&self, index: u32, in_driver: bool) -> Result<OwnedFd, Errno> {
        #[repr(C)]
        struct Link {
            program: RawFd,
            interface: u32,
            attach_type: u32,
            flags: u32,
        }
        /// `BPF_XDP` of `enum bpf_attach_type`.
        const XDP: u32 = 37;
        /// `XDP_FLAGS_SKB_MODE` and `XDP_FLAGS_DRV_MODE` of linux/if_link.h.
        const MODES: [u32; 2] = [2, 4];
        let flags = MODES[usize::from(in_driver)];
        let link = Link { program: self.0.as_raw_fd(), interface: index, attach_type: XDP, flags };
        // SAFETY: LINK_CREATE reads the structure and no memory beyond it.
        let fd = unsafe { bpf(command::LINK_CREATE, &link)? };
        // SAFETY: the kernel has just made the descriptor for us.
        Ok(unsafe { OwnedFd::from_raw_fd(fd) })
    }

    /// Runs it once on a core, in the context of whatever runs there, with these arguments. Linux 5.10 on.
    pub fn run_on(&self, cpu: usize, arguments: &[u64]) -> Result<(), Errno> {
        #[repr(C)]
        struct Run {
            program: RawFd,
            result: u32,
            data: [u32; 2],
            data_in: u64,
            data_out: u64,
            repeat: u32,
            duration: u32,
            context_len: u32,
            context_out_len: u32,
            context: u64,
            context_out: u64,
            flags: u32,
            cpu: u32,
        }
        /// `BPF_F_TEST_RUN_ON_CPU`.
        const ON_CPU: u32 = 1;
        let run = Run {
            program: self.0.as_raw_fd(),
            result: 0,
            data: [0; 2],
            data_in: 0,
            data_out: 0,
            repeat: 0,
            duration: 0,
            context_len: u32::try_from(size_of_val(arguments)).map_err(|_| Errno::INVAL)?,
            context_out_len: 0,
            context: arguments.as_ptr() as u64,
            context_out: 0,
            flags: ON_CPU,
            cpu: u32::try_from(cpu).map_err(|_| Errno::INVAL)?,
        };
        // SAFETY: the kernel reads the structure and `context_len` bytes of arguments. It writes the result into the
        // structure, which is why that is handed over by a pointer to a copy.
        unsafe { bpf(command::PROG_TEST_RUN, &run) }.map(drop)
    }
}

impl AsFd for BpfProgram {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

fn short(name: &CStr) -> [u8; 16] {
    let mut short = [0; 16];
    for (to, from) in short[..15].iter_mut().zip(name.to_bytes()) {
        *to = *from;
    }
    short
}

/// # Safety
/// `attributes` must be laid out as `command` expects, and every address in it be good for what the command does there.
unsafe fn bpf<T>(command: libc::c_int, attributes: &T) -> Result<RawFd, Errno> {
    // `union bpf_attr` is made of 64-bit words; the kernel may write results into it.
    let mut words = [0_u64; 32];
    let len = size_of::<T>();
    assert!(len <= size_of_val(&words));
    // SAFETY: `len` bytes are readable at one and writable at the other; the structures are plain integers.
    unsafe {
        std::ptr::copy_nonoverlapping(std::ptr::from_ref(attributes).cast::<u8>(), words.as_mut_ptr().cast(), len)
    };
    // SAFETY: the caller answers for the contents; `words` is live and as long as said.
    let result = unsafe { libc::syscall(libc::SYS_bpf, command, words.as_mut_ptr(), len) };
    RawFd::try_from(result).ok().filter(|&fd| fd >= 0).ok_or_else(last_errno)
}
