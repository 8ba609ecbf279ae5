//! What the next process goes on with when this one is killed: notes, one behind the other, in one of two files that the supervisor holds. When most of
//! them are of no use any more, those that are go to the other file.
//!
//! A file begins with three numbers of eight bytes: which of the two is newer (0: there is nothing in it), how many bytes of notes there are, and (in the first
//! file) the next client's number. Each is written last, so a note is there or not, whenever this process is killed.

use rustix::fs::ftruncate;
use rustix::io::{Errno, pread, pwrite, retry_on_intr};
use std::os::fd::OwnedFd;

/// Bytes of the three numbers.
const HEADER: u64 = 24;
const LEN_AT: u64 = 8;
const PID_AT: u64 = 16;
/// With fewer bytes of notes nothing is begun anew.
const SMALL: u64 = 1 << 20;
/// Most bytes of notes: all flows that there may be, at their usual length, twice.
const MOST: u64 = 256 << 20;

#[derive(Debug)]
pub(crate) struct Record {
    files: [OwnedFd; 2],
    /// The file that is written to.
    at: usize,
    age: u64,
    len: u64,
    /// With more bytes than this it is begun anew.
    until: u64,
    /// Notes were lost: none count until it is begun anew.
    is_broken: bool,
}

fn number(file: &OwnedFd, at: u64) -> u64 {
    let mut bytes = [0; 8];
    // What is beyond the end of a file is 0.
    let _ = retry_on_intr(|| pread(file, &mut bytes[..], at));
    u64::from_ne_bytes(bytes)
}

fn write(file: &OwnedFd, mut bytes: &[u8], mut at: u64) -> Result<(), Errno> {
    while !bytes.is_empty() {
        let n = retry_on_intr(|| pwrite(file, bytes, at))?;
        bytes = bytes.get(n..).unwrap_or_default();
        at += n as u64;
    }
    Ok(())
}

impl Record {
    /// Of two files, empty or as the process before has left them; and what it has noted.
    pub fn open(files: [OwnedFd; 2]) -> (Self, Vec<u8>) {
        let [first, second] = files.each_ref().map(|file| number(file, 0));
        let (at, age) = if second > first { (1, second) } else { (0, first) };
        let mut record = Self { files, at, age, len: 0, until: SMALL, is_broken: age == 0 };
        let mut notes = Vec::new();
        if age != 0 {
            let file = &record.files[at];
            record.len = number(file, LEN_AT).min(MOST);
            notes.resize(record.len as usize, 0);
            let mut have = 0;
            while let Some(room) = notes.get_mut(have..).filter(|room| !room.is_empty()) {
                match retry_on_intr(|| pread(file, &mut *room, HEADER + have as u64)) {
                    Ok(n) if n > 0 => have += n,
                    _ => break,
                }
            }
            notes.truncate(have);
        }
        (record, notes)
    }

    /// The number of the next client; 0 is the kernel itself.
    pub fn next_pid(&self) -> u32 {
        u32::try_from(number(&self.files[0], PID_AT)).unwrap_or(1).max(1)
    }

    /// The next client's number is another now.
    pub fn set_next_pid(&self, pid: u32) {
        // Where that fails, a client gets a number of before: it is told so, and opens another socket.
        let _ = write(&self.files[0], &u64::from(pid).to_ne_bytes(), PID_AT);
    }

    /// Notes something. False if it is not, and time to begin anew.
    pub fn add(&mut self, note: &[u8]) -> bool {
        let len = self.len + note.len() as u64;
        if self.is_broken || len > self.until {
            return false;
        }
        let file = &self.files[self.at];
        let written = write(file, note, HEADER + self.len).and_then(|()| write(file, &len.to_ne_bytes(), LEN_AT));
        match written {
            Ok(()) => self.len = len,
            Err(e) => self.fail(e),
        }
        written.is_ok()
    }

    /// Begins anew with these notes.
    pub fn begin(&mut self, notes: &[u8]) {
        let len = notes.len() as u64;
        let (old, new) = (self.at, 1 - self.at);
        let file = &self.files[new];
        let begun = if len > MOST { Err(Errno::FBIG) } else { self.fill(file, notes) };
        match begun {
            Ok(()) => {
                (self.at, self.age, self.len, self.is_broken) = (new, self.age + 1, len, false);
                self.until = (len * 2).clamp(SMALL, MOST);
                // All but the next client's number, and the age, which is lower.
                let _ = ftruncate(&self.files[old], HEADER);
            }
            Err(e) => self.fail(e),
        }
    }

    fn fill(&self, file: &OwnedFd, notes: &[u8]) -> Result<(), Errno> {
        write(file, &0u64.to_ne_bytes(), 0)?;
        ftruncate(file, HEADER)?;
        write(file, notes, HEADER)?;
        write(file, &(notes.len() as u64).to_ne_bytes(), LEN_AT)?;
        write(file, &(self.age + 1).to_ne_bytes(), 0)
    }

    /// Without all notes none are of use.
    fn fail(&mut self, e: Errno) {
        if !std::mem::replace(&mut self.is_broken, true) {
            tracing::warn!(
                "no record of Open vSwitch's flows: {e}; should this process be killed, ovs-vswitchd has to be restarted"
            );
        }
        for file in &self.files {
            let _ = write(file, &0u64.to_ne_bytes(), 0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn files() -> [OwnedFd; 2] {
        [(); 2].map(|()| lasthop_sys::memfd("record", 0).unwrap())
    }

    fn same(files: &Record) -> [OwnedFd; 2] {
        files.files.each_ref().map(|file| file.try_clone().unwrap())
    }

    #[test]
    fn the_next_process_reads_what_was_noted() {
        let (mut record, notes) = Record::open(files());
        assert!(notes.is_empty() && record.next_pid() == 1);
        assert!(!record.add(b"lost"), "it has to be begun");
        record.begin(b"one ");
        assert!(record.add(b"two ") && record.add(b"three"));
        record.set_next_pid(77);
        let (mut next, notes) = Record::open(same(&record));
        assert_eq!((&notes[..], next.next_pid()), (&b"one two three"[..], 77));
        for n in 0..5u8 {
            next.begin(&[n]);
            assert!(next.add(b"!"));
            let (again, notes) = Record::open(same(&next));
            assert_eq!((&notes[..], again.next_pid()), (&[n, b'!'][..], 77));
        }
    }

    #[test]
    fn what_was_cut_short_is_not_there() {
        let (mut record, _) = Record::open(files());
        record.begin(b"one ");
        // Killed behind the note, and before its length.
        write(&record.files[record.at], b"half", HEADER + 4).unwrap();
        assert_eq!(Record::open(same(&record)).1, b"one ");
        // Killed while it was begun anew.
        let other = &record.files[1 - record.at];
        write(other, b"rubbish", HEADER).unwrap();
        write(other, &7u64.to_ne_bytes(), LEN_AT).unwrap();
        assert_eq!(Record::open(same(&record)).1, b"one ");
    }

    #[test]
    fn notes_of_no_use_go() {
        let (mut record, _) = Record::open(files());
        record.begin(&[]);
        let note = [7; 1000];
        let added = (0..).take_while(|_| record.add(&note)).count() as u64;
        assert_eq!(added, SMALL / 1000);
        record.begin(&note);
        assert_eq!(Record::open(same(&record)).1, note);
        assert!(record.add(&note));
    }
}
