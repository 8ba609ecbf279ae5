//! What is wrong with the state directory while lasthop runs: the next start would not understand a file of it or would miss one, or no command could
//! write there. Nothing is changed by looking.

use super::{Store, content};
use rustix::fs::{Access, StatVfs, StatVfsMountFlags, access, statvfs};
use rustix::io::Errno;
use std::fs::{self, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::SystemTime;

/// Most characters of what is wrong: a part of a file may be among them.
const LONGEST: usize = 500;
/// A file that was changed within so many seconds may be changed once more at the same time by the file system's clock.
const TICK_S: i64 = 1;
/// What comes of a directory where nothing can be written.
const REFUSED: &str = "commands that change what is remembered are refused";

/// What was found when a file was looked at last. It is read again only once it has changed: whoever asks often costs nobody anything.
#[derive(Debug)]
pub struct Looked {
    file: [i64; 4],
    known: Option<u64>,
    fault: Option<String>,
}

/// A file, when it is looked at.
struct Watched<'a> {
    path: &'a Path,
    /// What was in it when it was last read or written; nothing if it was not there.
    known: Option<u64>,
    /// Whether a command that would change it is refused once somebody has edited it.
    is_guarded: bool,
    understand: &'a dyn Fn(&str) -> Result<(), String>,
}

impl Store {
    /// For each thing that is wrong what it is and, behind a semicolon, what to do: one of each file, and one of the directory, at most.
    pub fn faults(&self) -> Vec<String> {
        let dir = self.file.parent().unwrap_or(Path::new("/"));
        if let Some(fault) = no_way(dir) {
            return vec![shortened(fault)];
        }
        let lists = |text: &str| self.understand_lists(text);
        let files = [
            (&self.file, self.known.get(), true, &(|text: &str| self.understand(text).map(drop)) as &dyn Fn(&str) -> _),
            (&self.lists, self.known_lists.get(), true, &lists),
            (&self.engines, None, false, &|text: &str| self.understand_engines(text).map(drop)),
        ];
        let mut looked = self.looked.borrow_mut();
        let files =
            files.into_iter().zip(looked.iter_mut()).filter_map(|((path, known, is_guarded, understand), last)| {
                Watched { path, known, is_guarded, understand }.look(last)
            });
        let no_room = statvfs(dir).ok().and_then(|of| no_room(dir, &of));
        files.chain(no_room).map(shortened).collect()
    }
}

impl Watched<'_> {
    fn look(&self, last: &mut Option<Looked>) -> Option<String> {
        let shown = self.path.display();
        let of_file = match fs::metadata(self.path) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => {
                return self.known.map(|_| {
                    format!(
                        "{shown}: it is missing, what was in it is in force, and the next start would not know it; bring the file back, or \
                         have a command change something of it, which writes all of it"
                    )
                });
            }
            Err(e) => return Some(unreadable(self.path, &e)),
            // Whoever opens a pipe waits for the other end.
            Ok(of_file) if !of_file.is_file() => return Some(format!("{shown}: it is not a file; move it away")),
            Ok(of_file) => of_file,
        };
        let file = identity(&of_file);
        if let Some(last) = last.as_ref().filter(|last| last.file == file && last.known == self.known) {
            return last.fault.clone();
        }
        let fault = self.read();
        let now =
            SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_secs().cast_signed());
        let at_rest = now.saturating_sub(of_file.ctime()) > TICK_S;
        *last = at_rest.then(|| Looked { file, known: self.known, fault: fault.clone() });
        fault
    }

    fn read(&self) -> Option<String> {
        let text = match fs::read_to_string(self.path) {
            Err(e) => return Some(unreadable(self.path, &e)),
            Ok(text) => text,
        };
        if self.known == Some(content(&[text.as_bytes()])) {
            return None;
        }
        let edited = || {
            let (shown, pid) = (self.path.display(), std::process::id());
            format!(
                "{shown}: somebody has changed it, it has not been read since, and commands that would change it are refused; `kill -HUP \
                 {pid}` has it read"
            )
        };
        (self.understand)(&text).err().or_else(|| self.is_guarded.then(edited))
    }
}

fn unreadable(path: &Path, e: &io::Error) -> String {
    let shown = path.display();
    format!("{shown}: {e}; make it readable, or move it away, and the next command writes what is in force")
}

/// What is otherwise once a file has been written to, or another is in its place.
fn identity(of: &Metadata) -> [i64; 4] {
    [of.ino().cast_signed(), of.size().cast_signed(), of.ctime(), of.ctime_nsec()]
}

/// What is wrong in short, and all of what to do.
fn shortened(fault: String) -> String {
    let Some((what, to_do)) = fault.rsplit_once("; ").filter(|(what, _)| what.len() > LONGEST) else { return fault };
    format!("{}…; {to_do}", what.chars().take(LONGEST).collect::<String>())
}

/// Why nothing can be made in a directory, whatever room there is.
fn no_way(dir: &Path) -> Option<String> {
    let shown = dir.display();
    match access(dir, Access::WRITE_OK | Access::EXEC_OK) {
        // That is said in other words.
        Ok(()) | Err(Errno::ROFS) => None,
        Err(e) => {
            Some(format!("{shown}: {e}, and {REFUSED}; bring it back, as a directory where `lasthop run` may write"))
        }
    }
}

/// Why nothing can be written there. Some file systems count no files.
fn no_room(dir: &Path, of: &StatVfs) -> Option<String> {
    let blocks = if rustix::process::geteuid().is_root() { of.f_bfree } else { of.f_bavail };
    let shown = dir.display();
    if of.f_flag.contains(StatVfsMountFlags::RDONLY) {
        Some(format!("{shown}: its file system is mounted read-only, and {REFUSED}; mount it read-write"))
    } else if blocks == 0 || (of.f_files > 0 && of.f_ffree == 0) {
        Some(format!("{shown}: its file system is full, and {REFUSED}; make room there"))
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::super::Saved;
    use super::*;
    use lasthop_policy::acl::Book;
    use std::time::Duration;

    fn one(store: &Store) -> String {
        let faults = store.faults();
        assert_eq!(faults.len(), 1, "{faults:?}");
        faults.into_iter().next().unwrap()
    }

    /// With all three files, as they are after a while.
    fn store(dir: &Path) -> Store {
        let store = Store::new(dir);
        store.load().unwrap();
        store.load_lists().unwrap();
        assert_eq!(store.faults(), [""; 0], "there are no files");
        store.save(Saved::default()).unwrap();
        store.save_lists(Book::default().to_text().as_bytes()).unwrap();
        fs::write(&store.engines, "{\"given\":{},\"now\":{\"poll\":\"1\"}}").unwrap();
        assert_eq!(store.faults(), [""; 0]);
        store
    }

    #[test]
    fn files_that_would_not_be_understood_or_were_not_read_are_named() {
        let dir = tempfile::tempdir().unwrap();
        let store = store(dir.path());
        let one = || one(&store);
        for (name, file) in [("ports.json", &store.file), ("acl.rules", &store.lists), ("engines.json", &store.engines)]
        {
            let text = fs::read_to_string(file).unwrap();
            fs::write(file, format!("garbage {text}")).unwrap();
            assert!(one().contains(name) && one().contains("; repair it"), "{}", one());
            fs::write(file, [0xff]).unwrap();
            assert!(one().contains(name) && one().contains("; make it readable"), "{}", one());
            fs::remove_file(file).unwrap();
            fs::create_dir(file).unwrap();
            assert!(one().contains(name) && one().contains("; move it away"), "{}", one());
            fs::remove_dir(file).unwrap();
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
    fn files_and_a_directory_that_have_gone_are_named() {
        let dir = tempfile::tempdir().unwrap();
        let store = store(dir.path());
        for (name, file) in [("ports.json", &store.file), ("acl.rules", &store.lists)] {
            let text = fs::read_to_string(file).unwrap();
            fs::remove_file(file).unwrap();
            assert!(one(&store).contains(&format!("{name}: it is missing")), "{}", one(&store));
            fs::write(file, text).unwrap();
        }
        fs::remove_file(&store.engines).unwrap();
        assert_eq!(store.faults(), [""; 0], "the command line's are as good");
        fs::remove_dir_all(dir.path()).unwrap();
        assert!(one(&store).contains("No such file") && one(&store).contains("; bring it back"), "{}", one(&store));
    }

    /// Who asks often has nothing read that was read before, and sees what has changed.
    #[test]
    fn a_file_at_rest_is_read_once() {
        let dir = tempfile::tempdir().unwrap();
        let store = store(dir.path());
        let is_kept = |store: &Store| store.looked.borrow()[0].is_some();
        let rests = |store: &Store| {
            while !is_kept(store) {
                std::thread::sleep(Duration::from_millis(50));
                store.faults();
            }
        };
        assert!(!is_kept(&store), "it may change within this tick");
        rests(&store);
        assert_eq!(store.faults(), [""; 0]);
        store.looked.borrow_mut()[0].as_mut().unwrap().fault = Some("kept".into());
        assert_eq!(store.faults(), ["kept"]);
        fs::write(&store.file, "garbage").unwrap();
        assert!(one(&store).contains("; repair it"));
        rests(&store);
        assert!(one(&store).contains("; repair it"));
        fs::remove_file(&store.file).unwrap();
        store.save(Saved::default()).unwrap();
        assert_eq!(store.faults(), [""; 0]);
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
