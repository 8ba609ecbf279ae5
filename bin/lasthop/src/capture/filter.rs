//! Filters in the syntax of pcap-filter(7). libpcap compiles them: the program tcpdump prints what came of it (`-ddd`), without looking at
//! any interface, and it is run here, on one packet at a time. So nothing of libpcap is linked, and its compiler never meets a packet.

use crate::client::CliError;
use std::io;
use std::process::{Command, Stdio};

/// Words of scratch memory (`BPF_MEMWORDS`).
const SCRATCH: usize = 16;
/// As many instructions as the kernel takes (`BPF_MAXINSNS`).
const MAX_INSTRUCTIONS: usize = 4096;

/// One instruction of the BSD packet filter (McCanne and Jacobson, USENIX 1993; bpf(4)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Instruction {
    code: u16,
    jt: u8,
    jf: u8,
    k: u32,
}

/// A program that says which packets are wanted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Filter(Vec<Instruction>);

impl Filter {
    /// What libpcap's compiler makes of a filter of Ethernet frames. The error says what is wrong with it.
    pub fn compile(text: &str) -> Result<Self, CliError> {
        let mut command = Command::new("tcpdump");
        // `--`: a filter is no option. No name is looked up in the network's files by accident: it is one argument.
        command.args(["-ddd", "-y", "EN10MB", "--", text]).stdin(Stdio::null());
        let output = command.output().map_err(|e| match e.kind() {
            io::ErrorKind::NotFound => CliError::new(
                "filters are compiled by tcpdump, which is not installed here; install it (`apt install tcpdump`)",
            ),
            _ => CliError::new(format!("tcpdump, which compiles filters: {e}")),
        })?;
        let (program, said) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        if !output.status.success() {
            let said = said.lines().last().unwrap_or("it did not say why").trim_start_matches("tcpdump: ");
            return Err(CliError::usage(format!("filter {text:?}: {said}; see `man pcap-filter`")));
        }
        Self::parse(&program).ok_or_else(|| {
            CliError::new("tcpdump compiled the filter into something that is no program of a packet filter")
        })
    }

    /// Reads a program as `tcpdump -ddd` prints it: how many instructions there are, then one a line.
    fn parse(text: &str) -> Option<Self> {
        let mut lines = text.lines();
        let count: usize = lines.next()?.trim().parse().ok()?;
        let read = |line: &str| {
            let mut words = line.split_ascii_whitespace();
            let (code, jt) = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
            let (jf, k) = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
            words.next().is_none().then_some(Instruction { code, jt, jf, k })
        };
        let program: Vec<_> = lines.map(read).collect::<Option<_>>()?;
        (program.len() == count && (1..=MAX_INSTRUCTIONS).contains(&count)).then_some(Self(program))
    }

    /// Whether a packet is wanted. What the program reads beyond its end makes it not wanted, as bpf(4) says; so does an instruction
    /// that there is not.
    pub fn accepts(&self, packet: &[u8]) -> bool {
        Machine { packet, ..Machine::default() }.run(&self.0).is_some_and(|keep| keep != 0)
    }
}

#[derive(Default)]
struct Machine<'a> {
    packet: &'a [u8],
    a: u32,
    x: u32,
    scratch: [u32; SCRATCH],
}

impl Machine<'_> {
    /// What the program returns. It only jumps forward, so it ends.
    fn run(&mut self, program: &[Instruction]) -> Option<u32> {
        let mut at = 0;
        loop {
            let i = *program.get(at)?;
            at += 1;
            match i.code & 7 {
                // LD, LDX
                0 => self.a = self.load(i)?,
                1 => self.x = self.load(i)?,
                // ST, STX
                2 => *self.scratch.get_mut(i.k as usize)? = self.a,
                3 => *self.scratch.get_mut(i.k as usize)? = self.x,
                4 => self.a = self.compute(i)?,
                5 => at = at.checked_add(self.jump(i)?)?,
                // RET k, RET A
                6 => return Some(if i.code & 0x18 == 0x10 { self.a } else { i.k }),
                // TAX, TXA
                _ if i.code & 0xf8 == 0 => self.x = self.a,
                _ => self.a = self.x,
            }
        }
    }

    fn load(&self, i: Instruction) -> Option<u32> {
        let (at, indexed) = (i.k as usize, (i.k as usize).checked_add(self.x as usize));
        match i.code & 0xe0 {
            // IMM, ABS, IND, MEM, LEN, MSH
            0x00 => Some(i.k),
            0x20 => self.bytes(at, i.code),
            0x40 => self.bytes(indexed?, i.code),
            0x60 => self.scratch.get(at).copied(),
            0x80 => u32::try_from(self.packet.len()).ok(),
            0xa0 => self.packet.get(at).map(|byte| u32::from(byte & 0xf) * 4),
            _ => None,
        }
    }

    /// A word, half a word or a byte.
    fn bytes(&self, at: usize, code: u16) -> Option<u32> {
        let rest = self.packet.get(at..)?;
        match code & 0x18 {
            0x00 => rest.first_chunk().map(|word| u32::from_be_bytes(*word)),
            0x08 => rest.first_chunk().map(|half| u16::from_be_bytes(*half).into()),
            0x10 => rest.first().map(|byte| u32::from(*byte)),
            _ => None,
        }
    }

    fn operand(&self, i: Instruction) -> u32 {
        if i.code & 8 == 0 { i.k } else { self.x }
    }

    fn compute(&self, i: Instruction) -> Option<u32> {
        let (a, b) = (self.a, self.operand(i));
        Some(match i.code & 0xf0 {
            0x00 => a.wrapping_add(b),
            0x10 => a.wrapping_sub(b),
            0x20 => a.wrapping_mul(b),
            0x30 => a.checked_div(b)?,
            0x40 => a | b,
            0x50 => a & b,
            0x60 => a.checked_shl(b).unwrap_or(0),
            0x70 => a.checked_shr(b).unwrap_or(0),
            0x80 => a.wrapping_neg(),
            0x90 => a.checked_rem(b)?,
            0xa0 => a ^ b,
            _ => return None,
        })
    }

    /// How many instructions are skipped.
    fn jump(&self, i: Instruction) -> Option<usize> {
        let (a, b) = (self.a, self.operand(i));
        let taken = match i.code & 0xf0 {
            0x00 => return Some(i.k as usize),
            0x10 => a == b,
            0x20 => a > b,
            0x30 => a >= b,
            0x40 => a & b != 0,
            _ => return None,
        };
        Some(usize::from(if taken { i.jt } else { i.jf }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// IPv4, an option or none, a fragment or not, TCP or UDP, to port 80 or not; with a tag or none.
    fn frames() -> Vec<Vec<u8>> {
        let mut frames = vec![vec![0xff; 60], vec![], vec![1; 13]];
        for n in 0..64_u8 {
            let bit = |of: u8| n >> of & 1;
            let tag: &[u8] = if bit(0) == 1 { &[0x81, 0, 0, 10] } else { &[] };
            let options: &[u8] = if bit(1) == 1 { &[1; 4] } else { &[] };
            let ip = [
                0x45 + bit(1),
                0,
                0,
                60,
                0,
                1,
                0,
                bit(2) * 3,
                64,
                6 + bit(3) * 11,
                0,
                0,
                10,
                0,
                0,
                1 + bit(5),
                10,
                0,
                0,
                2,
            ];
            let ports = [0x30, 0x39, 0, 80 - bit(4), 0, 0, 0, n];
            frames.push([&[2; 6], &[4; 6], tag, &[8, 0], &ip, options, &ports, &[n; 20]].concat());
        }
        frames
    }

    /// The program that compiled the filter says of the same packets whether it wants them: the two agree.
    #[test]
    fn it_wants_what_tcpdump_wants() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("all.pcap");
        let mut file: Vec<u8> =
            [0xa1b2_c3d4_u32, 0x0004_0002, 0, 0, 65_535, 1].iter().flat_map(|word| word.to_le_bytes()).collect();
        for (n, frame) in (0_u32..).zip(frames()) {
            let len = frame.len() as u32;
            file.extend([n, 0, len, len].iter().flat_map(|word| word.to_le_bytes()));
            file.extend(frame);
        }
        std::fs::write(&path, file).unwrap();
        let mut wanted_some = 0;
        for text in [
            "tcp port 80",
            "udp and not port 80",
            "vlan 10 and host 10.0.0.2",
            "ip[0] & 0xf != 5",
            "(ip[6:2] & 0x1fff) * 2 + 1 > 3",
            "ether src 04:04:04:04:04:04 and len > 60",
            "tcp[tcpflags] & tcp-syn != 0 or ether multicast",
            "src net 10.0.0.0/31 and ip[8] / 2 = 32 and ip[8] >> 1 = 32 and ip[8] << 1 = 128",
            "ether[12:2] = 0x8100 or greater 70",
        ] {
            let filter = Filter::compile(text).unwrap();
            let mut tcpdump = Command::new("tcpdump");
            let output = tcpdump.args(["-tt", "-n", "-K", "-r"]).arg(&path).arg(text).output().unwrap();
            let lines = String::from_utf8_lossy(&output.stdout).into_owned();
            let is_time = |line: &str| line.split_once('.').and_then(|(s, _)| s.parse::<usize>().ok());
            let theirs: Vec<_> = lines.lines().filter_map(is_time).collect();
            let all = frames();
            let ours: Vec<_> = (0..all.len()).filter(|n| filter.accepts(&all[*n])).collect();
            assert_eq!(ours, theirs, "{text}");
            wanted_some += usize::from(!ours.is_empty() && ours.len() < all.len());
        }
        assert!(wanted_some >= 8, "{wanted_some}");
    }

    #[test]
    fn what_is_wrong_with_a_filter_is_said() {
        let said = Filter::compile("tcp prt 80").unwrap_err();
        assert!(said.to_string().contains("syntax error") && said.status == 2, "{said}");
        let said = Filter::compile("-w /tmp/x").unwrap_err().to_string();
        assert!(said.contains("syntax error"), "an option is a filter, and none: {said}");
        for text in ["", "1", "2\n6 0 0 1\n", "1\n6 0 0\n", "1\n6 0 0 1 1\n", "0\n", "1\n6 0 256 0\n"] {
            assert_eq!(Filter::parse(text), None, "{text:?}");
        }
    }

    proptest! {
        /// Any program ends, on any packet.
        #[test]
        fn any_program_ends(
            program in prop::collection::vec((any::<u8>(), 0..9_u8, 0..9_u8, prop_oneof![0..99_u32, any::<u32>()]), 1..50),
            packet in prop::collection::vec(any::<u8>(), 0..99),
        ) {
            let instruction = |(code, jt, jf, k): (u8, u8, u8, u32)| Instruction { code: code.into(), jt, jf, k };
            Filter(program.into_iter().map(instruction).collect()).accepts(&packet);
        }
    }
}
