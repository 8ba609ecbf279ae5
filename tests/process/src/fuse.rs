//! A file system in user space (fuse(4)) that answers everything but one request: that a file is being closed.

use nix::mount::{MntFlags, MsFlags, mount, umount2};
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

/// linux/fuse.h.
const LOOKUP: u32 = 1;
const GETATTR: u32 = 3;
const OPEN: u32 = 14;
const FLUSH: u32 = 25;
const INIT: u32 = 26;
const S_IFDIR: u32 = 0o040_755;
const S_IFREG: u32 = 0o100_644;

type Job = Box<dyn FnOnce(BorrowedFd<'_>) + Send>;

/// Mounted; whoever closes a file of it waits until this is dropped, and cannot be killed. That goes for a child between fork and exec,
/// too: so the file is open in a thread alone, which has descriptors of its own and nothing else to do with the mount.
#[derive(Debug)]
pub struct DeadMount {
    device: Option<File>,
    at: PathBuf,
    server: Option<JoinHandle<()>>,
    jobs: Option<Sender<Job>>,
    done: Receiver<()>,
    holder: Option<JoinHandle<()>>,
    _dir: tempfile::TempDir,
}

impl DeadMount {
    /// `None` where this cannot be had (no /dev/fuse, or no right to mount).
    pub fn new() -> Option<Self> {
        let dir = crate::scratch();
        let at = dir.path().join("mount");
        std::fs::create_dir(&at).expect("a directory");
        let ((jobs, work), (tell, done)) = (channel::<Job>(), channel());
        let path = at.join("file");
        let holder = std::thread::spawn(move || {
            nix::sched::unshare(nix::sched::CloneFlags::CLONE_FILES).expect("anybody may");
            tell.send(()).expect("it is waited for");
            let mut file: Option<OwnedFd> = None;
            for job in work {
                job(file.get_or_insert_with(|| File::open(&path).expect("a file").into()).as_fd());
                tell.send(()).expect("it is waited for");
            }
        });
        done.recv().expect("a thread");
        let device = File::options().read(true).write(true).open("/dev/fuse").ok()?;
        let options = format!("fd={},rootmode=40000,user_id=0,group_id=0,allow_other", device.as_raw_fd());
        mount(Some("lasthop-test"), &at, Some("fuse"), MsFlags::empty(), Some(options.as_str())).ok()?;
        let theirs = device.try_clone().expect("a descriptor");
        let server = Some(std::thread::spawn(move || serve(theirs)));
        Some(Self { device: Some(device), at, server, jobs: Some(jobs), done, holder: Some(holder), _dir: dir })
    }

    /// Has a thread that has a file of it open do this: descriptors that were opened since the mount was made it does not have.
    pub fn with_file(&self, job: impl FnOnce(BorrowedFd<'_>) + Send + 'static) {
        self.jobs.as_ref().expect("there until the end").send(Box::new(job)).expect("it has not panicked");
        self.done.recv().expect("it has not panicked");
    }
}

impl Drop for DeadMount {
    fn drop(&mut self) {
        // Ends the server's read, and with its descriptor every wait.
        let _ = umount2(&self.at, MntFlags::MNT_FORCE | MntFlags::MNT_DETACH);
        drop(self.device.take());
        drop(self.jobs.take());
        for thread in [self.server.take(), self.holder.take()].into_iter().flatten() {
            let _ = thread.join();
        }
    }
}

fn serve(mut device: File) {
    let mut request = vec![0; 1 << 17];
    while let Ok(len) = device.read(&mut request) {
        let word = |at: usize| u32::from_ne_bytes(request[at..at + 4].try_into().expect("four bytes"));
        assert!(len >= 40, "a whole header");
        let attributes = |node: u64, mode: u32| {
            let mut bytes = [node, 0, 0, 0, 0, 0].map(u64::to_ne_bytes).concat();
            bytes.extend([0, 0, 0, mode, 1, 0, 0, 0, 4096, 0].map(u32::to_ne_bytes).concat());
            bytes
        };
        let answer: Result<Vec<u8>, i32> = match word(4) {
            INIT => Ok([[7, 31, 0, 0, 0, 4096, 1, 0].map(u32::to_ne_bytes).concat(), vec![0; 32]].concat()),
            LOOKUP => Ok([[2u64, 0, 0, 0, 0].map(u64::to_ne_bytes).concat(), attributes(2, S_IFREG)].concat()),
            GETATTR => {
                let node = u64::from(word(16));
                Ok([vec![0; 16], attributes(node, if node == 1 { S_IFDIR } else { S_IFREG })].concat())
            }
            OPEN => Ok(vec![0; 16]),
            FLUSH => continue,
            // ENOSYS
            _ => Err(-38),
        };
        let (error, body) = answer.map_or_else(|error| (error, Vec::new()), |body| (0, body));
        let head = [&(16 + body.len() as u32).to_ne_bytes()[..], &error.to_ne_bytes(), &request[8..16]].concat();
        // What needs no answer gets none.
        let _ = device.write(&[head, body].concat());
    }
}
