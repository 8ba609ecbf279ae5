//! Work on a VM's account: the thread of a port is put into the control group of its VM, so that the kernel counts and
//! limits what the VM causes as it does the VM itself (PhD §4.3.1).

use super::port_threads::Thread;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use tracing::{info, warn};

/// For so long at most a thread works on our account at a time.
const LIFTED: Duration = Duration::from_millis(20);

/// The VMs that threads of ports work for.
#[derive(Debug, Default)]
pub struct CgroupAccounting {
    hierarchies: Vec<Hierarchy>,
    /// By port number.
    vms: BTreeMap<u32, u32>,
    complained: bool,
    /// Ports whose threads work on our account for others' sake.
    lifted: BTreeMap<u32, Lifted>,
    /// Ports of which that has been said.
    said: BTreeSet<u32>,
    /// Processes in whose control groups ports' threads work, as the log has it: threads come and go.
    placed: BTreeMap<u32, u32>,
}

/// What another program of this process goes on with: processes of VMs by ports, and ports of which something has been said.
pub type CgroupState = (Vec<(u32, u32)>, Vec<u32>);

#[derive(Debug)]
struct Lifted {
    thread: Thread,
    /// The control groups that it was in, as /proc/PID/cgroup has them.
    from: String,
    /// For so long at most.
    until: Instant,
}

/// A mounted hierarchy of control groups that accounts for processor time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hierarchy {
    mount: PathBuf,
    /// Of version 1: what it controls. Version 2 has one hierarchy for everything.
    controller: Option<&'static str>,
}

impl CgroupAccounting {
    /// With whatever hierarchies there are.
    pub fn new() -> Self {
        let hierarchies = mounted();
        if hierarchies.is_empty() {
            warn!("--vm-cgroup: no control groups for processor time are mounted; ports' threads stay where they are");
        }
        Self { hierarchies, ..Self::default() }
    }

    /// What another program of this process goes on with. Threads that work on our account go back first.
    pub fn hand_over(&mut self) -> CgroupState {
        self.lifted.keys().copied().collect::<Vec<_>>().into_iter().for_each(|port| self.settle(port));
        (self.vms.iter().map(|(port, pid)| (*port, *pid)).collect(), self.said.iter().copied().collect())
    }

    /// Goes on with it.
    pub fn resumed((vms, said): CgroupState) -> Self {
        Self { vms: vms.into_iter().collect(), said: said.into_iter().collect(), ..Self::new() }
    }

    /// The process at the other end of the port's connection, if it is known; `None`: it is gone. `thread` is the port's, if
    /// it has been started.
    pub fn set_vm(&mut self, port: u32, pid: Option<u32>, thread: Option<Thread>) {
        let known = match pid {
            Some(pid) => self.vms.insert(port, pid) != Some(pid),
            None => self.vms.remove(&port).is_some(),
        };
        if let (true, Some(thread)) = (known, thread) {
            self.place(port, thread);
        }
    }

    /// The port is gone.
    pub fn forget(&mut self, port: u32) {
        self.vms.remove(&port);
        self.lifted.remove(&port);
        self.said.remove(&port);
        self.placed.remove(&port);
    }

    /// Puts the port's thread, which has just been started or works for another VM now, where it belongs. Its number is the
    /// switch's word, so it is looked up among its threads.
    pub fn place(&mut self, port: u32, thread: Thread) {
        // Without a VM it goes back to where we are.
        let of = self.vms.get(&port).copied().unwrap_or_else(std::process::id);
        let results = self.put(thread, &groups(of));
        self.lifted.remove(&port);
        if results.iter().any(Result::is_ok) {
            if self.placed.insert(port, of) != Some(of) {
                info!("the thread of port {port} works in the control group of process {of}");
            }
        } else if let Some(Err((file, error))) = results.first()
            && !std::mem::replace(&mut self.complained, true)
        {
            warn!(
                "--vm-cgroup: {}: {error}; with version 2 this takes a threaded control group that holds lasthop and the \
                 VM, so ports' threads stay where they are",
                file.display()
            );
        }
    }

    /// Others wait for a lock that the port's thread has, and its VM may have no processor time left: it works on our account,
    /// until [`CgroupAccounting::over`] or for [`LIFTED`].
    pub fn lift(&mut self, port: u32, thread: Thread, now: Instant) {
        let until = now + LIFTED;
        // It may have another one now.
        if self.lifted.get(&port).is_some_and(|lifted| lifted.thread != thread) {
            self.settle(port);
        }
        match self.lifted.get_mut(&port) {
            Some(lifted) => lifted.until = until,
            None if self.vms.contains_key(&port) => {
                let from = fs::read_to_string(thread.proc().join("cgroup")).unwrap_or_default();
                // If it cannot be done the others wait until the VM has time again.
                self.put(thread, &groups(std::process::id()));
                self.lifted.insert(port, Lifted { thread, from, until });
            }
            None => return,
        }
        if self.said.insert(port) {
            info!(
                "the thread of port {port} was stopped with a lock that others wait for: it goes on beyond its VM's quota \
                 until it has let go, as often as that happens"
            );
        }
    }

    /// Nobody waits for this thread of the port's any more.
    pub fn over(&mut self, port: u32, thread: Thread) {
        if self.lifted.get(&port).is_some_and(|lifted| lifted.thread == thread) {
            self.settle(port);
        }
    }

    /// The port's thread works on its VM's account again.
    fn settle(&mut self, port: u32) {
        if let Some(Lifted { thread, from, .. }) = self.lifted.remove(&port) {
            self.put(thread, &from);
        }
    }

    /// The thread is about to end: what it still has to do, it does on our account, for it gives back memory, with a lock that the whole switch may wait for.
    pub fn release(&mut self, port: u32, thread: Thread) {
        if self.vms.contains_key(&port) {
            self.lifted.remove(&port);
            self.put(thread, &groups(std::process::id()));
        }
    }

    /// Puts back who has been lifted for long enough: whoever waits may have been stopped, too.
    pub fn step(&mut self, now: Instant) {
        while let Some((port, _)) = self.lifted.iter().find(|(_, lifted)| lifted.until <= now) {
            self.settle(*port);
        }
    }

    /// When [`CgroupAccounting::step`] has something to do.
    pub fn deadline(&self) -> Option<Instant> {
        self.lifted.values().map(|lifted| lifted.until).min()
    }

    /// Into control groups that /proc/PID/cgroup of some process has: what became of each.
    fn put(&self, thread: Thread, groups: &str) -> Vec<Result<(), (PathBuf, io::Error)>> {
        if !thread.proc().exists() {
            return Vec::new();
        }
        let results = self.hierarchies.iter().filter_map(|hierarchy| {
            let file = hierarchy.file(hierarchy.group(groups)?);
            Some(fs::write(&file, thread.number.to_string()).map_err(|e| (file, e)))
        });
        results.collect()
    }
}

/// Of a process.
fn groups(of: u32) -> String {
    fs::read_to_string(format!("/proc/{of}/cgroup")).unwrap_or_default()
}

impl Hierarchy {
    /// The file of a group that takes numbers of threads.
    fn file(&self, group: &str) -> PathBuf {
        let name = if self.controller.is_some() { "tasks" } else { "cgroup.threads" };
        self.mount.join(group.trim_start_matches('/')).join(name)
    }

    /// Of /proc/PID/cgroup: the process's group here.
    fn group<'t>(&self, groups: &'t str) -> Option<&'t str> {
        groups.lines().find_map(|line| {
            let (number, rest) = line.split_once(':')?;
            let (controllers, path) = rest.split_once(':')?;
            let here = self.controller.map_or(number == "0", |ours| controllers.split(',').any(|c| c == ours));
            here.then_some(path)
        })
    }
}

/// Those that are mounted.
pub fn mounted() -> Vec<Hierarchy> {
    hierarchies(&fs::read_to_string("/proc/mounts").unwrap_or_default())
}

/// How often a quota has stopped somebody in these control groups, which some /proc/PID/cgroup has, or in those around them: each stops all that is inside.
pub fn throttled(hierarchies: &[Hierarchy], groups: &str) -> u64 {
    let paths = hierarchies.iter().filter_map(|hierarchy| Some((hierarchy, hierarchy.group(groups)?)));
    let around = paths.flat_map(|(hierarchy, group)| {
        let group = Path::new(group.trim_start_matches('/'));
        group.ancestors().map(|group| hierarchy.mount.join(group).join("cpu.stat"))
    });
    let times = around.filter_map(|file| {
        let stat = fs::read_to_string(file).ok()?;
        stat.lines().find_map(|line| line.strip_prefix("nr_throttled ")?.parse::<u64>().ok())
    });
    times.fold(0, u64::saturating_add)
}

/// Of /proc/mounts: the hierarchies of version 1 with the controllers cpu and cpuacct, else the one of version 2.
fn hierarchies(mounts: &str) -> Vec<Hierarchy> {
    let find = |kind: &str, controller: Option<&'static str>| {
        mounts.lines().find_map(|line| {
            let mut words = line.split(' ').skip(1);
            let (mount, found, options) = (words.next()?, words.next()?, words.next()?);
            let here = controller.is_none_or(|ours| options.split(',').any(|o| o == ours));
            (found == kind && here).then(|| Hierarchy { mount: mount.into(), controller })
        })
    };
    let mut found: Vec<_> = ["cpu", "cpuacct"].into_iter().filter_map(|c| find("cgroup", Some(c))).collect();
    found.dedup_by(|a, b| a.mount == b.mount);
    if found.is_empty() { find("cgroup2", None).into_iter().collect() } else { found }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quotas_of_a_group_and_of_those_around_it_count() {
        let dir = tempfile::tempdir().unwrap();
        let write = |group: &str, text: &str| {
            let group = dir.path().join(group);
            fs::create_dir_all(&group).unwrap();
            fs::write(group.join("cpu.stat"), text).unwrap();
        };
        write("", "usage_usec 7\n");
        write("machine", "nr_periods 10\nnr_throttled 4\nthrottled_time 5\n");
        write("machine/vm1", "nr_periods 9\nnr_throttled 30\n");
        write("other", "nr_throttled 500\n");
        let all = [Hierarchy { mount: dir.path().to_owned(), controller: None }];
        assert_eq!(throttled(&all, "0::/machine/vm1\n"), 34);
        assert_eq!(throttled(&all, "0::/machine/vm2\n"), 4, "it has none of its own");
        assert_eq!((throttled(&all, "0::/\n"), throttled(&all, ""), throttled(&[], "0::/machine\n")), (0, 0, 0));
    }

    /// A hierarchy in a folder: what was put into a group last is in its file.
    #[test]
    fn who_ends_or_is_lifted_works_on_our_account() {
        let (dir, us) = (tempfile::tempdir().unwrap(), std::process::id());
        let hierarchy = Hierarchy { mount: dir.path().to_owned(), controller: None };
        let theirs = "0::/vm\n";
        let (own, from) = (groups(us), hierarchy.file("/vm"));
        let Some(ours) = hierarchy.group(&own).map(|group| hierarchy.file(group)) else {
            return println!("this process is in no control group of version 2: not tested");
        };
        for file in [&ours, &from] {
            fs::create_dir_all(file.parent().unwrap()).unwrap();
        }
        let last = |file: &Path| fs::read_to_string(file).unwrap_or_default();
        std::thread::scope(|scope| {
            let (tell, told) = std::sync::mpsc::channel();
            // They end when these are dropped, however this ends.
            let _stop = [tell.clone(), tell].map(|tell| {
                let (stop, stopped) = std::sync::mpsc::channel::<()>();
                scope.spawn(move || {
                    tell.send(lasthop_sys::current_thread()).unwrap();
                    let _ = stopped.recv();
                });
                stop
            });
            let [a, b] = [(); 2].map(|()| Thread { process: us, number: told.recv().unwrap() });
            let mut accounting = CgroupAccounting { hierarchies: vec![hierarchy], ..CgroupAccounting::default() };
            let now = Instant::now();
            accounting.release(7, a);
            assert_eq!(last(&ours), "", "it works for no VM");
            accounting.vms.insert(7, us);
            accounting.lift(7, a, now);
            assert_eq!(last(&ours), a.number.to_string());
            accounting.lifted.get_mut(&7).unwrap().from = theirs.to_owned();
            // The port has another one now.
            accounting.lift(7, b, now);
            assert_eq!((last(&from), last(&ours)), (a.number.to_string(), b.number.to_string()));
            accounting.lifted.get_mut(&7).unwrap().from = theirs.to_owned();
            accounting.over(7, a);
            assert_eq!(last(&from), a.number.to_string(), "somebody waits for the other");
            accounting.over(7, b);
            assert_eq!(last(&from), b.number.to_string(), "nobody waits for it");
            // Now it is about to end.
            accounting.lift(7, b, now);
            accounting.lifted.get_mut(&7).unwrap().from = theirs.to_owned();
            fs::write(&from, "").unwrap();
            accounting.release(7, b);
            accounting.step(now + 2 * LIFTED);
            assert_eq!((last(&from), last(&ours)), (String::new(), b.number.to_string()), "it is not put back");
        });
    }

    #[test]
    fn files_of_both_versions() {
        let both = "cgroup /sys/fs/cgroup/cpu,cpuacct cgroup rw,cpu,cpuacct 0 0\n\
                    cgroup2 /sys/fs/cgroup/unified cgroup2 rw 0 0\ntmpfs /tmp tmpfs rw,cpu 0 0\n";
        let found = hierarchies(both);
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].file("/machine/vm1"), Path::new("/sys/fs/cgroup/cpu,cpuacct/machine/vm1/tasks"));
        let second = hierarchies("cgroup2 /sys/fs/cgroup cgroup2 rw 0 0\n");
        assert_eq!(second[0].file("/vm.scope"), Path::new("/sys/fs/cgroup/vm.scope/cgroup.threads"));
        assert!(hierarchies("").is_empty());
        let groups = "9:name=systemd:/\n3:cpuacct:/\n2:cpu,cpuset:/machine/vm:1\n0::/unified\n";
        let group = |controller| Hierarchy { mount: "/".into(), controller }.group(groups);
        assert_eq!(group(Some("cpu")), Some("/machine/vm:1"));
        assert_eq!(group(Some("cpuacct")), Some("/"));
        assert_eq!(group(None), Some("/unified"));
        assert_eq!(Hierarchy { mount: "/".into(), controller: None }.group("broken"), None);
    }
}
