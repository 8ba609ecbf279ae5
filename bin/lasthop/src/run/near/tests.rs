//! Declared hosts, and threads of this process in place of a VM's and of the switch's.

use super::*;
use lasthop_types::ThreadNews;
use std::sync::mpsc::{Sender, channel};

/// A host that is declared: files as the kernel has them.
pub(super) struct Host(tempfile::TempDir);

impl Host {
    /// With these nodes and these caches, each a list of CPUs.
    fn new(online: &str, nodes: &[&str], caches: &[&str]) -> Self {
        let host = Self(tempfile::tempdir().unwrap());
        host.write("cpu/online", online);
        host.write("node/online", &(0..nodes.len()).collect::<CpuList>().to_string());
        for (node, cpus) in nodes.iter().enumerate() {
            host.write(&format!("node/node{node}/cpulist"), cpus);
        }
        for cpus in caches {
            for cpu in cpus.parse::<CpuList>().unwrap().iter() {
                host.write(&format!("cpu/cpu{cpu}/cache/index3/level"), "3");
                host.write(&format!("cpu/cpu{cpu}/cache/index3/shared_cpu_list"), cpus);
                // As all caches begin at 0.
                host.write(&format!("cpu/cpu{cpu}/cache/index0/level"), "1");
                host.write(&format!("cpu/cpu{cpu}/cache/index1/level"), "1");
                host.write(&format!("cpu/cpu{cpu}/cache/index2/level"), "2");
            }
        }
        host
    }

    fn write(&self, name: &str, text: &str) {
        let file = self.0.path().join(name);
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(file, format!("{text}\n")).unwrap();
    }

    fn domains(&self, near: Near) -> Vec<(Option<u32>, String)> {
        let nodes = topology::nodes(self.0.path());
        domains(near, &nodes, self.0.path()).into_iter().map(|domain| (domain.node, domain.cpus.to_string())).collect()
    }
}

#[test]
fn what_there_is_to_be_near_to() {
    let here = |node, cpus: &str| (Some(node), cpus.to_owned());
    let two = Host::new("0-7", &["0-3", "4-7", ""], &["0-1", "2-3", "4-5", "6-7"]);
    assert_eq!(two.domains(Near::Off), []);
    assert_eq!(two.domains(Near::Node), [here(0, "0-3"), here(1, "4-7")]);
    let caches = [here(0, "0-1"), here(0, "2-3"), here(1, "4-5"), here(1, "6-7")];
    assert_eq!(two.domains(Near::Cache)[..4], caches);
    assert_eq!(two.domains(Near::Cache)[4..], two.domains(Near::Node));
    // A node of which CPUs are offline; one node; no node; caches that nobody shares, or everybody does.
    assert_eq!(Host::new("0-4", &["0-3", "4-7"], &[]).domains(Near::Node), [here(1, "4"), here(0, "0-3")]);
    assert_eq!(Host::new("0-3", &["0-3"], &["0-3"]).domains(Near::Cache), []);
    assert_eq!(Host::new("0-3", &["0-3"], &["0-1", "2-3"]).domains(Near::Cache), [here(0, "0-1"), here(0, "2-3")]);
    assert_eq!(Host::new("0-3", &["0-3"], &["0", "1", "2", "3"]).domains(Near::Cache), []);
    assert_eq!(domains(Near::Cache, &[], Path::new("/nowhere")), []);
    let followed = Followed::new(Near::Off, two.0.path());
    assert_eq!(followed.nodes(&"3-4".parse().unwrap()).as_deref(), Some("0-1"));
    assert_eq!(Followed::new(Near::Node, Host::new("0-3", &["0-3"], &[]).0.path()).nodes(&"3".parse().unwrap()), None);
}

#[test]
fn fields_of_a_thread_are_found_whatever_its_name() {
    let field = |number| match number {
        3 => "S",
        14 => "400",
        15 => "20",
        39 => "5",
        _ => "7",
    };
    let rest = (3..=52).map(field).collect::<Vec<_>>().join(" ");
    for name in ["CPU 0/KVM", "a) b) (c", ""] {
        assert_eq!(ran(&format!("77 ({name}) {rest}")), Some((420, 5)), "{name}");
    }
    for broken in ["", "77 (x)", "77 (x) S 1 2", "77 (x) S 1 2 3 4 5 6 7 8 9 10 x 20"] {
        assert_eq!(ran(broken), None, "{broken}");
    }
    // Any bytes, too: in QEMU a name of a thread may come from a network device's.
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(dir.path().join("77")).unwrap();
    fs::write(dir.path().join("77/stat"), [b"77 (x\xff\xe9) ".as_slice(), rest.as_bytes()].concat()).unwrap();
    assert_eq!(threads(dir.path()), BTreeMap::from([(77, (420, 5))]));
    let own = threads(Path::new("/proc/self/task"));
    assert!(own.contains_key(&lasthop_sys::current_thread()), "{own:?}");
}

#[test]
fn words_of_how_near() {
    for near in Near::ALL {
        assert_eq!(near.to_string().parse::<Near>(), Ok(near));
    }
    assert!("numa".parse::<Near>().unwrap_err().contains("there are off, node, cache"));
}

/// A thread of this process.
struct Running {
    thread: i32,
    /// CPUs that it goes to, and how many ticks it works there; nothing: it ends.
    work: Sender<(CpuList, u64)>,
    done: std::sync::mpsc::Receiver<()>,
}

impl Running {
    fn start() -> Self {
        let ((work, works), (tell, told), (finish, done)) = (channel::<(CpuList, u64)>(), channel(), channel());
        std::thread::spawn(move || {
            tell.send(lasthop_sys::current_thread()).unwrap();
            for (cpus, ticks) in works {
                if !cpus.is_empty() {
                    cpus.bind_current_thread().unwrap();
                }
                let own = format!("/proc/self/task/{}/stat", lasthop_sys::current_thread());
                let used = || ran(&fs::read_to_string(&own).unwrap()).unwrap().0;
                let until = used() + ticks;
                while used() < until {
                    std::hint::spin_loop();
                }
                finish.send(()).unwrap();
            }
        });
        Self { thread: told.recv().unwrap(), work, done }
    }

    fn works(&self, cpus: &CpuList, ticks: u64) {
        self.work.send((cpus.clone(), ticks)).unwrap();
        self.done.recv().unwrap();
    }

    fn cpus(&self) -> String {
        let status = fs::read_to_string(format!("/proc/self/task/{}/status", self.thread)).unwrap();
        status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:\t")).unwrap().to_owned()
    }
}

/// Two nodes of a CPU each. The process of this test is the switch; the VM is a process of its own, so that other tests' threads do not count.
struct Stage {
    followed: Followed,
    threads: PortThreads,
    /// CPUs of ports' threads.
    cpus: CpuList,
    now: Instant,
    polled: BTreeSet<u32>,
    vm: std::process::Child,
    host: Host,
    /// A CPU of the one node, and of the other.
    of_nodes: [usize; 2],
}

/// The port.
const PORT: u32 = 3;

impl Stage {
    /// The VM runs on the second node. `None`: there is one CPU.
    fn set() -> Option<Self> {
        let all: Vec<usize> = CpuList::allowed().unwrap().iter().collect();
        let &[one, two, ..] = &all[..] else {
            println!("there is one CPU: not tested");
            return None;
        };
        let both: CpuList = [one, two].into_iter().collect();
        let host = Host::new(&both.to_string(), &[&one.to_string(), &two.to_string()], &[]);
        let followed = Followed::new(Near::Node, host.0.path());
        assert_eq!(followed.deadline(Instant::now()), None, "without a VM there is nothing to look at");
        let vm = std::process::Command::new("sh").args(["-c", "while :; do :; done"]).spawn().unwrap();
        let (threads, now) = (PortThreads::default(), Instant::now());
        let mut stage =
            Self { followed, threads, cpus: both, now, polled: BTreeSet::new(), vm, host, of_nodes: [one, two] };
        stage.bind_vm(1);
        stage.connect();
        Some(stage)
    }

    fn connect(&mut self) {
        self.followed.set_vm(PORT, self.vm.id());
    }

    fn bind_vm(&self, node: usize) {
        bind_to(self.vm.id() as i32, self.of_nodes[node]);
    }

    fn own(&self, node: usize) -> String {
        self.of_nodes[node].to_string()
    }

    fn both(&self) -> CpuList {
        self.of_nodes.into_iter().collect()
    }

    /// A thread of this process is the port's from now on.
    fn has(&mut self, thread: i32) {
        self.threads.heard(PORT, ThreadNews { thread, used_ns: 0, refused: None });
        self.followed.place(PORT, Thread { process: std::process::id(), number: thread }, &self.cpus);
    }

    fn step(&mut self) -> Option<Vec<PortPlace>> {
        // Whatever the rest that it takes.
        self.now += Duration::from_secs(60);
        let (of_ports, switch) = (&self.threads, Some(std::process::id()));
        let threads = Threads { of_ports, switch, cpus: &self.cpus, polled: &self.polled };
        while !self.followed.step(threads, self.now) {}
        let places = self.followed.places(&self.cpus);
        let is_news = !self.followed.told.news(places.clone()).is_empty();
        is_news.then_some(places)
    }

    /// The VM works a little, and so does the thread; then it is looked.
    fn look(&mut self, thread: &Running) -> Option<Vec<PortPlace>> {
        let task = format!("/proc/{}/task", self.vm.id());
        let used = || threads(Path::new(&task)).values().map(|(ticks, _)| *ticks).sum::<u64>();
        let until = used() + FEW_TICKS;
        while used() < until {
            std::thread::yield_now();
        }
        thread.works(&CpuList::default(), 1);
        self.step()
    }

    /// The VM is on this node; the thread may run there, or as said.
    fn place(&self, node: usize, thread: &str, state: Nearness) -> Option<Vec<PortPlace>> {
        let thread_cpus = (!thread.is_empty()).then(|| thread.to_owned());
        let (node, vm_cpus) = (Some(node as u32), self.own(node));
        Some(vec![PortPlace { port: PortId(PORT), node, vm_cpus, thread_cpus, state }])
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        let _ = self.vm.kill();
        let _ = self.vm.wait();
    }
}

fn bind_to(thread: i32, cpu: usize) {
    let mut set = CpuSet::new();
    set.set(cpu);
    sched_setaffinity(Pid::from_raw(thread), &set).unwrap();
}

#[test]
fn a_thread_follows_its_vm_and_stays_within_cpus_of_ports() {
    let Some(mut stage) = Stage::set() else { return };
    let (port, both) = (Running::start(), stage.both().to_string());
    stage.has(port.thread);
    assert_eq!(port.cpus(), both);
    let said = stage.look(&port).expect("it was not told yet");
    assert_eq!((said[0].state.clone(), said[0].thread_cpus.as_deref()), (Nearness::Unknown, Some(&*both)));
    assert_eq!((stage.look(&port), port.cpus()), (None, both.clone()));
    assert_eq!(stage.look(&port), stage.place(1, &stage.own(1), Nearness::Near));
    assert_eq!(port.cpus(), stage.own(1));
    stage.bind_vm(0);
    // The first of these may have seen it where it was.
    let looks = (0..5).take_while(|_| stage.look(&port).is_none()).count();
    assert!((2..4).contains(&looks), "{looks}");
    assert_eq!(port.cpus(), stage.own(0));
    // Who does nothing is not looked at.
    stage.bind_vm(1);
    for _ in 0..5 {
        assert_eq!(stage.step(), None);
    }
    assert!(stage.followed.pause > OFTEN && !stage.followed.worked);
    // Ports' threads have other CPUs now.
    stage.cpus = std::iter::once(stage.of_nodes[1]).collect();
    assert_eq!(stage.step(), stage.place(0, &stage.own(1), Nearness::NoCpu));
    assert_eq!(port.cpus(), stage.own(1));
    stage.cpus = stage.both();
    assert_eq!(stage.step(), stage.place(0, &stage.own(0), Nearness::Near));
    // Off: all threads may run anywhere, and it is not looked any more.
    stage.followed.set_near(Near::Off);
    stage.step();
    assert_eq!((port.cpus(), stage.followed.deadline(stage.now)), (both.clone(), None));
    stage.followed.set_near(Near::Node);
    (0..LOOKS_AND_ONE).for_each(|_| drop(stage.look(&port)));
    assert_eq!(port.cpus(), stage.own(1));
    // The VM goes.
    stage.followed.end(PORT);
    assert_eq!(stage.step(), Some(Vec::new()));
    assert_eq!((port.cpus(), stage.followed.deadline(stage.now)), (both, None));
}

/// What is known of the VM outlives the switch, and this program; what was done to a thread does not.
#[test]
fn another_thread_is_where_the_vm_is_from_its_start() {
    let Some(mut stage) = Stage::set() else { return };
    let port = Running::start();
    stage.has(port.thread);
    (0..LOOKS_AND_ONE).for_each(|_| drop(stage.look(&port)));
    assert_eq!(port.cpus(), stage.own(1));
    let next = Running::start();
    stage.has(next.thread);
    assert_eq!(next.cpus(), stage.own(1));
    // Somebody else binds it elsewhere, or a control group does.
    bind_to(next.thread, stage.of_nodes[0]);
    stage.step();
    assert_eq!(next.cpus(), stage.own(1));
    // The switch is gone, and the same VM connects to the next one.
    stage.threads.forget_all();
    stage.connect();
    let again = Running::start();
    stage.has(again.thread);
    assert_eq!(again.cpus(), stage.own(1));
    // Another program of this process.
    let mut resumed = Followed::new(Near::Node, stage.host.0.path());
    resumed.resume(stage.followed.hand_over());
    resumed.place(PORT, Thread { process: std::process::id(), number: port.thread }, &stage.both());
    bind_to(port.thread, stage.of_nodes[0]);
    resumed.place(PORT, Thread { process: std::process::id(), number: port.thread }, &stage.both());
    assert_eq!(port.cpus(), stage.own(1));
    // Another VM may be anywhere.
    stage.followed.set_vm(PORT, std::process::id());
    stage.has(port.thread);
    assert_eq!(port.cpus(), stage.both().to_string());
}

/// Its port has been silent: what was said stays, and the next thread is where the one before was.
#[test]
fn a_thread_that_has_ended_takes_nothing_along() {
    let Some(mut stage) = Stage::set() else { return };
    let port = Running::start();
    stage.has(port.thread);
    let seen: Vec<_> = (0..LOOKS_AND_ONE).filter_map(|_| stage.look(&port)).collect();
    assert_eq!(seen.last().cloned(), stage.place(1, &stage.own(1), Nearness::Near));
    stage.threads.heard(PORT, ThreadNews { thread: 0, used_ns: 7, refused: None });
    for _ in 0..5 {
        assert_eq!(stage.step(), None, "nothing is otherwise");
    }
    assert!(!stage.followed.worked);
    let next = Running::start();
    stage.has(next.thread);
    assert_eq!((stage.step(), next.cpus()), (None, stage.own(1)));
    // It is followed like the one before.
    stage.bind_vm(0);
    let looks = (0..5).take_while(|_| stage.look(&next).is_none()).count();
    assert!((2..4).contains(&looks), "{looks}");
    assert_eq!(next.cpus(), stage.own(0));
}

/// It has no thread that could be anywhere, and its VM is followed all the same.
#[test]
fn of_a_port_that_a_core_polls_no_thread_is_placed() {
    let Some(mut stage) = Stage::set() else { return };
    // One that it had before the core did.
    let port = Running::start();
    stage.threads.heard(PORT, ThreadNews { thread: port.thread, used_ns: 0, refused: None });
    stage.polled.insert(PORT);
    let seen: Vec<_> = (0..LOOKS_AND_ONE).filter_map(|_| stage.look(&port)).collect();
    assert_eq!(seen.last().cloned(), stage.place(1, "", Nearness::Near));
    assert_ne!(port.cpus(), stage.own(1));
    stage.polled.clear();
    assert_eq!(stage.look(&port), stage.place(1, &stage.own(1), Nearness::Near));
    assert_eq!(port.cpus(), stage.own(1));
}

const LOOKS_AND_ONE: u8 = law::LOOKS + 1;

/// Its process is in another PID namespace.
#[test]
fn of_a_vm_that_is_not_seen_it_is_said_that_nothing_is_known() {
    let Some(mut stage) = Stage::set() else { return };
    let port = Running::start();
    stage.followed.set_vm(PORT, 0);
    stage.has(port.thread);
    let both = stage.both().to_string();
    let unknown = PortPlace {
        port: PortId(PORT),
        node: None,
        vm_cpus: String::new(),
        thread_cpus: Some(both.clone()),
        state: Nearness::Unknown,
    };
    assert_eq!(stage.look(&port), Some(vec![unknown]));
    assert!((0..LOOKS_AND_ONE).all(|_| stage.look(&port).is_none()));
    assert_eq!(port.cpus(), both);
    // Another program of this process knows no more of it.
    let mut resumed = Followed::new(Near::Node, stage.host.0.path());
    resumed.resume(stage.followed.hand_over());
    assert_eq!(resumed.places(&stage.cpus)[0].state, Nearness::Unknown);
    stage.followed.end(PORT);
    assert_eq!(stage.step(), Some(Vec::new()));
}

/// It was looked at once a second for ever, where cores poll.
#[test]
fn a_vm_that_does_not_come_back_to_the_next_switch_is_forgotten() {
    let Some(mut stage) = Stage::set() else { return };
    let port = Running::start();
    stage.polled.insert(PORT);
    (0..LOOKS_AND_ONE).for_each(|_| drop(stage.look(&port)));
    assert!(stage.followed.worked);
    stage.threads.forget_all();
    stage.followed.switch_ended(stage.now);
    // It comes back in time, and is where it was.
    stage.connect();
    stage.step();
    assert!(stage.followed.worked && stage.followed.vms.len() == 1);
    // Another switch ends. It is not looked at before it is back.
    stage.now -= Duration::from_secs(59);
    stage.followed.switch_ended(stage.now + Duration::from_secs(59));
    assert_eq!((stage.step(), stage.followed.worked), (None, false));
    assert!(stage.followed.pause > OFTEN);
    assert_eq!(stage.followed.hand_over(), [], "another program of this process does not follow it either");
    assert_eq!(stage.step(), Some(Vec::new()));
    assert_eq!(stage.followed.deadline(stage.now), None);
}

#[test]
fn cpus_that_come_or_go_are_noticed() {
    let Some(mut stage) = Stage::set() else { return };
    let port = Running::start();
    stage.has(port.thread);
    (0..LOOKS_AND_ONE).for_each(|_| drop(stage.look(&port)));
    assert_eq!(port.cpus(), stage.own(1));
    // Those of the one node: there is nothing to be near to.
    stage.host.write("cpu/online", &stage.own(1));
    assert_eq!(stage.step(), Some(Vec::new()));
    assert_eq!(port.cpus(), stage.both().to_string());
    stage.step();
    let next = stage.followed.deadline(stage.now).expect("they may come back");
    assert!(next > stage.now && next <= stage.now + HOST_EVERY, "{:?}", next - stage.now);
    stage.host.write("cpu/online", &stage.both().to_string());
    (0..LOOKS_AND_ONE).for_each(|_| drop(stage.look(&port)));
    assert_eq!(port.cpus(), stage.own(1));
}

/// The kernel refuses CPUs that are not there, and those that a control group does not have, alike.
#[test]
fn a_thread_that_may_not_be_bound_runs_anywhere_and_is_tried_again() {
    let Some(mut stage) = Stage::set() else { return };
    let [one, two] = stage.of_nodes;
    let absent = CpuSet::MAX_CPU - 1;
    stage.host.write("cpu/online", &[one, two, absent].into_iter().collect::<CpuList>().to_string());
    stage.host.write("node/node1/cpulist", &format!("{two},{absent}"));
    stage.followed.hurry();
    let port = Running::start();
    stage.has(port.thread);
    (0..LOOKS_AND_ONE).for_each(|_| drop(stage.look(&port)));
    assert_eq!(port.cpus(), stage.own(1));
    // Of its node ports' threads have that one alone.
    stage.cpus = [one, absent].into_iter().collect();
    let said = stage.step().expect("something else");
    assert!(matches!(said[0].state, Nearness::Refused(_)), "{said:?}");
    assert_eq!((port.cpus(), said[0].thread_cpus.clone()), (stage.own(0), Some(stage.own(0))));
    let refused = |stage: &Stage| stage.followed.vms[&PORT].refused.expect("it is refused").1;
    let first = refused(&stage);
    assert!(matches!(stage.followed.said.last(), Some((PORT, Said::Refused(..)))), "{:?}", stage.followed.said);
    let said = stage.followed.said.len();
    stage.step();
    assert!(refused(&stage) > first, "it is tried again after a minute");
    assert_eq!((stage.followed.said.len(), port.cpus()), (said, stage.own(0)), "once is enough");
    // Once it may be, it is.
    stage.cpus = [one, two, absent].into_iter().collect();
    let said = stage.step().expect("something else");
    assert_eq!((&said[0].state, port.cpus()), (&Nearness::Near, stage.own(1)));
}

#[test]
fn looking_is_bounded_in_time_whatever_there_is_to_look_at() {
    let host = Host::new("0-1", &["0", "1"], &[]);
    let mut followed = Followed::new(Near::Node, host.0.path());
    (1..=5000).for_each(|port| followed.set_vm(port, std::process::id()));
    let (threads, cpus) = (PortThreads::default(), "0-1".parse().unwrap());
    let polled = (1..=5000).collect();
    let threads = Threads { of_ports: &threads, switch: Some(std::process::id()), cpus: &cpus, polled: &polled };
    let now = Instant::now();
    assert!(!followed.step(threads, now), "not all have been looked at");
    let took = now.elapsed();
    assert!(followed.round.len() < 5000 && !followed.round.is_empty());
    let next = followed.deadline(now).unwrap();
    assert!(next >= now + TURN * REST, "{:?} after {took:?}", next - now);
    // A round begins where the one before ended.
    let left = followed.round.len();
    followed.step(threads, next);
    assert!(followed.round.len() < left);
}
