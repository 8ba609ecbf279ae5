//! Rules that translate addresses: `snat` those of what a guest sends, `dnat` those of what is sent to it.

use super::Located;
use super::parse::Parts;
use super::rule::{Action, Direction, Ether, IPV4, IPV6, Range, Rule, SCTP, TCP, UDP};
use super::words::{Word, Words, ranges};
use std::fmt;
use std::net::IpAddr;

pub(super) const NEEDS_STATEFUL: &str =
    "translated connections have to be known; add a line with stateful alone, or take snat and dnat out";
const TARGET: &str = "an address, a range of addresses such as 192.0.2.1-192.0.2.9, or none";

/// What a connection's address, and its port where that is given, are exchanged for: first and last of each, of one IP version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Target {
    /// Addresses.
    pub addresses: [IpAddr; 2],
    /// Ports.
    pub ports: Option<Range>,
}

/// What is translated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Translation {
    /// Which connections: what the rule matches of their first packets, as the guest sends them (`snat`) or as they are sent to it (`dnat`).
    pub rule: Rule,
    /// `snat`: their source is.
    pub source: bool,
    /// To what; `None`: they stay as they are.
    pub to: Option<Target>,
}

impl Translation {
    /// The list that it belongs to.
    pub fn direction(&self) -> Direction {
        if self.source { Direction::FromGuest } else { Direction::ToGuest }
    }

    /// From a whole line.
    pub(super) fn read_line(number: usize, line: &str) -> Result<Self, Located> {
        let mut words = Words::new(number, line);
        let first = words.expect("snat or dnat")?;
        Self::read(&first, &mut words)
    }

    /// From the words behind `snat` or `dnat`.
    pub(super) fn read(first: &Word<'_>, words: &mut Words<'_>) -> Result<Self, Located> {
        let Some(arrow) = words.text.find("->") else {
            return Err(words.at(
                first,
                &format!("{} needs -> and {TARGET}, such as snat from 10.0.0.0/8 -> 192.0.2.1", first.text),
            ));
        };
        let (line, text) = (words.line, words.text);
        let mut left = Words { line, text: text.get(..arrow).unwrap_or_default(), at: words.at };
        let mut right = Words { line, text, at: arrow + 2 };
        if left.peek().is_none() {
            let message = format!("what does {} translate? Write any, or from or to ADDRESS, before ->", first.text);
            return Err(words.at(first, &message));
        }
        let mut rule = Parts::read(&mut left)?.rule(Action::Permit, &left)?;
        let source = first.text == "snat";
        if rule.established {
            return Err(words.at(first, "what is established was translated when it began; leave established out"));
        }
        if let (Ether::Type(other), false) = (rule.ether, matches!(rule.ether, Ether::Type(IPV4 | IPV6))) {
            return Err(words.at(first, &format!("only IP is translated, not EtherType {other:#06x}")));
        }
        if let Some(set) = rule.sets().next() {
            return Err(
                words.at(first, &format!("sets of addresses are not translated; write prefixes instead of @{set}"))
            );
        }
        if !source && rule.dst.is_none() {
            return Err(words.at(first, "dnat needs the address that is published: dnat … to ADDRESS -> ADDRESS"));
        }
        let to = target(&mut right, &rule, source)?;
        right.end()?;
        *words = right;
        rule.ether = match to.map_or(rule.ether, |to| Ether::Type(if to.addresses[0].is_ipv6() { IPV6 } else { IPV4 }))
        {
            Ether::Any => Ether::Ip,
            narrow => narrow,
        };
        Ok(Self { rule, source, to })
    }
}

/// What stands behind the arrow.
fn target(words: &mut Words<'_>, rule: &Rule, source: bool) -> Result<Option<Target>, Located> {
    let value = words.expect(TARGET)?;
    if value.text == "none" {
        return Ok(None);
    }
    let (first, last) = value.text.split_once('-').unwrap_or((value.text, value.text));
    let address = |text: &str| text.parse::<IpAddr>().map_err(|_| words.wrong(&value, TARGET));
    let (first, last) = (address(first)?, address(last)?);
    if first.is_ipv6() != last.is_ipv6() {
        return Err(words.at(&value, "the range's ends are of different IP versions"));
    }
    if first > last {
        return Err(words.at(&value, &format!("{first}-{last} is upside down; write {last}-{first}")));
    }
    if [first, last].iter().any(|of| of.is_multicast() || of.is_unspecified() || of.is_loopback()) {
        return Err(words.at(&value, "this is no address of a station; give one that is routed to here"));
    }
    let version = if first.is_ipv6() { IPV6 } else { IPV4 };
    match rule.ether {
        Ether::Type(other) if other != version => {
            return Err(words.at(&value, "this address is of another IP version than what is before ->"));
        }
        _ => {}
    }
    let ports = match words.peek() {
        Some(word) if word.text == "port" => {
            words.next();
            Some(ports(words, rule, &word, source)?)
        }
        _ => None,
    };
    Ok(Some(Target { addresses: [first, last], ports }))
}

fn ports(words: &mut Words<'_>, rule: &Rule, word: &Word<'_>, source: bool) -> Result<Range, Located> {
    let value = words.expect("a port, or a range of ports such as 1024-65535")?;
    match rule.proto {
        Some(TCP | UDP) => {}
        None if source => {}
        Some(SCTP) => return Err(words.at(word, "SCTP's ports cannot be exchanged, only addresses")),
        Some(_) => return Err(words.at(word, "only tcp and udp have ports to exchange")),
        None => return Err(words.at(word, "which protocol's? Write tcp or udp before ->")),
    }
    match ranges(&value, u16::MAX, words)?[..] {
        [(low, high)] if low > 0 => Ok((low, high)),
        _ => Err(words.wrong(&value, "one port or one range of ports, from 1")),
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [first, last] = self.addresses;
        write!(f, "{first}")?;
        if first != last {
            write!(f, "-{last}")?;
        }
        match self.ports {
            None => Ok(()),
            Some((low, high)) if low == high => write!(f, " port {low}"),
            Some((low, high)) => write!(f, " port {low}-{high}"),
        }
    }
}

impl fmt::Display for Translation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rule = self.rule.to_string();
        // Both begin with a word for what is done with a match.
        let what = rule.split_once(' ').map_or("any", |(_, what)| what);
        let what = what
            .strip_prefix("ip ")
            .filter(|what| what.starts_with("from ") || what.starts_with("to "))
            .unwrap_or(what);
        write!(f, "{} {what} -> ", if self.source { "snat" } else { "dnat" })?;
        match &self.to {
            Some(to) => write!(f, "{to}"),
            None => f.write_str("none"),
        }
    }
}
