//! The page in which a device counts what its DMA engine does. The supervisor makes it; the device writes and control reads, which believes
//! nothing of it. Words of 64 bits: [`Counts`] in their order, and before them whether the engine is used.

use lasthop_sys::SharedWords;
use rustix::io::Errno;
use std::os::fd::AsFd;
use std::sync::atomic::Ordering::Relaxed;

const WORDS: usize = 512;
/// Bytes of the page's file.
pub const PAGE_BYTES: u64 = WORDS as u64 * 8;

/// Not yet, or not any more: it was given up.
const RUNS: u64 = 1;
const GIVEN_UP: u64 = 2;

const STATE: usize = 0;
const THRESHOLD: usize = 1;
const COPIES: usize = 2;
const BYTES: usize = 3;
const ERRORS: usize = 4;
const OVERTAKEN: usize = 5;
const FULL: usize = 6;
const TAKEN_BACK: usize = 7;
const LOST: usize = 8;
const SUMMED: usize = 9;

/// What copies have come to since the device's process began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Copies that the engine has completed, each of which a descriptor has asked for.
    pub copies: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Those that it has completed in part: the processor has copied the rest.
    pub errors: u64,
    /// The most copies that one has overtaken.
    pub overtaken: u64,
    /// Copies that found no place in the ring: made by the processor.
    pub full: u64,
    /// Copies that were taken back from an engine that hung: made by the processor.
    pub taken_back: u64,
    /// Copies that it hung in.
    pub lost: u64,
    /// Copies that had to be summed as well: made by the processor.
    pub summed: u64,
}

/// The page, mapped by either side.
#[derive(Debug)]
pub struct DmaPage(SharedWords);

impl DmaPage {
    /// Maps it; `INVAL` if the file has another length.
    pub fn map(fd: impl AsFd) -> Result<Self, Errno> {
        SharedWords::map(fd, WORDS).map(Self)
    }

    /// A device begins, with an engine that makes copies of more than `threshold` bytes: nothing is counted yet.
    pub fn begin(&self, threshold: u64) {
        self.0.iter().for_each(|word| word.store(0, Relaxed));
        self.set(THRESHOLD, threshold);
        self.set(STATE, RUNS);
    }

    /// The engine is given up.
    pub fn give_up(&self) {
        self.set(STATE, GIVEN_UP);
    }

    /// Adds to what is counted. Any thread of the device.
    pub fn add(&self, of: &Counts) {
        let Counts { copies, bytes, errors, overtaken, full, taken_back, lost, summed } = *of;
        let sums = [(COPIES, copies), (BYTES, bytes), (ERRORS, errors), (FULL, full), (TAKEN_BACK, taken_back)];
        // Relaxed: nothing is said by one word of another.
        for (word, more) in sums.into_iter().chain([(LOST, lost), (SUMMED, summed)]).filter(|(_, more)| *more > 0) {
            self.0.get(word).inspect(|word| _ = word.fetch_add(more, Relaxed));
        }
        self.0.get(OVERTAKEN).inspect(|word| _ = word.fetch_max(overtaken, Relaxed));
    }

    /// What is counted. Any numbers: the device has written them.
    pub fn counts(&self) -> Counts {
        let word = |word| self.word(word);
        Counts {
            copies: word(COPIES),
            bytes: word(BYTES),
            errors: word(ERRORS),
            overtaken: word(OVERTAKEN),
            full: word(FULL),
            taken_back: word(TAKEN_BACK),
            lost: word(LOST),
            summed: word(SUMMED),
        }
    }

    /// Copies of more bytes than these are the engine's.
    pub fn threshold(&self) -> u64 {
        self.word(THRESHOLD)
    }

    /// It hung, and is not used any more.
    pub fn is_given_up(&self) -> bool {
        self.word(STATE) == GIVEN_UP
    }

    fn set(&self, word: usize, value: u64) {
        self.0.get(word).inspect(|word| word.store(value, Relaxed));
    }

    fn word(&self, word: usize) -> u64 {
        self.0.get(word).map_or(0, |word| word.load(Relaxed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lasthop_sys::sealed_memfd;

    #[test]
    fn what_one_side_counts_the_other_reads() {
        let fd = sealed_memfd("test", PAGE_BYTES).unwrap();
        let (device, control) = (DmaPage::map(&fd).unwrap(), DmaPage::map(&fd).unwrap());
        device.begin(128);
        let some = Counts { copies: 1, bytes: 2, errors: 3, overtaken: 4, full: 5, taken_back: 6, lost: 7, summed: 8 };
        device.add(&some);
        device.add(&Counts { copies: 9, overtaken: 3, ..Counts::default() });
        assert_eq!(control.counts(), Counts { copies: 10, ..some });
        assert_eq!((control.threshold(), control.is_given_up()), (128, false));
        device.give_up();
        assert!(control.is_given_up());
        device.begin(0);
        assert_eq!((control.counts(), control.is_given_up()), (Counts::default(), false));
        assert!(DmaPage::map(sealed_memfd("test", 8).unwrap()).is_err());
    }
}
