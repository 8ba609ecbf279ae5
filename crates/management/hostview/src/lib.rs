//! Who runs where on this host: an eBPF program, run at every context switch, keeps in shared memory what each core does
//! and whether each VM runs. The switch reads it (`lasthop_sys::hostview`); this is the supervisor's side of it.
//!
//! Nothing here waits or polls. [`HostMonitor`] is of the thread that made it.

mod btf;
mod program;
pub mod topology;

use lasthop_sys::bpf::{BpfMap, BpfProgram, LoadError, MapKind, ProgramKind};
use lasthop_sys::hostview::image::HostImage;
use program::{Kernel, LICENSE, Maps, VM_VALUE};
use rustix::io::Errno;
use std::collections::BTreeMap;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;

/// VMs that can be watched at a time; one beyond goes without.
const SLOTS: u32 = 2048;
/// Threads remembered as vCPUs.
const VCPUS: u32 = 16 * 1024;
/// Inode of the PID namespace that all processes are in (`PROC_PID_INIT_INO`).
const HOST_PIDS: u64 = 0xefff_fffc;

/// Why nothing is known of cores and VMs. One line: what is wrong; what to do.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)]
pub enum MonitorError {
    #[error("eBPF is not permitted here ({0}); run as root, or with CAP_BPF and CAP_PERFMON")]
    NotPermitted(Errno),
    #[error("{0}")]
    Kernel(String),
    #[error("this is a PID namespace of its own, where the host's processes have other numbers; share the host's")]
    PidNamespace,
    #[error("the kernel refuses the eBPF program: {0}")]
    Refused(LoadError),
    #[error("the kernel refuses eBPF: {0}")]
    Failed(Errno),
}

impl From<Errno> for MonitorError {
    fn from(e: Errno) -> Self {
        if matches!(e, Errno::PERM | Errno::ACCESS) { Self::NotPermitted(e) } else { Self::Failed(e) }
    }
}

impl From<LoadError> for MonitorError {
    fn from(e: LoadError) -> Self {
        if e.errno == Errno::PERM && e.log.is_empty() { Self::NotPermitted(e.errno) } else { Self::Refused(e) }
    }
}

/// The memory for the switch, and the program that fills it if there is one.
#[derive(Debug)]
pub struct HostMonitor {
    view: OwnedFd,
    program: Option<Program>,
}

#[derive(Debug)]
struct Program {
    vms: BpfMap,
    /// Looks at one core now.
    look: BpfProgram,
    /// The program at the tracepoint, which goes with the second. The first tells what it costs, in /proc/PID/fdinfo.
    _on_switch: (BpfProgram, OwnedFd),
    cores: usize,
    /// Which process each port's VM is.
    ports: BTreeMap<u32, u32>,
    /// The slot of each process.
    slots: BTreeMap<u32, u32>,
    /// Slot given last; the next one is looked for behind it.
    last: u32,
}

impl HostMonitor {
    /// Only where cores lie; nothing is ever known of what they do.
    pub fn without_program() -> Result<Self, Errno> {
        Ok(Self { view: image(0)?.into_frozen()?, program: None })
    }

    /// Loads the program and looks at every core once.
    pub fn start() -> Result<Self, MonitorError> {
        let pids = rustix::fs::stat("/proc/self/ns/pid").map_err(|e| MonitorError::Kernel(format!("/proc: {e}")))?;
        if pids.st_ino != HOST_PIDS {
            return Err(MonitorError::PidNamespace);
        }
        let image = image(SLOTS)?;
        image.set_live(true)?;
        let bytes = image.bytes()?;
        let memory = BpfMap::new(MapKind::MappedArray, c"lasthop_host", 4, bytes.len(), 1)?;
        memory.put(&[0; 4], &bytes)?;
        memory.freeze()?;
        let vms = BpfMap::new(MapKind::Hash, c"lasthop_vms", 4, VM_VALUE, SLOTS)?;
        let vcpus = BpfMap::new(MapKind::LruHash, c"lasthop_vcpus", 4, 4, VCPUS)?;

        let kernel = btf::Btf::of_kernel().and_then(|btf| Kernel::find(&btf)).map_err(MonitorError::Kernel)?;
        let cores = topology::possible(Path::new(topology::SYSFS));
        let maps = Maps {
            memory: memory.as_fd().as_raw_fd(),
            vms: vms.as_fd().as_raw_fd(),
            vcpus: vcpus.as_fd().as_raw_fd(),
            cores: cores as u32,
            slots: SLOTS,
        };
        let load =
            |kind, name, code: Option<Vec<u64>>| BpfProgram::load(kind, name, LICENSE, &code.unwrap_or_default());
        let on_switch = program::on_switch(&kernel, &maps);
        let on_switch = load(ProgramKind::TypedTracepoint(kernel.tracepoint), c"lasthop_switch", on_switch)?;
        let look = load(ProgramKind::RawTracepoint, c"lasthop_look", program::on_demand(&kernel, &maps))?;
        let attached = on_switch.attach()?;
        let (ports, slots) = (BTreeMap::new(), BTreeMap::new());
        let program = Program { vms, look, _on_switch: (on_switch, attached), cores, ports, slots, last: SLOTS - 1 };
        program.look_everywhere(None);
        Ok(Self { view: memory.as_fd().try_clone_to_owned().map_err(|_| Errno::MFILE)?, program: Some(program) })
    }

    /// Whether cores and VMs are watched. Then this is the host's PID namespace, and every process has a number here.
    pub fn is_live(&self) -> bool {
        self.program.is_some()
    }

    /// The memory, of which nobody but the program can change a byte. A process maps it with `HostView::map`.
    pub fn view(&self) -> BorrowedFd<'_> {
        self.view.as_fd()
    }

    /// From now on the VM of the port with this number is the process `tgid`; returns its slot in the memory. Several
    /// ports may share a process. `None` if VMs are not watched, or too many are.
    pub fn register(&mut self, port: u32, tgid: u32) -> Option<u32> {
        self.forget(port);
        self.program.as_mut().filter(|_| tgid != 0)?.register(port, tgid)
    }

    /// The port has no VM any more.
    pub fn forget(&mut self, port: u32) {
        if let Some(program) = &mut self.program {
            program.forget(port);
        }
    }
}

/// What another program of this process, which it becomes by execve(2), goes on with. `F`: a descriptor.
#[derive(Clone, Debug)]
pub struct Handed<F> {
    /// The memory.
    pub view: F,
    /// Without a program: nothing is known of cores and VMs.
    pub program: Option<HandedProgram<F>>,
}

/// The same of the program.
#[derive(Clone, Debug)]
pub struct HandedProgram<F> {
    /// The map of VMs, the program that looks at a core, the one at the tracepoint, and its attachment.
    pub descriptors: [F; 4],
    /// Ports and their VMs' processes.
    pub ports: Vec<(u32, u32)>,
    /// Processes and their slots.
    pub slots: Vec<(u32, u32)>,
    /// Slot given last.
    pub last: u32,
}

impl HostMonitor {
    /// What another program of this process goes on with.
    pub fn hand_over<F>(&self, mut fd: impl FnMut(BorrowedFd<'_>) -> F) -> Handed<F> {
        let pairs = |map: &BTreeMap<u32, u32>| map.iter().map(|(key, value)| (*key, *value)).collect();
        let program = self.program.as_ref().map(|program| {
            let (on_switch, attached) = &program._on_switch;
            let descriptors = [program.vms.as_fd(), program.look.as_fd(), on_switch.as_fd(), attached.as_fd()];
            HandedProgram {
                descriptors: descriptors.map(&mut fd),
                ports: pairs(&program.ports),
                slots: pairs(&program.slots),
                last: program.last,
            }
        });
        Handed { view: fd(self.view.as_fd()), program }
    }

    /// Goes on with it.
    pub fn resumed(Handed { view, program }: Handed<OwnedFd>) -> Self {
        let program =
            program.map(|HandedProgram { descriptors: [vms, look, on_switch, attached], ports, slots, last }| {
                let cores = topology::possible(Path::new(topology::SYSFS));
                let (ports, slots) = (ports.into_iter().collect(), slots.into_iter().collect());
                let (vms, look) = (BpfMap::kept(vms, 4, VM_VALUE), BpfProgram::kept(look));
                Program { vms, look, _on_switch: (BpfProgram::kept(on_switch), attached), cores, ports, slots, last }
            });
        Self { view, program }
    }
}

impl Program {
    fn register(&mut self, port: u32, tgid: u32) -> Option<u32> {
        if !self.slots.contains_key(&tgid) {
            let taken = |slot: &u32| self.slots.values().any(|s| s == slot);
            let slot = (1..=SLOTS).map(|i| (self.last + i) % SLOTS).find(|slot| !taken(slot))?;
            let line = 1 + self.cores as u32 + slot;
            let mut value = [0; VM_VALUE];
            value[..4].copy_from_slice(&line.to_ne_bytes());
            self.vms.put(&tgid.to_ne_bytes(), &value).ok()?;
            self.slots.insert(tgid, slot);
            self.last = slot;
            // It may be running already, and go on for long.
            self.look_everywhere(Some(line));
        }
        self.ports.insert(port, tgid);
        self.slots.get(&tgid).copied()
    }

    fn forget(&mut self, port: u32) {
        let Some(tgid) = self.ports.remove(&port) else { return };
        if self.ports.values().all(|other| *other != tgid) {
            self.slots.remove(&tgid);
            let _ = self.vms.remove(&tgid.to_ne_bytes());
            self.look_everywhere(None);
        }
    }

    /// Brings every core's entry up to date. Where the kernel cannot do that (before Linux 5.10), the next context switch
    /// of each core does.
    fn look_everywhere(&self, registered: Option<u32>) {
        for core in topology::online(Path::new(topology::SYSFS)).iter() {
            let _ = self.look.run_on(core, &[u64::from(registered.unwrap_or(0))]);
        }
    }
}

fn image(slots: u32) -> Result<HostImage, Errno> {
    let sysfs = Path::new(topology::SYSFS);
    let image = HostImage::new(topology::possible(sysfs), slots as usize)?;
    for core in topology::online(sysfs).iter() {
        image.set_place(core, topology::place(sysfs, core))?;
    }
    Ok(image)
}
