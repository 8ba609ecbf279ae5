//! The device side of a ring against a driver that writes whatever it likes between any two calls, and now and then
//! offers a chain as it should. Beside it goes a model of the ring as the specification describes it, over a flat copy of
//! memory, which predicts every chain, every error and every byte that the device writes.
//!
//! Input: size and features, then one operation after another.

use crate::Input;
use crate::rings::{BUFFERS, END, SEAM, buffer, descriptor, difference, memory, peek, poke};
use lasthop_guestmem::GuestMemory;
use lasthop_virtqueue::driver::{IndirectTables, RingLayout};
use lasthop_virtqueue::{
    BURST, Chains, DESC_INDIRECT, DESC_NEXT, DESC_WRITE, MAX_CHAINS, MAX_PIECES, Queue, ReceiveBuffers, Reserved, Ring,
};
use operations::{scribble, step};
use std::sync::Arc;

mod operations;

const AVAIL: u16 = 1 << 7;
const USED: u16 = 1 << 15;
/// Operations in one input.
const MAX_OPS: usize = 200;

pub(crate) fn split(data: &[u8]) {
    run(data, false);
}

pub(crate) fn packed(data: &[u8]) {
    run(data, true);
}

/// A chain as the model walks it.
#[derive(Clone, Debug)]
struct Walked {
    id: u16,
    slots: u16,
    pieces: Vec<(u64, usize)>,
    len: u32,
    bad: bool,
}

/// The ring is broken from here on.
#[derive(Clone, Copy, Debug)]
struct Broken;

/// A place in a packed ring: index and wrap counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Place(u32, bool);

impl Place {
    fn forth(self, slots: u16, size: u32) -> Self {
        let at = self.0 + u32::from(slots);
        if at >= size { Self(at - size, !self.1) } else { Self(at, self.1) }
    }

    fn bits(self) -> u16 {
        self.0 as u16 | u16::from(self.1) << 15
    }
}

/// What the device should know and what memory should hold.
struct Model {
    layout: RingLayout,
    image: Vec<u8>,
    /// Split: index of the next chain to take, driver's index when last read, next used entry, entries published.
    next: u16,
    seen: u16,
    used: u16,
    published: u16,
    /// Packed: next chain to take, next descriptor to use; those used but not shown: place, id, length, flags.
    take: Place,
    give: Place,
    staged: Vec<(Place, u16, u32, u16)>,
    staged_slots: u32,
    /// Slots of the chains taken and not used, in a packed ring not shown as used.
    held_slots: u32,
    /// Where the driver that offers chains stands.
    driver: Place,
    driver_head: u16,
}

impl Model {
    fn u16(&self, at: u64) -> u16 {
        let at = at as usize;
        u16::from_le_bytes([self.image[at], self.image[at + 1]])
    }

    fn put(&mut self, at: u64, bytes: &[u8]) {
        self.image[at as usize..at as usize + bytes.len()].copy_from_slice(bytes);
    }

    /// Address, length, flags, and next or id.
    fn descriptor(&self, at: u64) -> (u64, u32, u16, u16) {
        let bytes = &self.image[at as usize..at as usize + 16];
        let word = u128::from_le_bytes(bytes.try_into().expect("16 bytes"));
        let (low, high) = ((word >> 96) as u16, (word >> 112) as u16);
        let (flags, x) = if self.layout.packed { (high, low) } else { (low, high) };
        (word as u64, (word >> 64) as u32, flags, x)
    }

    fn start(&mut self, base: u16) {
        if self.layout.packed {
            self.take = Place(u32::from(base & 0x7fff), base & 0x8000 != 0);
            self.give = self.take;
        } else {
            self.next = self.u16(self.layout.device + 2);
            (self.seen, self.used, self.published) = (self.next, self.next, self.next);
        }
        self.staged.clear();
        (self.held_slots, self.staged_slots) = (0, 0);
        self.kicks(false);
    }

    /// What is written to have kicks or not.
    fn kicks(&mut self, wanted: bool) {
        let (size, device) = (u64::from(self.layout.size), self.layout.device);
        match (self.layout.packed, self.layout.event_idx, wanted) {
            (false, false, _) => self.put(device, &u16::from(!wanted).to_le_bytes()),
            (false, true, true) => self.put(device + 4 + 8 * size, &self.next.to_le_bytes()),
            (false, true, false) => {}
            (true, _, false) => self.put(device + 2, &1u16.to_le_bytes()),
            (true, false, true) => {
                // Not looked at by the driver; says that the ring has had a device.
                self.put(device, &0x7fffu16.to_le_bytes());
                self.put(device + 2, &0u16.to_le_bytes());
            }
            (true, true, true) => {
                self.put(device, &self.take.bits().to_le_bytes());
                self.put(device + 2, &2u16.to_le_bytes());
            }
        }
    }

    /// Packed: the next descriptor's flags say that it is there.
    fn is_available(&self) -> bool {
        let flags = self.descriptor(self.layout.desc + u64::from(self.take.0) * 16).2;
        flags & (AVAIL | USED) == if self.take.1 { AVAIL } else { USED }
    }

    /// Takes up to `most` chains into a list that holds `chains` chains of `pieces` pieces.
    fn pop(
        &mut self,
        writes: bool,
        most: usize,
        mut chains: usize,
        mut pieces: usize,
    ) -> (Vec<Walked>, Option<Broken>) {
        let mut out = Vec::new();
        let size = self.layout.size;
        let mut waiting = usize::MAX;
        if !self.layout.packed {
            if self.seen == self.next {
                let driver = self.u16(self.layout.driver + 2);
                if driver.wrapping_sub(self.next) > size {
                    return (out, Some(Broken));
                }
                self.seen = driver;
            }
            waiting = self.seen.wrapping_sub(self.next).into();
        }
        while out.len() < most.min(waiting) && chains < MAX_CHAINS && pieces + 1024 <= MAX_PIECES {
            if self.layout.packed && (self.held_slots >= u32::from(size) || !self.is_available()) {
                break;
            }
            let room = MAX_PIECES - pieces;
            let walked =
                if self.layout.packed { self.walk_packed(writes, room) } else { self.walk_split(writes, room) };
            let Ok(chain) = walked else { return (out, Some(Broken)) };
            self.next = self.next.wrapping_add(1);
            self.take = self.take.forth(chain.slots, size.into());
            self.held_slots += u32::from(chain.slots);
            chains += 1;
            pieces += chain.pieces.len();
            out.push(chain);
        }
        (out, None)
    }

    fn unpop(&mut self, chains: &[Walked]) {
        let size = u32::from(self.layout.size);
        for chain in chains {
            self.next = self.next.wrapping_sub(1);
            self.held_slots -= u32::from(chain.slots);
            let Place(at, wrap) = self.take;
            let slots = u32::from(chain.slots);
            self.take = if slots > at { Place(at + size - slots, !wrap) } else { Place(at - slots, wrap) };
        }
    }

    fn walk_split(&self, writes: bool, room: usize) -> Result<Walked, Broken> {
        let size = u64::from(self.layout.size);
        let head = self.u16(self.layout.driver + 4 + 2 * (u64::from(self.next) % size));
        let mut chain = Walked { id: head, slots: 1, pieces: Vec::new(), len: 0, bad: false };
        let (mut table, mut entries, mut index, mut indirect) = (self.layout.desc, size, u64::from(head), false);
        let mut steps = 0;
        loop {
            if index >= entries {
                return Err(Broken);
            }
            let (addr, len, flags, next) = self.descriptor(table + 16 * index);
            if flags & DESC_INDIRECT != 0 {
                if indirect || flags & DESC_NEXT != 0 {
                    return Err(Broken);
                }
                entries = self.table(addr, len)?;
                (table, index, indirect) = (addr, 0, true);
                continue;
            }
            chain.add(addr, len, flags, writes, room)?;
            if flags & DESC_NEXT == 0 {
                return Ok(chain.finished());
            }
            steps += 1;
            if steps >= entries || steps >= 1024 {
                return Err(Broken);
            }
            index = next.into();
        }
    }

    fn walk_packed(&self, writes: bool, room: usize) -> Result<Walked, Broken> {
        let size = u32::from(self.layout.size);
        let mut chain = Walked { id: 0, slots: 0, pieces: Vec::new(), len: 0, bad: false };
        let mut at = self.take;
        loop {
            let (addr, len, flags, id) = self.descriptor(self.layout.desc + 16 * u64::from(at.0));
            chain.slots += 1;
            chain.id = id;
            at = at.forth(1, size);
            if flags & DESC_INDIRECT != 0 {
                if flags & DESC_NEXT != 0 || chain.slots > 1 {
                    return Err(Broken);
                }
                for i in 0..self.table(addr, len)? {
                    let (a, l, f, _) = self.descriptor(addr + 16 * i);
                    if f & DESC_INDIRECT != 0 {
                        return Err(Broken);
                    }
                    // In these tables the direction is overlooked where nothing is written.
                    let f = if writes { f } else { f & !DESC_WRITE };
                    chain.add(a, l, f, writes, room)?;
                }
                return Ok(chain.finished());
            }
            chain.add(addr, len, flags, writes, room)?;
            if flags & DESC_NEXT == 0 {
                return Ok(chain.finished());
            }
            if u32::from(chain.slots) >= size - self.held_slots || chain.slots >= 1024 {
                return Err(Broken);
            }
        }
    }

    /// Entries of an indirect table, which lies in one region.
    fn table(&self, addr: u64, len: u32) -> Result<u64, Broken> {
        let end = addr.checked_add(len.into()).filter(|end| *end <= END).ok_or(Broken)?;
        let one_region = addr >= SEAM || end <= SEAM;
        let long = self.layout.packed && len / 16 > 1024;
        if self.layout.indirect.is_none() || len == 0 || !len.is_multiple_of(16) || !one_region || addr >= END || long {
            return Err(Broken);
        }
        Ok(u64::from(len) / 16)
    }

    fn stage(&mut self, chain: &Walked, len: u32) {
        if self.layout.packed {
            let flags = if self.give.1 { AVAIL | USED } else { 0 } | if len > 0 { DESC_WRITE } else { 0 };
            self.staged.push((self.give, chain.id, len, flags));
            self.give = self.give.forth(chain.slots, self.layout.size.into());
            self.staged_slots += u32::from(chain.slots);
        } else {
            let slot = u64::from(self.used) % u64::from(self.layout.size);
            self.put(self.layout.device + 4 + 8 * slot, &u32::from(chain.id).to_le_bytes());
            self.put(self.layout.device + 8 + 8 * slot, &len.to_le_bytes());
            self.used = self.used.wrapping_add(1);
            self.held_slots -= u32::from(chain.slots);
        }
    }

    fn publish(&mut self) {
        for (Place(index, _), id, len, flags) in std::mem::take(&mut self.staged).into_iter().rev() {
            let at = self.layout.desc + 16 * u64::from(index);
            self.put(at + 8, &len.to_le_bytes());
            self.put(at + 12, &id.to_le_bytes());
            self.put(at + 14, &flags.to_le_bytes());
        }
        self.held_slots -= std::mem::take(&mut self.staged_slots);
        if !self.layout.packed && self.used != self.published {
            self.put(self.layout.device + 2, &self.used.to_le_bytes());
            self.published = self.used;
        }
    }

    /// What a chain's memory holds.
    fn content(&self, chain: &Walked) -> Vec<u8> {
        chain.pieces.iter().flat_map(|(at, len)| &self.image[*at as usize..*at as usize + len]).copied().collect()
    }
}

impl Walked {
    fn add(&mut self, addr: u64, len: u32, flags: u16, writes: bool, room: usize) -> Result<(), Broken> {
        self.bad |= (flags & DESC_WRITE != 0) != writes;
        match self.len.checked_add(len) {
            Some(sum) => self.len = sum,
            None => self.bad = true,
        }
        let end = addr.checked_add(len.into()).ok_or(Broken)?;
        if addr >= END {
            return Err(Broken);
        }
        if self.bad {
            return Ok(());
        }
        let cut = if addr < SEAM && end > SEAM { SEAM } else { end.min(END) };
        for (from, to) in [(addr, cut), (cut, end.min(END))] {
            if to > from {
                if self.pieces.len() == room {
                    self.bad = true;
                    return Ok(());
                }
                self.pieces.push((from, (to - from) as usize));
            }
        }
        if end > END { Err(Broken) } else { Ok(()) }
    }

    fn finished(mut self) -> Self {
        if self.bad {
            self.pieces.clear();
        }
        self
    }
}

fn run(data: &[u8], packed: bool) {
    let mut input = Input::new(data);
    let (size, bits) = (input.u8(), input.u8());
    // Small ones wrap often.
    let size = match packed {
        false => 1 << (size % 7),
        true if size & 0x80 != 0 => u16::from(size % 64) + 1,
        true => u16::from(size % 8) + 1,
    };
    let mut layout = RingLayout::contiguous(0, size, packed);
    layout.event_idx = bits & 1 != 0;
    layout.indirect = (bits & 2 != 0).then_some(IndirectTables { addr: BUFFERS, entries: 8 });
    assert!(RingLayout::bytes(size, packed) <= BUFFERS);
    let memory = memory();
    let base = input.u16();
    let base = if packed { ((base & 0x7fff) % size) | (base & 0x8000) } else { base };
    let nowhere = Place(0, false);
    let mut model = Model {
        layout,
        image: peek(&memory),
        next: 0,
        seen: 0,
        used: 0,
        published: 0,
        take: nowhere,
        give: nowhere,
        staged: Vec::new(),
        staged_slots: 0,
        held_slots: 0,
        driver: Place(u32::from(base & 0x7fff), base & 0x8000 != 0),
        driver_head: 0,
    };
    if !packed {
        // The used index says where a split ring stands.
        scribble(&mut model, &memory, layout.device + 2, &base.to_le_bytes());
        scribble(&mut model, &memory, layout.driver + 2, &base.to_le_bytes());
    }
    let queue = Queue::new(0);
    queue.set_enabled(true);
    restart(&queue, &mut model, &memory, base);

    let mut chains = Box::new(Chains::default());
    let mut held: Vec<Walked> = Vec::new();
    for _ in 0..MAX_OPS {
        if input.is_empty() {
            break;
        }
        let result = step(&queue, &mut model, &memory, &mut chains, &mut held, &mut input);
        if result.is_err() {
            *chains = Chains::default();
            held.clear();
            let base = queue.stop().expect("it was not stopped") as u16;
            assert_eq!(base, if packed { model.give.bits() } else { model.used });
            restart(&queue, &mut model, &memory, base);
        }
        if let Some(found) = difference(&peek(&memory), &model.image) {
            panic!("memory {found}");
        }
    }
}

fn restart(queue: &Queue, model: &mut Model, memory: &Arc<GuestMemory>, base: u16) {
    queue.start(&model.layout.setup(base.into(), 0), memory.clone()).expect("a ring that lies in memory");
    model.start(base);
}
