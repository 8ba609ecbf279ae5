//! Frames that know which they are.

use lasthop_frame::testutil::Frame;
use lasthop_text::MacAddr;

const MAGIC: u32 = 0x6c61_7374;
/// Where the number is: behind the Ethernet header.
const AT: usize = 14;
/// Shortest numbered frame.
const SHORTEST: usize = AT + 12;

/// The address of the guest with this number.
pub fn mac(guest: u8) -> MacAddr {
    MacAddr([2, 0, 0, 0, 0, guest])
}

/// Frame `number` from `src` to `dst`, `len` bytes long (at least 60): everything in it follows from these.
pub fn numbered(src: MacAddr, dst: MacAddr, number: u32, len: usize) -> Vec<u8> {
    let len = len.max(60).max(SHORTEST);
    let mut payload = Vec::with_capacity(len);
    payload.extend(MAGIC.to_be_bytes());
    payload.extend(number.to_be_bytes());
    payload.extend((len as u32).to_be_bytes());
    payload.extend((SHORTEST..len).map(|i| filler(number, i)));
    Frame::between(src, dst).payload(payload).build()
}

fn filler(number: u32, i: usize) -> u8 {
    (number as usize).wrapping_mul(2_654_435_761).wrapping_add(i * 131).to_le_bytes()[1]
}

/// The number of a numbered frame; `None` for anything else. Panics if a byte of it is not as it was sent.
pub fn number_of(frame: &[u8]) -> Option<u32> {
    let word = |at: usize| Some(u32::from_be_bytes(frame.get(AT + at..AT + at + 4)?.try_into().ok()?));
    if word(0)? != MAGIC || frame.get(12..14)? != [0x88, 0xb5] {
        return None;
    }
    let (number, len) = (word(4)?, word(8)?);
    assert_eq!(len as usize, frame.len(), "frame {number} has changed its length");
    for (i, byte) in frame.iter().enumerate().skip(SHORTEST) {
        assert_eq!(*byte, filler(number, i), "byte {i} of frame {number} has changed");
    }
    Some(number)
}
