//! What /proc says about processes.

use rustix::process::{Pid, Signal, kill_process};
use std::fs;
use std::path::Path;

/// The processes whose parent is `pid`, with their names (at most 15 characters, as the kernel keeps them).
pub fn children(pid: u32) -> Vec<(u32, String)> {
    let all = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = all.filter_map(|e| e.file_name().to_str()?.parse::<u32>().ok());
    pids.filter_map(|p| stat(p).filter(|s| s.parent == pid).map(|s| (p, s.name))).collect()
}

/// `pid`, its children, theirs and so on.
pub fn tree(pid: u32) -> Vec<u32> {
    let mut all = vec![pid];
    let mut next = 0;
    while next < all.len() {
        all.extend(children(all[next]).into_iter().map(|(p, _)| p));
        next += 1;
    }
    all
}

struct Stat {
    name: String,
    parent: u32,
    ticks: u64,
}

/// proc(5), /proc/pid/stat: the name in parentheses may hold spaces.
fn stat(pid: u32) -> Option<Stat> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (front, back) = (text.find('(')?, text.rfind(')')?);
    let rest: Vec<&str> = text.get(back + 2..)?.split(' ').collect();
    let ticks = rest.get(11)?.parse::<u64>().ok()? + rest.get(12)?.parse::<u64>().ok()?;
    Some(Stat { name: text.get(front + 1..back)?.into(), parent: rest.get(1)?.parse().ok()?, ticks })
}

/// Processor time used so far by the process, all threads, in nanoseconds; what ended threads used is not counted.
/// From the scheduler's own account, which is exact where the ticks of /proc/pid/stat are not.
pub fn cpu_ns(pid: u32) -> u64 {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let exact: Option<u64> = threads
        .map(|t| fs::read_to_string(t.path().join("schedstat")).ok()?.split(' ').next()?.parse::<u64>().ok())
        .sum();
    exact.unwrap_or_else(|| stat(pid).map_or(0, |s| s.ticks * 10_000_000))
}

/// The same of one thread.
pub fn thread_ns(pid: u32, thread: u32) -> u64 {
    let text = fs::read_to_string(format!("/proc/{pid}/task/{thread}/schedstat")).unwrap_or_default();
    text.split(' ').next().and_then(|ns| ns.parse().ok()).unwrap_or(0)
}

/// The same of all threads of a process whose names begin so.
pub fn threads_ns(pid: u32, name: &str) -> u64 {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let named = |t: &fs::DirEntry| fs::read_to_string(t.path().join("comm")).is_ok_and(|comm| comm.starts_with(name));
    threads.filter(named).filter_map(|t| t.file_name().to_str()?.parse().ok()).map(|t| thread_ns(pid, t)).sum()
}

/// How long the calling thread has wanted a processor so far and had none, in nanoseconds; 0 where the kernel does not say.
pub fn waited_ns() -> u64 {
    schedule("/proc/thread-self").map_or(0, |[_, waited_ns]| waited_ns)
}

/// Of a thread, by its directory in /proc: nanoseconds on a processor, and those of waiting for one.
fn schedule(thread: impl AsRef<Path>) -> Option<[u64; 2]> {
    let text = fs::read_to_string(thread.as_ref().join("schedstat")).ok()?;
    let mut words = text.split(' ').map_while(|word| word.parse().ok());
    Some([words.next()?, words.next()?])
}

/// What each thread of a process does, a line for each: its name, its state (proc(5)), where in the kernel it sleeps, how long it has run and has
/// waited for a processor.
pub fn threads_say(pid: u32) -> String {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let say = |thread: fs::DirEntry| {
        let read = |file: &str| fs::read_to_string(thread.path().join(file)).unwrap_or_default();
        let stat = read("stat");
        let state = stat.rsplit(") ").next().and_then(|rest| rest.chars().next()).unwrap_or('?');
        let [ran, waited] = schedule(thread.path()).unwrap_or_default().map(|ns| ns / 1_000_000);
        format!("{} {state} in {}, ran {ran} ms, waited {waited} ms\n", read("comm").trim_end(), read("wchan"))
    };
    threads.map(say).collect()
}

/// What a process calls itself, as far as the kernel keeps it: 15 bytes.
pub fn name(pid: u32) -> String {
    fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default().trim_end().to_owned()
}

/// Open descriptors.
pub fn descriptors(pid: u32) -> usize {
    fs::read_dir(format!("/proc/{pid}/fd")).map_or(0, Iterator::count)
}

/// Resident memory in KiB, without what is shared with others (guest memory is).
pub fn private_kib(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find(|l| l.starts_with("RssAnon:"));
    line.and_then(|l| l.split_ascii_whitespace().nth(1)?.parse().ok()).unwrap_or(0)
}

/// Threads of the process.
pub fn threads(pid: u32) -> usize {
    fs::read_dir(format!("/proc/{pid}/task")).map_or(0, Iterator::count)
}

/// What its threads are called, those that do not end meanwhile.
pub fn thread_names(pid: u32) -> Vec<String> {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let names = threads.filter_map(|thread| fs::read_to_string(thread.path().join("comm")).ok());
    names.map(|name| name.trim_end().to_owned()).collect()
}

/// True while the process exists and has not ended.
pub fn alive(pid: u32) -> bool {
    fs::read_to_string(format!("/proc/{pid}/status")).is_ok_and(|s| !s.contains("\nState:\tZ"))
}

/// Sends a signal; a process that is gone already does not matter.
pub fn signal(pid: u32, signal: Signal) {
    if let Some(pid) = Pid::from_raw(pid as i32) {
        let _ = kill_process(pid, signal);
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_child_is_found_and_measured() {
        let mut child = crate::spawn::spawn("KILL", "sleep", |c| {
            c.arg("60");
        });
        crate::wait_for("exec", std::time::Duration::from_secs(5), || {
            super::children(std::process::id()).contains(&(child.id(), "sleep".into()))
        });
        assert!(super::tree(std::process::id()).contains(&child.id()));
        assert!(super::alive(child.id()) && super::descriptors(child.id()) >= 3 && super::threads(child.id()) == 1);
        let said = super::threads_say(child.id());
        assert!(said.starts_with("sleep S in ") && said.lines().count() == 1, "{said}");
        assert!(super::cpu_ns(child.id()) > 0 && super::cpu_ns(child.id()) < 1_000_000_000);
        assert!(crate::spawn::end(&mut child));
        assert!(!super::alive(child.id()));
    }
}
