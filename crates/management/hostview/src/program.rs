//! The program, in two forms of one body: at the tracepoint `sched_switch` for the task that comes, and run by hand on a
//! core for the task that is there.
//!
//! A core's line says which VM's line it runs for, and only that core's program writes it, with no context switch in
//! between. A VM's `running` goes up and down with those entries and with nothing else: it is the number of cores that
//! name the VM, whatever threads do: exit, migrate, or belong to a VM registered (or forgotten) while they run.
//!
//! The kernel lets only programs under a licence compatible with the GPL look into its structures. This file may be used
//! under the MIT licence or the GPL, version 2, as well.

use crate::btf::Btf;
use lasthop_sys::bpf::assembler::{Assembler, Helper, Label, Reg, Width};
use lasthop_sys::hostview::image::layout::{
    CORE_SINCE, CORE_WHAT, CORE_WHO, IDLE, IDLE_CLASS, KNOWN, LINE, VM_CORE, VM_PREEMPTED, VM_RUNNING, VM_SINCE,
};
use std::ffi::CStr;

/// What the kernel is told.
pub const LICENSE: &CStr = c"Dual MIT/GPL";
/// `SCHED_IDLE` of linux/sched.h.
const SCHED_IDLE: i32 = 5;

/// Bytes of a value of the table of VMs: line of the VM, and whether a thread of it was seen as a vCPU.
pub const VM_VALUE: usize = 8;
const VALUE_LINE: i16 = 0;
const VALUE_VCPUS: i16 = 4;

/// Where this kernel has what.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kernel {
    /// Type of the tracepoint.
    pub tracepoint: u32,
    /// Its arguments: whether the switch is a preemption, from whom, to whom.
    previous: i16,
    next: i16,
    /// Members of `struct task_struct`.
    pid: i16,
    tgid: i16,
    policy: i16,
    state: i16,
    /// A list that holds something exactly while the thread is in KVM_RUN. None in a kernel built without KVM.
    preempt_notifiers: Option<i16>,
}

impl Kernel {
    /// Looks it up. The error is one line.
    pub fn find(btf: &Btf) -> Result<Self, String> {
        let no = |what: &str| format!("this kernel's BTF has no {what}");
        let task = btf.structure("task_struct").ok_or_else(|| no("task_struct"))?;
        let (tracepoint, tasks) = btf.tracepoint("sched_switch", task).ok_or_else(|| no("tracepoint sched_switch"))?;
        let &[previous, next] = &tasks[..] else { return Err(no("sched_switch from one task to another")) };
        let member = |name: &str| btf.offset(task, name);
        let need = |name: &str| member(name).ok_or_else(|| no(&format!("task_struct.{name}")));
        Ok(Self {
            tracepoint,
            previous,
            next,
            pid: need("pid")?,
            tgid: need("tgid")?,
            policy: need("policy")?,
            // Called `state` before Linux 5.14.
            state: need("__state").or_else(|_| need("state"))?,
            preempt_notifiers: member("preempt_notifiers"),
        })
    }
}

/// What the program works on.
#[derive(Clone, Copy, Debug)]
pub struct Maps {
    /// The memory that is read elsewhere: one value.
    pub memory: i32,
    /// tgid → [`VM_VALUE`] bytes.
    pub vms: i32,
    /// tids seen as vCPUs.
    pub vcpus: i32,
    /// Cores in the memory.
    pub cores: u32,
    /// VM slots in the memory.
    pub slots: u32,
}

const TASK: Reg = Reg(6);
const CORE: Reg = Reg(7);
const NOW: Reg = Reg(8);
const WHAT: Reg = Reg(9);
const STACK: Reg = Reg(10);
/// Places on the stack.
const WANTS_MORE: i16 = -8;
const OLD_LINE: i16 = -16;
const NEW_LINE: i16 = -24;
const CPU: i16 = -32;
const TGID: i16 = -40;
const TID: i16 = -48;
const VALUE: i16 = -56;
const ONE: i16 = -64;

const fn word(index: usize) -> i16 {
    8 * index as i16
}

/// For the tracepoint.
pub fn on_switch(kernel: &Kernel, maps: &Maps) -> Option<Vec<u64>> {
    let mut a = Assembler::default();
    // The one that leaves wants more if it was preempted or its state is "running" (0).
    a.load(Width::Double, TASK, Reg(1), 8 * kernel.next);
    a.load(Width::Double, Reg(2), Reg(1), 8 * kernel.previous);
    let (wants, known) = (a.label(), a.label());
    a.load(Width::Double, Reg(3), Reg(1), 0);
    a.jump_ne(Reg(3), 0, wants);
    a.load(Width::Word, Reg(3), Reg(2), kernel.state);
    a.jump_eq(Reg(3), 0, wants);
    a.set(Reg(3), 0);
    a.jump(known);
    a.place(wants);
    a.set(Reg(3), 1);
    a.place(known);
    a.store(Width::Double, STACK, WANTS_MORE, Reg(3));
    body(&mut a, kernel, maps);
    a.finish()
}

/// To be run by hand. Its first argument is a line of a VM that has just been registered, or 0.
pub fn on_demand(kernel: &Kernel, maps: &Maps) -> Option<Vec<u64>> {
    let mut a = Assembler::default();
    let nobody_new = a.label();
    a.load(Width::Double, Reg(6), Reg(1), 0);
    a.call(Helper::KtimeGetNs);
    a.copy(NOW, Reg(0));
    a.jump_eq(Reg(6), 0, nobody_new);
    a.jump_ge(Reg(6), lines(maps), nobody_new);
    line(&mut a, maps, Reg(1), Reg(6));
    a.set(Reg(2), 0);
    a.store(Width::Double, Reg(1), word(VM_PREEMPTED), Reg(2));
    a.store(Width::Double, Reg(1), word(VM_SINCE), NOW);
    a.place(nobody_new);
    a.set(Reg(1), 0);
    a.store(Width::Double, STACK, WANTS_MORE, Reg(1));
    a.call(Helper::GetCurrentTaskBtf);
    a.copy(TASK, Reg(0));
    body(&mut a, kernel, maps);
    a.finish()
}

fn lines(maps: &Maps) -> i32 {
    (1 + maps.cores + maps.slots).cast_signed()
}

/// `dst` = address of the line with number `index`, whose bound has been checked; `index` is spoilt.
fn line(a: &mut Assembler, maps: &Maps, dst: Reg, index: Reg) {
    a.shift_left(index, LINE.trailing_zeros() as u8);
    a.map_value(dst, maps.memory, 0);
    a.add(dst, index);
}

/// [`TASK`] is on this core now, and `WANTS_MORE` says how the one before left.
fn body(a: &mut Assembler, kernel: &Kernel, maps: &Maps) {
    let (end, store) = (a.label(), a.label());
    a.call(Helper::GetSmpProcessorId);
    a.jump_ge(Reg(0), maps.cores.cast_signed(), end);
    a.store(Width::Double, STACK, CPU, Reg(0));
    a.add_value(Reg(0), 1);
    line(a, maps, CORE, Reg(0));
    a.call(Helper::KtimeGetNs);
    a.copy(NOW, Reg(0));
    a.load(Width::Word, Reg(1), CORE, word(CORE_WHAT));
    a.store(Width::Double, STACK, OLD_LINE, Reg(1));

    // What comes, for anybody …
    a.set(Reg(1), 0);
    a.store(Width::Double, STACK, NEW_LINE, Reg(1));
    a.store(Width::Double, STACK, TGID, Reg(1));
    a.set(WHAT, KNOWN | IDLE);
    a.load(Width::Word, Reg(2), TASK, kernel.pid);
    a.jump_eq(Reg(2), 0, store);
    a.store(Width::Double, STACK, TID, Reg(2));
    let other_class = a.label();
    a.set(WHAT, KNOWN | IDLE_CLASS);
    a.load(Width::Word, Reg(1), TASK, kernel.policy);
    a.jump_eq(Reg(1), SCHED_IDLE, other_class);
    a.set(WHAT, KNOWN);
    a.place(other_class);
    a.load(Width::Word, Reg(1), TASK, kernel.tgid);
    a.store(Width::Double, STACK, TGID, Reg(1));

    // … and for whom, if it belongs to a VM.
    a.map(Reg(1), maps.vms);
    a.copy(Reg(2), STACK);
    a.add_value(Reg(2), i32::from(TGID));
    a.call(Helper::MapLookup);
    a.jump_eq(Reg(0), 0, store);
    let counts = a.label();
    a.store(Width::Double, STACK, VALUE, Reg(0));
    if let Some(notifiers) = kernel.preempt_notifiers {
        vcpu(a, maps, notifiers, counts, store);
    }
    a.place(counts);
    a.load(Width::Double, Reg(1), STACK, VALUE);
    a.load(Width::Word, Reg(1), Reg(1), VALUE_LINE);
    a.store(Width::Double, STACK, NEW_LINE, Reg(1));
    a.or(WHAT, Reg(1));

    a.place(store);
    write(a, maps, end);
    a.place(end);
    a.exit();
}

/// Writes what the core does now, and whose cores have become more and fewer by that.
fn write(a: &mut Assembler, maps: &Maps, end: Label) {
    a.load(Width::Double, Reg(1), STACK, TGID);
    a.store(Width::Double, CORE, word(CORE_WHO), Reg(1));
    a.store(Width::Double, CORE, word(CORE_SINCE), NOW);
    a.store(Width::Double, CORE, word(CORE_WHAT), WHAT);
    // The same VM as before, or none as before: nothing to count.
    let nobody_left = a.label();
    a.load(Width::Double, Reg(2), STACK, OLD_LINE);
    a.load(Width::Double, Reg(3), STACK, NEW_LINE);
    a.jump_same(Reg(2), Reg(3), end);
    a.jump_eq(Reg(2), 0, nobody_left);
    a.jump_ge(Reg(2), lines(maps), nobody_left);
    line(a, maps, Reg(1), Reg(2));
    a.load(Width::Double, Reg(4), STACK, WANTS_MORE);
    a.store(Width::Double, Reg(1), word(VM_SINCE), NOW);
    a.store(Width::Double, Reg(1), word(VM_PREEMPTED), Reg(4));
    a.set(Reg(4), u64::MAX);
    a.atomic_add(Reg(1), word(VM_RUNNING), Reg(4));
    a.place(nobody_left);
    a.jump_eq(Reg(3), 0, end);
    a.jump_ge(Reg(3), lines(maps), end);
    line(a, maps, Reg(1), Reg(3));
    a.load(Width::Double, Reg(4), STACK, CPU);
    a.store(Width::Double, Reg(1), word(VM_CORE), Reg(4));
    a.set(Reg(4), 1);
    a.atomic_add(Reg(1), word(VM_RUNNING), Reg(4));
    a.set(Reg(4), 0);
    a.store(Width::Double, Reg(1), word(VM_PREEMPTED), Reg(4));
}

/// Of a VM that has vCPUs only these count, not the threads that serve disks or a monitor. KVM hangs a notifier on a
/// thread while it is in KVM_RUN, blocked guests included. One that was seen there is a vCPU even if it is now
/// between two KVM_RUN. Without any (emulation, DPDK) all threads count.
fn vcpu(a: &mut Assembler, maps: &Maps, notifiers: i16, counts: Label, store: Label) {
    let not_now = a.label();
    let key = |a: &mut Assembler| {
        a.map(Reg(1), maps.vcpus);
        a.copy(Reg(2), STACK);
        a.add_value(Reg(2), i32::from(TID));
    };
    a.load(Width::Double, Reg(1), TASK, notifiers);
    a.jump_eq(Reg(1), 0, not_now);
    key(a);
    a.call(Helper::MapLookup);
    a.jump_ne(Reg(0), 0, counts);
    a.set(Reg(1), 1);
    a.load(Width::Double, Reg(2), STACK, VALUE);
    a.store(Width::Word, Reg(2), VALUE_VCPUS, Reg(1));
    a.store(Width::Double, STACK, ONE, Reg(1));
    key(a);
    a.copy(Reg(3), STACK);
    a.add_value(Reg(3), i32::from(ONE));
    a.set(Reg(4), 0);
    a.call(Helper::MapUpdate);
    a.jump(counts);
    a.place(not_now);
    a.load(Width::Double, Reg(1), STACK, VALUE);
    a.load(Width::Word, Reg(1), Reg(1), VALUE_VCPUS);
    a.jump_eq(Reg(1), 0, counts);
    key(a);
    a.call(Helper::MapLookup);
    a.jump_eq(Reg(0), 0, store);
}
