//! Reading from and writing to a run of guest memory that lies in pieces.

use lasthop_guestmem::GuestSlice;

/// A place in some pieces. Never moves past their end: what does not fit is not copied, and the counts returned say so.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cursor<'a, 'm> {
    pieces: &'a [GuestSlice<'m>],
    offset: usize,
}

impl<'a, 'm> Cursor<'a, 'm> {
    #[inline]
    pub(crate) fn new(pieces: &'a [GuestSlice<'m>]) -> Self {
        Self { pieces, offset: 0 }
    }

    /// A cursor `bytes` into the pieces.
    #[inline]
    pub(crate) fn at(pieces: &'a [GuestSlice<'m>], bytes: usize) -> Self {
        let mut cursor = Self::new(pieces);
        cursor.skip(bytes);
        cursor
    }

    #[inline]
    pub(crate) fn skip(&mut self, mut bytes: usize) {
        while let Some(piece) = self.pieces.first() {
            let here = piece.len() - self.offset;
            if bytes < here {
                self.offset += bytes;
                return;
            }
            bytes -= here;
            self.next();
        }
    }

    #[inline]
    fn next(&mut self) {
        self.pieces = self.pieces.get(1..).unwrap_or(&[]);
        self.offset = 0;
    }

    /// The rest of the piece the cursor is in; `None` at the end.
    #[inline]
    fn here(&mut self) -> Option<GuestSlice<'m>> {
        loop {
            let piece = self.pieces.first()?;
            let rest = piece.part(self.offset, usize::MAX);
            if !rest.is_empty() {
                return Some(rest);
            }
            self.next();
        }
    }

    /// Has `act` move bytes that lie here, piece by piece, until `bytes` are done or it moves none; returns how many were.
    #[inline]
    fn each(&mut self, bytes: usize, mut act: impl FnMut(GuestSlice<'m>, usize) -> usize) -> usize {
        let mut done = 0;
        while done < bytes
            && let Some(here) = self.here()
            && let n @ 1.. = act(here, done)
        {
            self.offset += n;
            done += n;
        }
        done
    }

    /// Copies into private memory; returns how many bytes there were.
    #[inline]
    pub(crate) fn read(&mut self, out: &mut [u8]) -> usize {
        self.each(out.len(), |here, done| here.read(0, &mut out[done..]))
    }

    /// Copies from private memory; returns how many bytes fitted.
    #[inline]
    pub(crate) fn write(&mut self, bytes: &[u8]) -> usize {
        self.each(bytes.len(), |here, done| here.write(0, &bytes[done..]))
    }

    /// Copies `bytes` from `source`, guest to guest; returns how many were moved.
    #[inline]
    pub(crate) fn copy_from(&mut self, source: &mut Cursor<'_, '_>, bytes: usize) -> usize {
        self.transfer(source, bytes, |from, to, _| from.copy_to(&to))
    }

    /// As `copy_from`, and returns the ones-complement sum of the bytes, as big-endian words from the first one on.
    pub(crate) fn copy_from_with_sum(&mut self, source: &mut Cursor<'_, '_>, bytes: usize) -> (usize, u16) {
        let mut sum = 0u32;
        let moved = self.transfer(source, bytes, |from, to, done| {
            let (n, part) = from.copy_to_with_sum(&to);
            // A piece that starts at an odd place has its bytes in the other halves of the words.
            let part = if done % 2 == 1 { part.swap_bytes() } else { part };
            sum += u32::from(part);
            sum = (sum & 0xffff) + (sum >> 16);
            n
        });
        (moved, u16::from_be(sum as u16))
    }

    /// The ones-complement sum of the next `bytes`, as big-endian words.
    pub(crate) fn sum(&mut self, bytes: usize) -> u16 {
        let mut chunk = [0u8; 512];
        let (mut sum, mut left) = (0u32, bytes);
        while left > 0 {
            let n = left.min(chunk.len());
            let got = self.read(chunk.get_mut(..n).unwrap_or(&mut []));
            if got == 0 {
                break;
            }
            sum = u32::from(lasthop_frame::sum::fold(sum + lasthop_frame::sum::sum(chunk.get(..got).unwrap_or(&[]))));
            left -= got;
        }
        sum as u16
    }

    #[inline]
    fn transfer(
        &mut self,
        source: &mut Cursor<'_, '_>,
        bytes: usize,
        mut copy: impl FnMut(GuestSlice<'_>, GuestSlice<'_>, usize) -> usize,
    ) -> usize {
        self.each(bytes, |to, done| {
            let Some(from) = source.here() else { return 0 };
            let n = copy(from.part(0, bytes - done), to, done);
            source.offset += n;
            n
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lasthop_guestmem::GuestMemory;
    use proptest::prelude::*;

    /// Lays pieces of these lengths out with gaps between.
    fn pieces<'m>(m: &'m GuestMemory, mut at: u64, lens: &[usize]) -> Vec<GuestSlice<'m>> {
        let mut out = Vec::new();
        for &len in lens {
            out.push(m.slice(at, len).unwrap());
            at += len as u64 + 3;
        }
        out
    }

    fn sum(bytes: &[u8]) -> u64 {
        let words = bytes.chunks(2).map(|p| u64::from(u16::from_be_bytes([p[0], *p.get(1).unwrap_or(&0)])));
        words.sum::<u64>() % 0xffff
    }

    proptest! {
        #[test]
        fn bytes_pass_whatever_the_pieces(
            from_lens in proptest::collection::vec(0usize..40, 0..12),
            to_lens in proptest::collection::vec(0usize..40, 0..12),
            bytes in proptest::collection::vec(any::<u8>(), 0..300),
            skip in 0usize..20,
        ) {
            let m = GuestMemory::anonymous(8192).unwrap();
            let (from, to) = (pieces(&m, 0, &from_lens), pieces(&m, 4096, &to_lens));
            let room = |lens: &[usize]| lens.iter().sum::<usize>();
            let stored = Cursor::new(&from).write(&bytes);
            prop_assert_eq!(stored, bytes.len().min(room(&from_lens)));
            let stored = &bytes[..stored];
            let wanted = stored.len().saturating_sub(skip);
            let (n, s) = Cursor::new(&to).copy_from_with_sum(&mut Cursor::at(&from, skip), wanted);
            prop_assert_eq!(n, wanted.min(room(&to_lens)));
            let mut out = vec![0; n];
            prop_assert_eq!(Cursor::new(&to).read(&mut out), n);
            if n > 0 {
                prop_assert_eq!(&out[..], &stored[skip..skip + n]);
            }
            prop_assert_eq!(u64::from(s) % 0xffff, sum(&out));
            let again = Cursor::new(&to).copy_from(&mut Cursor::at(&from, skip), wanted);
            prop_assert_eq!(again, n);
        }
    }
}
