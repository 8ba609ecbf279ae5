//! The program in this kernel. Without the right to load it (root, BTF) there is nothing to test, and it says so.

use lasthop_hostview::HostMonitor;
use lasthop_sys::CpuList;
use lasthop_sys::hostview::{CoreState, HostView, VmState};
use rustix::io::{read, write};
use rustix::pipe::pipe;
use rustix::process::Pid;
use rustix::thread::gettid;
use std::io::{BufRead, BufReader, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// Far above what anything here takes.
const LIMIT: Duration = Duration::from_secs(20);

fn monitor() -> Option<(HostMonitor, HostView)> {
    let started = HostMonitor::begin().and_then(|mut monitor| {
        let view = HostView::map(monitor.view()).unwrap();
        assert!(!monitor.is_live() && view.core(0).is_none(), "nothing is known yet");
        monitor.watch().map(|()| (monitor, view))
    });
    match started {
        Ok((monitor, view)) => {
            assert!(view.is_live() && monitor.is_live());
            Some((monitor, view))
        }
        Err(e) if !rustix::process::geteuid().is_root() || !std::fs::exists("/sys/kernel/btf/vmlinux").unwrap() => {
            eprintln!("skipped: {e}");
            None
        }
        Err(e) => panic!("{e}"),
    }
}

fn now_ns() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

fn eventually(what: &str, mut is_so: impl FnMut() -> bool) {
    let start = Instant::now();
    while !is_so() {
        assert!(start.elapsed() < LIMIT, "{what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// A process other than this one, which runs until it is killed.
struct Other(Child);

impl Other {
    fn new(script: &str) -> Self {
        let mut command = Command::new("sh");
        Self(command.args(["-c", script]).stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap())
    }

    fn tgid(&self) -> u32 {
        self.0.id()
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn running(view: &HostView, slot: u32) -> bool {
    matches!(view.vm(slot), Some(VmState::Running { .. }))
}

#[test]
fn a_vm_registered_while_it_runs_is_seen_at_once_and_its_end_too() {
    let Some((mut monitor, view)) = monitor() else { return };
    let mut spins = Other::new("while :; do :; done");
    let sleeps = Other::new("read line");
    eventually("the shells have started", || {
        let state = |of: &Other| std::fs::read_to_string(format!("/proc/{}/stat", of.tgid())).unwrap();
        state(&spins).contains(") R") && state(&sleeps).contains(") S")
    });
    let before = now_ns();
    let (a, b) = (monitor.register(1, spins.tgid()).unwrap(), monitor.register(2, sleeps.tgid()).unwrap());
    assert_ne!(a, b);
    // It may be waiting for a core, but not for anything else.
    eventually("the one that spins runs", || running(&view, a));
    for _ in 0..100 {
        assert!(running(&view, a), "preempted or not, it is not blocked: {:?}", view.vm(a));
    }
    match view.vm(b) {
        Some(VmState::Blocked { since_ns }) => assert!((before..=now_ns()).contains(&since_ns)),
        other => panic!("{other:?}"),
    }
    eventually("its core says so", || {
        let Some(VmState::Running { core }) = view.vm(a) else { return false };
        view.core(core as usize).is_some_and(|c| c.tgid == spins.tgid() && !c.idle && !c.idle_class_only)
    });
    let asleep = now_ns();
    spins.0.kill().unwrap();
    spins.0.wait().unwrap();
    eventually("a killed one has left its core", || match view.vm(a) {
        Some(VmState::Blocked { since_ns }) => since_ns >= asleep,
        _ => false,
    });
    monitor.forget(1);
    monitor.forget(2);
}

#[test]
fn a_vm_with_many_threads_runs_as_long_as_one_does_and_nothing_drifts() {
    let Some((mut monitor, view)) = monitor() else { return };
    // Processes of this test are VMs; their threads come, migrate, block and go all the time.
    let script = "while :; do sleep 0.001 & wait; done";
    let busy: Vec<Other> = (0..4).map(|_| Other::new(script)).collect();
    let slots: Vec<u32> = (0..).zip(&busy).map(|(i, o)| monitor.register(i, o.tgid()).unwrap()).collect();
    std::thread::sleep(Duration::from_millis(300));
    let last = Instant::now();
    // Registered anew while they switch.
    let mut rounds = 0;
    while last.elapsed() < Duration::from_millis(300) {
        monitor.forget(0);
        assert_eq!(monitor.register(0, busy[0].tgid()).map(|slot| slot != slots[1]), Some(true));
        rounds += 1;
    }
    assert!(rounds > 3);
    let slots: Vec<u32> = (0..).zip(&busy).map(|(i, o)| monitor.register(i, o.tgid()).unwrap()).collect();
    drop(busy);
    eventually("all have ended, and no core counts for them", || slots.iter().all(|&slot| !running(&view, slot)));
}

#[test]
fn ports_may_share_a_process_and_slots_are_used_again() {
    let Some((mut monitor, view)) = monitor() else { return };
    let other = Other::new("read line");
    let slot = monitor.register(1, other.tgid());
    assert!(slot.is_some());
    assert_eq!(monitor.register(2, other.tgid()), slot);
    monitor.forget(1);
    // Until then the shell starts.
    eventually("it reads", || matches!(view.vm(slot.unwrap()), Some(VmState::Blocked { .. })));
    assert_eq!(monitor.register(3, other.tgid()), slot, "2 still has it");
    monitor.forget(2);
    monitor.forget(3);
    monitor.forget(3);
    for i in 0..5000 {
        // Numbers no process has.
        assert!(monitor.register(1, 0x4000_0000 + i).is_some(), "{i}");
    }
    assert_eq!(monitor.register(1, 0), None, "somebody of another PID namespace");
}

#[test]
fn cores_say_what_runs_there() {
    let Some((_monitor, view)) = monitor() else { return };
    let allowed = CpuList::allowed().unwrap();
    for core in allowed.iter() {
        assert!(view.core(core).is_some(), "core {core} was looked at at the start");
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                CpuList::from_iter([core]).bind_current_thread().unwrap();
                assert!(become_idle_class());
                while !stop.load(Relaxed) {
                    std::hint::spin_loop();
                }
            });
            let me = rustix::process::getpid().as_raw_nonzero().get() as u32;
            let since = now_ns();
            eventually("a thread of policy SCHED_IDLE is seen as one", || {
                view.core(core).is_some_and(|c| c.idle_class_only && c.tgid == me && c.since_ns > since)
            });
            stop.store(true, Relaxed);
        });
    }
    eventually("a core with nothing to do is idle", || {
        allowed.iter().any(|core| matches!(view.core(core), Some(CoreState { idle: true, tgid: 0, .. })))
    });
    assert_eq!(view.core(view.cores()), None);
}

/// Gives the calling thread the policy SCHED_IDLE.
fn become_idle_class() -> bool {
    let tid: Pid = gettid();
    let done = Command::new("chrt").args(["-i", "-p", "0", &tid.as_raw_nonzero().to_string()]).status();
    done.is_ok_and(|status| status.success())
}

#[test]
fn nobody_but_the_program_writes() {
    let Some((monitor, _)) = monitor() else { return };
    assert!(rustix::io::pwrite(monitor.view(), &[1], 0).is_err());
    let path = format!("/proc/self/fdinfo/{}", std::os::fd::AsRawFd::as_raw_fd(&monitor.view()));
    assert!(std::fs::read_to_string(path).unwrap().contains("frozen:\t1"));
}

#[test]
fn without_the_program_places_are_known_and_nothing_else() {
    let mut monitor = HostMonitor::without_program().unwrap();
    let view = HostView::map(monitor.view()).unwrap();
    assert!(!view.is_live());
    assert!(view.cores() >= CpuList::allowed().unwrap().len());
    assert_eq!((view.core(0), view.vm(0), monitor.register(1, 1)), (None, None, None));
    assert!(view.place(0).is_some());
    monitor.forget(1);
}

/// Time the program has taken and how often it has run, if `sysctl kernel.bpf_stats_enabled=1`.
fn program_ns_and_runs() -> Option<(f64, f64)> {
    let infos =
        std::fs::read_dir("/proc/self/fdinfo").unwrap().filter_map(|f| std::fs::read_to_string(f.ok()?.path()).ok());
    infos.into_iter().find(|info| info.contains("prog_type:\t26\n")).map(|info| {
        let number = |name| info.lines().find_map(|l| l.strip_prefix(name)).unwrap().trim().parse().unwrap();
        (number("run_time_ns:"), number("run_cnt:"))
    })
}

/// Not a test: prints what a context switch costs with and without the program, and a read.
#[test]
#[ignore = "a measurement; run it alone with --ignored --nocapture"]
fn cost() {
    let one = CpuList::from_iter(CpuList::allowed().unwrap().iter().take(1));
    one.bind_current_thread().unwrap();
    let switches = 400_000_u32;
    let round = || {
        let ((a, b), (c, d)): ((OwnedFd, OwnedFd), (OwnedFd, OwnedFd)) = (pipe().unwrap(), pipe().unwrap());
        let answer = std::thread::spawn(move || while read(&a, &mut [0]).unwrap() == 1 && write(&d, &[0]).is_ok() {});
        let start = Instant::now();
        for _ in 0..switches / 2 {
            write(&b, &[0]).unwrap();
            read(&c, &mut [0]).unwrap();
        }
        let took = start.elapsed();
        drop(b);
        answer.join().unwrap();
        took.as_nanos() as f64 / f64::from(switches)
    };
    let mut rounds: [Vec<f64>; 3] = Default::default();
    for _ in 0..7 {
        rounds[0].push(round());
        let Some((mut monitor, _)) = monitor() else { return };
        rounds[1].push(round());
        let none = program_ns_and_runs().unwrap();
        monitor.register(1, rustix::process::getpid().as_raw_nonzero().get() as u32).unwrap();
        rounds[2].push(round());
        let own = program_ns_and_runs().unwrap();
        if own.1 > none.1 {
            println!(
                "program: {:.0} ns a run, {:.0} with own VM",
                none.0 / none.1,
                (own.0 - none.0) / (own.1 - none.1)
            );
        }
    }
    for (what, rounds) in ["without", "with", "with, own VM"].iter().zip(&mut rounds) {
        rounds.sort_by(f64::total_cmp);
        println!("{what}: {:.0} ns per switch (median of 7; {:.0} to {:.0})", rounds[3], rounds[0], rounds[6]);
    }
    let Some((mut monitor, view)) = monitor() else { return };
    let slot = monitor.register(1, rustix::process::getpid().as_raw_nonzero().get() as u32).unwrap();
    let (start, reads) = (Instant::now(), 10_000_000_u32);
    for i in 0..reads {
        std::hint::black_box((view.vm(std::hint::black_box(slot)), view.core(std::hint::black_box(i as usize & 1))));
    }
    println!("{:.1} ns for a read of a VM and of a core", start.elapsed().as_nanos() as f64 / f64::from(reads));
    let start = Instant::now();
    for _ in 0..10_000 {
        std::hint::black_box(std::fs::read("/proc/self/stat").unwrap());
    }
    println!("{} ns for /proc/PID/stat", start.elapsed().as_nanos() / 10_000);
    let start = Instant::now();
    for _ in 0..10_000 {
        std::hint::black_box(std::fs::read("/proc/stat").unwrap());
    }
    println!("{} ns for /proc/stat", start.elapsed().as_nanos() / 10_000);
    let start = Instant::now();
    for i in 0..1000 {
        monitor.register(2, 0x4000_0000 + i);
    }
    println!("{} ns to register a VM and forget another", start.elapsed().as_nanos() / 1000);
}

/// A machine (KVM) whose boot sector is this code, with a monitor.
fn machine(dir: &Path, code: &[u8]) -> Option<Other> {
    let mut sector = vec![0; 512];
    sector[..code.len()].copy_from_slice(code);
    sector[510..].copy_from_slice(&[0x55, 0xaa]);
    std::fs::write(dir.join("disk"), sector).unwrap();
    let mut command = Command::new("qemu-system-x86_64");
    command.args(["-accel", "kvm", "-m", "16", "-nodefaults", "-display", "none"]);
    command.args(["-drive", &format!("format=raw,file={}", dir.join("disk").display())]);
    command.args(["-qmp", &format!("unix:{},server=on,wait=off", dir.join("qmp").display())]);
    let spawned = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
    let mut machine = Other(spawned.ok()?);
    let start = Instant::now();
    while !dir.join("qmp").exists() {
        assert!(start.elapsed() < LIMIT);
        if machine.0.try_wait().unwrap().is_some() {
            return None;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    Some(machine)
}

#[test]
fn of_a_machine_only_vcpus_count() {
    let Some((mut monitor, view)) = monitor() else { return };
    let dir = tempfile::tempdir().unwrap();
    // cli; hlt: sleeps for ever.
    let Some(machine) = machine(dir.path(), &[0xfa, 0xf4]) else { return eprintln!("skipped: no QEMU with KVM here") };
    let slot = monitor.register(1, machine.tgid()).unwrap();
    let blocked = || match view.vm(slot) {
        Some(VmState::Blocked { since_ns }) => Some(since_ns),
        _ => None,
    };
    eventually("it has booted and sleeps", || blocked().is_some_and(|since| now_ns() > since + 500_000_000));
    let since = blocked().unwrap();
    // The thread that serves the monitor is busy, and that is nothing to the guest.
    let mut monitor_of_machine = BufReader::new(UnixStream::connect(dir.path().join("qmp")).unwrap());
    let mut line = String::new();
    monitor_of_machine.read_line(&mut line).unwrap();
    let mut seen = false;
    for command in std::iter::once("qmp_capabilities").chain(std::iter::repeat_n("query-status", 2000)) {
        monitor_of_machine.get_mut().write_all(format!("{{\"execute\":\"{command}\"}}\n").as_bytes()).unwrap();
        line.clear();
        monitor_of_machine.read_line(&mut line).unwrap();
        assert!(line.contains("return"), "{line}");
        seen |= (0..view.cores()).any(|c| view.core(c).is_some_and(|c| c.tgid == machine.tgid()));
        assert_eq!(blocked(), Some(since), "the guest sleeps");
    }
    eprintln!("the monitor's thread was{} seen on a core", if seen { "" } else { " not" });
}

#[test]
fn a_machine_that_runs_is_seen_running() {
    let Some((mut monitor, view)) = monitor() else { return };
    let dir = tempfile::tempdir().unwrap();
    // jmp $: never leaves the guest.
    let Some(machine) = machine(dir.path(), &[0xeb, 0xfe]) else { return eprintln!("skipped: no QEMU with KVM here") };
    let slot = monitor.register(1, machine.tgid()).unwrap();
    let mut since = Instant::now();
    eventually("it has booted and spins", || {
        if !running(&view, slot) {
            since = Instant::now();
        }
        since.elapsed() > Duration::from_millis(300)
    });
    // Found anew by a monitor that comes later.
    monitor.forget(1);
    let slot = monitor.register(2, machine.tgid()).unwrap();
    eventually("it is known at once or with its next turn", || running(&view, slot));
}
