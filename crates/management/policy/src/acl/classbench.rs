//! Filter sets as ClassBench (Taylor and Turner, INFOCOM 2005) writes them: `@source destination low : high low : high
//! protocol/mask [flags/mask]`, one filter a line, with tabs or spaces between, for IPv4 or IPv6.
//!
//! Filters have no action, so all get the same one. The flags, which ClassBench derives from bits of filter sets that
//! were never published, are checked for their form and then left out: a filter with flags covers more frames here.

use super::parse::{Located, MAX_RULES, checked_lines};
use super::rule::{Action, Ether, ICMP, ICMPV6, IPV4, IPV6, Place, Prefix, Range, Rule, SCTP, TCP, UDP};
use super::words::{number, prefix};

/// A filter set as rules.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClassBench {
    /// One for each filter that can match anything, in order.
    pub rules: Vec<Rule>,
    /// Filters left out because no frame could match: port ranges with a protocol that has no ports.
    pub never: usize,
    /// Filters whose flags were left out.
    pub flags: usize,
}

/// Reads a filter set.
pub fn read(text: &str, action: Action) -> Result<ClassBench, Located> {
    let mut out = ClassBench { rules: Vec::new(), never: 0, flags: 0 };
    for (number, line) in checked_lines(text)? {
        if line.trim().is_empty() || line.trim_start().starts_with('#') {
            continue;
        }
        let mut fields = Fields { line: number, text: line, at: 0 };
        fields.filter(action, &mut out)?;
        if out.rules.len() > MAX_RULES {
            return Err(fields.wrong(&format!("at most {MAX_RULES} filters")));
        }
    }
    Ok(out)
}

/// What is left of a line. ClassBench puts spaces around `:`; other writers do not.
struct Fields<'a> {
    line: usize,
    text: &'a str,
    at: usize,
}

impl<'a> Fields<'a> {
    fn filter(&mut self, action: Action, out: &mut ClassBench) -> Result<(), Located> {
        self.symbol('@', "@ at the start of a filter")?;
        let (src, dst) = (self.prefix()?, self.prefix()?);
        if src.is_v6() != dst.is_v6() {
            return Err(self.wrong("two addresses of the same IP version"));
        }
        let (sport, dport) = (self.range()?, self.range()?);
        let proto = self.masked(u32::from(u8::MAX), "the protocol, such as 0x06/0xFF")?;
        let proto = match proto {
            (_, 0) => None,
            (number, 0xff) => u8::try_from(number).ok(),
            _ => return Err(self.wrong("0x00 or 0xFF as the protocol's mask")),
        };
        if self.peek().is_some() {
            let (_, mask) = self.masked(u32::from(u16::MAX), "flags, such as 0x0000/0x0200")?;
            out.flags += usize::from(mask != 0);
        }
        if self.peek().is_some() {
            return Err(self.wrong("the end of the line"));
        }
        let ports = |r: Range| if r == (0, u16::MAX) { Vec::new() } else { vec![r] };
        let (sport, dport) = (ports(sport), ports(dport));
        let v6 = src.is_v6();
        let no_ports = !matches!(proto, None | Some(TCP | UDP | SCTP)) && (!sport.is_empty() || !dport.is_empty());
        // Each version has its own ICMP.
        let foreign = proto == Some(if v6 { ICMP } else { ICMPV6 });
        if no_ports || foreign {
            out.never += 1;
            return Ok(());
        }
        let ether = Ether::Type(if v6 { IPV6 } else { IPV4 });
        let (src, dst) = (Some(Place::Prefix(src)), Some(Place::Prefix(dst)));
        out.rules.push(Rule { ether, proto, src, dst, sport, dport, ..Rule::any(action) });
        Ok(())
    }

    fn peek(&self) -> Option<char> {
        self.text.get(self.at..)?.trim_start().chars().next()
    }

    fn skip_space(&mut self) {
        let rest = self.text.get(self.at..).unwrap_or_default();
        self.at += rest.len() - rest.trim_start().len();
    }

    /// Up to the next white space or `stop`.
    fn word(&mut self, stop: char) -> &'a str {
        self.skip_space();
        let rest = self.text.get(self.at..).unwrap_or_default();
        let word = rest.split(|c: char| c.is_whitespace() || c == stop).next().unwrap_or_default();
        self.at += word.len();
        word
    }

    fn symbol(&mut self, symbol: char, what: &str) -> Result<(), Located> {
        self.skip_space();
        if !self.text.get(self.at..).unwrap_or_default().starts_with(symbol) {
            return Err(self.wrong(what));
        }
        self.at += symbol.len_utf8();
        Ok(())
    }

    /// Reads a word; what it is, or the error at its beginning.
    fn parse<T>(&mut self, stop: char, what: &str, read: impl Fn(&str) -> Option<T>) -> Result<T, Located> {
        self.skip_space();
        let before = self.at;
        let word = self.word(stop);
        read(word).ok_or_else(|| {
            self.at = before;
            self.wrong(what)
        })
    }

    fn prefix(&mut self) -> Result<Prefix, Located> {
        self.parse('@', "an address and its prefix length, such as 10.0.0.0/8", |w| {
            prefix(w).ok().filter(|_| w.contains('/'))
        })
    }

    fn range(&mut self) -> Result<Range, Located> {
        let port = |w: &str| number(w).and_then(|n| u16::try_from(n).ok());
        let low = self.parse(':', "a port from 0 to 65535", port)?;
        self.symbol(':', ": between the first and the last port")?;
        let high = self.parse(':', "a port from 0 to 65535", port)?;
        if low > high {
            return Err(self.wrong("a last port that is not below the first"));
        }
        Ok((low, high))
    }

    fn masked(&mut self, most: u32, what: &str) -> Result<(u32, u32), Located> {
        self.parse('@', what, |w| {
            let (value, mask) = w.split_once('/')?;
            Some((number(value)?, number(mask)?)).filter(|(v, m)| *v <= most && *m <= most)
        })
    }

    fn wrong(&self, expected: &str) -> Located {
        let rest = self.text.get(self.at..).unwrap_or_default();
        let column = self.text.get(..self.at).unwrap_or_default().chars().count() + 1;
        let shown: String = rest.split_whitespace().next().unwrap_or_default().chars().take(40).collect();
        let message = match shown.as_str() {
            "" => format!("the line ends here; expected {expected}"),
            shown => format!("{shown:?}: expected {expected}"),
        };
        Located { line: self.line, column, message }
    }
}
