//! eBPF instructions (kernel documentation, "BPF Instruction Set Architecture"), with labels. Our programs are short, and every
//! line of them counts at each context switch or each packet; so they are written by hand, and nobody needs a compiler.

/// A register: 0 is a call's result, 1 to 5 its arguments, 6 to 9 outlive calls, 10 is the end of the stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reg(pub u8);

/// A place to jump to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Label(usize);

/// Width of a load or store.
#[derive(Clone, Copy, Debug)]
pub enum Width {
    /// 16 bits.
    Half,
    /// 32 bits.
    Word,
    /// 64 bits.
    Double,
}

impl Width {
    fn bits(self) -> u8 {
        match self {
            Self::Word => 0x00,
            Self::Half => 0x08,
            Self::Double => 0x18,
        }
    }
}

/// A helper function of the kernel (`enum bpf_func_id`).
#[derive(Clone, Copy, Debug)]
#[repr(i32)]
pub enum Helper {
    /// Map, key → address of the value, or 0.
    MapLookup = 1,
    /// Map, key, value, flags.
    MapUpdate = 2,
    /// Nanoseconds of CLOCK_MONOTONIC.
    KtimeGetNs = 5,
    /// Number of the core.
    GetSmpProcessorId = 8,
    /// Map of targets, key, what to return if it is not there.
    RedirectMap = 51,
    /// The running task. Linux 5.11 on.
    GetCurrentTaskBtf = 158,
}

/// Instructions so far.
#[derive(Debug, Default)]
pub struct Assembler {
    code: Vec<u64>,
    /// Where each label stands.
    labels: Vec<Option<usize>>,
    /// Jumps to be filled in: where, and to which label.
    jumps: Vec<(usize, Label)>,
}

impl Assembler {
    fn emit(&mut self, op: u8, dst: Reg, src: Reg, offset: i16, imm: i32) {
        let registers = u64::from(src.0 << 4 | dst.0);
        let offset = u64::from(offset.cast_unsigned());
        self.code.push(u64::from(op) | registers << 8 | offset << 16 | u64::from(imm.cast_unsigned()) << 32);
    }

    /// A label to be placed later.
    pub fn label(&mut self) -> Label {
        self.labels.push(None);
        Label(self.labels.len() - 1)
    }

    /// The label stands here.
    pub fn place(&mut self, label: Label) {
        self.labels[label.0] = Some(self.code.len());
    }

    /// `dst = src`
    pub fn copy(&mut self, dst: Reg, src: Reg) {
        self.emit(0xbf, dst, src, 0, 0);
    }

    /// `dst = value`
    pub fn set(&mut self, dst: Reg, value: u64) {
        match i32::try_from(value) {
            Ok(value) => self.emit(0xb7, dst, Reg(0), 0, value),
            Err(_) => self.wide(dst, 0, value as u32, (value >> 32) as u32),
        }
    }

    /// `dst` = the map with this descriptor, as helpers want it.
    pub fn map(&mut self, dst: Reg, fd: i32) {
        self.wide(dst, 1, fd.cast_unsigned(), 0);
    }

    /// `dst` = the address of byte `offset` of the only value of the array with this descriptor.
    pub fn map_value(&mut self, dst: Reg, fd: i32, offset: u32) {
        self.wide(dst, 2, fd.cast_unsigned(), offset);
    }

    fn wide(&mut self, dst: Reg, kind: u8, low: u32, high: u32) {
        self.emit(0x18, dst, Reg(kind), 0, low.cast_signed());
        self.emit(0, Reg(0), Reg(0), 0, high.cast_signed());
    }

    /// `dst += src`
    pub fn add(&mut self, dst: Reg, src: Reg) {
        self.emit(0x0f, dst, src, 0, 0);
    }

    /// `dst += value`
    pub fn add_value(&mut self, dst: Reg, value: i32) {
        self.emit(0x07, dst, Reg(0), 0, value);
    }

    /// `dst *= src`
    pub fn multiply(&mut self, dst: Reg, src: Reg) {
        self.emit(0x2f, dst, src, 0, 0);
    }

    /// `dst |= src`
    pub fn or(&mut self, dst: Reg, src: Reg) {
        self.emit(0x4f, dst, src, 0, 0);
    }

    /// `dst &= value`, sign-extended.
    pub fn and_value(&mut self, dst: Reg, value: i32) {
        self.emit(0x57, dst, Reg(0), 0, value);
    }

    /// `dst <<= bits`
    pub fn shift_left(&mut self, dst: Reg, bits: u8) {
        self.emit(0x67, dst, Reg(0), 0, i32::from(bits));
    }

    /// `dst >>= bits`, zeros shifted in.
    pub fn shift_right(&mut self, dst: Reg, bits: u8) {
        self.emit(0x77, dst, Reg(0), 0, i32::from(bits));
    }

    /// `dst = *(base + offset)`, zero-extended.
    pub fn load(&mut self, width: Width, dst: Reg, base: Reg, offset: i16) {
        self.emit(0x61 | width.bits(), dst, base, offset, 0);
    }

    /// `*(base + offset) = src`
    pub fn store(&mut self, width: Width, base: Reg, offset: i16, src: Reg) {
        self.emit(0x63 | width.bits(), base, src, offset, 0);
    }

    /// `*(base + offset) += src`, 64 bits, atomically.
    pub fn atomic_add(&mut self, base: Reg, offset: i16, src: Reg) {
        self.emit(0xdb, base, src, offset, 0);
    }

    /// Calls a helper.
    pub fn call(&mut self, helper: Helper) {
        self.emit(0x85, Reg(0), Reg(0), 0, helper as i32);
    }

    /// Jumps.
    pub fn jump(&mut self, to: Label) {
        self.jump_if(0x05, Reg(0), 0, to);
    }

    /// Jumps if `reg == value`.
    pub fn jump_eq(&mut self, reg: Reg, value: i32, to: Label) {
        self.jump_if(0x15, reg, value, to);
    }

    /// Jumps if `reg != value`.
    pub fn jump_ne(&mut self, reg: Reg, value: i32, to: Label) {
        self.jump_if(0x55, reg, value, to);
    }

    /// Jumps if `reg >= value`, unsigned.
    pub fn jump_ge(&mut self, reg: Reg, value: i32, to: Label) {
        self.jump_if(0x35, reg, value, to);
    }

    /// Jumps if both are equal.
    pub fn jump_same(&mut self, a: Reg, b: Reg, to: Label) {
        self.jumps.push((self.code.len(), to));
        self.emit(0x1d, a, b, 0, 0);
    }

    /// Jumps if `a > b`, unsigned.
    pub fn jump_above(&mut self, a: Reg, b: Reg, to: Label) {
        self.jumps.push((self.code.len(), to));
        self.emit(0x2d, a, b, 0, 0);
    }

    fn jump_if(&mut self, op: u8, reg: Reg, value: i32, to: Label) {
        self.jumps.push((self.code.len(), to));
        self.emit(op, reg, Reg(0), 0, value);
    }

    /// Returns 0.
    pub fn exit(&mut self) {
        self.set(Reg(0), 0);
        self.exit_with_result();
    }

    /// Returns what is in register 0.
    pub fn exit_with_result(&mut self) {
        self.emit(0x95, Reg(0), Reg(0), 0, 0);
    }

    /// The instructions, jumps filled in. `None` if a label stands nowhere or too far away.
    pub fn finish(mut self) -> Option<Vec<u64>> {
        for (at, label) in self.jumps {
            let target = i64::try_from(self.labels[label.0]?).ok()?;
            let distance = i16::try_from(target - i64::try_from(at).ok()? - 1).ok()?;
            self.code[at] |= u64::from(distance.cast_unsigned()) << 16;
        }
        Some(self.code)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instructions_are_laid_out_as_the_kernel_reads_them() {
        let mut a = Assembler::default();
        let end = a.label();
        a.load(Width::Word, Reg(2), Reg(6), -4);
        a.jump_eq(Reg(2), 7, end);
        a.set(Reg(3), 1 << 33);
        a.place(end);
        a.exit();
        let bytes: Vec<u8> = a.finish().unwrap().iter().flat_map(|i| i.to_le_bytes()).collect();
        let expected: [[u8; 8]; 6] = [
            [0x61, 0x62, 0xfc, 0xff, 0, 0, 0, 0],
            [0x15, 0x02, 2, 0, 7, 0, 0, 0],
            [0x18, 0x03, 0, 0, 0, 0, 0, 0],
            [0, 0, 0, 0, 2, 0, 0, 0],
            [0xb7, 0, 0, 0, 0, 0, 0, 0],
            [0x95, 0, 0, 0, 0, 0, 0, 0],
        ];
        assert_eq!(bytes, expected.concat());
    }

    #[test]
    fn a_label_that_stands_nowhere_is_found() {
        let mut a = Assembler::default();
        let nowhere = a.label();
        a.jump(nowhere);
        assert_eq!(a.finish(), None);
    }
}
