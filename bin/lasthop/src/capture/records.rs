//! What the process that gets the copies writes into its pipe: libpcap's format with nanoseconds, read here as it comes.

use std::time::Duration;

/// Bytes in front of all records, and of each.
const FILE_HEADER: usize = 24;
const RECORD_HEADER: usize = 16;
/// What the bytes in front of all records begin with; as the time of a record it would be in 2055.
const MAGIC: [u8; 8] = [0x4d, 0x3c, 0xb2, 0xa1, 2, 0, 4, 0];
/// A longer record is none: then the stream is no capture.
const LONGEST: usize = 1 << 18;

/// The bytes that are not read yet.
#[derive(Debug, Default)]
pub struct Records {
    bytes: Vec<u8>,
    begun: bool,
}

/// The stream is no capture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Broken;

impl Records {
    /// Takes more bytes, and hands out each record that is whole by now, with its time, until `take` says that it was the last.
    pub fn push(&mut self, bytes: &[u8], mut take: impl FnMut(Duration, &[u8]) -> bool) -> Result<(), Broken> {
        self.bytes.extend_from_slice(bytes);
        let mut at = 0;
        if !self.begun && self.bytes.len() >= FILE_HEADER {
            (at, self.begun) = (FILE_HEADER, true);
        }
        while self.begun
            && let Some((header, rest)) = self.bytes.get(at..).and_then(<[u8]>::split_first_chunk::<RECORD_HEADER>)
        {
            // Another process writes from now on: the one before has ended.
            if header.starts_with(&MAGIC) {
                if rest.len() < FILE_HEADER - RECORD_HEADER {
                    break;
                }
                at += FILE_HEADER;
                continue;
            }
            let word =
                |n: usize| header.get(n..).and_then(<[u8]>::first_chunk).map_or(0, |word| u32::from_le_bytes(*word));
            let len = word(8) as usize;
            if len > LONGEST || word(4) >= 1_000_000_000 {
                return Err(Broken);
            }
            let Some(frame) = rest.get(..len) else { break };
            at += RECORD_HEADER + len;
            if !take(Duration::new(word(0).into(), word(4)), frame) {
                break;
            }
        }
        self.bytes.drain(..at.min(self.bytes.len()));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn records_come_whole_however_the_stream_is_cut(
            frames in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..99), 0..9),
            step in 1..50_usize,
        ) {
            let header = [&MAGIC[..], &[0; 16]].concat();
            let mut stream = header.clone();
            for (n, frame) in (0_u32..).zip(&frames) {
                if n == 3 {
                    stream.extend(&header);
                }
                let len = frame.len() as u32;
                stream.extend([n, 5, len, len].iter().flat_map(|word| word.to_le_bytes()));
                stream.extend(frame);
            }
            let (mut records, mut got) = (Records::default(), Vec::new());
            for bytes in stream.chunks(step) {
                let mut take = |time, frame: &[u8]| {
                    got.push((time, frame.to_vec()));
                    true
                };
                records.push(bytes, &mut take).unwrap();
            }
            let wanted: Vec<_> = (0..).zip(frames).map(|(n, frame)| (Duration::new(n, 5), frame)).collect();
            prop_assert_eq!(got, wanted);
        }

        #[test]
        fn any_bytes_are_read(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = Records::default().push(&bytes, |_, _| true);
        }
    }
}
