//! Files of rules: one a line, `#` starts a comment. See docs/acl.md for the whole language.

use super::book::Scope;
use super::nat::{self, Translation};
use super::rule::{
    ARP, Action, Direction, Ether, ICMP, ICMPV6, IPV4, IPV6, Mac, Place, Prefix, Range, Rule, SCTP, TCP, UDP,
};
use super::sets::check_set_name;
use super::words::{Word, Words, host_bits, mac, number, once, prefix, ranges};
use std::collections::BTreeSet;
use std::fmt;

/// Most rules in a list.
pub const MAX_RULES: usize = 65_536;
/// Longest file, in bytes.
pub const MAX_TEXT: usize = 8 << 20;
/// Longest line, in bytes.
const MAX_LINE: usize = 2048;

/// What is wrong with a file, and where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Located {
    /// Line, from 1.
    pub line: usize,
    /// Character of the line, from 1.
    pub column: usize,
    /// What is wrong; what to write instead.
    pub message: String,
}

impl fmt::Display for Located {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}, column {}: {}", self.line, self.column, self.message)
    }
}

impl std::error::Error for Located {}

/// Rules of one direction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rules {
    /// In the order in which they are tried.
    pub rules: Vec<Rule>,
    /// What holds when none matches.
    pub default: Action,
    /// Packets of connections pass without asking the rules.
    pub stateful: bool,
    /// What is translated, in the order in which it is tried.
    pub nat: Vec<Translation>,
}

/// What a file says for each direction; `None` where it says nothing. And for whom, where a line `for` says so.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Lists {
    rules: [Option<Rules>; 2],
    scopes: Vec<Scope>,
    says_nothing: bool,
}

impl Lists {
    /// Of one direction only.
    pub fn of(direction: Direction, rules: Vec<Rule>, default: Action) -> Self {
        let mut lists = Self { says_nothing: rules.is_empty(), ..Self::default() };
        lists.rules[direction as usize] = Some(Rules { rules, default, stateful: false, nat: Vec::new() });
        lists
    }

    /// For whom the file says that it is; empty if it does not.
    pub fn scopes(&self) -> &[Scope] {
        &self.scopes
    }

    /// There is neither a rule nor a default. As a list it would let everything pass, which hardly anybody means.
    pub fn says_nothing(&self) -> bool {
        self.says_nothing
    }

    /// The sets that rules name.
    pub fn sets(&self) -> BTreeSet<&str> {
        self.rules.iter().flatten().flat_map(|of| &of.rules).flat_map(Rule::sets).collect()
    }

    /// Takes the rules of a direction out.
    pub fn take(&mut self, direction: Direction) -> Option<Rules> {
        self.rules[direction as usize].take()
    }

    /// How many rules there are.
    pub fn len(&self) -> usize {
        self.rules.iter().flatten().map(|r| r.rules.len()).sum()
    }

    /// No rules: only defaults, or nothing at all.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// The first line that says something begins with `@`.
pub fn looks_like_classbench(text: &str) -> bool {
    text.lines().map(str::trim).find(|l| !l.is_empty() && !l.starts_with('#')).is_some_and(|l| l.starts_with('@'))
}

/// Reads a file. Rules that name no direction are for `only`, or for what comes from guests if that is `None` too; with
/// `only`, naming another is an error. A default without a direction is for every direction that has rules.
pub fn read(text: &str, only: Option<Direction>) -> Result<Lists, Located> {
    let mut file = File { only, ..File::default() };
    for (number, line) in checked_lines(text)? {
        let mut words = Words::new(number, line);
        let Some(first) = words.next() else { continue };
        match first.text {
            "for" => file.for_line(&first, &mut words)?,
            "default" => file.default_line(&first, &mut words)?,
            "stateful" => file.stateful_line(&first, &mut words)?,
            "snat" | "dnat" => file.nat_line(&first, &mut words)?,
            _ => file.rule_line(&first, &mut words)?,
        }
    }
    file.check_nat()?;
    Ok(file.lists())
}

/// What has been read of a file.
#[derive(Default)]
struct File {
    only: Option<Direction>,
    rules: [Vec<Rule>; 2],
    defaults: [Option<Action>; 2],
    /// The default of every direction that has rules.
    common: Option<Action>,
    scopes: Vec<Scope>,
    stateful: bool,
    nat: [Vec<Translation>; 2],
    /// Where the first of them stands.
    first_nat: Option<Located>,
}

impl File {
    /// No line but `for` has come.
    fn says_nothing(&self) -> bool {
        let default = self.stateful || self.common.is_some() || self.defaults.iter().any(Option::is_some);
        self.rules.iter().all(Vec::is_empty) && self.nat.iter().all(Vec::is_empty) && !default
    }

    /// A line with `for`.
    fn for_line(&mut self, first: &Word<'_>, words: &mut Words<'_>) -> Result<(), Located> {
        if !self.says_nothing() {
            return Err(words.at(first, "for stands before all other lines; move it to the top"));
        }
        if !self.scopes.is_empty() {
            return Err(words.at(first, "a second line with for; use a file for each"));
        }
        self.scopes = words.scopes()?;
        words.end()
    }

    /// A line with `default`.
    fn default_line(&mut self, first: &Word<'_>, words: &mut Words<'_>) -> Result<(), Located> {
        let mut what = words.expect("permit or deny")?;
        let direction = Direction::parse(what.text);
        if let Some(direction) = direction {
            words.check_direction(&what, direction, self.only)?;
            what = words.expect("permit or deny")?;
        }
        let action = action(&what).ok_or_else(|| words.wrong(&what, "permit or deny"))?;
        let slot = match direction {
            Some(d) => &mut self.defaults[d as usize],
            None => &mut self.common,
        };
        if slot.replace(action).is_some() {
            return Err(words.at(first, "a second default for the same direction; leave one of them out"));
        }
        words.end()
    }

    /// A line with `stateful`.
    fn stateful_line(&mut self, first: &Word<'_>, words: &mut Words<'_>) -> Result<(), Located> {
        if std::mem::replace(&mut self.stateful, true) {
            return Err(
                words.at(first, "a second line with stateful; it holds for the whole file, so leave one of them out")
            );
        }
        let more = |e: Located| Located { message: e.message + ": stateful stands alone in it", ..e };
        words.end().map_err(more)
    }

    /// A line with `snat` or `dnat`.
    fn nat_line(&mut self, first: &Word<'_>, words: &mut Words<'_>) -> Result<(), Located> {
        let translation = Translation::read(first, words)?;
        let direction = translation.direction();
        words.check_direction(first, direction, self.only)?;
        self.first_nat.get_or_insert_with(|| words.at(first, nat::NEEDS_STATEFUL));
        self.nat[direction as usize].push(translation);
        self.check_size(first, words)
    }

    fn check_nat(&self) -> Result<(), Located> {
        self.first_nat.as_ref().filter(|_| !self.stateful).map_or(Ok(()), |wrong| Err(wrong.clone()))
    }

    fn check_size(&self, first: &Word<'_>, words: &Words<'_>) -> Result<(), Located> {
        let lines = self.rules.iter().map(Vec::len).chain(self.nat.iter().map(Vec::len)).sum::<usize>();
        if lines > MAX_RULES {
            return Err(words.at(first, &format!("more than {MAX_RULES} rules; use fewer, or wider ones")));
        }
        Ok(())
    }

    fn rule_line(&mut self, first: &Word<'_>, words: &mut Words<'_>) -> Result<(), Located> {
        let Some(action) = action(first) else {
            return Err(words.wrong(first, "permit, deny, default, for, stateful, snat or dnat, or # before a comment"));
        };
        let mut direction = self.only.unwrap_or(Direction::FromGuest);
        if let Some(word) = words.peek()
            && let Some(named) = Direction::parse(word.text)
        {
            words.check_direction(&word, named, self.only)?;
            direction = named;
            words.next();
        }
        let rule = Parts::read(words)?.rule(action, words)?;
        self.rules[direction as usize].push(rule);
        self.check_size(first, words)
    }

    fn lists(self) -> Lists {
        let (says_nothing, nothing) = (self.says_nothing(), self.rules.iter().all(Vec::is_empty));
        let Self { only, rules, defaults, common, scopes, stateful, nat, .. } = self;
        let mut lists = Lists { scopes, says_nothing, ..Lists::default() };
        for (((direction, rules), default), nat) in Direction::ALL.into_iter().zip(rules).zip(defaults).zip(nat) {
            let meant = !rules.is_empty() || nothing && direction == only.unwrap_or(Direction::FromGuest);
            // What is stateful is so both ways: connections are opened one way and answered the other.
            let both = stateful && only.is_none_or(|only| only == direction);
            if default.is_some() || meant || both {
                let default = default.or(common.filter(|_| meant)).unwrap_or(Action::Permit);
                lists.rules[direction as usize] = Some(Rules { rules, default, stateful, nat });
            }
        }
        lists
    }
}

/// Reads the one rule in a line that names no direction.
pub fn read_rule(number: usize, line: &str) -> Result<Rule, Located> {
    let mut words = Words::new(number, line);
    let first = words.expect("permit or deny")?;
    let action = action(&first).ok_or_else(|| words.wrong(&first, "permit or deny"))?;
    Parts::read(&mut words)?.rule(action, &words)
}

/// Lines with their numbers, unless the text is longer than anybody means.
pub(super) fn checked_lines(text: &str) -> Result<impl Iterator<Item = (usize, &str)>, Located> {
    let at = |line, message: String| Located { line, column: 1, message };
    if text.len() > MAX_TEXT {
        return Err(at(1, format!("the file has {} bytes; {MAX_TEXT} are the most", text.len())));
    }
    let long = text.lines().position(|l| l.len() > MAX_LINE);
    if let Some(line) = long {
        return Err(at(line + 1, format!("the line has over {MAX_LINE} bytes; split its rule")));
    }
    if let Some(line) = text.lines().position(|l| l.contains('\0')) {
        return Err(at(line + 1, "a zero byte; this is not a text file".into()));
    }
    Ok(text.lines().enumerate().map(|(n, l)| (n + 1, l)))
}

fn action(word: &Word<'_>) -> Option<Action> {
    match word.text {
        "permit" => Some(Action::Permit),
        "deny" => Some(Action::Deny),
        _ => None,
    }
}

/// A rule as it was written.
#[derive(Default)]
pub(super) struct Parts<'a> {
    ether: Option<(Word<'a>, Ether)>,
    proto: Option<(Word<'a>, u8)>,
    from: Option<(Word<'a>, Option<Place>)>,
    to: Option<(Word<'a>, Option<Place>)>,
    from_port: Option<(Word<'a>, Vec<Range>)>,
    to_port: Option<(Word<'a>, Vec<Range>)>,
    kind: Option<(Word<'a>, Vec<Range>)>,
    code: Option<(Word<'a>, Vec<Range>)>,
    from_mac: Option<(Word<'a>, Mac)>,
    to_mac: Option<(Word<'a>, Mac)>,
    vlan: Option<(Word<'a>, u16)>,
    established: Option<(Word<'a>, ())>,
}

const PARTS: &str = "any, ip, ipv4, ipv6, arp, ethertype, tcp, udp, sctp, icmp, icmpv6, proto, vlan, from-mac, to-mac, \
                     from, to, port, type, code or established";

impl<'a> Parts<'a> {
    pub fn read(words: &mut Words<'a>) -> Result<Self, Located> {
        let mut parts = Self::default();
        if words.peek().is_none() {
            // A file cut short must not end in a rule about everything.
            words.expect(PARTS)?;
        }
        // Whose ports `port` means.
        let mut side = None;
        while let Some(word) = words.next() {
            let w = &*words;
            match word.text {
                "any" => once(&mut parts.ether, word, Ether::Any, w)?,
                "established" => once(&mut parts.established, word, (), w)?,
                "ip" => once(&mut parts.ether, word, Ether::Ip, w)?,
                "ipv4" => once(&mut parts.ether, word, Ether::Type(IPV4), w)?,
                "ipv6" => once(&mut parts.ether, word, Ether::Type(IPV6), w)?,
                "arp" => once(&mut parts.ether, word, Ether::Type(ARP), w)?,
                "tcp" => once(&mut parts.proto, word, TCP, w)?,
                "udp" => once(&mut parts.proto, word, UDP, w)?,
                "sctp" => once(&mut parts.proto, word, SCTP, w)?,
                "icmp" => once(&mut parts.proto, word, ICMP, w)?,
                "icmpv6" => once(&mut parts.proto, word, ICMPV6, w)?,
                "from-guest" | "to-guest" => {
                    return Err(words.at(&word, "a direction stands right behind permit or deny"));
                }
                "ethertype" | "proto" | "vlan" | "from-mac" | "to-mac" => parts.link_value(word, words)?,
                "from" | "to" => {
                    side = Some(word);
                    parts.address(word, words)?;
                }
                "port" | "type" | "code" => parts.numbers(word, side, words)?,
                _ => return Err(words.wrong(&word, PARTS)),
            }
        }
        Ok(parts)
    }

    /// What follows a word about the link layer, or an IP protocol's number.
    fn link_value(&mut self, word: Word<'a>, words: &mut Words<'a>) -> Result<(), Located> {
        match word.text {
            "ethertype" => {
                let value = words.expect("an EtherType such as 0x88cc")?;
                let number = number(value.text).filter(|n| *n >= 0x600 && *n != 0x8100 && *n != 0x88a8);
                let number = number.and_then(|n| u16::try_from(n).ok()).ok_or_else(|| {
                    words.wrong(&value, "an EtherType from 0x0600 to 0xffff that is not a VLAN tag's")
                })?;
                once(&mut self.ether, word, Ether::Type(number), words)
            }
            "proto" => {
                let value = words.expect("an IP protocol's number")?;
                let number = number(value.text).and_then(|n| u8::try_from(n).ok());
                let number = number.ok_or_else(|| words.wrong(&value, "an IP protocol's number, 0 to 255"))?;
                once(&mut self.proto, word, number, words)
            }
            "vlan" => {
                let value = words.expect("a VLAN id, or none")?;
                let id = match value.text {
                    "none" => Some(0),
                    text => number(text).and_then(|n| u16::try_from(n).ok()).filter(|n| (1..4095).contains(n)),
                };
                let id = id.ok_or_else(|| words.wrong(&value, "a VLAN id from 1 to 4094, or none"))?;
                once(&mut self.vlan, word, id, words)
            }
            side => {
                let value = words.expect("an Ethernet address")?;
                let mac = mac(value.text)
                    .ok_or_else(|| words.wrong(&value, "an address such as 52:54:00:12:34:56, or address/mask"))?;
                let slot = if side == "from-mac" { &mut self.from_mac } else { &mut self.to_mac };
                once(slot, word, mac, words)
            }
        }
    }

    /// What follows `from` or `to`.
    fn address(&mut self, word: Word<'a>, words: &mut Words<'a>) -> Result<(), Located> {
        let value = words.expect("an address, a prefix, a set such as @web, or any")?;
        let place = match (value.text, value.text.strip_prefix('@')) {
            ("any", _) => None,
            (_, Some(name)) => {
                check_set_name(name).map_err(|wrong| words.at(&value, &format!("{wrong}, such as @web")))?;
                Some(Place::Set(name.into()))
            }
            (text, None) => {
                let or_set = |expected: &str| expected.replace(", or any", ", a set such as @web, or any");
                let read = prefix(text).map_err(|expected| words.wrong(&value, &or_set(expected)))?;
                if let Some(wrong) = host_bits(text, &read) {
                    return Err(words.at(&value, &wrong));
                }
                Some(Place::Prefix(read))
            }
        };
        let slot = if word.text == "from" { &mut self.from } else { &mut self.to };
        once(slot, word, place, words)
    }

    /// What follows `port`, which is of the address named last, `type` or `code`.
    fn numbers(&mut self, word: Word<'a>, side: Option<Word<'a>>, words: &mut Words<'a>) -> Result<(), Located> {
        let (what, most) = match word.text {
            "port" => ("a port, ranges of ports, or any", 65_535),
            _ => ("an ICMP type or code", 255),
        };
        let value = words.expect(what)?;
        let ranges = ranges(&value, most, words)?;
        let slot = match (word.text, side.map(|s| s.text)) {
            ("type", _) => &mut self.kind,
            ("code", _) => &mut self.code,
            (_, Some("from")) => &mut self.from_port,
            (_, Some(_)) => &mut self.to_port,
            (_, None) => return Err(words.at(&word, "port needs from or to before it, such as to any port 22")),
        };
        once(slot, word, ranges, words)
    }

    pub fn rule(self, action: Action, words: &Words<'_>) -> Result<Rule, Located> {
        let Self { ether, proto, from, to, from_port, to_port, kind, code, from_mac, to_mac, vlan, established } = self;
        let mut wanted = ether.as_ref().map_or(Ether::Any, |e| e.1);
        check_established(established.as_ref().map(|e| &e.0), wanted, words)?;
        // Each part narrows the EtherType; a contradiction is the later word's fault.
        let mut narrow = |to: Ether, word: &Word<'_>, why: &str| {
            wanted = match (wanted, to) {
                (Ether::Any, to) => to,
                (Ether::Ip, Ether::Ip | Ether::Type(IPV4 | IPV6)) => to,
                (Ether::Type(t @ (IPV4 | IPV6)), Ether::Ip) => Ether::Type(t),
                (Ether::Type(a), Ether::Type(b)) if a == b => Ether::Type(a),
                _ => return Err(words.at(word, &format!("{:?} {why}; the rule could never match", word.text))),
            };
            Ok(())
        };
        if let Some((word, number)) = &proto {
            match *number {
                ICMP => narrow(Ether::Type(IPV4), word, "is IPv4's (IPv6 has icmpv6)")?,
                ICMPV6 => narrow(Ether::Type(IPV6), word, "is IPv6's (IPv4 has icmp)")?,
                _ => narrow(Ether::Ip, word, "is an IP protocol")?,
            }
        }
        let is_arp = wanted_is_arp(&ether);
        for (word, place) in [&from, &to].into_iter().flatten() {
            let Some(place) = place else { continue };
            match (place.prefix().map(Prefix::is_v6), is_arp) {
                (Some(false) | None, true) => {}
                (Some(true), true) => return Err(words.at(word, "ARP is IPv4's; give an IPv4 address")),
                (None, false) => narrow(Ether::Ip, word, "names a set of IP addresses")?,
                (Some(v6), false) => {
                    let version = Ether::Type(if v6 { IPV6 } else { IPV4 });
                    narrow(version, word, "has an address of another version or kind than the rest of the rule")?;
                }
            }
        }
        let proto = proto.map(|p| p.1);
        let icmp = matches!(proto, Some(ICMP | ICMPV6));
        for (word, ranges) in [&from_port, &to_port].into_iter().flatten() {
            if ranges.is_empty() {
                continue;
            }
            if !matches!(proto, None | Some(TCP | UDP | SCTP)) {
                return Err(words.at(word, "only tcp, udp and sctp have ports"));
            }
            narrow(Ether::Ip, word, "needs tcp, udp, sctp or ip")?;
        }
        for (word, _) in [&kind, &code].into_iter().flatten() {
            if !icmp {
                return Err(words.at(word, &format!("{} needs icmp or icmpv6", word.text)));
            }
        }
        if let Some((word, _)) = code.as_ref().filter(|_| kind.as_ref().is_none_or(|k| k.1.is_empty())) {
            return Err(words.at(word, "a code means nothing without its type; add type N"));
        }
        let (sport, dport) = if icmp { (kind, code) } else { (from_port, to_port) };
        Ok(Rule {
            action,
            ether: wanted,
            proto,
            src: from.and_then(|p| p.1),
            dst: to.and_then(|p| p.1),
            sport: sport.map(|p| p.1).unwrap_or_default(),
            dport: dport.map(|p| p.1).unwrap_or_default(),
            src_mac: from_mac.map(|m| m.1),
            dst_mac: to_mac.map(|m| m.1),
            vlan: vlan.map(|v| v.1),
            established: established.is_some(),
        })
    }
}

fn check_established(word: Option<&Word<'_>>, wanted: Ether, words: &Words<'_>) -> Result<(), Located> {
    match word {
        Some(word) if !matches!(wanted, Ether::Any | Ether::Ip | Ether::Type(IPV4 | IPV6)) => {
            Err(words.at(word, "only IP has connections; the rule could never match"))
        }
        _ => Ok(()),
    }
}

fn wanted_is_arp(ether: &Option<(Word<'_>, Ether)>) -> bool {
    matches!(ether, Some((_, Ether::Type(ARP))))
}
