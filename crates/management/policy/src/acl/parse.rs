//! Files of rules: one a line, `#` starts a comment. See docs/acl.md for the whole language.

use super::book::Scope;
use super::rule::{ARP, Action, Direction, Ether, ICMP, ICMPV6, IPV4, IPV6, Mac, Prefix, Range, Rule, SCTP, TCP, UDP};
use lasthop_types::MacAddr;
use std::fmt;
use std::net::IpAddr;

/// Most rules in a list.
pub const MAX_RULES: usize = 65_536;
/// Longest file, in bytes.
pub const MAX_TEXT: usize = 8 << 20;
/// Longest line, in bytes.
const MAX_LINE: usize = 2048;
/// Most ranges after one `port`, `type` or `code`.
const MAX_RANGES: usize = 16;

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
        lists.rules[direction as usize] = Some(Rules { rules, default, stateful: false });
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
            _ => file.rule_line(&first, &mut words)?,
        }
    }
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
}

impl File {
    /// No line but `for` has come.
    fn says_nothing(&self) -> bool {
        let default = self.stateful || self.common.is_some() || self.defaults.iter().any(Option::is_some);
        self.rules.iter().all(Vec::is_empty) && !default
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
        words.end()
    }

    fn rule_line(&mut self, first: &Word<'_>, words: &mut Words<'_>) -> Result<(), Located> {
        let Some(action) = action(first) else {
            return Err(words.wrong(first, "permit, deny, default, for or stateful, or # before a comment"));
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
        if self.rules.iter().map(Vec::len).sum::<usize>() > MAX_RULES {
            return Err(words.at(first, &format!("more than {MAX_RULES} rules; use fewer, or wider ones")));
        }
        Ok(())
    }

    fn lists(self) -> Lists {
        let (says_nothing, nothing) = (self.says_nothing(), self.rules.iter().all(Vec::is_empty));
        let Self { only, rules, defaults, common, scopes, stateful } = self;
        let mut lists = Lists { scopes, says_nothing, ..Lists::default() };
        for ((direction, rules), default) in Direction::ALL.into_iter().zip(rules).zip(defaults) {
            let meant = !rules.is_empty() || nothing && direction == only.unwrap_or(Direction::FromGuest);
            // What is stateful is so both ways: connections are opened one way and answered the other.
            let both = stateful && only.is_none_or(|only| only == direction);
            if default.is_some() || meant || both {
                let default = default.or(common.filter(|_| meant)).unwrap_or(Action::Permit);
                lists.rules[direction as usize] = Some(Rules { rules, default, stateful });
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

#[derive(Clone, Copy, Debug)]
struct Word<'a> {
    text: &'a str,
    column: usize,
}

/// The words of a line.
struct Words<'a> {
    line: usize,
    text: &'a str,
    at: usize,
}

impl<'a> Words<'a> {
    fn new(line: usize, text: &'a str) -> Self {
        let text = text.split('#').next().unwrap_or_default();
        Self { line, text, at: 0 }
    }

    fn peek(&self) -> Option<Word<'a>> {
        let rest = self.text.get(self.at..)?;
        let skipped = rest.len() - rest.trim_start().len();
        let text = rest.split_whitespace().next()?;
        let column = self.text.get(..self.at + skipped)?.chars().count() + 1;
        Some(Word { text, column })
    }

    fn next(&mut self) -> Option<Word<'a>> {
        let word = self.peek()?;
        let rest = self.text.get(self.at..)?;
        self.at += rest.len() - rest.trim_start().len() + word.text.len();
        Some(word)
    }

    fn expect(&mut self, what: &str) -> Result<Word<'a>, Located> {
        let column = self.text.trim_end().chars().count() + 1;
        let line = self.line;
        self.next().ok_or_else(|| Located { line, column, message: format!("the line ends here; expected {what}") })
    }

    fn end(&mut self) -> Result<(), Located> {
        match self.peek() {
            Some(word) => Err(self.wrong(&word, "nothing more in this line")),
            None => Ok(()),
        }
    }

    fn at(&self, word: &Word<'_>, message: &str) -> Located {
        Located { line: self.line, column: word.column, message: message.into() }
    }

    fn wrong(&self, word: &Word<'_>, expected: &str) -> Located {
        // A word may be a whole line of nonsense.
        let shown: String = word.text.chars().take(40).collect();
        self.at(word, &format!("{shown:?}: expected {expected}"))
    }

    /// What stands behind `for`.
    fn scopes(&mut self) -> Result<Vec<Scope>, Located> {
        const WHOM: &str = "guests, uplinks, all, or port and a name";
        let whom = self.expect(WHOM)?;
        if whom.text == "port" {
            let name = self.expect("a port's name")?;
            return Ok(vec![Scope::Port(name.text.into())]);
        }
        Scope::named(whom.text).ok_or_else(|| self.wrong(&whom, WHOM))
    }

    fn check_direction(&self, word: &Word<'_>, named: Direction, only: Option<Direction>) -> Result<(), Located> {
        match only {
            Some(only) if only != named => {
                Err(self
                    .at(word, &format!("this line is for {named}, but only {only} is loaded; take it out of the file")))
            }
            _ => Ok(()),
        }
    }
}

/// A rule as it was written.
#[derive(Default)]
struct Parts<'a> {
    ether: Option<(Word<'a>, Ether)>,
    proto: Option<(Word<'a>, u8)>,
    from: Option<(Word<'a>, Option<Prefix>)>,
    to: Option<(Word<'a>, Option<Prefix>)>,
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
    fn read(words: &mut Words<'a>) -> Result<Self, Located> {
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
        let value = words.expect("an address, a prefix, or any")?;
        let prefix = match value.text {
            "any" => None,
            text => Some(prefix(text).map_err(|expected| words.wrong(&value, expected))?),
        };
        let slot = if word.text == "from" { &mut self.from } else { &mut self.to };
        once(slot, word, prefix, words)
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

    fn rule(self, action: Action, words: &Words<'_>) -> Result<Rule, Located> {
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
        for (word, prefix) in [&from, &to].into_iter().flatten() {
            let Some(prefix) = prefix else { continue };
            match (prefix.is_v6(), is_arp) {
                (false, true) => {}
                (true, true) => return Err(words.at(word, "ARP is IPv4's; give an IPv4 address")),
                (v6, false) => {
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

fn once<'a, T>(slot: &mut Option<(Word<'a>, T)>, word: Word<'a>, value: T, words: &Words<'_>) -> Result<(), Located> {
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

fn mac(text: &str) -> Option<Mac> {
    let (addr, mask) = match text.split_once('/') {
        Some((addr, mask)) => (addr, mask.parse().ok()?),
        None => (text, MacAddr::BROADCAST),
    };
    let addr: MacAddr = addr.parse().ok()?;
    let addr = MacAddr(std::array::from_fn(|i| addr.0[i] & mask.0[i]));
    Some(Mac { addr, mask })
}

fn ranges(word: &Word<'_>, most: u16, words: &Words<'_>) -> Result<Vec<Range>, Located> {
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
