//! The system calls each program may make. Everything else kills the process.

use super::Program;
use crate::sandbox::Instruction;
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule, TargetArch,
};
use std::collections::BTreeMap;

type Rules = BTreeMap<i64, Vec<SeccompRule>>;

/// A list of numbers by their names in `libc`.
macro_rules! numbers {
    ($($name:ident)*) => { &[$(libc::$name),*] };
}

/// Calls every program makes, whatever the arguments. They act on memory, time, threads of this process and descriptors
/// it holds already.
const COMMON: &[libc::c_long] = numbers! {
    // Descriptors.
    SYS_read SYS_write SYS_readv SYS_writev SYS_pread64 SYS_pwrite64 SYS_lseek SYS_close SYS_dup SYS_fstat SYS_ftruncate
    SYS_recvmsg SYS_sendmsg SYS_recvfrom SYS_sendto SYS_shutdown SYS_getsockopt SYS_memfd_create
    // Waiting.
    SYS_eventfd2 SYS_epoll_create1 SYS_epoll_ctl SYS_epoll_pwait SYS_epoll_pwait2 SYS_ppoll
    SYS_timerfd_create SYS_timerfd_settime SYS_timerfd_gettime SYS_clock_gettime SYS_clock_getres
    SYS_clock_nanosleep SYS_nanosleep SYS_gettimeofday SYS_restart_syscall
    // Memory.
    SYS_munmap SYS_mremap SYS_madvise SYS_brk SYS_membarrier SYS_getrandom
    // Threads and signals of this process.
    SYS_futex SYS_set_robust_list SYS_rseq SYS_sigaltstack SYS_rt_sigaction SYS_rt_sigprocmask SYS_rt_sigreturn
    SYS_sched_yield SYS_sched_getaffinity SYS_getcpu SYS_getrusage
    SYS_getpid SYS_getppid SYS_gettid SYS_getuid SYS_geteuid SYS_exit SYS_exit_group
};

/// Older forms that only x86-64 has.
#[cfg(target_arch = "x86_64")]
const OLDER: &[libc::c_long] = &[libc::SYS_epoll_wait, libc::SYS_poll];
#[cfg(not(target_arch = "x86_64"))]
const OLDER: &[libc::c_long] = &[];

/// fcntl(2): nothing that reaches another process (locks, owners, leases, flags and seals of files that others have open too).
const FCNTL: &[libc::c_int] = numbers! { F_DUPFD_CLOEXEC F_GETFD F_SETFD F_GETFL F_GET_SEALS };

/// Where and in which class a thread runs: the calling one's own, which goes by 0. The kernel would allow it for all processes of
/// the same user, among them those of another lasthop.
const OWN_THREAD: &[libc::c_long] = numbers! { SYS_sched_setaffinity SYS_sched_setscheduler };

/// prctl(2): names of threads and of memory, and how exact timers are.
const PRCTL: &[libc::c_int] = &[libc::PR_SET_NAME, libc::PR_GET_NAME, libc::PR_SET_VMA, libc::PR_SET_TIMERSLACK];

/// clone(2) flags looked at, and those of a thread: same memory and signals, no new namespace of any kind.
const THREAD: libc::c_int = libc::CLONE_VM | libc::CLONE_SIGHAND | libc::CLONE_THREAD;
const NEW: &[libc::c_int] =
    numbers! { CLONE_NEWNS CLONE_NEWCGROUP CLONE_NEWUTS CLONE_NEWIPC CLONE_NEWUSER CLONE_NEWPID CLONE_NEWNET };

/// The filters of `program` for the process with this number.
pub(super) fn compile_all(program: Program, pid: u32) -> Result<Vec<Vec<Instruction>>, seccompiler::Error> {
    // clone3 passes its flags by address, where a filter cannot look. The C library takes "not implemented" as the
    // hint to use clone. Of two filters the stricter answer wins, and this one has to come first.
    let no_clone3 = Rules::from([(libc::SYS_clone3, Vec::new())]);
    let not_implemented = SeccompAction::Errno(libc::ENOSYS.unsigned_abs());
    Ok(vec![
        compile(no_clone3, SeccompAction::Allow, not_implemented)?,
        compile(rules(program, pid)?, SeccompAction::KillProcess, SeccompAction::Allow)?,
    ])
}

fn compile(
    rules: Rules,
    otherwise: SeccompAction,
    on_match: SeccompAction,
) -> Result<Vec<Instruction>, seccompiler::Error> {
    let arch = TargetArch::try_from(std::env::consts::ARCH)?;
    let program: BpfProgram = SeccompFilter::new(rules, otherwise, on_match, arch)?.try_into()?;
    Ok(program.iter().map(|i| (i.code, i.jt, i.jf, i.k)).collect())
}

fn rules(program: Program, pid: u32) -> Result<Rules, seccompiler::Error> {
    let unconditional = COMMON.iter().chain(OLDER).chain(program.calls);
    // An empty list of rules matches whatever the arguments; clone3 is answered by the first filter.
    let mut rules: Rules = unconditional.chain(&[libc::SYS_clone3]).map(|&call| (call, Vec::new())).collect();

    rules.insert(libc::SYS_fcntl, one_of(1, FCNTL)?);
    rules.insert(libc::SYS_prctl, one_of(0, PRCTL)?);
    // Is this a terminal? Do not block.
    let ioctls = [libc::TCGETS, libc::FIONBIO].into_iter().chain(program.ioctls.iter().copied());
    rules.insert(libc::SYS_ioctl, ioctls.map(|request| equals(1, request)).collect::<Result<_, _>>()?);
    // No memory that is executable.
    let not_executable = || masked(2, libc::PROT_EXEC, 0);
    rules.insert(libc::SYS_mmap, vec![not_executable()?]);
    rules.insert(libc::SYS_mprotect, vec![not_executable()?]);
    rules.insert(libc::SYS_clone, vec![masked(0, NEW.iter().fold(THREAD, |all, flag| all | flag), THREAD)?]);
    for call in OWN_THREAD {
        rules.insert(*call, vec![equals(0, 0u64)?]);
    }
    // abort(3) of this very process.
    rules.insert(libc::SYS_tgkill, vec![equals(0, u64::from(pid))?]);
    // Of a descriptor, not of a path (there are no paths to see in an empty root either).
    rules.insert(libc::SYS_newfstatat, vec![masked(3, libc::AT_EMPTY_PATH, libc::AT_EMPTY_PATH)?]);
    rules.insert(libc::SYS_statx, vec![masked(2, libc::AT_EMPTY_PATH, libc::AT_EMPTY_PATH)?]);
    // Asking for limits of this process, not changing them.
    let this = SeccompCondition::new(0, SeccompCmpArgLen::Dword, SeccompCmpOp::Eq, 0)?;
    let no_new_one = SeccompCondition::new(2, SeccompCmpArgLen::Qword, SeccompCmpOp::Eq, 0)?;
    rules.insert(libc::SYS_prlimit64, vec![SeccompRule::new(vec![this, no_new_one])?]);
    if !program.socket_pairs.is_empty() {
        rules.insert(libc::SYS_socketpair, one_of(0, program.socket_pairs)?);
    }
    Ok(rules)
}

/// The low 32 bits of argument `index` are `value`.
fn equals(index: u8, value: impl TryInto<u64>) -> Result<SeccompRule, seccompiler::BackendError> {
    let value = value.try_into().unwrap_or(u64::MAX);
    SeccompRule::new(vec![SeccompCondition::new(index, SeccompCmpArgLen::Dword, SeccompCmpOp::Eq, value)?])
}

fn one_of(index: u8, values: &[libc::c_int]) -> Result<Vec<SeccompRule>, seccompiler::BackendError> {
    values.iter().map(|&value| equals(index, value)).collect()
}

/// The bits of argument `index` that are in `mask` are `value`.
fn masked(index: u8, mask: libc::c_int, value: libc::c_int) -> Result<SeccompRule, seccompiler::BackendError> {
    let (mask, value) = (u64::from(mask.cast_unsigned()), u64::from(value.cast_unsigned()));
    let op = SeccompCmpOp::MaskedEq(mask);
    SeccompRule::new(vec![SeccompCondition::new(index, SeccompCmpArgLen::Dword, op, value)?])
}
