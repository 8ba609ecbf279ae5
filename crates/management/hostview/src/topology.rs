//! Which cores there are and what they share, from /sys/devices/system/cpu (kernel documentation, "sysfs-devices-system-cpu").

use lasthop_sys::CpuList;
use lasthop_sys::hostview::CorePlace;
use std::fs;
use std::path::Path;

/// Where the kernel says so.
pub const SYSFS: &str = "/sys/devices/system/cpu";

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
}
