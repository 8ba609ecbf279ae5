//! All lists: general ones of guests and of uplinks for each direction, and ports' own, which replace them there.

use super::judge::List;
use super::nat::Translation;
use super::parse::{Lists, Located, MAX_RULES, Rules, checked_lines, read_rule};
use super::rule::{Action, Direction};
use std::collections::BTreeMap;
use std::fmt::{self, Write};
use std::sync::Arc;

/// Most rules of all lists together.
const MAX_TOTAL: usize = 4 * MAX_RULES;
/// First line of the text of all lists.
const HEAD: &str = "# lasthop access lists, format 2. `lasthop acl load` writes this file.";
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
}

impl fmt::Display for BookError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Line(e) => e.fmt(f),
            Self::Whole(what) => f.write_str(what),
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

/// All lists.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Book(BTreeMap<(Scope, Direction), Arc<List>>);

impl Book {
    /// No lists at all.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Every list, the general ones first.
    pub fn iter(&self) -> impl Iterator<Item = (&Scope, Direction, &Arc<List>)> {
        self.0.iter().map(|((scope, direction), list)| (scope, *direction, list))
    }

    /// The lists that hold for a port, by direction, and whose they are.
    pub fn of_port(&self, name: &str, is_uplink: bool) -> [Option<(Scope, Arc<List>)>; 2] {
        let general = if is_uplink { Scope::Uplinks } else { Scope::Guests };
        Direction::ALL.map(|direction| {
            [Scope::Port(name.to_owned()), general.clone()].into_iter().find_map(|scope| {
                let key = (scope, direction);
                self.0.get(&key).cloned().map(|list| (key.0, list))
            })
        })
    }

    /// Replaces the lists of a scope: of one direction, or of both. Where `lists` has none, there is none afterwards.
    pub fn replace(&mut self, scope: &Scope, only: Option<Direction>, lists: &Lists) -> Result<(), BookError> {
        let mut lists = lists.clone();
        for direction in Direction::ALL.into_iter().filter(|d| only.is_none_or(|only| only == *d)) {
            let key = (scope.clone(), direction);
            match lists.take(direction) {
                Some(rules) => self.0.insert(key, Arc::new(List::new(rules))),
                None => self.0.remove(&key),
            };
        }
        self.check_size()
    }

    /// Whether a text is of the format in which general lists held for guests and uplinks alike, and has one.
    pub fn was_for_all(text: &str) -> bool {
        text.starts_with(HEAD_1) && text.lines().any(|line| line.starts_with("list ") && line.ends_with(" general"))
    }

    /// Whether the scope has a list of its own in this direction, or in any.
    pub fn has(&self, scope: &Scope, only: Option<Direction>) -> bool {
        self.0.keys().any(|(s, d)| s == scope && only.is_none_or(|only| only == *d))
    }

    fn check_size(&self) -> Result<(), BookError> {
        let total: usize = self.0.values().map(|l| l.rules().len() + l.translations().len()).sum();
        if total > MAX_TOTAL { Err(BookError::TooMany) } else { Ok(()) }
    }

    /// Everything as text that [`Book::from_text`] reads.
    pub fn to_text(&self) -> String {
        let mut text = format!("{HEAD}\n");
        let mut lines = 0;
        for ((scope, direction), list) in &self.0 {
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
        if head != Some(HEAD) && head != Some(HEAD_1) {
            return Err(BookError::Whole("the first line is not that of access lists of this version".into()));
        }
        let mut book = Self::default();
        let mut open: Option<(Head, Rules)> = None;
        let close = |book: &mut Self, list: Option<(Head, Rules)>| {
            list.is_none_or(|((scopes, direction), rules)| {
                let list = Arc::new(List::new(rules));
                scopes.into_iter().all(|scope| book.0.insert((scope, direction), list.clone()).is_none())
            })
        };
        let mut above = 0;
        for (count, (number, line)) in lines.by_ref().enumerate() {
            let wrong = |message: &str| Located { line: number, column: 1, message: message.into() };
            if let Some(rest) = line.strip_prefix("end ") {
                if rest.parse() != Ok(count) {
                    return Err(wrong(&wrong_end(line, count)).into());
                }
                if !close(&mut book, open.take()) {
                    return Err(wrong("two lists for the same").into());
                }
                if let Some((line, _)) = lines.next() {
                    let message = format!("this follows after the end: write `end {count}` as the last line");
                    return Err(Located { line, column: 1, message }.into());
                }
                book.check_size()?;
                return Ok(book);
            }
            above = count + 1;
            if let Some(rest) = line.strip_prefix("list ") {
                let list = parse_head(rest)
                    .ok_or_else(|| wrong("expected list DIRECTION DEFAULT guests, uplinks or port NAME"))?;
                if !close(&mut book, open.replace(list)) {
                    return Err(wrong("two lists for the same").into());
                }
            } else if line == "stateful" {
                let (_, rules) = open.as_mut().ok_or_else(|| wrong("stateful outside of a list"))?;
                rules.stateful = true;
            } else if line.starts_with("snat ") || line.starts_with("dnat ") {
                let (direction, rules) = open
                    .as_mut()
                    .map(|((_, d), rules)| (*d, rules))
                    .ok_or_else(|| wrong("a translation outside of a list"))?;
                let translation = Translation::read_line(number, line)?;
                if translation.direction() != direction || !rules.stateful {
                    return Err(wrong("snat is of stateful lists from guests, dnat of those to guests").into());
                }
                rules.nat.push(translation);
            } else {
                let (_, rules) = open.as_mut().ok_or_else(|| wrong("a rule outside of a list"))?;
                rules.rules.push(read_rule(number, line)?);
            }
        }
        Err(BookError::Whole(format!("the last line must be `end {above}`, if no line above it is missing")))
    }
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
