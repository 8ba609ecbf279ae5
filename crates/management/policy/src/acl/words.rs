//! The words of a line, and what single words mean.

use super::Located;
use super::book::Scope;
use super::rule::{Direction, Mac, Prefix, Range};
use lasthop_text::MacAddr;
use lasthop_text::parse_mac;
use std::net::IpAddr;

/// Most ranges after one `port`, `type` or `code`.
const MAX_RANGES: usize = 16;

/// A word, and the character at which it begins, from 1.
#[derive(Clone, Copy, Debug)]
pub(super) struct Word<'a> {
    pub text: &'a str,
    pub column: usize,
}

/// The words of a line.
pub(super) struct Words<'a> {
    pub line: usize,
    pub text: &'a str,
    /// How much of it has been read.
    pub at: usize,
}

impl<'a> Words<'a> {
    pub fn new(line: usize, text: &'a str) -> Self {
        let text = text.split('#').next().unwrap_or_default();
        Self { line, text, at: 0 }
    }

    pub fn peek(&self) -> Option<Word<'a>> {
        let rest = self.text.get(self.at..)?;
        let skipped = rest.len() - rest.trim_start().len();
        let text = rest.split_whitespace().next()?;
        let column = self.text.get(..self.at + skipped)?.chars().count() + 1;
        Some(Word { text, column })
    }

    pub fn next(&mut self) -> Option<Word<'a>> {
        let word = self.peek()?;
        let rest = self.text.get(self.at..)?;
        self.at += rest.len() - rest.trim_start().len() + word.text.len();
        Some(word)
    }

    pub fn expect(&mut self, what: &str) -> Result<Word<'a>, Located> {
        let column = self.text.trim_end().chars().count() + 1;
        let line = self.line;
        self.next().ok_or_else(|| Located { line, column, message: format!("the line ends here; expected {what}") })
    }

    pub fn end(&mut self) -> Result<(), Located> {
        match self.peek() {
            Some(word) => Err(self.wrong(&word, "nothing more in this line")),
            None => Ok(()),
        }
    }

    pub fn at(&self, word: &Word<'_>, message: &str) -> Located {
        Located { line: self.line, column: word.column, message: message.into() }
    }

    pub fn wrong(&self, word: &Word<'_>, expected: &str) -> Located {
        if word.text == "stateful" {
            return self.at(word, "stateful stands alone in a line, and holds for the whole file");
        }
        // A word may be a whole line of nonsense.
        let shown: String = word.text.chars().take(40).collect();
        self.at(word, &format!("{shown:?}: expected {expected}"))
    }

    /// What stands behind `for`.
    pub fn scopes(&mut self) -> Result<Vec<Scope>, Located> {
        const WHOM: &str = "guests, uplinks, all, or port and a name";
        let whom = self.expect(WHOM)?;
        if whom.text == "port" {
            let name = self.expect("a port's name")?;
            return Ok(vec![Scope::Port(name.text.into())]);
        }
        Scope::named(whom.text).ok_or_else(|| self.wrong(&whom, WHOM))
    }

    pub fn check_direction(&self, word: &Word<'_>, named: Direction, only: Option<Direction>) -> Result<(), Located> {
        match only {
            Some(only) if only != named => {
                Err(self
                    .at(word, &format!("this line is for {named}, but only {only} is loaded; take it out of the file")))
            }
            _ => Ok(()),
        }
    }
}

pub(super) fn once<'a, T>(
    slot: &mut Option<(Word<'a>, T)>,
    word: Word<'a>,
    value: T,
    words: &Words<'_>,
) -> Result<(), Located> {
    match slot {
        Some((first, _)) => {
            let message = format!("{:?} after {:?} in the same rule; leave one of them out", word.text, first.text);
            Err(words.at(&word, &message))
        }
        None => {
            *slot = Some((word, value));
            Ok(())
        }
    }
}

/// Decimal, or hexadecimal after 0x.
pub(super) fn number(text: &str) -> Option<u32> {
    let (digits, radix) = match text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")) {
        Some(hex) => (hex, 16),
        None => (text, 10),
    };
    // `from_str_radix` takes a sign too.
    if digits.is_empty() || !digits.bytes().all(|b| b.is_ascii_hexdigit()) {
        return None;
    }
    u32::from_str_radix(digits, radix).ok()
}

/// An address or a prefix; if it is none, what was expected.
pub(crate) fn prefix(text: &str) -> Result<Prefix, &'static str> {
    const EXPECTED: &str = "an IPv4 or IPv6 address such as 10.0.0.1 or fd00::1, a prefix such as 10.0.0.0/8, or any";
    let (addr, len) = match text.split_once('/') {
        Some((addr, len)) => (addr, Some(len)),
        None => (text, None),
    };
    let addr: IpAddr = addr.parse().map_err(|_| EXPECTED)?;
    let whole = if addr.is_ipv6() { 128 } else { 32 };
    let len = match len {
        None => whole,
        Some(len) => number(len)
            .and_then(|n| u8::try_from(n).ok())
            .filter(|n| *n <= whole)
            .ok_or("a prefix length from 0 to 32 for IPv4, or to 128 for IPv6")?,
    };
    Prefix::new(addr, len).ok_or(EXPECTED)
}

/// What `text`, read as `prefix`, should have been, if it is an address within its network, as `ip addr` shows it: that may be meant either way.
pub(crate) fn host_bits(text: &str, prefix: &Prefix) -> Option<String> {
    let addr = text.split('/').next()?.parse::<IpAddr>().ok().filter(|addr| *addr != prefix.addr())?;
    Some(format!("{text} has host bits; write {addr} for this address, or {prefix} for all of them"))
}

pub(super) fn mac(text: &str) -> Option<Mac> {
    let (addr, mask) = match text.split_once('/') {
        Some((addr, mask)) => (addr, parse_mac(mask).ok()?),
        None => (text, MacAddr::BROADCAST),
    };
    let addr = parse_mac(addr).ok()?;
    let addr = MacAddr(std::array::from_fn(|i| addr.0[i] & mask.0[i]));
    Some(Mac { addr, mask })
}

pub(super) fn ranges(word: &Word<'_>, most: u16, words: &Words<'_>) -> Result<Vec<Range>, Located> {
    if word.text == "any" {
        return Ok(Vec::new());
    }
    let wrong = || words.wrong(word, &format!("numbers up to {most} such as 22, 80-90 or 22,80-90, or any"));
    let one = |text: &str| number(text).and_then(|n| u16::try_from(n).ok()).filter(|n| *n <= most);
    let mut ranges = Vec::new();
    for part in word.text.split(',') {
        let (low, high) = part.split_once('-').unwrap_or((part, part));
        let (low, high) = one(low).zip(one(high)).ok_or_else(wrong)?;
        if low > high {
            return Err(words.at(word, &format!("{low}-{high} is upside down; write {high}-{low}")));
        }
        ranges.push((low, high));
        if ranges.len() > MAX_RANGES {
            return Err(words.at(word, &format!("more than {MAX_RANGES} ranges; use two rules")));
        }
    }
    Ok(ranges)
}
