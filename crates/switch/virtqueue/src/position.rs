//! Positions in rings, and which of them lie between two others.

/// Descriptor flag: equal to the driver's wrap counter when made available.
pub(crate) const AVAIL: u16 = 1 << 7;
/// Descriptor flag: equal to the device's wrap counter when used.
pub(crate) const USED: u16 = 1 << 15;

/// A place in the ring and the lap it belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Position {
    pub(crate) index: u16,
    pub(crate) wrap: bool,
}

impl Position {
    /// As in GET_VRING_BASE: index in the low 15 bits, wrap counter in bit 15.
    pub(crate) fn from_bits(bits: u16) -> Self {
        Self { index: bits & 0x7fff, wrap: bits & 0x8000 != 0 }
    }

    pub(crate) fn bits(self) -> u16 {
        self.index | u16::from(self.wrap) << 15
    }

    #[inline]
    pub(crate) fn advance(&mut self, slots: u16, size: u16) {
        let index = u32::from(self.index) + u32::from(slots);
        if index >= u32::from(size) {
            self.index = (index - u32::from(size)) as u16;
            self.wrap = !self.wrap;
        } else {
            self.index = index as u16;
        }
    }

    /// How many slots further on `to` is: less than two laps.
    #[inline]
    pub(crate) fn distance(self, to: Position, size: u16) -> i32 {
        let size = i32::from(size);
        let place = |at: Position| i32::from(at.index) + if at.wrap { 0 } else { size };
        let slots = place(to) - place(self);
        if slots < 0 { slots + 2 * size } else { slots }
    }

    #[inline]
    pub(crate) fn retreat(&mut self, slots: u16, size: u16) {
        if slots > self.index {
            self.index = self.index + size - slots;
            self.wrap = !self.wrap;
        } else {
            self.index -= slots;
        }
    }

    /// The flags of a descriptor made available in this lap.
    pub(crate) fn avail_flags(self) -> u16 {
        if self.wrap { AVAIL } else { USED }
    }

    /// The flags of a descriptor used in this lap.
    pub(crate) fn used_flags(self) -> u16 {
        if self.wrap { AVAIL | USED } else { 0 }
    }
}

/// §2.7.10.1: whether `event` lies in `(old, new]`, that is, was just passed.
#[inline]
pub(crate) fn need_event(event: u16, new: u16, old: u16) -> bool {
    new.wrapping_sub(event).wrapping_sub(1) < new.wrapping_sub(old)
}
