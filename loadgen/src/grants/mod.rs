//! Guests that grant their pages one by one, as the drivers of a guest behind an IOMMU do, and reuse what they have granted as the
//! thesis has it (PhD chapter 3): the switch hears of each page by a message, and of each that it may touch no longer.

mod track;

use super::port::PAGE;
use super::{Outcome, failed};
use lasthop_vhostuser::message::{BACKEND_IOTLB_MSG, HEADER_LEN, Header, IotlbMessage, flag, iotlb};
use lasthop_vhostuser::{Frontend, FrontendError};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socketpair};
use serde::Serialize;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;
use track::{Taken, Track};
use zerocopy::{FromBytes, IntoBytes};

/// I/O addresses of pages that the switch may write are this far from those of pages that it may only read.
const WRITABLE: u64 = 1 << 40;
const READ: u8 = 1;
const READ_WRITE: u8 = 3;

/// When pages are granted and revoked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policy {
    /// All memory, once.
    All,
    /// Each buffer for one use.
    Once,
    /// At most so many pages for reading, and as many for writing; what was granted is used again, and revoked when its place is wanted.
    Reuse(usize),
}

/// How a guest grants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grants {
    /// When.
    pub policy: Policy,
    /// What is granted and not in use is revoked this often, as by a pool that shrinks. In the thesis pools are of buffers that a guest receives into (PhD 3.5.1, MS
    /// 4.7); here all of those are in the ring at all times, so what is idle are buffers that have been sent.
    pub drain: Option<Duration>,
}

/// What was said.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Told {
    /// Messages that granted something.
    pub updates: u64,
    /// Messages that revoked something.
    pub invalidations: u64,
    /// Buffers that could not be granted at once: all pages of a set were in use.
    pub refused: u64,
    /// Questions of the switch.
    pub asked: u64,
    /// Different pages that buffers have been in.
    pub pages: u64,
}

impl Told {
    /// The sum of both.
    pub fn with(self, o: &Self) -> Self {
        Self {
            updates: self.updates + o.updates,
            invalidations: self.invalidations + o.invalidations,
            refused: self.refused + o.refused,
            asked: self.asked + o.asked,
            pages: self.pages + o.pages,
        }
    }

    /// The difference to an earlier one, but all pages.
    pub fn since(self, earlier: &Self) -> Self {
        Self {
            updates: self.updates - earlier.updates,
            invalidations: self.invalidations - earlier.invalidations,
            refused: self.refused - earlier.refused,
            asked: self.asked - earlier.asked,
            pages: self.pages,
        }
    }
}

/// The guest's memory, all of it, and where it is in the front-end's address space.
#[derive(Clone, Copy, Debug)]
pub struct Area {
    /// First guest physical address.
    pub base: u64,
    /// The same byte for the front-end.
    pub user: u64,
    /// Bytes.
    pub size: u64,
}

/// One port's grants.
#[derive(Debug)]
pub struct Granter {
    grants: Grants,
    area: Area,
    /// The switch asks here.
    requests: OwnedFd,
    /// What it may read, and what it may write.
    tracks: [Track; 2],
    /// Its rings, which are granted for good: first address and bytes.
    rings: Vec<(u64, u64)>,
    /// By page: whether a buffer has been there, to be read and to be written.
    seen: [Vec<bool>; 2],
    told: Told,
}

fn pages(addr: u64, len: u64) -> impl Iterator<Item = u64> {
    addr / PAGE..(addr + len).div_ceil(PAGE)
}

/// Pages that follow one another, for which one message does: the first of each run, and how many.
fn runs(pages: &[u64]) -> impl Iterator<Item = (u64, u64)> {
    pages.chunk_by(|a, b| a + 1 == *b).filter_map(|run| Some((*run.first()?, run.len() as u64)))
}

fn told(e: FrontendError) -> super::Failure {
    failed(format!("a grant: {e}"))
}

impl std::str::FromStr for Policy {
    type Err = String;

    /// `all`, `once`, or how many pages may be granted.
    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "all" => Ok(Self::All),
            "once" => Ok(Self::Once),
            pages => match pages.parse() {
                Ok(pages @ 1..=1_000_000) => Ok(Self::Reuse(pages)),
                _ => Err(format!("{text:?}: all, once, or 1 to 1000000 pages")),
            },
        }
    }
}

impl Granter {
    /// For a connection that has negotiated BACKEND_REQ.
    pub fn new(front: &Frontend, grants: Grants, area: Area, buffers: usize) -> Outcome<Self> {
        let (ours, theirs) =
            socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None).map_err(failed)?;
        front.set_backend_requests(theirs.as_fd()).map_err(told)?;
        let room = match grants.policy {
            Policy::All => 0,
            // Four places for each that is in use: a set is hardly ever full.
            Policy::Once => 4 * buffers,
            Policy::Reuse(pages) => pages,
        };
        let all = vec![false; (area.size / PAGE) as usize];
        Ok(Self {
            grants,
            area,
            requests: ours,
            tracks: [Track::new(room), Track::new(room)],
            rings: Vec::new(),
            seen: [all.clone(), all],
            told: Told::default(),
        })
    }

    /// Where the switch finds these bytes, to be written or only read.
    #[inline]
    pub fn address(&self, addr: u64, write: bool) -> u64 {
        if write && self.grants.policy != Policy::All { addr + WRITABLE } else { addr }
    }

    /// What was said so far.
    pub fn told(&self) -> Told {
        self.told
    }

    /// A ring's memory is granted for good.
    pub fn ring(&mut self, front: &Frontend, addr: u64, len: u64) -> Outcome<()> {
        self.rings.push((addr, len));
        self.update(front, addr, len, READ_WRITE)
    }

    /// Everything is granted for good, if that is how it is done.
    pub fn all(&mut self, front: &Frontend) -> Outcome<()> {
        if self.grants.policy != Policy::All {
            return Ok(());
        }
        self.update(front, self.area.base, self.area.size, READ_WRITE)
    }

    fn update(&mut self, front: &Frontend, iova: u64, size: u64, permissions: u8) -> Outcome<()> {
        let user_addr = (iova & (WRITABLE - 1)) - self.area.base + self.area.user;
        self.told.updates += 1;
        let kind = iotlb::UPDATE;
        front.iotlb(IotlbMessage { iova, size, user_addr, permissions, kind, ..Default::default() }).map_err(told)
    }

    fn invalidate(&mut self, front: &Frontend, iova: u64, size: u64) -> Outcome<()> {
        self.told.invalidations += 1;
        front.iotlb(IotlbMessage { iova, size, kind: iotlb::INVALIDATE, ..Default::default() }).map_err(told)
    }

    /// Before the switch gets a buffer. False: not now, all pages of a set are in use.
    pub fn give(&mut self, front: &Frontend, addr: u64, len: u64, write: bool) -> Outcome<bool> {
        let half = usize::from(write);
        for page in pages(addr, len) {
            let seen = &mut self.seen[half][(page - self.area.base / PAGE) as usize];
            self.told.pages += u64::from(!std::mem::replace(seen, true));
        }
        if self.grants.policy == Policy::All {
            return Ok(true);
        }
        let (permissions, far) = if write { (READ_WRITE, WRITABLE) } else { (READ, 0) };
        let (mut new, mut all) = (Vec::new(), true);
        for page in pages(addr, len) {
            match self.tracks[half].take(page) {
                Taken::Held => {}
                Taken::New => new.push(page),
                Taken::Instead(old) => {
                    self.invalidate(front, far + old * PAGE, PAGE)?;
                    new.push(page);
                }
                Taken::Full => {
                    self.told.refused += 1;
                    for taken in addr / PAGE..page {
                        self.tracks[half].put(taken);
                    }
                    all = false;
                    break;
                }
            }
        }
        runs(&new).try_for_each(|(first, count)| self.update(front, far + first * PAGE, count * PAGE, permissions))?;
        Ok(all)
    }

    /// After the switch has given a buffer back: `addr` and `len` as they were given.
    pub fn take_back(&mut self, front: &Frontend, addr: u64, len: u64, write: bool) -> Outcome<()> {
        if self.grants.policy == Policy::All {
            return Ok(());
        }
        let (half, far) = (usize::from(write), if write { WRITABLE } else { 0 });
        let mut idle: Vec<_> = pages(addr, len).filter(|page| self.tracks[half].put(*page)).collect();
        if self.grants.policy != Policy::Once {
            idle.clear();
        }
        idle.iter().for_each(|page| self.tracks[half].forget(*page));
        runs(&idle).try_for_each(|(first, count)| self.invalidate(front, far + first * PAGE, count * PAGE))
    }

    /// How often what is not in use is revoked, if at all.
    pub fn drains(&self) -> Option<Duration> {
        self.grants.drain
    }

    /// Revokes what is not in use.
    pub fn drain(&mut self, front: &Frontend) -> Outcome<()> {
        for (half, far) in [(0, 0), (1, WRITABLE)] {
            for page in self.tracks[half].drain() {
                self.invalidate(front, far + page * PAGE, PAGE)?;
            }
        }
        Ok(())
    }

    /// Answers the switch's questions about pages that are granted; the others stay unanswered, as an IOMMU's driver has nothing to say
    /// about them.
    pub fn answer(&mut self, front: &Frontend) -> Outcome<()> {
        let mut bytes = [0; HEADER_LEN + size_of::<IotlbMessage>()];
        while let Ok((len, _)) = recv(&self.requests, &mut bytes, RecvFlags::DONTWAIT)
            && len == bytes.len()
        {
            let (head, body) = bytes.split_at(HEADER_LEN);
            let (Ok(header), Ok(question)) = (Header::read_from_bytes(head), IotlbMessage::read_from_bytes(body))
            else {
                return Err(failed("a question that is none: a bug"));
            };
            if header.flags & flag::NEED_REPLY != 0 {
                let header = Header { flags: flag::VERSION | flag::REPLY, size: 8, ..header };
                let answer = [header.as_bytes(), 0u64.as_bytes()].concat();
                send(&self.requests, &answer, SendFlags::empty()).map_err(failed)?;
            }
            if header.request != BACKEND_IOTLB_MSG || question.kind != iotlb::MISS {
                continue;
            }
            self.told.asked += 1;
            let (iova, write) = (question.iova & !(PAGE - 1), question.iova >= WRITABLE);
            let page = (iova & (WRITABLE - 1)) / PAGE;
            let within = |(addr, len): &(u64, u64)| (*addr..addr + len).contains(&iova);
            if self.grants.policy == Policy::All {
                self.all(front)?;
            } else if let Some((addr, len)) = self.rings.iter().copied().find(|ring| within(ring)) {
                self.update(front, addr, len, READ_WRITE)?;
            } else if self.tracks[usize::from(write)].holds(page) {
                self.update(front, iova, PAGE, if write { READ_WRITE } else { READ })?;
            }
        }
        Ok(())
    }
}

/// Pieces of memory of one length, of which any may be next.
#[derive(Debug)]
pub struct Heap {
    free: Vec<u64>,
    state: u64,
}

impl Heap {
    /// Of `pages` pages from `base`, in pieces that hold `len` bytes each.
    pub fn new(base: u64, pages: usize, len: usize) -> Self {
        let piece = (len as u64).next_multiple_of(PAGE);
        let free = (0..pages as u64 * PAGE / piece).map(|i| base + i * piece).collect();
        Self { free, state: base | 1 }
    }

    /// A piece that nobody has; in exchange for one that somebody had, if there is one.
    pub fn draw(&mut self, instead: Option<u64>) -> Option<u64> {
        self.free.extend(instead);
        if self.free.is_empty() {
            return None;
        }
        self.state = self.state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let at = (u128::from(self.state) * self.free.len() as u128) >> 64;
        Some(self.free.swap_remove(at as usize))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::port::Buffers;

    #[test]
    fn a_buffer_of_a_slab_lies_in_no_more_pages_than_it_must() {
        for len in [60, 1484, 2048, 2049, 4096, 4097, 65_562] {
            let slab = Buffers::in_line(16 * PAGE, Buffers::slab(len));
            for token in 0..64 {
                assert_eq!(pages(slab.at(token), len as u64).count() as u64, (len as u64).div_ceil(PAGE), "{len}");
            }
        }
    }

    #[test]
    fn a_buffer_touches_the_pages_that_it_lies_in() {
        let touched = |addr, len| pages(addr, len).collect::<Vec<_>>();
        assert_eq!(touched(0x1000, 4096), [1]);
        assert_eq!(touched(0x1fff, 2), [1, 2]);
        assert_eq!(touched(0x1800, 65550).len(), 17);
    }

    #[test]
    fn pages_that_follow_one_another_are_said_together() {
        assert_eq!(runs(&[]).count(), 0);
        assert_eq!(runs(&[4, 5, 6, 9, 11, 12]).collect::<Vec<_>>(), [(4, 3), (9, 1), (11, 2)]);
    }

    #[test]
    fn a_heap_gives_each_piece_to_one() {
        let mut heap = Heap::new(0x10000, 8, 5000);
        let mut drawn: Vec<u64> = std::iter::from_fn(|| heap.draw(None)).collect();
        drawn.sort_unstable();
        assert_eq!(drawn, [0x10000, 0x12000, 0x14000, 0x16000]);
        assert_eq!(heap.draw(Some(0x12000)), Some(0x12000));
    }
}
