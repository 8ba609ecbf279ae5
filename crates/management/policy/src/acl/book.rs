//! All lists: general ones of guests and of uplinks for each direction, and ports' own, which replace them there.

use super::list::List;
use super::nat::Translation;
use super::parse::{Lists, Located, MAX_RULES, Rules, checked_lines, read_rule};
use super::rule::{Action, Direction, Prefix};
use super::sets::{AddressSet, MAX_MEMBERS, MAX_SETS, Sets, check_set_name, read_member};
use lasthop_classifier::Addresses;
use std::collections::BTreeMap;
use std::fmt::{self, Write};
use std::sync::Arc;

/// Most rules of all lists together.
const MAX_TOTAL: usize = 4 * MAX_RULES;
/// First line of the text of all lists.
const HEAD: &str = "# lasthop access lists, format 2. `lasthop acl load` writes this file.";
/// The same where there are sets of addresses.
const HEAD_3: &str = "# lasthop access lists, format 3. `lasthop acl load` and `lasthop set` write this file.";
/// How long a line with members of a set becomes, in bytes: a name and an address more still fit into a line.
const SET_LINE: usize = 1024;
/// The same of the format in which a general list was for guests and uplinks alike.
const HEAD_1: &str = "# lasthop access lists, format 1. `lasthop acl load` writes this file.";

/// Whose list.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Scope {
    /// Of every guest's port that has none of its own.
    Guests,
    /// Of every uplink that has none of its own.
    Uplinks,
    /// Of the port with this name.
    Port(String),
}

impl Scope {
    /// What a word means: `guests`, `uplinks` or `all`, which is both.
    pub fn named(word: &str) -> Option<Vec<Self>> {
        match word {
            "guests" => Some(vec![Self::Guests]),
            "uplinks" => Some(vec![Self::Uplinks]),
            "all" => Some(vec![Self::Guests, Self::Uplinks]),
            _ => None,
        }
    }
}

impl fmt::Display for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Guests => f.write_str("guests"),
            Self::Uplinks => f.write_str("uplinks"),
            Self::Port(name) => write!(f, "port {name}"),
        }
    }
}

/// Why lists cannot be taken in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BookError {
    /// A line of the text of all lists is wrong.
    Line(Located),
    /// It ends early, is of another format, or was written by somebody else.
    Whole(String),
    /// More than fit.
    TooMany,
    /// A rule names a set that is not there.
    NoSet {
        /// Of which list.
        list: (Scope, Direction),
        /// The rule's number, from 1.
        rule: usize,
        /// The set's name.
        set: String,
    },
}

impl fmt::Display for BookError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Line(e) => e.fmt(f),
            Self::Whole(what) => f.write_str(what),
            Self::NoSet { list: (scope, direction), rule, set } => write!(
                f,
                "rule {rule} {direction} of {scope} names the set @{set}, which is not there; make it with `lasthop set add {set} \
                 ADDRESS...`, or an empty one with `lasthop set add {set}`"
            ),
            Self::TooMany => write!(f, "more than {MAX_TOTAL} rules in all lists together"),
        }
    }
}

impl std::error::Error for BookError {}

impl From<Located> for BookError {
    fn from(e: Located) -> Self {
        Self::Line(e)
    }
}

/// All lists, and the sets of addresses that they name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Book {
    lists: BTreeMap<(Scope, Direction), Arc<List>>,
    sets: Sets,
}

impl Book {
    /// Every list, the general ones first.
    pub fn iter(&self) -> impl Iterator<Item = (&Scope, Direction, &Arc<List>)> {
        self.lists.iter().map(|((scope, direction), list)| (scope, *direction, list))
    }

    /// The lists that hold for a port, by direction, and whose they are.
    pub fn of_port(&self, name: &str, is_uplink: bool) -> [Option<(Scope, Arc<List>)>; 2] {
        let general = if is_uplink { Scope::Uplinks } else { Scope::Guests };
        Direction::ALL.map(|direction| {
            [Scope::Port(name.to_owned()), general.clone()].into_iter().find_map(|scope| {
                let key = (scope, direction);
                self.lists.get(&key).cloned().map(|list| (key.0, list))
            })
        })
    }

    /// Replaces the lists of a scope: of one direction, or of both. Where `lists` has none, there is none afterwards.
    pub fn replace(&mut self, scope: &Scope, only: Option<Direction>, lists: &Lists) -> Result<(), BookError> {
        let mut lists = lists.clone();
        for direction in Direction::ALL.into_iter().filter(|d| only.is_none_or(|only| only == *d)) {
            let key = (scope.clone(), direction);
            match lists.take(direction) {
                Some(rules) => self.lists.insert(key, Arc::new(List::new(rules, &self.sets))),
                None => self.lists.remove(&key),
            };
        }
        self.check_sets()?;
        self.check_size()
    }

    /// Whether a text is of the format in which general lists held for guests and uplinks alike, and has one.
    pub fn was_for_all(text: &str) -> bool {
        text.starts_with(HEAD_1) && text.lines().any(|line| line.starts_with("list ") && line.ends_with(" general"))
    }

    /// Whether the scope has a list of its own in this direction, or in any.
    pub fn has(&self, scope: &Scope, only: Option<Direction>) -> bool {
        self.lists.keys().any(|(s, d)| s == scope && only.is_none_or(|only| only == *d))
    }

    /// A port's own lists hold for a port of another name as well. The error says that there is no room for that; then nothing is changed.
    pub fn share_with(&mut self, port: &str, other: &str) -> Result<(), BookError> {
        let before = self.lists.clone();
        for direction in Direction::ALL {
            if let Some(list) = self.lists.get(&(Scope::Port(port.to_owned()), direction)).cloned() {
                self.lists.insert((Scope::Port(other.to_owned()), direction), list);
            }
        }
        self.check_size().inspect_err(|_| self.lists = before)
    }

    /// A port has no lists of its own any more.
    pub fn forget_port(&mut self, port: &str) {
        let scope = Scope::Port(port.to_owned());
        self.lists.retain(|(of, _), _| *of != scope);
    }

    /// A port has another name: its own lists, the very same ones, are those of that name.
    pub fn rename_port(&mut self, from: &str, to: &str) {
        for direction in Direction::ALL {
            if let Some(list) = self.lists.remove(&(Scope::Port(from.to_owned()), direction)) {
                self.lists.insert((Scope::Port(to.to_owned()), direction), list);
            }
        }
    }

    /// Every set, by name.
    pub fn sets(&self) -> impl ExactSizeIterator<Item = (&str, &AddressSet)> {
        self.sets.iter().map(|(name, set)| (name.as_str(), &**set))
    }

    /// The same, to be kept as they are now.
    pub fn shared_sets(&self) -> impl ExactSizeIterator<Item = (&str, &Arc<AddressSet>)> {
        self.sets.iter().map(|(name, set)| (name.as_str(), set))
    }

    /// The set with this name.
    pub fn set(&self, name: &str) -> Option<&AddressSet> {
        self.sets.get(name).map(|set| &**set)
    }

    /// Lists with rules that name this set, and the first such rule of each, counted from 1.
    pub fn users(&self, set: &str) -> impl Iterator<Item = (&Scope, Direction, usize)> {
        let first = move |list: &List| list.rules().iter().position(|rule| rule.sets().any(|name| name == set));
        self.iter().filter_map(move |(scope, direction, list)| Some((scope, direction, first(list)? + 1)))
    }

    /// Adds addresses to a set, which is made if there is none, and takes others out. Returns those that it has now and had not, or
    /// had and has not. The error says what to do; then nothing is changed.
    pub fn change_set(&mut self, name: &str, add: &[Prefix], del: &[Prefix]) -> Result<Addresses, String> {
        check_set_name(name)?;
        let before = self.sets.get(name).cloned().unwrap_or_default();
        let after = before.changed(name, add, del)?;
        let others: usize = self.sets().filter(|(other, _)| *other != name).map(|(_, set)| set.members().len()).sum();
        if others + after.members().len() > MAX_MEMBERS {
            return Err(format!(
                "all sets together may have {MAX_MEMBERS} addresses and prefixes, and would have {}; use wider prefixes, or delete some",
                others + after.members().len()
            ));
        }
        if !self.sets.contains_key(name) && self.sets.len() >= MAX_SETS {
            return Err(format!(
                "there are {MAX_SETS} sets, which is the most; remove one with `lasthop set destroy NAME`"
            ));
        }
        let difference = after.addresses().difference(before.addresses());
        self.sets.insert(name.to_owned(), Arc::new(after));
        if !difference.is_empty() {
            for list in self.lists.values_mut().filter(|list| list.sets().contains_key(name)) {
                *list = Arc::new(list.with(&self.sets));
            }
        }
        Ok(difference)
    }

    /// A list with the sets there are.
    #[cfg(any(test, feature = "testutil"))]
    pub(crate) fn renewed(&self, list: &List) -> Arc<List> {
        Arc::new(list.with(&self.sets))
    }

    /// Removes a set that no rule names. The error says which do.
    pub fn remove_set(&mut self, name: &str) -> Result<(), String> {
        if !self.sets.contains_key(name) {
            return Err(format!("there is no set {name:?}; `lasthop set list` shows those there are"));
        }
        if let Some((scope, direction, rule)) = self.users(name).next() {
            return Err(format!(
                "rule {rule} {direction} of {scope} names @{name}; load lists without it first, or take its addresses out and keep the \
                 empty set"
            ));
        }
        self.sets.remove(name);
        Ok(())
    }

    fn check_sets(&self) -> Result<(), BookError> {
        let missing = self.lists.iter().find_map(|(list, rules)| {
            let set = rules.sets().keys().find(|set| !self.sets.contains_key(*set))?;
            Some((list.clone(), set.clone()))
        });
        let Some((list, set)) = missing else { return Ok(()) };
        let rule = self.users(&set).find(|(s, d, _)| (*s, *d) == (&list.0, list.1)).map_or(1, |(.., rule)| rule);
        Err(BookError::NoSet { list, rule, set })
    }

    fn check_size(&self) -> Result<(), BookError> {
        let total: usize = self.lists.values().map(|l| l.rules().len() + l.translations().len()).sum();
        if total > MAX_TOTAL { Err(BookError::TooMany) } else { Ok(()) }
    }

    /// Everything as text that [`Book::from_text`] reads.
    pub fn to_text(&self) -> String {
        let mut text = format!("{}\n", if self.sets.is_empty() { HEAD } else { HEAD_3 });
        let mut lines = write_sets(&self.sets, &mut text);
        for ((scope, direction), list) in &self.lists {
            // Writing to a String does not fail.
            let _ = writeln!(text, "list {direction} {} {scope}", list.default());
            lines += 1 + list.rules().len();
            if list.is_stateful() {
                let _ = writeln!(text, "stateful");
                lines += 1;
            }
            for translation in list.translations() {
                let _ = writeln!(text, "{translation}");
                lines += 1;
            }
            for rule in list.rules() {
                let _ = writeln!(text, "{rule}");
            }
        }
        let _ = writeln!(text, "end {lines}");
        text
    }

    /// Reads what [`Book::to_text`] wrote, or wrote in format 1. A text that was cut short is an error.
    pub fn from_text(text: &str) -> Result<Self, BookError> {
        let mut lines = checked_lines(text)?;
        let head = lines.next().map(|(_, line)| line);
        if ![HEAD, HEAD_1, HEAD_3].map(Some).contains(&head) {
            return Err(BookError::Whole("the first line is not that of access lists of this version".into()));
        }
        let mut reader = Reader::default();
        let mut above = 0;
        for (count, (number, line)) in lines.by_ref().enumerate() {
            let wrong = |message: &str| Located { line: number, column: 1, message: message.into() };
            if let Some(rest) = line.strip_prefix("end ") {
                if rest.parse() != Ok(count) {
                    return Err(wrong(&wrong_end(line, count)).into());
                }
                let book = reader.end().map_err(|e| wrong(&e))?;
                if let Some((line, _)) = lines.next() {
                    let message = format!("this follows after the end: write `end {count}` as the last line");
                    return Err(Located { line, column: 1, message }.into());
                }
                book.check_sets()?;
                book.check_size()?;
                return Ok(book);
            }
            above = count + 1;
            reader.line(number, line)?;
        }
        Err(BookError::Whole(format!("the last line must be `end {above}`, if no line above it is missing")))
    }
}

/// What has been read of the text of all lists.
#[derive(Default)]
struct Reader {
    book: Book,
    /// Members of sets; those of one may stand in several lines.
    sets: BTreeMap<String, Vec<Prefix>>,
    open: Option<(Head, Rules)>,
}

impl Reader {
    fn line(&mut self, number: usize, line: &str) -> Result<(), Located> {
        let wrong = |message: &str| Located { line: number, column: 1, message: message.into() };
        if let Some(rest) = line.strip_prefix("list ") {
            let list = parse_head(rest)
                .ok_or_else(|| wrong("expected list DIRECTION DEFAULT guests, uplinks or port NAME"))?;
            self.close_sets().map_err(|e| wrong(&e))?;
            let before = self.open.replace(list);
            return self.close(before).map_err(|e| wrong(&e));
        }
        if let Some(rest) = line.strip_prefix("set ") {
            if self.open.is_some() {
                return Err(wrong("sets stand before all lists"));
            }
            let mut words = rest.split(' ');
            let members = self.sets.entry(words.next().unwrap_or_default().to_owned()).or_default();
            for word in words {
                members.push(read_member(word).map_err(|e| wrong(&e))?);
            }
            return Ok(());
        }
        if line == "stateful" {
            let (_, rules) = self.open.as_mut().ok_or_else(|| wrong("stateful outside of a list"))?;
            rules.stateful = true;
        } else if line.starts_with("snat ") || line.starts_with("dnat ") {
            let open = self.open.as_mut().map(|((_, d), rules)| (*d, rules));
            let (direction, rules) = open.ok_or_else(|| wrong("a translation outside of a list"))?;
            let translation = Translation::read_line(number, line)?;
            if translation.direction() != direction || !rules.stateful {
                return Err(wrong("snat is of stateful lists from guests, dnat of those to guests"));
            }
            rules.nat.push(translation);
        } else {
            let (_, rules) = self.open.as_mut().ok_or_else(|| wrong("a rule outside of a list"))?;
            rules.rules.push(read_rule(number, line)?);
        }
        Ok(())
    }

    fn close_sets(&mut self) -> Result<(), String> {
        for (name, members) in std::mem::take(&mut self.sets) {
            self.book.change_set(&name, &members, &[])?;
        }
        Ok(())
    }

    fn close(&mut self, list: Option<(Head, Rules)>) -> Result<(), String> {
        let Some(((scopes, direction), rules)) = list else { return Ok(()) };
        let list = Arc::new(List::new(rules, &self.book.sets));
        for scope in scopes {
            if self.book.lists.insert((scope, direction), list.clone()).is_some() {
                return Err("two lists for the same".into());
            }
        }
        Ok(())
    }

    fn end(mut self) -> Result<Book, String> {
        self.close_sets()?;
        let open = self.open.take();
        self.close(open)?;
        Ok(self.book)
    }
}

/// Lines with the members of all sets; how many.
fn write_sets(sets: &Sets, text: &mut String) -> usize {
    let mut lines = 0;
    for (name, set) in sets {
        let mut line = format!("set {name}");
        for member in set.members() {
            if line.len() > SET_LINE {
                text.push_str(&std::mem::replace(&mut line, format!("set {name}")));
                text.push('\n');
                lines += 1;
            }
            // Writing to a String does not fail.
            let _ = write!(line, " {member}");
        }
        text.push_str(&line);
        text.push('\n');
        lines += 1;
    }
    lines
}

/// What is wrong with a last line that counts other lines than those above it.
fn wrong_end(line: &str, above: usize) -> String {
    let are = if above == 1 { "line is" } else { "lines are" };
    format!("`{line}`, but {above} {are} above it: write `end {above}`, if none is missing")
}

/// Whose list, and of which direction.
type Head = (Vec<Scope>, Direction);

fn parse_head(text: &str) -> Option<(Head, Rules)> {
    let mut words = text.split(' ');
    let direction = Direction::parse(words.next()?)?;
    let default = match words.next()? {
        "permit" => Action::Permit,
        "deny" => Action::Deny,
        _ => return None,
    };
    let scopes = match (words.next()?, words.next(), words.next()) {
        // Only in format 1. It held for both, so both have it: nothing opens because a new version reads the file.
        ("general", None, None) => vec![Scope::Guests, Scope::Uplinks],
        ("guests", None, None) => vec![Scope::Guests],
        ("uplinks", None, None) => vec![Scope::Uplinks],
        ("port", Some(name), None) if !name.is_empty() => vec![Scope::Port(name.to_owned())],
        _ => return None,
    };
    Some(((scopes, direction), Rules { rules: Vec::new(), default, stateful: false, nat: Vec::new() }))
}
