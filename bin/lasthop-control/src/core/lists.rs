//! Access lists: read, kept by the supervisor, then in force; never one without the other.

use super::calls::MAX_NAMED;
use super::counting::PacketsByRule;
use super::sets::SetChange;
use super::{Answer, Command, Core, Question, Unconfirmed, give, refuse};
use crate::lines::Lines;
use lasthop_api::{AclChanged, AclRule, ApiError};
use lasthop_ipc::DatapathRequest;
use lasthop_management_ipc::{ControlToSupervisor, LISTS_PART};
use lasthop_policy::acl::{self, Action, Book, Direction, List, Lists, Scope};
use lasthop_policy::{Effects, check_name};
use lasthop_text::counted;
use lasthop_types::PortId;
use std::collections::BTreeSet;
use std::sync::Arc;
use tokio::sync::oneshot;

/// Told when the supervisor has kept lists, before the switch has confirmed anything.
pub(crate) type Kept = oneshot::Sender<()>;

/// What changes.
#[derive(Debug)]
pub(super) enum Change {
    Lists(AclChanged, Answer<AclChanged>),
    Set(SetChange),
}

impl Change {
    fn refuse(self, error: ApiError) {
        match self {
            Self::Lists(_, answer) => refuse(answer, error),
            Self::Set(change) => change.refuse(error),
        }
    }
}

/// A change of lists or sets that the supervisor is asked to keep.
#[derive(Debug)]
pub(super) struct Pending {
    book: Book,
    change: Change,
    kept: Kept,
}

/// What `lasthop acl load` says beside the rules.
#[derive(Debug)]
pub(crate) struct Load {
    pub text: String,
    pub format: String,
    pub action: String,
    pub ports: Vec<String>,
    pub direction: Option<String>,
    /// `guests`, `uplinks` or `all`, instead of ports.
    pub general: Option<String>,
    /// Whether a text without a rule or default is meant.
    pub allow_empty: bool,
}

/// The scopes that were asked for: of ports, of all guests or of all uplinks; none if nothing was.
fn asked_for(ports: &[String], general: Option<&str>) -> Result<Vec<Scope>, ApiError> {
    match general {
        Some(word) if !ports.is_empty() => Err(bad(format!("lists are for {word} or for ports; give one of them"))),
        Some(word) => Scope::named(word).ok_or_else(|| bad(format!("{word:?} is nobody; use guests, uplinks or all"))),
        None => Ok(ports.iter().cloned().map(Scope::Port).collect()),
    }
}

/// A port to come has to be one that can come. A name of several lines, or of none, would also make the file of all lists
/// one that cannot be read.
fn check_names(scopes: &[Scope]) -> Result<(), ApiError> {
    scopes.iter().try_for_each(|scope| match scope {
        Scope::Port(name) => check_name(name).and_then(|()| check_to_come(name)).map_err(bad),
        Scope::Guests | Scope::Uplinks => Ok(()),
    })
}

/// No port can come whose name says whose a list is.
fn check_to_come(name: &str) -> Result<(), String> {
    match Scope::named(name) {
        Some(_) => Err(format!("no port can be named {name}; write --for {name} where its list is of {name}")),
        None => Ok(()),
    }
}

fn shown(scopes: &[Scope]) -> String {
    scopes.iter().map(ToString::to_string).collect::<Vec<_>>().join(" and ")
}

fn bad(message: impl Into<String>) -> ApiError {
    ApiError::BadRules { message: format!("{}; nothing was changed", message.into()) }
}

fn direction(name: Option<&str>) -> Result<Option<Direction>, ApiError> {
    let Some(name) = name else { return Ok(None) };
    Direction::parse(name).map(Some).ok_or_else(|| bad(format!("{name:?} is no direction; use from-guest or to-guest")))
}

impl Load {
    /// The rules, and what is to be told of them.
    fn read(&self) -> Result<(Lists, AclChanged), ApiError> {
        let only = direction(self.direction.as_deref())?;
        let action = match self.action.as_str() {
            "permit" => Action::Permit,
            "deny" => Action::Deny,
            other => return Err(bad(format!("{other:?} is no action; use permit or deny"))),
        };
        let classbench = match self.format.as_str() {
            "auto" => acl::looks_like_classbench(&self.text),
            "classbench" => true,
            "lasthop" => false,
            other => return Err(bad(format!("{other:?} is no format; use auto, lasthop or classbench"))),
        };
        let mut changed = AclChanged::default();
        let lists = if classbench {
            let set = acl::read_classbench(&self.text, action).map_err(|e| bad(e.to_string()))?;
            (changed.left_out, changed.flags_ignored) = (set.never as u64, set.flags as u64);
            Lists::of(only.unwrap_or(Direction::FromGuest), set.rules, Action::Permit)
        } else {
            acl::read(&self.text, only).map_err(|e| bad(e.to_string()))?
        };
        if lists.says_nothing() && !self.allow_empty {
            return Err(bad(
                "there is no rule and no default, so every packet would pass; `lasthop acl clear` removes lists, and \
                 --allow-empty loads this one",
            ));
        }
        Ok((lists, changed))
    }

    /// Whose lists these are: as asked for, as the text says, or else those of guests.
    fn scopes(&self, lists: &Lists) -> Result<Vec<Scope>, ApiError> {
        let asked = asked_for(&self.ports, self.general.as_deref())?;
        let said = lists.scopes();
        match (asked.is_empty(), said.is_empty()) {
            (true, true) => Ok(vec![Scope::Guests]),
            (true, false) => Ok(said.to_vec()),
            (false, false) if said != asked => {
                let (said, asked) = (shown(said), shown(&asked));
                Err(bad(format!(
                    "the file says that it is for {said}, and it is to be loaded for {asked}; correct one of them"
                )))
            }
            (false, _) => Ok(asked),
        }
    }
}

impl Core {
    pub(super) fn acl_load(&mut self, load: Load, kept: Kept, answer: Answer<AclChanged>) {
        let changed = load.read().and_then(|(lists, changed)| {
            let only = direction(load.direction.as_deref())?;
            let scopes = load.scopes(&lists)?;
            check_names(&scopes)?;
            Ok((self.changed_book(&scopes, only, &lists)?, scopes, changed))
        });
        match changed {
            Ok((book, scopes, changed)) => self.keep_lists(book, &scopes, changed, kept, answer),
            Err(e) => refuse(answer, e),
        }
    }

    pub(super) fn acl_clear(
        &mut self,
        ports: &[String],
        only: Option<&str>,
        general: Option<&str>,
        kept: Kept,
        answer: Answer<AclChanged>,
    ) {
        let changed = direction(only).and_then(|only| {
            let asked = asked_for(ports, general)?;
            let scopes = if asked.is_empty() { vec![Scope::Guests] } else { asked };
            self.check_known(&scopes)?;
            let book = self.changed_book(&scopes, only, &Lists::default())?;
            let removed = self.book.iter().count().saturating_sub(book.iter().count()) as u64;
            Ok((book, scopes, AclChanged { removed, ..AclChanged::default() }))
        });
        match changed {
            Ok((book, scopes, mut changed)) if self.is_idle_with(&book) => {
                // Nothing to clear: no flow is withdrawn, nothing written.
                self.describe(&book, &scopes, &mut changed);
                give(answer, changed);
            }
            Ok((book, scopes, changed)) => self.keep_lists(book, &scopes, changed, kept, answer),
            Err(e) => refuse(answer, e),
        }
    }

    /// A port whose lists are to go has to be there, or at least to have some.
    pub(super) fn check_known(&self, scopes: &[Scope]) -> Result<(), ApiError> {
        for scope in scopes {
            if let Scope::Port(name) = scope
                && self.find(name).is_none()
                && !self.book.has(scope, None)
            {
                let there: BTreeSet<String> = self.book.iter().map(|(scope, ..)| scope.to_string()).collect();
                let lists = match there.len() {
                    0 => "there are no access lists at all".into(),
                    1..=MAX_NAMED => {
                        format!("there are lists of {}", there.into_iter().collect::<Vec<_>>().join(", "))
                    }
                    n => format!("there are lists of {n} others (`lasthop acl show`)"),
                };
                let message = format!(
                    "there is no port named {name:?} and no list for it; {lists}, and `lasthop port list` shows the ports"
                );
                return Err(ApiError::NoSuchPort { name: name.clone(), message });
            }
        }
        Ok(())
    }

    /// Ports among them that there are not. Their lists are kept for when they come.
    fn to_come(&self, scopes: &[Scope]) -> Vec<String> {
        let missing = |scope: &Scope| match scope {
            Scope::Port(name) if self.find(name).is_none() => Some(name.clone()),
            _ => None,
        };
        scopes.iter().filter_map(missing).collect()
    }

    fn changed_book(&self, scopes: &[Scope], only: Option<Direction>, lists: &Lists) -> Result<Book, ApiError> {
        let mut book = self.book.clone();
        for scope in scopes {
            book.replace(scope, only, lists).map_err(|e| bad(e.to_string()))?;
        }
        Ok(book)
    }

    /// Nothing is under way, and this is what is in force already.
    pub(super) fn is_idle_with(&self, book: &Book) -> bool {
        self.pending.is_none() && *book == self.book
    }

    fn keep_lists(
        &mut self,
        book: Book,
        scopes: &[Scope],
        mut changed: AclChanged,
        kept: Kept,
        answer: Answer<AclChanged>,
    ) {
        self.describe(&book, scopes, &mut changed);
        self.keep(book, Change::Lists(changed, answer), kept);
    }

    /// Asks the supervisor to keep these lists and sets; they come into force once it has.
    pub(super) fn keep(&mut self, book: Book, change: Change, kept: Kept) {
        if self.pending.is_some() {
            let message = "another change of access lists is under way; try again in a second".into();
            return change.refuse(ApiError::Busy { message });
        }
        if self.renaming.is_some() {
            let message =
                "a port is being given another name, and its access lists with it; try again in a second".into();
            return change.refuse(ApiError::Busy { message });
        }
        let text = book.to_text();
        if text.len() > acl::MAX_TEXT {
            let most = acl::MAX_TEXT >> 20;
            return change.refuse(bad(format!("all lists and sets together are over {most} MiB of text")));
        }
        for part in text.as_bytes().chunks(LISTS_PART).chain([&[][..]]) {
            self.commands.push(Command::Supervisor(ControlToSupervisor::KeepLists(part.to_vec())));
        }
        self.pending = Some(Pending { book, change, kept });
    }

    /// What is to be told of the lists of these scopes.
    fn describe(&self, book: &Book, scopes: &[Scope], changed: &mut AclChanged) {
        let list = |direction: Direction| {
            let mut lists = book.iter().filter(|(scope, d, _)| scopes.first() == Some(scope) && *d == direction);
            lists.next().map(|(_, _, list)| (list.rules().len() as u64, list.default().to_string()))
        };
        (changed.from_guest, changed.from_guest_default) = list(Direction::FromGuest).unzip();
        (changed.to_guest, changed.to_guest_default) = list(Direction::ToGuest).unzip();
        for (.., list) in book.iter().filter(|(scope, ..)| scopes.first() == Some(scope)) {
            let snat = list.translations().iter().filter(|line| line.source).count();
            changed.stateful |= list.is_stateful();
            changed.snat += snat as u64;
            changed.dnat += (list.translations().len() - snat) as u64;
        }
        changed.applies_to = scopes.iter().map(ToString::to_string).collect();
        changed.to_come = self.to_come(scopes);
    }

    /// The supervisor has kept them, or not.
    pub(super) fn lists_kept(&mut self, result: Result<(), String>, now_ms: u64) {
        let Some(pending) = self.pending.take() else { return };
        if let Err(message) = result {
            return pending.change.refuse(ApiError::BadRules { message });
        }
        // Nobody waits any more when this fails.
        let _ = pending.kept.send(());
        self.book = pending.book;
        let (changed, answer) = match pending.change {
            Change::Lists(changed, answer) => (changed, answer),
            Change::Set(change) => return self.set_kept(change, now_ms),
        };
        let whose = &changed.applies_to;
        let lists = in_force(&self.book, |scope| whose.contains(&scope.to_string()));
        tracing::info!("access lists of {} changed: {lists}", some(whose, " and "));
        self.follow_book();
        self.unconfirmed.push(Unconfirmed::Lists(changed, answer));
        if self.attached {
            self.confirm(now_ms);
        }
    }

    /// Has the switch forget all flows, and answers those who wait for a change once it has.
    pub(super) fn confirm(&mut self, now_ms: u64) {
        let mut out = Effects::default();
        self.policy.clear_flows(&mut out);
        self.carry_out(out, now_ms);
        self.ask_for_confirmation();
        self.count_anew();
    }

    /// Tells whoever waits for it once the switch has carried out what followed from a change, if need be the next switch.
    pub(super) fn when_confirmed(&mut self, change: Unconfirmed, now_ms: u64) {
        self.unconfirmed.push(change);
        match (self.attached, self.reconciled) {
            (true, true) => self.ask_for_confirmation(),
            // It may have flows that nothing is known of yet.
            (true, false) => self.confirm(now_ms),
            (false, _) => {}
        }
    }

    fn ask_for_confirmation(&mut self) {
        let waiting = std::mem::take(&mut self.unconfirmed);
        self.ask(DatapathRequest::Barrier, Question::Barrier { waiting });
    }

    /// Tells policy which lists hold for a port.
    pub(super) fn set_lists(&mut self, id: PortId) {
        self.policy.set_lists(id, self.book.of_port(&self.name(id), self.uplinks.contains_key(&id)));
        self.look_for_table();
    }

    /// Part of what the supervisor has kept: at the start, and when it has read its file again.
    pub(super) fn lists_are(&mut self, part: &[u8], now_ms: u64) {
        if !part.is_empty() {
            return self.incoming.extend(part);
        }
        let bytes = std::mem::take(&mut self.incoming);
        let text = String::from_utf8_lossy(&bytes);
        self.book = Book::from_text(&text).unwrap_or_else(|e| {
            // The supervisor has read it, so this does not happen; if it does, nothing may pass.
            tracing::error!("access lists: {e}; every packet is dropped until `lasthop acl load` or `acl clear`");
            let mut book = Book::default();
            for direction in Direction::ALL {
                let closed = Lists::of(direction, Vec::new(), Action::Deny);
                for scope in [Scope::Guests, Scope::Uplinks] {
                    // Without rules there is room.
                    let _ = book.replace(&scope, Some(direction), &closed);
                }
            }
            book
        });
        let lists = counted(self.book.iter().count() as u64, "access list");
        tracing::info!("{lists}: {}", in_force(&self.book, |_| true));
        self.follow_book();
        if self.attached {
            self.confirm(now_ms);
        }
    }

    /// Tells policy of all ports' lists.
    fn follow_book(&mut self) {
        self.policy.lists_replaced();
        let ids: Vec<_> = self.configs.keys().chain(self.infos.keys()).copied().collect();
        ids.into_iter().for_each(|id| self.set_lists(id));
    }

    /// The lists that `lasthop acl show` is asked for.
    pub(super) fn acl_rules(&self, ports: &[String], packets: Option<PacketsByRule>) -> Lines<AclRule> {
        let mut asked: Vec<(Scope, Direction)> = Vec::new();
        for name in ports {
            let is_uplink = self.find(name).is_some_and(|id| self.uplinks.contains_key(&id));
            let lists = Direction::ALL.into_iter().zip(self.book.of_port(name, is_uplink));
            asked.extend(lists.filter_map(|(direction, list)| Some((list?.0, direction))));
        }
        // Two ports may share a list.
        asked.sort();
        let packets = packets.map(Arc::new);
        let meant = |scope: &Scope, d: Direction| {
            ports.is_empty() || asked.binary_search_by(|(s, of)| (s, of).cmp(&(scope, &d))).is_ok()
        };
        let lists = self.book.iter().filter(|(scope, direction, _)| meant(scope, *direction));
        let shown: Vec<Shown> = lists.map(|(scope, d, list)| Shown::new(scope, d, list, packets.as_ref())).collect();
        let total = shown.iter().map(Shown::lines).sum();
        Lines::new(total, shown.into_iter().flat_map(|list| (0..list.lines()).map(move |n| list.line(n))))
    }
}

/// These lists, for the log: whose each is, and how many rules it has.
fn in_force(book: &Book, of: impl Fn(&Scope) -> bool) -> String {
    let list = |(scope, direction, list): (&Scope, Direction, &Arc<List>)| {
        let rules = counted(list.rules().len() as u64, "rule");
        format!("{scope} {direction} {rules}, default {}", list.default())
    };
    let lists: Vec<_> = book.iter().filter(|(scope, ..)| of(scope)).map(list).collect();
    if lists.is_empty() { "none is left".into() } else { some(&lists, "; ") }
}

/// The first of them, and how many more there are.
fn some(all: &[String], between: &str) -> String {
    let named = all.iter().take(MAX_NAMED).cloned().collect::<Vec<_>>().join(between);
    match all.len().checked_sub(MAX_NAMED) {
        None | Some(0) => named,
        Some(more) => format!("{named}{between}{more} more"),
    }
}

/// A list of which somebody is told: the one that was in force when it was asked for, whatever becomes of it.
#[derive(Debug)]
struct Shown {
    scope: Scope,
    direction: Direction,
    list: Arc<List>,
    packets: Option<Arc<PacketsByRule>>,
}

impl Shown {
    fn new(scope: &Scope, direction: Direction, list: &Arc<List>, packets: Option<&Arc<PacketsByRule>>) -> Self {
        Self { scope: scope.clone(), direction, list: list.clone(), packets: packets.cloned() }
    }

    /// Those that are no rules and come before them: that it is stateful, and translations.
    fn before_rules(&self) -> usize {
        usize::from(self.list.is_stateful()) + self.list.translations().len()
    }

    fn lines(&self) -> usize {
        self.before_rules() + self.list.rules().len() + 1
    }

    /// One of its lines, from 0; the last is its default.
    fn line(&self, n: usize) -> AclRule {
        let (stateful, before) = (usize::from(self.list.is_stateful()), self.before_rules());
        let translation = n.checked_sub(stateful).and_then(|n| self.list.translations().get(n));
        let (number, text) = match (translation, n.checked_sub(before)) {
            (None, None) => (None, "stateful".into()),
            (Some(translation), _) => (None, translation.to_string()),
            (None, Some(n)) => match self.list.rules().get(n) {
                Some(rule) => (Some(u32::try_from(n + 1).unwrap_or(u32::MAX)), rule.to_string()),
                None => (Some(0), format!("default {}", self.list.default())),
            },
        };
        let counted = |packets: &Arc<PacketsByRule>| {
            let rule = (self.scope.clone(), self.direction, number?);
            Some(packets.get(&rule).copied().unwrap_or(0))
        };
        AclRule {
            port: match &self.scope {
                Scope::Guests | Scope::Uplinks => None,
                Scope::Port(name) => Some(name.clone()),
            },
            applies_to: self.scope.to_string(),
            direction: self.direction.to_string(),
            number: number.unwrap_or(0),
            text,
            packets: self.packets.as_ref().and_then(counted),
        }
    }
}
