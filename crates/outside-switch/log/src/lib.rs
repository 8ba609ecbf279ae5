//! A log that makes nobody wait. Whoever reads standard error may stop reading; a pipe is full after some hundred lines,
//! and then a write sleeps, with all that its thread holds. What others send causes lines, so lines must not be written by
//! a thread that anybody needs: they are handed to one that does nothing else. When it does not keep up, further lines are
//! left out and counted, and once it can write again it says how many.

mod format;
#[cfg(feature = "levels")]
pub mod levels;

pub use format::{DEVICE_VARIABLE, FORMAT_VARIABLE, Format, Lines};
use rustix::io::Errno;
use std::io::Write;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};
pub use tracing_core::Level;

/// Lines that may wait to be written; a line is some hundred bytes.
const WAITING: usize = 1024;

/// Where lines go: give clones of it to whoever writes. Each write is one line, whole, and never waits. Lines are kept
/// until [`Log::start`], which a process calls once it may start threads.
#[derive(Clone, Debug)]
pub struct Log(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    lines: Mutex<Vec<Vec<u8>>>,
    /// There are lines, or the last one has been written.
    news: Condvar,
    /// Lines taken to be written and not yet written.
    in_hand: AtomicUsize,
    /// Lines left out since this was last said.
    left_out: AtomicU64,
    /// There is a thread that writes.
    started: AtomicBool,
    /// It is started with the first line.
    when_needed: AtomicBool,
}

impl Shared {
    /// Held for as long as it takes to put a line in or to take all out.
    fn lines(&self) -> MutexGuard<'_, Vec<Vec<u8>>> {
        self.lines.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// Writes what waits, and says what was left out. May sleep for ever.
    fn write_out(&self, out: &mut impl Write) {
        let lines = {
            let mut waiting = self.lines();
            self.in_hand.store(waiting.len(), Ordering::Relaxed);
            std::mem::take(&mut *waiting)
        };
        for line in lines {
            // A log that cannot be written cannot say so.
            let _ = out.write_all(&line);
        }
        let left_out = self.left_out.swap(0, Ordering::Relaxed);
        if left_out > 0 {
            let lines = if left_out == 1 { "line" } else { "lines" };
            let line = format!("{left_out} {lines} of this log left out: it was not read fast enough");
            let _ = out.write_all(own_line(Level::WARN, &line, &[]).as_bytes());
        }
        let _waiting = self.lines();
        self.in_hand.store(0, Ordering::Relaxed);
        self.news.notify_all();
    }
}

/// In this process's format, of this process's device.
fn own_line(level: Level, text: &str, fields: &[(&str, &str)]) -> String {
    Format::current().own_line(std::env::var(DEVICE_VARIABLE).ok().as_deref(), level, text, fields)
}

impl Log {
    /// A log that nobody writes yet.
    pub fn new() -> Self {
        Self(Arc::default())
    }

    /// Starts the thread `log`, which writes the lines to `out`, for the life of the process.
    pub fn start(&self, mut out: impl Write + Send + 'static) -> Result<(), Errno> {
        let shared = self.0.clone();
        let thread = std::thread::Builder::new().name("log".into()).spawn(move || {
            loop {
                let waiting = shared.lines();
                drop(shared.news.wait_while(waiting, |waiting| waiting.is_empty()));
                shared.write_out(&mut out);
            }
        });
        thread.map_err(|e| Errno::from_io_error(&e).unwrap_or(Errno::AGAIN))?;
        self.0.started.store(true, Ordering::Relaxed);
        Ok(())
    }

    /// Has the first line start that thread, which writes to standard error: for processes of which there are many, and which rarely have
    /// anything to say.
    pub fn start_when_needed(&self) {
        self.0.when_needed.store(true, Ordering::Relaxed);
    }

    /// Writes a line of this process's own, which no library has made.
    pub fn say(&self, level: Level, text: &str, fields: &[(&str, &str)]) {
        // It is one write, which takes all.
        let _ = self.clone().write_all(own_line(level, text, fields).as_bytes());
    }

    #[cfg(test)]
    fn write_all_to(&self, mut out: impl Write) {
        self.0.write_out(&mut out);
    }

    /// Before the process ends: waits until all lines are written, `limit` at most. Without a thread that writes them, it
    /// writes them to standard error itself.
    pub fn finish(&self, limit: Duration) {
        if !self.0.started.load(Ordering::Relaxed) {
            return self.0.write_out(&mut std::io::stderr());
        }
        let end = Instant::now() + limit;
        let mut waiting = self.0.lines();
        while !waiting.is_empty() || self.0.in_hand.load(Ordering::Relaxed) > 0 {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            let woken = self.0.news.wait_timeout(waiting, left);
            waiting = woken.unwrap_or_else(std::sync::PoisonError::into_inner).0;
        }
    }
}

impl Log {
    /// From now on a thread that panics takes the process with it, for others wait for what it did; whoever started the process
    /// starts another. The log says which thread and where.
    pub fn end_with_panics(&self) {
        let log = self.clone();
        std::panic::set_hook(Box::new(move |panic| {
            let thread = std::thread::current();
            let what = panic.to_string();
            log.say(Level::ERROR, &format!("thread {} {what}; ending", thread.name().unwrap_or_default()), &[]);
            log.finish(Duration::from_millis(100));
            std::process::abort();
        }));
    }
}

impl Default for Log {
    fn default() -> Self {
        Self::new()
    }
}

impl Write for Log {
    fn write(&mut self, line: &[u8]) -> std::io::Result<usize> {
        let mut waiting = self.0.lines();
        if waiting.len() < WAITING {
            waiting.push(line.to_vec());
            self.0.news.notify_all();
        } else {
            self.0.left_out.fetch_add(1, Ordering::Relaxed);
        }
        drop(waiting);
        if self.0.when_needed.load(Ordering::Relaxed) && !self.0.started.swap(true, Ordering::Relaxed) {
            // Without a thread it is tried again with the next line, and the end writes what there is.
            self.0.started.store(self.start(std::io::stderr()).is_ok(), Ordering::Relaxed);
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// What one peer may make us write: a few lines at once, then one a second. The others are counted.
#[derive(Clone, Debug)]
pub struct LineLimit {
    /// Lines that may still be written, as of `at`.
    left: u32,
    at: Instant,
    left_out: u64,
}

impl LineLimit {
    /// Lines at once: a front-end that is set up wrong gets all it has to say into the log.
    pub const AT_ONCE: u32 = 64;
    /// One more after so long.
    const EACH: Duration = Duration::from_secs(1);

    /// Nothing written yet.
    pub fn new(now: Instant) -> Self {
        Self { left: Self::AT_ONCE, at: now, left_out: 0 }
    }

    /// Whether to write a line now: `Some` with the number of lines left out since the last one, which is to be said.
    pub fn pass(&mut self, now: Instant) -> Option<u64> {
        let seconds = now.saturating_duration_since(self.at).as_secs();
        self.at += Self::EACH * u32::try_from(seconds).unwrap_or(0);
        self.left = self.left.saturating_add(u32::try_from(seconds).unwrap_or(u32::MAX)).min(Self::AT_ONCE);
        if self.left == 0 {
            self.left_out += 1;
            return None;
        }
        self.left -= 1;
        Some(std::mem::take(&mut self.left_out))
    }

    /// So many more lines were left out, before they came here.
    pub fn leave_out(&mut self, lines: u64) {
        self.left_out += lines;
    }

    /// When lines were left out: how long until that can be said, by [`LineLimit::overdue`].
    pub fn deadline(&self) -> Option<Instant> {
        (self.left_out > 0).then(|| self.at + Self::EACH)
    }

    /// Lines left out that have not been mentioned, if a line may be written now.
    pub fn overdue(&mut self, now: Instant) -> Option<u64> {
        self.deadline().filter(|due| *due <= now)?;
        self.pass(now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{BufRead, BufReader, PipeReader};

    /// Lines into a pipe that nobody reads.
    fn stuck() -> (Log, BufReader<PipeReader>) {
        let (reader, writer) = std::io::pipe().unwrap();
        let log = Log::new();
        log.start(writer).unwrap();
        (log, BufReader::new(reader))
    }

    #[test]
    fn a_reader_that_stops_makes_nobody_wait_and_is_told_what_it_missed() {
        const LINES: u64 = 100_000;
        let (log, mut reader) = stuck();
        let mut writer = log.clone();
        for n in 0..LINES {
            writer.write_all(format!("line {n}\n").as_bytes()).unwrap();
        }
        // Not written, and yet it returns.
        log.finish(Duration::from_millis(10));
        let (mut seen, mut left_out) = (0u64, 0u64);
        while seen + left_out < LINES {
            let mut line = String::new();
            reader.read_line(&mut line).unwrap();
            match line.strip_prefix("line ") {
                Some(n) => {
                    assert!(n.trim().parse::<u64>().unwrap() >= seen, "in order");
                    seen += 1;
                }
                None => {
                    let count = line.split(" line").next().and_then(|before| before.rsplit(' ').next());
                    left_out += count.unwrap().parse::<u64>().unwrap();
                }
            }
        }
        assert!(left_out > 0);
        assert_eq!(seen + left_out, LINES);
        // From here on all is written again.
        writer.write_all(format!("line {LINES}\n").as_bytes()).unwrap();
        let mut line = String::new();
        reader.read_line(&mut line).unwrap();
        assert_eq!(line, format!("line {LINES}\n"));
        log.finish(Duration::from_secs(20));
        assert!(log.0.lines().is_empty());
    }

    #[test]
    fn a_storm_is_cut_and_said() {
        let start = Instant::now();
        let mut limit = LineLimit::new(start);
        let passed = (0..1000).filter(|_| limit.pass(start).is_some()).count() as u32;
        assert_eq!(passed, LineLimit::AT_ONCE);
        let (almost, then) = (start + Duration::from_millis(999), start + Duration::from_secs(1));
        assert_eq!((limit.overdue(almost), limit.deadline()), (None, Some(then)));
        let left_out = 1000 - u64::from(LineLimit::AT_ONCE);
        assert_eq!(limit.overdue(then), Some(left_out));
        assert_eq!((limit.overdue(then), limit.pass(then), limit.pass(then)), (None, None, None));
        assert_eq!(limit.pass(then + Duration::from_secs(1)), Some(2));
        let later = then + Duration::from_secs(1_000_000);
        assert_eq!((0..1000).filter(|_| limit.pass(later).is_some()).count() as u32, LineLimit::AT_ONCE);
    }
}
