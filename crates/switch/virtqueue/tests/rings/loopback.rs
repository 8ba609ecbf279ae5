//! Our driver side against our device side: what goes in comes out, in order, once.

use crate::Reserve as _;
use crate::rig::*;
use lasthop_virtqueue::driver::Piece;
use lasthop_virtqueue::{Chain, Chains, Reserved};
use proptest::prelude::*;
use std::collections::VecDeque;

#[derive(Clone, Debug)]
enum Op {
    /// A buffer cut like this.
    Add(Vec<u32>),
    Publish,
    /// The device takes up to so many and gives the last few of them back.
    Take(usize, usize),
    /// It wants so many bytes to write to, in several buffers or one.
    Reserve(usize, bool),
    PublishUsed,
    Poll,
    Restart(bool),
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let lens = proptest::collection::vec(prop_oneof![0u32..40, 100u32..500], 1..8);
    proptest::collection::vec(
        prop_oneof![
            6 => lens.prop_map(Op::Add),
            3 => Just(Op::Publish),
            3 => (0usize..10, 0usize..4).prop_map(|(n, back)| Op::Take(n, back)),
            3 => (0usize..1500, any::<bool>()).prop_map(|(need, join)| Op::Reserve(need, join)),
            2 => Just(Op::PublishUsed),
            3 => Just(Op::Poll),
            1 => any::<bool>().prop_map(Op::Restart),
        ],
        1..200,
    )
}

/// A buffer as the test knows it.
#[derive(Clone, Debug)]
struct Buffer {
    token: u32,
    pieces: Vec<Piece>,
    content: Vec<u8>,
}

/// What the device writes into a buffer.
fn written(seed: u32, len: usize) -> Vec<u8> {
    (0..len).map(|i| (seed as usize * 31 + i * 7) as u8).collect()
}

struct Model {
    rig: Rig,
    /// Whether the device reads the buffers or writes them.
    device_writes: bool,
    spare: Vec<u32>,
    added: VecDeque<Buffer>,
    available: VecDeque<Buffer>,
    staged: VecDeque<(Buffer, u32)>,
    used: VecDeque<(Buffer, u32)>,
    serial: u32,
}

impl Model {
    fn new(kind: Kind, device_writes: bool) -> Self {
        Self {
            rig: Rig::new(kind),
            device_writes,
            spare: (0..AREAS).collect(),
            added: VecDeque::new(),
            available: VecDeque::new(),
            staged: VecDeque::new(),
            used: VecDeque::new(),
            serial: 0,
        }
    }

    fn add(&mut self, lens: &[u32]) {
        let Some(&token) = self.spare.last() else { return };
        let mut at = area(token);
        let pieces: Vec<Piece> = lens
            .iter()
            .map(|&len| {
                let piece = (at, len);
                at += u64::from(len) + 1;
                piece
            })
            .collect();
        let free = usize::from(self.rig.driver.free());
        let entries = if self.rig.layout.indirect.is_some() { 1 } else { pieces.len() };
        let (readable, writable): (&[Piece], &[Piece]) =
            if self.device_writes { (&[], &pieces) } else { (&pieces, &[]) };
        let added = self.rig.driver.add(readable, writable, token);
        assert_eq!(added.is_ok(), entries <= free, "{entries} entries into {free}");
        if added.is_err() {
            return;
        }
        assert_eq!(usize::from(self.rig.driver.free()), free - entries);
        self.spare.pop();
        self.serial += 1;
        let total = lens.iter().sum::<u32>() as usize;
        let content = written(self.serial, if self.device_writes { 0 } else { total });
        self.scatter(&pieces, &content);
        self.added.push_back(Buffer { token, pieces, content });
    }

    /// Writes bytes to the driver's pieces.
    fn scatter(&self, pieces: &[Piece], mut content: &[u8]) {
        for &(addr, len) in pieces {
            let (now, rest) = content.split_at(content.len().min(len as usize));
            if !now.is_empty() {
                poke(&self.rig.memory, addr, now);
            }
            content = rest;
        }
    }

    /// The device takes buffers, and is done with all but the last `back`, which it puts back.
    fn take(&mut self, most: usize, back: usize) {
        let expect: Vec<Buffer> = self.available.iter().take(most).cloned().collect();
        let memory = self.rig.memory.clone();
        let mut device = self.rig.device();
        let mut chains = Box::new(Chains::default());
        if self.device_writes {
            return;
        }
        device.ring().pop(&memory, &mut chains, most).unwrap();
        // Perhaps not all at once: the driver's index is read again only when all that it said was taken.
        let got = chains.list.len();
        assert!(got <= expect.len() && (got > 0 || expect.is_empty()));
        for (chain, buffer) in chains.list.iter().zip(&expect) {
            assert!(!chain.is_bad());
            assert_eq!(read(&chains.pieces(chain)), buffer.content);
            assert_eq!(chain.len() as usize, buffer.content.len());
        }
        let keep = got.saturating_sub(back);
        device.ring().unpop(&chains.list[keep..]);
        for chain in &chains.list[..keep] {
            device.ring().stage_used(chain, 0);
            self.staged.push_back((self.available.pop_front().unwrap(), 0));
        }
    }

    /// The device wants room; writes part of it; is done with it.
    fn reserve(&mut self, need: usize, join: bool) {
        if !self.device_writes {
            return;
        }
        let room = |b: &Buffer| b.pieces.iter().map(|p| p.1 as usize).sum::<usize>();
        let mut expect = (Reserved::NoBuffers, 0);
        let mut held = 0;
        for (i, buffer) in self.available.iter().enumerate() {
            held += room(buffer);
            if held >= need {
                expect = (Reserved::Enough, i + 1);
                break;
            }
            if !join {
                expect = (Reserved::TooSmall, 0);
                break;
            }
        }
        let memory = self.rig.memory.clone();
        let mut device = self.rig.device();
        let mut chains = Box::new(Chains::default());
        let got = device.ring().reserve(&memory, &mut chains, need, join).unwrap();
        assert_eq!((got, chains.list.len()), expect);
        let list: Vec<Chain> = chains.list.to_vec();
        let mut left = need;
        let mut done = Vec::new();
        for chain in &list {
            let mut buffer = self.available.pop_front().unwrap();
            assert_eq!(chain.len() as usize, room(&buffer));
            let len = left.min(chain.len() as usize);
            left -= len;
            self.serial += 1;
            buffer.content = written(self.serial, len);
            let mut at = 0;
            for piece in &*chains.pieces(chain) {
                at += piece.write(0, &buffer.content[at..]);
            }
            assert_eq!(at, len);
            device.ring().stage_used(chain, len as u32);
            done.push((buffer, len as u32));
        }
        drop(device);
        self.staged.extend(done);
    }

    fn poll(&mut self) {
        while let Some((token, len)) = self.rig.driver.poll_used().unwrap() {
            let (buffer, expect) = self.used.pop_front().expect("came back twice, or before it was published");
            assert_eq!((token, len), (buffer.token, expect));
            if self.device_writes {
                let mut got = Vec::new();
                for &(addr, len) in &buffer.pieces {
                    if len > 0 {
                        got.extend(peek(&self.rig.memory, addr, len as usize));
                    }
                }
                assert_eq!(got[..buffer.content.len()], buffer.content[..]);
            }
            self.spare.push(token);
        }
        assert!(self.used.is_empty(), "lost: {:?}", self.used);
    }

    fn run(&mut self, ops: &[Op]) {
        for op in ops {
            match op {
                Op::Add(lens) => self.add(lens),
                Op::Publish => {
                    self.rig.driver.publish();
                    self.available.append(&mut self.added);
                }
                Op::Take(most, back) => self.take(*most, *back),
                Op::Reserve(need, join) => self.reserve(*need, *join),
                Op::PublishUsed => self.publish_used(),
                Op::Poll => self.poll(),
                Op::Restart(crashed) => {
                    // Between bursts nothing is staged; and a front-end knows where a packed ring stands only once
                    // it has seen all that was used.
                    self.publish_used();
                    self.poll();
                    self.rig.restart(*crashed);
                }
            }
        }
        self.rig.driver.publish();
        self.available.append(&mut self.added);
        while !self.available.is_empty() {
            self.take(64, 0);
            self.reserve(0, false);
        }
        self.publish_used();
        self.poll();
        assert_eq!(self.rig.driver.outstanding(), 0);
        assert_eq!(self.rig.driver.free(), self.rig.layout.size);
        assert_eq!(self.spare.len(), AREAS as usize);
    }

    fn publish_used(&mut self) {
        self.rig.device().ring().publish();
        self.used.append(&mut self.staged);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn what_the_driver_sends_the_device_reads_in_order_and_once(kind in kinds(), ops in ops()) {
        Model::new(kind, false).run(&ops);
    }

    #[test]
    fn what_the_device_writes_the_driver_reads_in_order_and_once(kind in kinds(), ops in ops()) {
        Model::new(kind, true).run(&ops);
    }
}

/// Long enough for the 16-bit indices of a split ring to wrap, and for many laps of a packed one.
#[test]
fn indices_wrap() {
    for kind in every_kind(8).chain(every_kind(7).filter(|k| k.packed)) {
        let mut model = Model::new(kind, false);
        let mut sent = 0u32;
        while sent < 70_000 {
            let burst = 1 + sent % 5;
            for i in 0..burst {
                model.add(&[(sent + i) % 3]);
            }
            model.run(&[Op::Publish, Op::Take(64, 0), Op::PublishUsed, Op::Poll]);
            sent += burst;
        }
    }
}

/// The longest chain that a ring of its size can hold, in the largest rings there are.
#[test]
fn whole_ring_in_one_chain() {
    for size in [512u16, 1024] {
        for kind in every_kind(size).filter(|k| !k.indirect) {
            let mut rig = Rig::new(kind);
            let pieces: Vec<Piece> = (0..size).map(|i| (area(0) + u64::from(i), 1)).collect();
            poke(&rig.memory, area(0), &written(1, size.into()));
            assert!(rig.driver.add(&[&pieces[..], &pieces[..1]].concat(), &[], 0).is_err());
            for lap in 0..3 {
                rig.driver.add(&pieces, &[], lap).unwrap();
                assert!(rig.driver.add(&pieces[..1], &[], 9).is_err());
                rig.driver.publish();
                assert_eq!(rig.device().serve().unwrap(), [written(1, size.into())]);
                assert_eq!(rig.driver.poll_used(), Ok(Some((lap, 0))));
            }
        }
    }
}

#[test]
fn largest_rings() {
    for packed in [false, true] {
        let kind = Kind { size: 32768, packed, event_idx: true, in_order: false, indirect: false };
        let memory = std::sync::Arc::new(lasthop_guestmem::GuestMemory::anonymous(END).unwrap());
        let mut rig = Rig::in_memory(kind, memory);
        for lap in 0..3u32 {
            for i in 0..32768 {
                rig.driver.add(&[(END - 8, 4)], &[], lap << 16 | i).unwrap();
            }
            rig.driver.publish();
            let mut next = 0;
            while next < 32768 {
                next += rig.device().serve().unwrap().len() as u32;
            }
            for i in 0..32768 {
                assert_eq!(rig.driver.poll_used(), Ok(Some((lap << 16 | i, 0))));
            }
            assert_eq!(rig.driver.poll_used(), Ok(None));
        }
    }
}
