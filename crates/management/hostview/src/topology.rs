//! Which cores there are and what they share, from /sys/devices/system/cpu (kernel documentation, "sysfs-devices-system-cpu").

use lasthop_sys::CpuList;
use lasthop_sys::hostview::CorePlace;
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

/// Where the kernel says so.
pub const SYSFS: &str = "/sys/devices/system/cpu";
/// Above it: of nodes, too.
pub const SYSTEM: &str = "/sys/devices/system";

/// Number of cores that may ever be there, the highest one's number plus one.
pub fn possible(sysfs: &Path) -> usize {
    list(&sysfs.join("possible")).and_then(|cpus| cpus.iter().last()).map_or(1, |last| last + 1)
}

/// Cores that run something now.
pub fn online(sysfs: &Path) -> CpuList {
    list(&sysfs.join("online")).unwrap_or_default()
}

/// Where a core lies. One of which nothing is known shares nothing.
pub fn place(sysfs: &Path, core: usize) -> CorePlace {
    let own = core as u32;
    let dir = sysfs.join(format!("cpu{core}"));
    let first = |file: &Path| Some(list(file)?.iter().next()? as u32);
    let number = |file: &Path| fs::read_to_string(file).ok()?.trim().parse::<u32>().ok();
    let caches = (0..).map(|i| dir.join(format!("cache/index{i}"))).take_while(|cache| cache.exists());
    let last = caches.max_by_key(|cache| number(&cache.join("level")).unwrap_or(0));
    let siblings =
        ["topology/core_cpus_list", "topology/thread_siblings_list"].iter().find_map(|f| first(&dir.join(f)));
    CorePlace {
        llc: last.and_then(|cache| first(&cache.join("shared_cpu_list"))).unwrap_or(own),
        physical: siblings.unwrap_or(own),
    }
}

/// NUMA nodes that have CPUs, with the online ones of each, below `system`, which is [`SYSTEM`] but for tests (kernel documentation,
/// "sysfs-devices-node"). None where the kernel knows of no nodes.
pub fn nodes(system: &Path) -> Vec<(u32, CpuList)> {
    let online = online(&system.join("cpu"));
    let known = list(&system.join("node/online")).unwrap_or_default();
    let cpus = known.iter().filter_map(|node| {
        let all = list(&system.join(format!("node/node{node}/cpulist")))?;
        Some((node as u32, all.iter().filter(|cpu| online.contains(*cpu)).collect::<CpuList>()))
    });
    cpus.filter(|(_, cpus)| !cpus.is_empty()).collect()
}

/// Last-level caches, each by the lowest CPU that shares it, with the online CPUs that do.
pub fn caches(system: &Path) -> Vec<(u32, CpuList)> {
    let sysfs = system.join("cpu");
    let mut caches: BTreeMap<u32, Vec<usize>> = BTreeMap::new();
    for core in online(&sysfs).iter() {
        caches.entry(place(&sysfs, core).llc).or_default().push(core);
    }
    caches.into_iter().map(|(first, cpus)| (first, cpus.into_iter().collect())).collect()
}

fn list(file: &Path) -> Option<CpuList> {
    fs::read_to_string(file).ok()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn caches_and_siblings_are_found() {
        let dir = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| {
            let file = dir.path().join(name);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(file, format!("{text}\n")).unwrap();
        };
        write("possible", "0-7");
        write("online", "0-3,5");
        write("cpu5/cache/index0/level", "1");
        write("cpu5/cache/index0/shared_cpu_list", "1,5");
        write("cpu5/cache/index1/level", "3");
        write("cpu5/cache/index1/shared_cpu_list", "4-7");
        write("cpu5/cache/index2/level", "2");
        write("cpu5/cache/index2/shared_cpu_list", "1,5");
        write("cpu5/topology/thread_siblings_list", "1,5");
        assert_eq!(possible(dir.path()), 8);
        assert_eq!(online(dir.path()).to_string(), "0-3,5");
        assert_eq!(place(dir.path(), 5), CorePlace { llc: 4, physical: 1 });
        assert_eq!(place(dir.path(), 6), CorePlace { llc: 6, physical: 6 }, "nothing is known of it");
        assert_eq!(possible(&dir.path().join("nowhere")), 1);
    }

    #[test]
    fn nodes_and_caches_have_the_cpus_that_are_online() {
        let dir = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| {
            let file = dir.path().join(name);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(file, format!("{text}\n")).unwrap();
        };
        write("cpu/online", "0-3,5");
        for (cpu, shared) in [(0, "0-1"), (1, "0-1"), (2, "2-3"), (3, "2-3")] {
            write(&format!("cpu/cpu{cpu}/cache/index0/level"), "3");
            write(&format!("cpu/cpu{cpu}/cache/index0/shared_cpu_list"), shared);
        }
        // The third has memory alone, the fourth CPUs that are all offline.
        write("node/online", "0-3");
        for (node, cpus) in [(0, "0-3"), (1, "4-5"), (2, ""), (3, "6-7")] {
            write(&format!("node/node{node}/cpulist"), cpus);
        }
        let shown =
            |all: Vec<(u32, CpuList)>| all.into_iter().map(|(n, cpus)| (n, cpus.to_string())).collect::<Vec<_>>();
        assert_eq!(shown(nodes(dir.path())), [(0, "0-3".into()), (1, "5".into())]);
        assert_eq!(shown(caches(dir.path())), [(0, "0-1".into()), (2, "2-3".into()), (5, "5".into())]);
        assert!(nodes(&dir.path().join("nowhere")).is_empty());
        // Here there are some, and each CPU is in one.
        let here = nodes(Path::new(SYSTEM));
        let all: usize = here.iter().map(|(_, cpus)| cpus.len()).sum();
        assert!(here.is_empty() || all == online(Path::new(SYSFS)).len(), "{here:?}");
    }
}
