//! The file of the history: a ring of minutes, each with a record for every port that there is room for. It is made with its whole length, so it
//! neither grows nor fills a disk later.
//!
//! ```text
//! header   4096 bytes   magic, version, minutes, ports, check sum
//! names    128 a port   name, since which minute the place is its own, its last minute, check sum
//! minutes  64 + 80 for each place of a port: which minute, how often was looked, check sum over all of it; records
//! ```
//!
//! Numbers are little-endian. Check sums are CRC-32 (as of IEEE 802.3). A minute lies at its number modulo the number of minutes. One that is
//! not whole, because a machine stopped in the middle of it, has a wrong check sum and is left out when it is read.

use rustix::fs::{FlockOperation, flock};
use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

const MAGIC: [u8; 16] = *b"lasthop-history\0";
const VERSION: u32 = 1;
const HEADER: usize = 4096;
const NAME: usize = 128;
const ROW: usize = 64;
const RECORD: usize = 80;
/// Bytes of a drop reason that are kept.
const REASON: usize = 24;
/// Names of ports are no longer.
const MAX_NAME: usize = 63;

/// How much there is room for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    pub minutes: u32,
    pub ports: u32,
}

impl Shape {
    fn row(self) -> usize {
        ROW + self.ports as usize * RECORD
    }

    /// Bytes of the file.
    pub fn len(self) -> u64 {
        (HEADER + self.ports as usize * NAME) as u64 + u64::from(self.minutes) * self.row() as u64
    }

    /// Where this minute is.
    fn at(self, minute: u64) -> u64 {
        let place = minute % u64::from(self.minutes);
        (HEADER + self.ports as usize * NAME) as u64 + place * self.row() as u64
    }
}

/// What a port did in a minute.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Minute {
    /// Packets and bytes from the guest, and to it.
    pub from: (u64, u64),
    pub to: (u64, u64),
    pub dropped: u64,
    /// Most bits a second, both ways together, between two looks.
    pub peak_bits: u64,
    /// How often it was looked at, and was up.
    pub looks: u16,
    pub up: u16,
    /// Processor time of its thread.
    pub cpu_ms: u32,
    /// Why most of what was dropped was; empty if nothing was.
    pub reason: String,
}

impl Minute {
    fn write(&self, to: &mut Vec<u8>) {
        let end = to.len() + RECORD;
        for number in [self.from.0, self.from.1, self.to.0, self.to.1, self.dropped, self.peak_bits] {
            to.extend(number.to_le_bytes());
        }
        to.extend(self.looks.to_le_bytes());
        to.extend(self.up.to_le_bytes());
        to.extend(self.cpu_ms.to_le_bytes());
        to.extend(self.reason.bytes().take(REASON));
        to.resize(end, 0);
    }

    fn read(bytes: &[u8]) -> Self {
        let word = |n: usize| u64_at(bytes, 8 * n);
        let reason = bytes.get(RECORD - REASON..RECORD).unwrap_or_default();
        Self {
            from: (word(0), word(1)),
            to: (word(2), word(3)),
            dropped: word(4),
            peak_bits: word(5),
            looks: u32_at(bytes, 48) as u16,
            up: (u32_at(bytes, 48) >> 16) as u16,
            cpu_ms: u32_at(bytes, 52),
            reason: text(reason),
        }
    }
}

/// A minute of all ports.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Row {
    /// Since 1970.
    pub minute: u64,
    /// How often lasthop was asked, and has answered.
    pub asked: u32,
    pub answered: u32,
    /// Most ports at a time for which there was no room.
    pub left_out: u32,
    /// By place.
    pub ports: Vec<Minute>,
}

/// Whose a place is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Place {
    /// Empty: nobody's.
    pub name: String,
    pub since: u64,
    pub last: u64,
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    bytes.get(at..at + 8).and_then(|bytes| bytes.try_into().ok()).map_or(0, u64::from_le_bytes)
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..at + 4).and_then(|bytes| bytes.try_into().ok()).map_or(0, u32::from_le_bytes)
}

/// Up to the first zero.
fn text(bytes: &[u8]) -> String {
    let bytes = bytes.split(|byte| *byte == 0).next().unwrap_or_default();
    String::from_utf8_lossy(bytes).into_owned()
}

/// A file that cannot be used as it is.
#[derive(Debug)]
pub enum Fault {
    Io(io::Error),
    /// It is no history, or not a whole one: why.
    Damaged(String),
}

impl From<io::Error> for Fault {
    fn from(e: io::Error) -> Self {
        Self::Io(e)
    }
}

/// An open file.
#[derive(Debug)]
pub struct History {
    file: File,
    pub shape: Shape,
}

impl History {
    /// To be read.
    pub fn open(path: &Path) -> Result<Self, Fault> {
        Self::check(File::open(path)?)
    }

    fn check(mut file: File) -> Result<Self, Fault> {
        let mut header = [0; 32];
        let len = file.metadata()?.len();
        file.read_exact(&mut header).map_err(|_| Fault::Damaged("it is too short".into()))?;
        if header[..16] != MAGIC {
            return Err(Fault::Damaged("it does not begin as a history does".into()));
        }
        let [version, minutes, ports, sum] = [16, 20, 24, 28].map(|at| u32_at(&header, at));
        if sum != crc32fast::hash(&header[..28]) {
            return Err(Fault::Damaged("its header has a wrong check sum".into()));
        }
        if version != VERSION {
            return Err(Fault::Damaged(format!(
                "it is of version {version}, and this lasthop knows version {VERSION}"
            )));
        }
        let shape = Shape { minutes, ports };
        if minutes == 0 || len != shape.len() {
            return Err(Fault::Damaged(format!("it has {len} bytes instead of {}", shape.len())));
        }
        Ok(Self { file, shape })
    }

    /// To be written by this process alone; made if there is none. A damaged one is put aside: its new name, and what is wrong with it.
    pub fn open_or_make(path: &Path, shape: Shape) -> io::Result<(Self, Option<(PathBuf, String)>)> {
        let mut aside = None;
        loop {
            let made = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path)?;
            flock(&made, FlockOperation::NonBlockingLockExclusive)
                .map_err(|_| io::Error::other("another `lasthop history record` writes it"))?;
            if made.metadata()?.len() == 0 {
                return Ok((Self::make(made, shape)?, aside));
            }
            match Self::check(made) {
                Ok(history) => return Ok((history, aside)),
                Err(Fault::Io(e)) => return Err(e),
                Err(Fault::Damaged(why)) => {
                    let seconds = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
                    let mut name = path.as_os_str().to_owned();
                    name.push(format!(".damaged-{seconds}"));
                    std::fs::rename(path, &name)?;
                    aside = Some((name.into(), why));
                }
            }
        }
    }

    fn make(file: File, shape: Shape) -> io::Result<Self> {
        file.set_len(shape.len())?;
        let mut header = MAGIC.to_vec();
        [VERSION, shape.minutes, shape.ports].iter().for_each(|number| header.extend(number.to_le_bytes()));
        header.extend(crc32fast::hash(&header).to_le_bytes());
        file.write_all_at(&header, 0)?;
        Ok(Self { file, shape })
    }

    /// Who has which place, and how many entries are damaged.
    pub fn places(&self) -> io::Result<(Vec<Place>, usize)> {
        let (mut places, mut damaged) = (Vec::new(), 0);
        for n in 0..self.shape.ports as usize {
            let mut entry = [0; NAME];
            self.file.read_exact_at(&mut entry, (HEADER + n * NAME) as u64)?;
            let is_right = u32_at(&entry, NAME - 4) == crc32fast::hash(&entry[..NAME - 4]);
            damaged += usize::from(!is_right && entry != [0; NAME]);
            let place = Place { name: text(&entry[..64]), since: u64_at(&entry, 64), last: u64_at(&entry, 72) };
            places.push(if is_right { place } else { Place::default() });
        }
        Ok((places, damaged))
    }

    pub fn write_place(&self, n: usize, place: &Place) -> io::Result<()> {
        let mut entry: Vec<u8> = place.name.bytes().take(MAX_NAME).collect();
        entry.resize(64, 0);
        entry.extend(place.since.to_le_bytes());
        entry.extend(place.last.to_le_bytes());
        entry.resize(NAME - 4, 0);
        entry.extend(crc32fast::hash(&entry).to_le_bytes());
        self.file.write_all_at(&entry, (HEADER + n * NAME) as u64)
    }

    /// This minute; none if it was not recorded. Damaged: false.
    pub fn row(&self, minute: u64) -> io::Result<Result<Option<Row>, ()>> {
        let mut bytes = vec![0; self.shape.row()];
        self.file.read_exact_at(&mut bytes, self.shape.at(minute))?;
        let sum = u32_at(&bytes, 24);
        bytes[24..28].fill(0);
        let is_blank = sum == 0 && bytes.iter().all(|byte| *byte == 0);
        if !is_blank && sum != crc32fast::hash(&bytes) {
            return Ok(Err(()));
        }
        if is_blank || u64_at(&bytes, 0) != minute {
            return Ok(Ok(None));
        }
        let ports = bytes[ROW..].chunks_exact(RECORD).map(Minute::read).collect();
        let [asked, answered, left_out] = [8, 12, 16].map(|at| u32_at(&bytes, at));
        Ok(Ok(Some(Row { minute, asked, answered, left_out, ports })))
    }

    pub fn write_row(&self, row: &Row) -> io::Result<()> {
        let mut bytes = row.minute.to_le_bytes().to_vec();
        [row.asked, row.answered, row.left_out].iter().for_each(|number| bytes.extend(number.to_le_bytes()));
        bytes.resize(ROW, 0);
        row.ports.iter().take(self.shape.ports as usize).for_each(|port| port.write(&mut bytes));
        bytes.resize(self.shape.row(), 0);
        let sum = crc32fast::hash(&bytes);
        bytes[24..28].copy_from_slice(&sum.to_le_bytes());
        self.file.write_all_at(&bytes, self.shape.at(row.minute))
    }
}

/// Of a file that was open before: a process that another test starts at that moment has its lock until it is a program of its own.
#[cfg(test)]
pub fn open_again(path: &Path, shape: Shape) -> (History, Option<(PathBuf, String)>) {
    let again =
        || History::open_or_make(path, shape).inspect_err(|_| std::thread::sleep(std::time::Duration::from_millis(10)));
    (0..1000).find_map(|_| again().ok()).expect("nobody else writes it")
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHAPE: Shape = Shape { minutes: 10, ports: 2 };

    fn minute(n: u64) -> Minute {
        Minute {
            from: (n, 2 * n),
            to: (3 * n, 4 * n),
            dropped: n,
            peak_bits: 7 * n,
            looks: 6,
            up: 5,
            cpu_ms: 9,
            reason: "a_reason_with_a_name_of_24".into(),
        }
    }

    fn row(number: u64) -> Row {
        Row { minute: number, asked: 6, answered: 5, left_out: 1, ports: vec![minute(number), Minute::default()] }
    }

    #[test]
    fn what_is_written_is_read_and_the_oldest_gives_way() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("history");
        let (history, aside) = History::open_or_make(&path, SHAPE).unwrap();
        assert!(aside.is_none());
        assert_eq!(history.row(100).unwrap(), Ok(None));
        for number in 100..=110 {
            history.write_row(&row(number)).unwrap();
        }
        let place = Place { name: "vm1".into(), since: 100, last: 110 };
        history.write_place(1, &place).unwrap();
        assert!(History::open_or_make(&path, SHAPE).is_err(), "one process writes it");
        let again = History::open(&path).unwrap();
        assert_eq!((again.shape, path.metadata().unwrap().len()), (SHAPE, SHAPE.len()));
        assert_eq!(again.row(100).unwrap(), Ok(None), "its place is that of minute 110");
        let mut expected = row(110);
        expected.ports[0].reason.truncate(REASON);
        assert_eq!(again.row(110).unwrap(), Ok(Some(expected)));
        assert_eq!(again.places().unwrap(), (vec![Place::default(), place], 0));
    }

    #[test]
    fn a_minute_that_is_not_whole_is_told_apart() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("history");
        let (history, _) = History::open_or_make(&path, SHAPE).unwrap();
        (0..10).for_each(|number| history.write_row(&row(number)).unwrap());
        history.write_place(0, &Place { name: "vm1".into(), since: 1, last: 2 }).unwrap();
        for at in [0, 8, 24, 70, SHAPE.row() as u64 - 1] {
            let mut byte = [0];
            history.file.read_exact_at(&mut byte, SHAPE.at(3) + at).unwrap();
            history.file.write_all_at(&[byte[0] ^ 1], SHAPE.at(3) + at).unwrap();
            assert_eq!(history.row(3).unwrap(), Err(()), "byte {at}");
            history.file.write_all_at(&byte, SHAPE.at(3) + at).unwrap();
        }
        assert!(history.row(3).unwrap().unwrap().is_some());
        history.file.write_all_at(b"x", HEADER as u64).unwrap();
        assert_eq!(history.places().unwrap(), (vec![Place::default(); 2], 1));
    }

    #[test]
    fn a_damaged_file_is_put_aside() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("history");
        let whole = {
            let (history, _) = History::open_or_make(&path, SHAPE).unwrap();
            history.write_row(&row(5)).unwrap();
            std::fs::read(&path).unwrap()
        };
        let shorter = whole[..whole.len() - 1].to_vec();
        let other_header = [&whole[..20], &[1], &whole[21..]].concat();
        for (n, damaged) in [b"x".to_vec(), vec![0; whole.len()], shorter, other_header].into_iter().enumerate() {
            std::fs::write(&path, &damaged).unwrap();
            assert!(matches!(History::open(&path), Err(Fault::Damaged(_))), "{n}");
            let (history, aside) = open_again(&path, SHAPE);
            let (aside, _why) = aside.unwrap();
            assert_eq!(std::fs::read(&aside).unwrap(), damaged);
            assert_eq!(history.row(5).unwrap(), Ok(None));
            std::fs::remove_file(aside).unwrap();
        }
    }
}
