//! What the next process goes on with when this one is killed: notes, one behind the other, in one of two files that the supervisor holds. When most of
//! them are of no use any more, those that are go to the other file, piece by piece, and what is noted meanwhile goes to both. Where that has left no room, or there was
//! not enough of it, it is not tried again for a while: all that there is to note would be written over and over.
//!
//! There are two such records: of all, which lives as long as `lasthop run` does, and the outline, which is in its run directory, and by which the datapath and its ports
//! are there again when `lasthop run` was started anew. Open vSwitch then puts its flows back, as it is told that they are idle (`repeats` in crates/management/ovs).
//!
//! A file begins with three numbers of eight bytes: which of the two is newer (0: there is nothing in it), how many bytes of notes there are, and (in the first
//! file of the outline) the next client's number. Each is written last, so a note is there or not, whenever this process is killed. In that file follows a secret, which proves to
//! the next process that a client's number is its own.

use rustix::fs::{fstat, ftruncate};
use rustix::io::{Errno, pread, pwrite, retry_on_intr};
use std::os::fd::OwnedFd;

/// Bytes of the three numbers and the secret.
const HEADER: u64 = 40;
const LEN_AT: u64 = 8;
const PID_AT: u64 = 16;
const SECRET_AT: u64 = 24;
/// With fewer bytes of notes nothing is begun anew.
const SMALL: u64 = 1 << 20;
/// Most bytes of notes: all flows that there may be, at their usual length, twice.
const MOST: u64 = 256 << 20;
/// Most bytes of notes of the outline: 4093 ports, 4096 meters, and what limits them.
const MOST_OF_OUTLINE: u64 = 8 << 20;
/// How long nothing is begun anew when that did not help, in milliseconds. All of it takes about a second of a processor, which then is a sixtieth.
const WAIT: u64 = 60_000;

/// What a record is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Of {
    All,
    /// All but flows and connections.
    Outline,
}

impl Of {
    fn most(self) -> u64 {
        if self == Self::All { MOST } else { MOST_OF_OUTLINE }
    }

    fn words(self) -> &'static str {
        if self == Self::All { "flows and connections" } else { "datapath and ports" }
    }

    /// When it is missed.
    fn until(self) -> &'static str {
        if self == Self::All { "this process be killed" } else { "`lasthop run` be started again" }
    }
}

#[derive(Debug)]
pub(crate) struct Record {
    of: Of,
    files: [OwnedFd; 2],
    /// The file that is written to.
    at: usize,
    age: u64,
    len: u64,
    /// With more bytes than this it is begun anew.
    until: u64,
    /// Bytes of notes in the other file, while it is being begun.
    anew: Option<u64>,
    /// Notes were lost: none count until it is begun anew.
    is_broken: bool,
    /// That this failed has been said.
    has_failed: bool,
    /// The time, in milliseconds of any clock that goes on.
    now: u64,
    /// Before that time it is not begun anew.
    not_before: u64,
    /// [`Of::most`], but for tests.
    most: u64,
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
    pub fn open(files: [OwnedFd; 2], of: Of) -> (Self, Vec<u8>) {
        let [first, second] = files.each_ref().map(|file| number(file, 0));
        let (at, age) = if second > first { (1, second) } else { (0, first) };
        let (len, until, anew, is_broken, has_failed) = (0, SMALL, None, age == 0, false);
        let mut record = Self {
            of,
            files,
            at,
            age,
            len,
            until,
            anew,
            is_broken,
            has_failed,
            now: 0,
            not_before: 0,
            most: of.most(),
        };
        let mut notes = Vec::new();
        if age != 0 {
            let file = &record.files[at];
            record.len = number(file, LEN_AT).min(record.most);
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

    /// A process before could keep nothing in it: what there was is gone. A new one has empty files.
    pub fn was_lost(&self) -> bool {
        self.age == 0 && self.files.iter().any(|file| fstat(file).is_ok_and(|stat| stat.st_size > 0))
    }

    /// The number of the next client; 0 is the kernel itself.
    pub fn next_pid(&self) -> u32 {
        u32::try_from(number(&self.files[0], PID_AT)).unwrap_or(1).max(1)
    }

    /// The secret; `new`, if there was none.
    pub fn secret(&self, new: [u8; 16]) -> [u8; 16] {
        let mut secret = [0; 16];
        let _ = retry_on_intr(|| pread(&self.files[0], &mut secret[..], SECRET_AT));
        if secret == [0; 16] {
            secret = new;
            // Where that fails, the next process takes clients for those of another.
            let _ = write(&self.files[0], &secret, SECRET_AT);
        }
        secret
    }

    /// The next client's number is another now.
    pub fn set_next_pid(&self, pid: u32) {
        // Where that fails, a client gets a number of before: it is told so, and opens another socket.
        let _ = write(&self.files[0], &u64::from(pid).to_ne_bytes(), PID_AT);
    }

    /// It is so late, in milliseconds.
    pub fn set_now(&mut self, now_ms: u64) {
        self.now = now_ms;
    }

    /// Another process could go on with what is noted, or nothing was to be noted yet.
    pub fn is_kept(&self) -> bool {
        !self.has_failed
    }

    /// Notes something.
    pub fn add(&mut self, note: &[u8]) {
        if !self.is_broken {
            let len = self.len + note.len() as u64;
            let file = &self.files[self.at];
            let written = (self.within(len))
                .and_then(|()| write(file, note, HEADER + self.len))
                .and_then(|()| write(file, &len.to_ne_bytes(), LEN_AT));
            match written {
                Ok(()) => self.len = len,
                Err(e) => self.fail(e),
            }
        }
        // Of what was not said anew yet it says less than will be said; of what was, it says more.
        self.append(note);
    }

    /// It is time to begin anew: most of the notes are of no use, or none are, and that was not tried in vain a moment ago.
    pub fn is_full(&self) -> bool {
        self.anew.is_none() && (self.is_broken || self.len > self.until) && self.now >= self.not_before
    }

    /// It is being begun anew.
    pub fn is_begun(&self) -> bool {
        self.anew.is_some()
    }

    /// Begins anew, in the other file: with [`Record::part`] all there is to note, piece by piece. What is added meanwhile goes to both.
    pub fn begin(&mut self) {
        let file = &self.files[1 - self.at];
        match write(file, &0u64.to_ne_bytes(), 0).and_then(|()| ftruncate(file, HEADER)) {
            Ok(()) => self.anew = Some(0),
            Err(e) => self.fail(e),
        }
    }

    /// Notes a piece of all there is; with the last one, what was noted before is given up.
    pub fn part(&mut self, notes: &[u8], is_last: bool) {
        self.append(notes);
        let Some(len) = self.anew.filter(|_| is_last) else { return };
        let (old, new) = (self.at, 1 - self.at);
        let file = &self.files[new];
        let begun =
            write(file, &len.to_ne_bytes(), LEN_AT).and_then(|()| write(file, &(self.age + 1).to_ne_bytes(), 0));
        match begun {
            Ok(()) => {
                (self.at, self.age, self.len, self.is_broken, self.anew) = (new, self.age + 1, len, false, None);
                // Beginning anew takes a while, and what is added meanwhile has to find room.
                self.until = (len * 2).clamp(SMALL, self.most / 8 * 7);
                self.went_well();
                // All but the next client's number, and the age, which is lower.
                let _ = ftruncate(&self.files[old], HEADER);
            }
            Err(e) => self.fail(e),
        }
    }

    fn append(&mut self, notes: &[u8]) {
        let Some(at) = self.anew else { return };
        let len = at + notes.len() as u64;
        match self.within(len).and_then(|()| write(&self.files[1 - self.at], notes, HEADER + at)) {
            Ok(()) => self.anew = Some(len),
            Err(e) => self.fail(e),
        }
    }

    fn within(&self, len: u64) -> Result<(), Errno> {
        if len > self.most { Err(Errno::FBIG) } else { Ok(()) }
    }

    /// It is begun anew. If all of it is of use there is little room for more, and trying once more would make none.
    fn went_well(&mut self) {
        if std::mem::take(&mut self.has_failed) {
            tracing::info!("there is a record of Open vSwitch's {} again", self.of.words());
        }
        if self.len > self.until {
            self.not_before = self.now + WAIT;
            tracing::warn!(
                "{} of the {} MiB for a record of Open vSwitch's {} are in use; with fewer (of connections: `lasthop run --connections`) there is always room",
                self.len >> 20,
                self.most >> 20,
                self.of.words()
            );
        }
    }

    /// Without all notes none are of use.
    fn fail(&mut self, e: Errno) {
        (self.anew, self.is_broken, self.not_before) = (None, true, self.now + WAIT);
        if !std::mem::replace(&mut self.has_failed, true) {
            let why = match e {
                Errno::FBIG => format!(
                    "they take more than {} MiB (fewer do with a smaller `lasthop run --connections`)",
                    self.most >> 20
                ),
                e => e.to_string(),
            };
            tracing::warn!(
                "no record of Open vSwitch's {}: {why}; should {}, ovs-vswitchd has to be restarted; tried again every {} s, and \
                 {} when there is one",
                self.of.words(),
                self.of.until(),
                WAIT / 1000,
                if self.of == Of::All { "`lasthop conntrack stats` and this log say" } else { "this log says" }
            );
        }
        for file in &self.files {
            // The next client's number stays.
            let _ = write(file, &0u64.to_ne_bytes(), 0).and_then(|()| ftruncate(file, HEADER));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn files() -> [OwnedFd; 2] {
        [(); 2].map(|()| lasthop_sys::memfd("record", 0).unwrap())
    }

    fn all_anew(record: &mut Record, notes: &[u8]) {
        record.begin();
        record.part(notes, true);
    }

    fn same(files: &Record) -> [OwnedFd; 2] {
        files.files.each_ref().map(|file| file.try_clone().unwrap())
    }

    #[test]
    fn the_next_process_reads_what_was_noted() {
        let (mut record, notes) = Record::open(files(), Of::All);
        assert!(notes.is_empty() && record.next_pid() == 1 && !record.was_lost());
        record.add(b"lost");
        assert!(record.is_full(), "it has to be begun");
        all_anew(&mut record, b"one ");
        record.add(b"two ");
        record.add(b"three");
        assert!(!record.is_full());
        record.set_next_pid(77);
        assert_eq!(record.secret([7; 16]), [7; 16]);
        let (mut next, notes) = Record::open(same(&record), Of::All);
        assert_eq!((&notes[..], next.next_pid()), (&b"one two three"[..], 77));
        for n in 0..5u8 {
            all_anew(&mut next, &[n]);
            next.add(b"!");
            let (again, notes) = Record::open(same(&next), Of::All);
            assert_eq!((&notes[..], again.next_pid()), (&[n, b'!'][..], 77));
            assert_eq!(again.secret([8; 16]), [7; 16], "it stays");
        }
    }

    #[test]
    fn what_was_cut_short_is_not_there() {
        let (mut record, _) = Record::open(files(), Of::All);
        all_anew(&mut record, b"one ");
        // Killed behind the note, and before its length.
        write(&record.files[record.at], b"half", HEADER + 4).unwrap();
        assert_eq!(Record::open(same(&record), Of::All).1, b"one ");
        // Killed while it was begun anew.
        let other = &record.files[1 - record.at];
        write(other, b"rubbish", HEADER).unwrap();
        write(other, &7u64.to_ne_bytes(), LEN_AT).unwrap();
        assert_eq!(Record::open(same(&record), Of::All).1, b"one ");
    }

    #[test]
    fn notes_of_no_use_go() {
        let (mut record, _) = Record::open(files(), Of::All);
        all_anew(&mut record, &[]);
        let note = [7; 1000];
        let added = (0..)
            .take_while(|_| {
                !record.is_full() && {
                    record.add(&note);
                    true
                }
            })
            .count() as u64;
        assert_eq!(added, SMALL / 1000 + 1);
        all_anew(&mut record, &note);
        assert_eq!(Record::open(same(&record), Of::All).1, note);
        assert!(!record.is_full());
    }

    #[test]
    fn what_is_added_while_it_is_begun_anew_is_there_whenever_it_is_killed() {
        let (mut record, _) = Record::open(files(), Of::All);
        all_anew(&mut record, b"old ");
        record.begin();
        record.part(b"first ", false);
        record.add(b"between ");
        assert!(!record.is_full(), "it is being begun");
        assert_eq!(Record::open(same(&record), Of::All).1, b"old between ");
        record.part(b"last ", true);
        record.add(b"after ");
        assert_eq!(Record::open(same(&record), Of::All).1, b"first between last after ");
        // Half of it is of no use: the next process begins as if it had not been tried.
        record.begin();
        record.part(b"half ", false);
        let (mut next, notes) = Record::open(same(&record), Of::All);
        assert_eq!(notes, b"first between last after ");
        all_anew(&mut next, b"all ");
        assert_eq!(Record::open(same(&next), Of::All).1, b"all ");
    }

    #[test]
    fn without_room_it_is_begun_anew_when_there_is_some() {
        let (mut record, _) = Record::open(files(), Of::All);
        record.set_next_pid(77);
        all_anew(&mut record, b"old ");
        record.begin();
        record.anew = Some(MOST);
        record.part(b"x", false);
        let (next, notes) = Record::open(same(&record), Of::All);
        assert!(notes.is_empty() && next.was_lost() && !record.is_kept(), "none count");
        // At once it would fail for the same reason.
        assert!(!record.is_begun() && !record.is_full());
        record.set_now(WAIT - 1);
        record.add(b"lost");
        assert!(!record.is_full());
        record.set_now(WAIT);
        assert!(record.is_full());
        all_anew(&mut record, b"new ");
        let (next, notes) = Record::open(same(&record), Of::All);
        assert_eq!((&notes[..], next.next_pid()), (&b"new "[..], 77));
        assert!(record.is_kept() && !record.is_full());
    }

    /// It was begun anew at each note once nearly all of them were of use, or more than there was room for.
    #[test]
    fn what_is_full_of_use_is_not_written_over_and_over() {
        const ROOM: u64 = 4 << 20;
        let note = [7; 150];
        // What is of use takes so much; a second of ten thousand connections that begin and end.
        for use_of in [ROOM / 16 * 15, ROOM + 1] {
            let (mut record, _) = Record::open(files(), Of::All);
            record.most = ROOM;
            let all = vec![1; use_of as usize];
            let mut times = 0;
            for n in 0..120_000u64 {
                record.set_now(n);
                record.add(&note);
                if record.is_full() {
                    all_anew(&mut record, &all);
                    times += 1;
                    assert!(times < 100, "{times} times in {n} notes");
                }
            }
            assert!((2..=4).contains(&times), "{times} times in two minutes, {use_of} bytes of use");
            assert!(!record.is_kept(), "two minutes of notes find no room behind what is of use");
            // Then there is less.
            record.set_now(200_000);
            assert!(record.is_full());
            all_anew(&mut record, b"few");
            assert!(record.is_kept() && Record::open(same(&record), Of::All).1 == b"few");
        }
    }
}
