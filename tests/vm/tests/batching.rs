//! What real guests show of the scheduler: kicks, interrupts, helpers, who pays. Two VMs live on while one mechanism or another is switched off: batching by
//! `lasthop port set`, the others by another lasthop, to which QEMU connects by itself. Guests under emulation are slow, so batches last 5 ms here, and
//! what is asserted is several times apart.

use lasthop_harness::{Lasthop, Nic, Port, Vm, VmConfig, checks, on_device, proc, scratch, wait_for};
use serde_json::Value;
use std::path::PathBuf;
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(60);

struct Pair {
    ports: [Port; 2],
    vms: [Vm; 2],
    _dir: tempfile::TempDir,
}

impl Pair {
    /// Boots them; there is a lasthop meanwhile, which is gone then.
    fn boot() -> Self {
        let dir = scratch();
        let ports = ["a", "b"].map(|name| Port::listen(name, dir.path()));
        let _lasthop = Lasthop::start(&ports);
        let vm = |i: usize| VmConfig::new(&ports[i].name, [Nic::vhost_user(&ports[i].socket, i as u8 + 1)]);
        let vms = Vm::boot_all([vm(0), vm(1)]);
        Self { ports, vms, _dir: dir }
    }

    /// Another lasthop, with these options, once both guests are there.
    fn start(&self, options: &[&str]) -> Lasthop {
        let lasthop = Lasthop::start_with(&self.ports, options);
        ["a", "b"].iter().for_each(|name| lasthop.wait_for_state(name, "up"));
        lasthop
    }

    /// The same, once they know each other, too.
    fn with(&self, options: &[&str]) -> Lasthop {
        let lasthop = self.start(options);
        checks::ping(&self.vms[0], &self.vms[1]);
        lasthop
    }

    /// So many short frames from a to b, so many microseconds apart, and what the counters of each port went up by.
    fn frames(&self, lasthop: &Lasthop, count: u64, pause_us: u64) -> Grown {
        let before = Counters::read(lasthop, &self.vms[1]);
        let mac = self.vms[1].config.nics[0].mac();
        self.vms[0].run(&format!("lasthop-guest raw-send eth0 {mac} 88b5 {count} 64 64 {pause_us}"));
        wait_for("all to have been taken", PATIENCE, || {
            number(&lasthop.port("a")["from_guest"]["packets"]) >= before.packets + count
        });
        lasthop.check_sums();
        Counters::read(lasthop, &self.vms[1]).since(&before)
    }
}

fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("{value} is no number"))
}

/// What port a has taken, and what that has cost.
#[derive(Debug, Default)]
struct Counters {
    packets: u64,
    kicks: u64,
    interrupts: u64,
    /// As the guest counts them.
    seen: u64,
    ports_ns: u64,
    helpers_ns: u64,
}

/// What they went up by.
type Grown = Counters;

impl Counters {
    fn read(lasthop: &Lasthop, receiver: &Vm) -> Self {
        let stats = lasthop.json(&["stats"]);
        let port = |name: &str| lasthop.port(name);
        let (from, to) = (&port("a")["from_guest"], &port("b")["to_guest"]);
        let cpu = &stats["switch"]["cpu"];
        Self {
            packets: number(&from["packets"]),
            kicks: number(&from["notifications"]),
            interrupts: number(&to["notifications"]),
            seen: interrupts(receiver),
            ports_ns: number(&cpu["ports_ns"]),
            helpers_ns: number(&cpu["helpers_ns"]),
        }
    }

    fn since(&self, before: &Self) -> Grown {
        Self {
            packets: self.packets - before.packets,
            kicks: self.kicks - before.kicks,
            interrupts: self.interrupts - before.interrupts,
            seen: self.seen - before.seen,
            ports_ns: self.ports_ns - before.ports_ns,
            helpers_ns: self.helpers_ns - before.helpers_ns,
        }
    }
}

/// Interrupts of the card, as the guest's kernel counts them.
fn interrupts(vm: &Vm) -> u64 {
    let text = vm.run("cat /proc/interrupts");
    let lines = text.lines().filter(|line| line.contains("virtio"));
    let counts = lines.flat_map(|line| line.split_whitespace().nth(1)?.parse::<u64>().ok());
    counts.sum()
}

/// Runs while a guest has something to do all the time, at the lowest priority; ends it when dropped.
struct Spinning<'a>(&'a Vm);

impl<'a> Spinning<'a> {
    fn start(lasthop: &Lasthop, vm: &'a Vm) -> Self {
        vm.background("renice -n 19 -p $$; echo $$ >/tmp/spin; while :; do :; done");
        let spinning = Self(vm);
        let runs =
            || vm_of(lasthop, vm).starts_with("cpu ") || on_device::is_on() && vm.run("ls /tmp").contains("spin");
        wait_for(&format!("{} to run", vm.config.name), PATIENCE, runs);
        spinning
    }
}

impl Drop for Spinning<'_> {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            self.0.run("kill $(cat /tmp/spin)");
        }
    }
}

/// The column VM of `lasthop port list`.
fn vm_of(lasthop: &Lasthop, vm: &Vm) -> String {
    let list = lasthop.command(&["port", "list"]);
    let line = list.lines().find(|line| line.split_whitespace().next() == Some(&vm.config.name));
    // NAME STATE MODE VM QUEUES …: only what VM says may have a space.
    let words: Vec<&str> = line.unwrap_or_else(|| panic!("{list}")).split_whitespace().collect();
    if words[3] == "cpu" { words[3..5].join(" ") } else { words[3].to_owned() }
}

/// The slowest echo reply that came, in milliseconds, to 20 requests; infinite if none did.
fn slowest(from: &Vm, to: &Vm) -> f64 {
    let out = from.output(&format!("ping -c 20 -i 0.1 -w 30 {}", to.config.nics[0].ip4()), 50);
    let times = out.stdout.lines().filter_map(|line| line.split_once("time=")?.1.split(' ').next()?.parse().ok());
    let times: Vec<f64> = times.collect();
    println!("{} of 20 answers, {times:?} ms", times.len());
    times.into_iter().reduce(f64::max).unwrap_or(f64::INFINITY)
}

/// Processor time's accounts of a control group that a VM is in (version 1).
struct Account(Vec<PathBuf>);

impl Account {
    fn open(vm: &Vm) -> Option<Self> {
        let name = format!("lasthop-vm-{}-{}", std::process::id(), vm.config.name);
        let mut account = Self(Vec::new());
        for controller in ["cpuacct", "cpu"] {
            let group = PathBuf::from(format!("/sys/fs/cgroup/{controller}/{name}"));
            if !group.exists() {
                std::fs::create_dir(&group).ok()?;
            }
            std::fs::write(group.join("cgroup.procs"), vm.pid().to_string()).ok()?;
            account.0.push(group);
        }
        Some(account)
    }

    fn used_ns(&self) -> u64 {
        let text = std::fs::read_to_string(self.0[0].join("cpuacct.usage")).expect("the account");
        text.trim().parse().expect("a number")
    }
}

impl Drop for Account {
    fn drop(&mut self) {
        for group in &self.0 {
            let tasks = std::fs::read_to_string(group.join("tasks")).unwrap_or_default();
            let root = group.parent().map(|root| root.join("tasks")).unwrap_or_default();
            tasks.lines().for_each(|task| drop(std::fs::write(&root, task)));
            let _ = std::fs::remove_dir(group);
        }
    }
}

/// Kicks and interrupts a packet, while both guests have other things to do.
fn batches(pair: &Pair) {
    let [a, b] = &pair.vms;
    let lasthop = pair.with(&["--helpers", "none"]);
    let kicks_and_interrupts = |what: &str, transmit: &str, receive: &str| {
        for port in ["a", "b"] {
            lasthop.command(&["port", "set", port, "--tx-batch", transmit, "--rx-batch", receive]);
        }
        // A device does not know.
        let asleep = if on_device::is_on() { "-" } else { "blocked" };
        for vm in [a, b] {
            wait_for(&format!("{} to sleep", vm.config.name), PATIENCE, || vm_of(&lasthop, vm) == asleep);
        }
        let _spinning = [a, b].map(|vm| Spinning::start(&lasthop, vm));
        let grown = pair.frames(&lasthop, 4000, 100);
        println!("{what}: {grown:?}");
        assert_eq!(grown.helpers_ns, 0, "there are no helpers: {grown:?}");
        // Interrupts that come while the guest's kernel is at the last one are one for it.
        assert!(grown.seen <= grown.interrupts + 50, "the guest counts what the switch does: {grown:?}");
        assert!(grown.seen * 2 > grown.interrupts, "the guest counts what the switch does: {grown:?}");
        let each = |n: u64| n as f64 / grown.packets as f64;
        [each(grown.kicks), each(grown.seen)]
    };
    // Where the host does other things a guest loses its core, and the switch takes that for sleep, before which nothing waits: such a round says nothing.
    let mut seen = Vec::new();
    let shown = (0..4).any(|_| {
        let [kicks, interrupts] = kicks_and_interrupts("no batches", "off", "off");
        let [fewer, _] = kicks_and_interrupts("transmit batches", "5000,64", "off");
        let [_, held] = kicks_and_interrupts("receive batches", "off", "5000,64");
        seen.push([kicks, fewer, interrupts, held]);
        // Whom it does not see run it interrupts.
        fewer * 4.0 < kicks && (held * 3.0 < interrupts || on_device::is_on())
    });
    assert!(
        shown,
        "kicks a packet without and with transmit batches, interrupts without and with receive batches: {seen:?}"
    );
}

/// Interrupts a packet, while the receiver has other things to do and a core polls its port.
fn a_polled_port_batches(pair: &Pair) {
    let lasthop = pair.with(&["--poll", "0"]);
    let interrupts = |receive: &str| {
        lasthop.command(&["port", "set", "b", "--rx-batch", receive]);
        let _spinning = Spinning::start(&lasthop, &pair.vms[1]);
        // So seldom that a slow guest is done with one before the next comes.
        let grown = pair.frames(&lasthop, 400, 10_000);
        println!("polled, receive batches {receive}: {grown:?}");
        assert_eq!((grown.ports_ns, grown.kicks), (0, 0), "a core polls: {grown:?}");
        grown.seen as f64 / grown.packets as f64
    };
    // As above: a guest that loses its core is taken for one that sleeps. The last of these batches get full, one each 80 ms: a driver that has not been
    // interrupted does not ask again, and is owed one all the same.
    let mut seen = Vec::new();
    let shown = (0..4).any(|_| {
        let [each, held, full] = ["off", "200000,64", "1000000,8"].map(&interrupts);
        seen.push([each, held, full]);
        held * 3.0 < each && full * 3.0 < each && full > 1.0 / 16.0
    });
    assert!(shown, "interrupts a packet, without and with receive batches, and with some that get full: {seen:?}");
}

/// Both sleep between packets, so there are cores that nobody wants.
fn helpers_take_part(pair: &Pair) {
    let lasthop = pair.with(&[]);
    let mut last = Grown::default();
    wait_for("helpers to have done much of the work", PATIENCE, || {
        last = pair.frames(&lasthop, 4000, 0);
        println!("helpers: {last:?}");
        last.helpers_ns * 4 > last.ports_ns
    });
}

/// What a VM causes is on its control group's account, beside what it uses itself: the sender's, and with that option only.
fn vms_pay(pair: &Pair) {
    let [Some(a), Some(b)] = [0, 1].map(|i| Account::open(&pair.vms[i])) else {
        println!("no control groups of version 1 for processor time here: not tested");
        return;
    };
    for pays in [true, false] {
        let lasthop = pair.with(if pays { &["--helpers", "none", "--vm-cgroup"] } else { &["--helpers", "none"] });
        // What the account has, less what QEMU itself has used; and what the port's thread has.
        let read = |account: &Account, i: usize| {
            let port = number(&lasthop.port(&pair.ports[i].name)["cpu_ns"]);
            [account.used_ns() as f64 - proc::cpu_ns(pair.vms[i].pid()) as f64, port as f64]
        };
        let copied_ns = || [0, 1].map(|i| number(&lasthop.port(&pair.ports[i].name)["copied_ns"]));
        let (before, copied) = ([read(&a, 0), read(&b, 1)], copied_ns());
        pair.frames(&lasthop, 5000, 100);
        let after = [read(&a, 0), read(&b, 1)];
        let copied: Vec<_> = copied_ns().iter().zip(copied).map(|(now, before)| now - before).collect();
        println!("copied to each: {copied:?} ns");
        // Whoever pays: it is told at the receiver, 50 ns for each frame at the very least, and the sender has got hardly any.
        assert!(copied[1] > 250_000 && copied[1] > 10 * copied[0], "{copied:?} ns");
        let [sender, receiver] = [0, 1].map(|i| [0, 1].map(|k| after[i][k] - before[i][k]));
        println!("accounts, {pays}: {sender:?}, {receiver:?}");
        let [on_account, used] = sender;
        assert!(used > 10e6, "the thread of a has worked: {sender:?}");
        if pays {
            assert!((0.8..1.25).contains(&(on_account / used)), "the sender pays: {sender:?}");
        } else {
            assert!(on_account < 0.2 * used, "nobody's account: {sender:?}");
        }
        assert!(receiver[0] < 0.2 * used, "the receiver does not: {sender:?}, {receiver:?}");
    }
}

/// A second is how long a stream's packets may be gathered. What a guest sends before it sleeps does not wait for that, as the switch sees that
/// it sleeps; where it cannot see that, it waits.
fn questions_do_not_wait(pair: &Pair) {
    let [a, b] = &pair.vms;
    let second = ["--tx-batch", "1000000,32768"];
    let lasthop = pair.with(&second);
    let seen = slowest(a, b);
    assert!(seen < 500.0, "{seen} ms");
    drop(lasthop);
    let lasthop = pair.start(&[&second[..], &["--no-bpf", "--helpers", "none"]].concat());
    for vm in [a, b] {
        assert_eq!(vm_of(&lasthop, vm), "-", "nobody looks");
    }
    // Even the answers to who has which address wait.
    let unseen = slowest(a, b);
    assert!(unseen > 500.0, "{unseen} ms");
}

#[test]
fn two_guests_batch_by_batch() {
    let pair = Pair::boot();
    batches(&pair);
    helpers_take_part(&pair);
    // A device's threads are in nobody's control group, and it does not know who sleeps.
    if !on_device::is_on() {
        a_polled_port_batches(&pair);
        vms_pay(&pair);
        questions_do_not_wait(&pair);
    }
}
