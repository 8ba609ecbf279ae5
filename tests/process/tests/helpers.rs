//! What helpers are to the rest of the host: threads that get in nobody's way.

use lasthop_frame::VnetHdr;
use lasthop_sys::{CpuList, Epoll, TimerFd, Trigger, bind_current_thread};
use lasthop_tests_process::{Guest, Lasthop, Options, PATIENCE, Port, mac, numbered, proc, scratch, wait_for};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Scheduling policies as of sched(7).
const SCHED_OTHER: u32 = 0;
const SCHED_IDLE: u32 = 5;

/// A thread of the switch as the kernel has it.
#[derive(Debug, PartialEq, Eq)]
struct Thread {
    number: u32,
    name: String,
    policy: u32,
    /// CPUs on which it may run.
    cpus: String,
}

fn threads(lasthop: &Lasthop) -> Vec<Thread> {
    let tasks = std::fs::read_dir(format!("/proc/{}/task", lasthop.switch())).expect("the switch runs").flatten();
    let thread = |task: PathBuf| {
        let read = |file: &str| std::fs::read_to_string(task.join(file)).ok();
        let (stat, status) = (read("stat")?, read("status")?);
        // Of stat, behind the name: the state is field 3, the policy field 41.
        let policy = stat.rsplit_once(") ")?.1.split(' ').nth(41 - 3)?.parse().ok()?;
        let cpus = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"))?.trim().to_owned();
        let number = task.file_name()?.to_str()?.parse().ok()?;
        Some(Thread { number, name: read("comm")?.trim_end().to_owned(), policy, cpus })
    };
    tasks.filter_map(|task| thread(task.path())).collect()
}

fn pair(lasthop_arguments: &[&str]) -> (Lasthop, [Guest; 2], tempfile::TempDir) {
    let dir = scratch();
    let ports = ["a", "b"].map(|name| Port::listen(name, dir.path()));
    let lasthop = Lasthop::start_with(&ports, lasthop_arguments);
    let mut guests = [0, 1].map(|n| Guest::connect(&ports[n].socket, mac(n as u8 + 1), Options::default()));
    let [a, b] = &mut guests;
    a.greet(b, 1);
    (lasthop, guests, dir)
}

/// Each core has one, which may run nowhere else and, unless told otherwise, only when nobody else wants to; ports' threads are
/// like any other.
#[test]
fn helpers_are_in_the_idle_class_each_on_its_core() {
    let allowed = CpuList::allowed().expect("an affinity");
    let last = allowed.iter().last().expect("a CPU").to_string();
    for (arguments, policy, cores) in [
        (&[][..], SCHED_IDLE, allowed.iter().map(|cpu| cpu.to_string()).collect::<Vec<_>>()),
        (&["--helpers", &last], SCHED_IDLE, vec![last.clone()]),
        (&["--helpers", &last, "--helper-class", "normal"], SCHED_OTHER, vec![last.clone()]),
    ] {
        let (lasthop, _guests, _dir) = pair(arguments);
        let wanted = |core: &String| (format!("helper-{core}"), policy, core.clone());
        let mut wanted: Vec<_> = cores.iter().map(wanted).collect();
        wanted.extend(["port-a", "port-b"].map(|name| (name.to_owned(), SCHED_OTHER, allowed.to_string())));
        wanted.sort();
        let mut found = Vec::new();
        // A thread has a name before it has moved to its place.
        wait_for("threads to be where they belong", PATIENCE, || {
            let all =
                threads(&lasthop).into_iter().filter(|t| t.name.starts_with("helper-") || t.name.starts_with("port-"));
            found = all.map(|t| (t.name, t.policy, t.cpus)).collect();
            found.sort();
            let there = found == wanted;
            if !there {
                println!("{found:?}, not {wanted:?}");
            }
            there
        });
    }
}

struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// How late a thread of normal priority wakes up that sleeps 0.5 ms at a time, in microseconds, in rising order.
fn lateness(times: usize) -> Vec<u64> {
    let (epoll, timer) = (Epoll::new().expect("epoll"), TimerFd::new().expect("a timer"));
    epoll.add(&timer, 0, Trigger::Edge).expect("epoll");
    let (sleep, mut ready) = (Duration::from_micros(500), Vec::new());
    let mut all: Vec<u64> = (0..times)
        .map(|_| {
            let start = Instant::now();
            timer.set_ns(sleep.as_nanos() as u64);
            epoll.wait(&mut ready, Some(PATIENCE)).expect("the timer runs out");
            start.elapsed().saturating_sub(sleep).as_nanos() as u64 / 1000
        })
        .collect();
    all.sort_unstable();
    all
}

/// What docs/scheduling.md says of giving a core back. On an idle host with two CPUs or more; the guests are on the first, a
/// helper and the thread that wants its core on the last.
#[test]
#[ignore = "a measurement: run it alone, with --nocapture"]
fn how_soon_a_core_is_handed_back() {
    const TIMES: usize = 3000;
    let allowed = CpuList::allowed().expect("an affinity");
    let (first, last) = (allowed.iter().next().expect("a CPU"), allowed.iter().last().expect("a CPU"));
    assert!(allowed.len() >= 2, "two CPUs or more are needed");
    let (lasthop, guests, _dir) = pair(&["--helpers", &last.to_string(), "--hysteresis", "1000,1000"]);
    let switch = lasthop.switch();
    let helper = threads(&lasthop).into_iter().find(|t| t.name.starts_with("helper-")).expect("a helper").number;
    let (stop, quiet) = (AtomicBool::new(false), AtomicBool::new(true));
    std::thread::scope(|scope| {
        let (stop, quiet) = (&stop, &quiet);
        scope.spawn(move || {
            bind_current_thread(first).expect("an allowed CPU");
            let [mut a, mut b] = guests;
            let frame = numbered(a.mac, b.mac, 2, 60);
            while !stop.load(Ordering::Relaxed) {
                if quiet.load(Ordering::Relaxed) {
                    std::thread::sleep(Duration::from_millis(1));
                    continue;
                }
                a.try_send(VnetHdr::default(), &frame);
                while b.try_recv().is_some() {}
                let next = Instant::now() + Duration::from_micros(20);
                while Instant::now() < next {
                    std::hint::spin_loop();
                }
            }
        });
        let _stop = Stop(stop);
        let measure = move || {
            bind_current_thread(last).expect("an allowed CPU");
            for round in 1..=3 {
                for idle in [true, false] {
                    quiet.store(idle, Ordering::Relaxed);
                    let share = |meanwhile: &mut dyn FnMut()| {
                        let (start, before) = (Instant::now(), proc::thread_ns(switch, helper));
                        meanwhile();
                        (proc::thread_ns(switch, helper) - before) as f64 / start.elapsed().as_nanos() as f64
                    };
                    // A core that was taken away is left alone for a while.
                    wait_for("the helper to poll, or to sleep", PATIENCE, || {
                        let had = share(&mut || std::thread::sleep(Duration::from_millis(200)));
                        if idle { had < 0.01 } else { had > 0.8 }
                    });
                    let mut late = Vec::new();
                    let share = share(&mut || late = lateness(TIMES));
                    println!(
                        "round {round}, {}: p50 {} us, p99 {} us, longest {} us late; the helper had {:.0} % of the core",
                        if idle { "idle core" } else { "helper polls" },
                        late[TIMES / 2],
                        late[TIMES * 99 / 100],
                        late[TIMES - 1],
                        share * 100.0
                    );
                }
            }
        };
        scope.spawn(measure).join().expect("measured");
    });
}
