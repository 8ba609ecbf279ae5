//! What is wrong with the state directory while lasthop runs: the next start would not understand a file of it, or no command could write there. Nothing is
//! changed by looking.

use super::{Store, content};
use lasthop_policy::acl::Book;
use rustix::fs::{StatVfs, StatVfsMountFlags, statvfs};
use std::fs;
use std::io;
use std::path::Path;

/// Most characters of what is wrong: a part of a file may be among them.
const LONGEST: usize = 500;

impl Store {
    /// For each thing that is wrong what it is and, behind a semicolon, what to do: one of each file, and one of the directory, at most.
    pub fn faults(&self) -> Vec<String> {
        let ports = fault(&self.file, self.known.get(), |text| self.understand(text).map(drop));
        let lists = fault(&self.lists, self.known_lists.get(), |text| {
            let repair = "repair it, or move it away to start without access lists";
            Book::from_text(text).map(drop).map_err(|e| format!("{}: {e}; {repair}", self.lists.display()))
        });
        let dir = self.file.parent().and_then(|dir| statvfs(dir).ok().and_then(|of| no_room(dir, &of)));
        [ports, lists, dir].into_iter().flatten().map(shortened).collect()
    }
}

/// What is wrong in short, and all of what to do.
fn shortened(fault: String) -> String {
    let Some((what, to_do)) = fault.rsplit_once("; ").filter(|(what, _)| what.len() > LONGEST) else { return fault };
    format!("{}…; {to_do}", what.chars().take(LONGEST).collect::<String>())
}

/// Of a file with this content when it was last read or written. One that has gone is none: the next command writes it.
fn fault(path: &Path, known: Option<u64>, understand: impl Fn(&str) -> Result<(), String>) -> Option<String> {
    let shown = path.display();
    match fs::read_to_string(path) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => None,
        Err(e) => Some(format!("{shown}: {e}; make it readable, or move it away, and the next command writes what is in force")),
        Ok(text) if known == Some(content(&[text.as_bytes()])) => None,
        Ok(text) => understand(&text).err().or_else(|| {
            let pid = std::process::id();
            Some(format!(
                "{shown}: somebody has changed it, it has not been read since, and commands that would change it are refused; `kill -HUP {pid}` has it read"
            ))
        }),
    }
}

/// Why nothing can be written there. Some file systems count no files.
fn no_room(dir: &Path, of: &StatVfs) -> Option<String> {
    let blocks = if rustix::process::geteuid().is_root() { of.f_bfree } else { of.f_bavail };
    let shown = dir.display();
    let refused = "commands that change what is remembered are refused";
    if of.f_flag.contains(StatVfsMountFlags::RDONLY) {
        Some(format!("{shown}: its file system is mounted read-only, and {refused}; mount it read-write"))
    } else if blocks == 0 || (of.f_files > 0 && of.f_ffree == 0) {
        Some(format!("{shown}: its file system is full, and {refused}; make room there"))
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::super::Saved;
    use super::*;

    #[test]
    fn files_that_would_not_be_understood_or_were_not_read_are_named() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::new(dir.path());
        store.load().unwrap();
        store.load_lists().unwrap();
        assert_eq!(store.faults(), [""; 0], "there are no files");
        store.save(Saved::default()).unwrap();
        store.save_lists(Book::default().to_text().as_bytes()).unwrap();
        assert_eq!(store.faults(), [""; 0]);
        let one = || {
            let faults = store.faults();
            assert_eq!(faults.len(), 1, "{faults:?}");
            faults[0].clone()
        };
        for (name, file) in [("ports.json", &store.file), ("acl.rules", &store.lists)] {
            let text = fs::read_to_string(file).unwrap();
            fs::write(file, format!("garbage {text}")).unwrap();
            assert!(one().contains(name) && one().contains("; repair it"), "{}", one());
            fs::write(file, [0xff]).unwrap();
            assert!(one().contains("; make it readable"), "{}", one());
            fs::write(file, text).unwrap();
            assert_eq!(store.faults(), [""; 0]);
        }
        let text = fs::read_to_string(&store.file).unwrap();
        fs::write(&store.file, format!("{text}\n")).unwrap();
        assert!(one().contains("; `kill -HUP "), "{}", one());
        fs::write(&store.file, format!("{{\"version\":1,\"ports\":[],\"{}\":1}}", "x".repeat(5000))).unwrap();
        assert!(one().len() < 2 * LONGEST && one().contains("…; repair it"), "{}", one());
    }

    #[test]
    fn a_directory_that_takes_nothing_is_named() {
        let dir = Path::new("/state");
        let with = |f_bfree, f_files, f_flag| StatVfs {
            f_bsize: 4096,
            f_frsize: 4096,
            f_blocks: 10,
            f_bfree,
            f_bavail: f_bfree,
            f_files,
            f_ffree: 0,
            f_favail: 0,
            f_fsid: 0,
            f_flag,
            f_namemax: 255,
        };
        let none = StatVfsMountFlags::empty();
        assert_eq!(no_room(dir, &with(1, 0, none)), None, "it does not count files");
        for full in [with(0, 0, none), with(1, 10, none)] {
            assert!(no_room(dir, &full).is_some_and(|said| said.contains("/state") && said.contains("is full")));
        }
        let read_only = with(0, 0, StatVfsMountFlags::RDONLY);
        assert!(no_room(dir, &read_only).is_some_and(|said| said.contains("read-only")));
    }
}
