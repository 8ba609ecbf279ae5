//! A frame's first bytes in private memory: what is classified, edited and delivered.

use crate::SNAPSHOT_LEN;

/// Bytes kept free in front of a frame's first bytes for what actions push: some VLAN tags, or a tunnel's metadata.
pub const HEADROOM: usize = 64;

/// Most bytes that a [`Header`] may come to have.
pub const HEADER_LEN: usize = HEADROOM + SNAPSHOT_LEN;

/// The first bytes of a frame: at first as they were read, the snapshot; then as the actions left them. Whatever is edited lies
/// inside, and edits happen in front: its last byte is followed by the frame's payload, wherever that lies, as it was in the beginning.
#[derive(Clone, Debug)]
#[repr(C)]
pub struct Header {
    bytes: [u8; HEADER_LEN],
    /// Where it begins: [`HEADROOM`] until it is edited.
    start: usize,
    len: usize,
    /// `len` until it is edited, and [`EDITED`] from then on: one comparison finds out both.
    read_len: usize,
}

const EDITED: usize = usize::MAX;

impl Default for Header {
    fn default() -> Self {
        Self { bytes: [0; HEADER_LEN], start: HEADROOM, len: 0, read_len: 0 }
    }
}

impl Header {
    /// Begins anew with the first sixteen bytes of a frame, as two words with the first byte lowest.
    #[inline]
    pub fn set_words(&mut self, words: [u64; 2]) {
        let [first, second] = words.map(u64::to_le_bytes);
        if let Some([to, then, ..]) = self.bytes.as_chunks_mut::<8>().0.get_mut(HEADROOM / 8..) {
            (*to, *then) = (first, second);
        }
        let len = size_of_val(&words);
        (self.start, self.len, self.read_len) = (HEADROOM, len, len);
    }

    /// Begins anew with `len` bytes, or [`SNAPSHOT_LEN`] if that is less, for the caller to fill in.
    #[inline]
    pub fn restart(&mut self, len: usize) -> &mut [u8] {
        (self.start, self.len, self.read_len) = (HEADROOM, 0, 0);
        self.extend(len)
    }

    /// Makes it longer at its end by `len` bytes, or as many as there is room for; the caller fills them in.
    #[inline]
    pub fn extend(&mut self, len: usize) -> &mut [u8] {
        let end = self.start + self.len;
        let more = len.min(HEADER_LEN - end);
        self.len += more;
        if self.read_len != EDITED {
            self.read_len = self.len;
        }
        self.bytes.get_mut(end..end + more).unwrap_or(&mut [])
    }

    /// The bytes.
    #[inline]
    pub fn bytes(&self) -> &[u8] {
        let (_, snapshot) = self.bytes.split_at(HEADROOM);
        match snapshot.get(..self.read_len) {
            Some(bytes) => bytes,
            None => self.edited(),
        }
    }

    #[cold]
    #[inline(never)]
    fn edited(&self) -> &[u8] {
        self.bytes.get(self.start..self.start + self.len).unwrap_or(&[])
    }

    /// Where the first bytes were read to: what was read, as far as that reached and until it is edited. No length has to be looked at.
    #[inline]
    pub fn as_read(&self) -> &[u8; SNAPSHOT_LEN] {
        self.bytes.last_chunk().unwrap_or(&[0; SNAPSHOT_LEN])
    }

    /// How many there are.
    #[inline]
    pub fn len(&self) -> usize {
        self.len
    }

    /// There are none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The bytes, to be edited.
    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        self.read_len = EDITED;
        self.bytes.get_mut(self.start..self.start + self.len).unwrap_or(&mut [])
    }

    /// No more than the first `len` bytes stay.
    pub fn truncate(&mut self, len: usize) {
        (self.len, self.read_len) = (self.len.min(len), EDITED);
    }

    /// Puts `new` behind the first `at` bytes, which move towards the front. `None`, and nothing is changed, if there are not as many, or
    /// there is no room in front.
    pub(crate) fn insert(&mut self, at: usize, new: &[u8]) -> Option<()> {
        let start = self.start.checked_sub(new.len())?;
        if at > self.len {
            return None;
        }
        self.bytes.copy_within(self.start..self.start + at, start);
        self.bytes.get_mut(start + at..)?.get_mut(..new.len())?.copy_from_slice(new);
        (self.start, self.len, self.read_len) = (start, self.len + new.len(), EDITED);
        Some(())
    }

    /// Takes the `len` bytes behind the first `at` out. `None`, and nothing is changed, if there are not as many.
    pub(crate) fn remove(&mut self, at: usize, len: usize) -> Option<()> {
        if at.checked_add(len)? > self.len {
            return None;
        }
        self.bytes.copy_within(self.start..self.start + at, self.start + len);
        (self.start, self.len, self.read_len) = (self.start + len, self.len - len, EDITED);
        Some(())
    }
}
