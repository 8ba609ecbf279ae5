//! The host's side of the command channel: requests go to the guest's second serial line, answers come as they finish.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// The next request's number. No two agents use the same: what a guest was asked before it moved it answers after, over another line.
static NEXT: AtomicU64 = AtomicU64::new(1);

/// Exit code, stdout, stderr.
pub type Answer = (i32, String, String);

/// One guest's channel. Any thread may ask.
pub struct Agent {
    line: Mutex<UnixStream>,
    waiting: Arc<Mutex<HashMap<u64, Sender<Answer>>>>,
    ready: Mutex<Receiver<()>>,
}

impl Agent {
    /// Connects to QEMU's socket; soon after QEMU's start, because it keeps nothing for those who come late.
    pub fn connect(socket: &Path, limit: Duration) -> Result<Self, String> {
        let end = Instant::now() + limit;
        let line = loop {
            match UnixStream::connect(socket) {
                Ok(s) => break s,
                Err(e) if Instant::now() > end => return Err(format!("{}: {e}", socket.display())),
                Err(_) => std::thread::sleep(Duration::from_millis(20)),
            }
        };
        let reader = line.try_clone().map_err(|e| e.to_string())?;
        let waiting = Arc::new(Mutex::new(HashMap::new()));
        let (ready, is_ready) = channel();
        let answers = Arc::clone(&waiting);
        std::thread::spawn(move || {
            let _ = listen(BufReader::new(reader), &ready, &answers);
            // Nobody will answer any more: dropping the senders wakes who waits.
            if let Ok(mut w) = answers.lock() {
                w.clear();
            }
        });
        Ok(Self { line: Mutex::new(line), waiting, ready: Mutex::new(is_ready) })
    }

    /// Waits until the guest's agent says it is ready.
    pub fn ready(&self, limit: Duration) -> Result<(), String> {
        let ready = self.ready.lock().expect("no holder of this lock panics");
        ready.recv_timeout(limit).map_err(|_| format!("the guest's agent did not report within {limit:?}"))
    }

    /// Starts `command` in the guest, which kills it after `seconds`.
    pub fn ask(&self, command: &str, seconds: u64) -> Receiver<Answer> {
        let (sender, receiver) = channel();
        let id = NEXT.fetch_add(1, Ordering::Relaxed);
        self.waiting.lock().expect("no holder of this lock panics").insert(id, sender);
        let hex: String = command.bytes().map(|b| format!("{b:02x}")).collect();
        let mut line = self.line.lock().expect("no holder of this lock panics");
        if writeln!(line, "{id} {seconds} {hex}").is_err() {
            self.waiting.lock().expect("no holder of this lock panics").remove(&id);
        }
        receiver
    }
}

type Waiting = Mutex<HashMap<u64, Sender<Answer>>>;

fn listen(mut line: BufReader<UnixStream>, ready: &Sender<()>, waiting: &Waiting) -> Option<()> {
    loop {
        let mut head = Vec::new();
        if line.read_until(b'\n', &mut head).ok()? == 0 {
            return None;
        }
        let head = String::from_utf8_lossy(&head);
        if head.trim() == "agent ready" {
            let _ = ready.send(());
            continue;
        }
        let words: Vec<i64> = head.split_ascii_whitespace().filter_map(|w| w.parse().ok()).collect();
        let [id, code, out, err] = words[..] else { continue };
        let mut take = |n: i64| {
            let mut buf = vec![0; usize::try_from(n).ok()?];
            line.read_exact(&mut buf).ok()?;
            Some(String::from_utf8_lossy(&buf).into_owned())
        };
        let (out, err) = (take(out)?, take(err)?);
        if let Some(sender) = waiting.lock().ok()?.remove(&(id as u64)) {
            let _ = sender.send((code as i32, out, err));
        }
    }
}
