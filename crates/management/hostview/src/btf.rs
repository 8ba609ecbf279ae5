//! The kernel's description of its own types (kernel documentation, "BPF Type Format"): where in a task its number is,
//! and in which order a tracepoint has its arguments, differ between kernels. Libraries either keep the members of
//! structures to themselves or have a licence that does not suit us; this reads what we need and nothing more.

/// Types and their names.
#[derive(Debug)]
pub struct Btf {
    data: Vec<u8>,
    /// Where each type's description begins; number 0 is `void` and has none.
    types: Vec<usize>,
    names: usize,
}

/// The number of a structure's type.
#[derive(Clone, Copy, Debug)]
pub struct Structure(u32);

/// `kind` of `struct btf_type`.
mod kind {
    pub(super) const PTR: u32 = 2;
    pub(super) const STRUCT: u32 = 4;
    pub(super) const UNION: u32 = 5;
    pub(super) const TYPEDEF: u32 = 8;
    pub(super) const VOLATILE: u32 = 9;
    pub(super) const RESTRICT: u32 = 11;
    pub(super) const FUNC_PROTO: u32 = 13;
    pub(super) const TYPE_TAG: u32 = 18;
}

const MAGIC: u32 = 0xeb9f;
/// Structures nested without a name deeper than this are not looked into.
const MAX_DEPTH: u32 = 8;

impl Btf {
    /// The running kernel's. The error is one line.
    pub fn of_kernel() -> Result<Self, String> {
        const FILE: &str = "/sys/kernel/btf/vmlinux";
        let data = std::fs::read(FILE).map_err(|e| format!("{FILE}: {e}; the kernel needs CONFIG_DEBUG_INFO_BTF"))?;
        Self::parse(data).ok_or_else(|| format!("{FILE}: not in a form known here"))
    }

    /// `None` if the bytes are not what they should be.
    pub fn parse(data: Vec<u8>) -> Option<Self> {
        let mut btf = Self { data, types: vec![0], names: 0 };
        if btf.u32(0)? & 0xffff != MAGIC {
            return None;
        }
        let header = btf.u32(4)? as usize;
        let mut at = header + btf.u32(8)? as usize;
        let end = at + btf.u32(12)? as usize;
        btf.names = header + btf.u32(16)? as usize;
        while at < end {
            btf.types.push(at);
            let info = btf.u32(at + 4)?;
            let each = match info >> 24 & 0x1f {
                // INT, VAR, DECL_TAG: one more word; ARRAY: three.
                1 | 14 | 17 => 4,
                3 => 12,
                // STRUCT, UNION, DATASEC, ENUM64: three words for each member; ENUM, FUNC_PROTO: two.
                4 | 5 | 15 | 19 => 12 * (info & 0xffff) as usize,
                6 | 13 => 8 * (info & 0xffff) as usize,
                2 | 7..=12 | 16 | 18 => 0,
                _ => return None,
            };
            at += 12 + each;
        }
        (at <= btf.data.len()).then_some(btf)
    }

    fn u32(&self, at: usize) -> Option<u32> {
        let bytes = self.data.get(at..at.checked_add(4)?)?;
        Some(u32::from_le_bytes(bytes.try_into().ok()?))
    }

    /// Kind, number of members, and size or type.
    fn describe(&self, id: u32) -> Option<(u32, u32, u32)> {
        let at = *self.types.get(id as usize).filter(|_| id != 0)?;
        let info = self.u32(at + 4)?;
        Some((info >> 24 & 0x1f, info & 0xffff, self.u32(at + 8)?))
    }

    fn is_named(&self, offset: u32, name: &str) -> bool {
        let start = self.names + offset as usize;
        let here = self.data.get(start..).and_then(|text| text.get(..name.len() + 1));
        here.is_some_and(|text| text[..name.len()] == *name.as_bytes() && text[name.len()] == 0)
    }

    /// Number of the type of this kind and name.
    fn find(&self, wanted: u32, name: &str) -> Option<u32> {
        let ids = 1..u32::try_from(self.types.len()).ok()?;
        ids.into_iter().find(|&id| {
            let name_at = self.types.get(id as usize).and_then(|&at| self.u32(at));
            self.describe(id).is_some_and(|(kind, ..)| kind == wanted)
                && name_at.is_some_and(|n| self.is_named(n, name))
        })
    }

    /// The type behind `typedef`, `const` and the like.
    fn plain(&self, mut id: u32) -> Option<u32> {
        for _ in 0..MAX_DEPTH {
            match self.describe(id)? {
                (kind::TYPEDEF | kind::VOLATILE..=kind::RESTRICT | kind::TYPE_TAG, _, of) => id = of,
                _ => return Some(id),
            }
        }
        None
    }

    /// A `struct`, found by its name among all types of the kernel.
    pub fn structure(&self, name: &str) -> Option<Structure> {
        Some(Structure(self.find(kind::STRUCT, name)?))
    }

    /// Offset in bytes of a member of it, looking into members without a name.
    pub fn offset(&self, structure: Structure, member: &str) -> Option<i16> {
        let bits = self.member(structure.0, member, MAX_DEPTH)?;
        (bits % 8 == 0).then(|| i16::try_from(bits / 8).ok())?
    }

    fn member(&self, id: u32, name: &str, depth: u32) -> Option<u32> {
        let (kind::STRUCT | kind::UNION, members, _) = self.describe(id)? else { return None };
        let at = self.types[id as usize];
        let is_bit_field_form = self.u32(at + 4)? >> 31 != 0;
        for i in 0..members as usize {
            let at = at + 12 + 12 * i;
            let (name_at, of, offset) = (self.u32(at)?, self.u32(at + 4)?, self.u32(at + 8)?);
            let bits = if is_bit_field_form { offset & 0xff_ffff } else { offset };
            if self.is_named(name_at, name) {
                return Some(bits);
            }
            if self.is_named(name_at, "")
                && depth > 0
                && let Some(inner) = self.plain(of).and_then(|of| self.member(of, name, depth - 1))
            {
                return Some(bits + inner);
            }
        }
        None
    }

    /// A tracepoint's type, and which of its arguments point to such a structure.
    pub fn tracepoint(&self, name: &str, structure: Structure) -> Option<(u32, Vec<i16>)> {
        let id = self.find(kind::TYPEDEF, &format!("btf_trace_{name}"))?;
        let (_, _, pointer) = self.describe(id)?;
        let (kind::PTR, _, function) = self.describe(pointer)? else { return None };
        let (kind::FUNC_PROTO, parameters, _) = self.describe(function)? else { return None };
        let at = self.types[function as usize] + 12;
        let is_one = |i: &i16| {
            let of = usize::try_from(*i).ok().and_then(|i| self.u32(at + 8 * i + 4));
            let target = of.and_then(|of| self.plain(of)).and_then(|of| match self.describe(of)? {
                (kind::PTR, _, to) => self.plain(to),
                _ => None,
            });
            target == Some(structure.0)
        };
        // The first parameter is the tracepoint's own and not an argument.
        Some((id, (1..i16::try_from(parameters).ok()?).filter(is_one).map(|i| i - 1).collect()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bytes of types (words) and names.
    fn bytes(types: &[u32], names: &str) -> Vec<u8> {
        let length = 4 * types.len() as u32;
        let header = [MAGIC | 1 << 16, 24, 0, length, length, names.len() as u32];
        let words = header.iter().chain(types).flat_map(|w| w.to_le_bytes());
        words.chain(names.bytes()).collect()
    }

    #[test]
    fn members_are_found_also_in_structures_without_a_name() {
        // 1: int; 2: struct { int b; }; 3: struct s { int a; struct { int b; }; }
        let names = "\0int\0s\0a\0b\0";
        let (int, s, a, b) = (1, 5, 7, 9);
        let types = [
            [int, 1 << 24, 4, 32].to_vec(),
            [0, 4 << 24 | 1, 4, b, 1, 32].to_vec(),
            [s, 4 << 24 | 2, 12, a, 1, 0, 0, 2, 32].to_vec(),
        ]
        .concat();
        let btf = Btf::parse(bytes(&types, names)).unwrap();
        let s = btf.structure("s").unwrap();
        assert_eq!(btf.offset(s, "a"), Some(0));
        assert_eq!(btf.offset(s, "b"), Some(8));
        assert_eq!((btf.offset(s, "c"), btf.tracepoint("x", s)), (None, None));
        assert!(btf.structure("t").is_none());
    }

    #[test]
    fn broken_bytes_are_refused() {
        assert!(Btf::parse(Vec::new()).is_none());
        let good = bytes(&[1, 1 << 24, 4, 32], "\0int\0");
        assert!(Btf::parse(good.clone()).is_some());
        for length in 0..40 {
            assert!(Btf::parse(good[..length].to_vec()).is_none(), "{length}");
        }
        assert!(Btf::parse(bytes(&[0, 31 << 24, 0], "\0")).is_none(), "a kind that is not known");
    }

    #[test]
    fn this_kernel_has_what_the_program_needs() {
        let Ok(btf) = Btf::of_kernel() else { return eprintln!("skipped: this kernel has no BTF") };
        let task = btf.structure("task_struct").unwrap();
        assert_ne!(btf.offset(task, "pid"), btf.offset(task, "tgid"));
        let (_, tasks) = btf.tracepoint("sched_switch", task).unwrap();
        assert_eq!(tasks.len(), 2, "from whom and to whom");
    }
}
