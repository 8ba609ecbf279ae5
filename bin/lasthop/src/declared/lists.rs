//! Access lists of the declarative file: a file of rules, or rules that stand in it.

use super::document::Fields;
use super::{Declared, DeclaredLists};
use lasthop_policy::acl::{self, Action, Book, Direction, Lists, MAX_TEXT, Prefix, Scope};
use std::path::Path;

/// Those of one table, which says either `acl = "FILE"`, relative to the directory `dir`, or `rules = "…"`.
pub(super) fn of(scope: Scope, of: &mut Fields, dir: &Path) -> Result<Option<DeclaredLists>, String> {
    let (name, text) = match (of.text("acl")?, of.text("rules")?) {
        (None, None) => return Ok(None),
        (Some(_), Some(_)) => return Err(of.wrong("rules", "there is acl already; write one of both")),
        (Some(file), None) => {
            let file = dir.join(file);
            let shown = file.display().to_string();
            let text = std::fs::read_to_string(&file)
                .map_err(|e| of.wrong("acl", format!("{shown}: {e}; name a file of rules")))?;
            (shown, text)
        }
        (None, Some(text)) => ("rules".to_owned(), text),
    };
    if text.len() > MAX_TEXT {
        return Err(of.wrong("acl", format!("{name}: longer than {} MiB", MAX_TEXT >> 20)));
    }
    let lists = read(&text).map_err(|e| of.wrong("acl", format!("{name}: {e}")))?;
    if !lists.scopes().is_empty() && lists.scopes() != [scope.clone()] {
        let said: Vec<_> = lists.scopes().iter().map(ToString::to_string).collect();
        return Err(of.wrong("acl", format!("{name} says that it is for {}; correct one of them", said.join(" and "))));
    }
    if lists.says_nothing() {
        return Err(of.wrong("acl", format!("{name}: there is no rule and no default, so every packet would pass")));
    }
    Ok(Some(DeclaredLists { scope, text, lists }))
}

/// As `lasthop acl load` reads a file that nothing else is said of.
fn read(text: &str) -> Result<Lists, String> {
    if acl::looks_like_classbench(text) {
        let set = acl::read_classbench(text, Action::Deny).map_err(|e| e.to_string())?;
        return Ok(Lists::of(Direction::FromGuest, set.rules, Action::Permit));
    }
    acl::read(text, None).map_err(|e| e.to_string())
}

/// The text of all access lists and sets, with those of the file instead of what it had for the same scopes and names.
pub fn in_book(text: Vec<u8>, declared: &Declared) -> Result<Vec<u8>, String> {
    if declared.lists.is_empty() && declared.sets.is_empty() {
        return Ok(text);
    }
    let stored = String::from_utf8_lossy(&text);
    let mut book =
        if text.is_empty() { Book::default() } else { Book::from_text(&stored).map_err(|e| e.to_string())? };
    for set in &declared.sets {
        let is: Vec<Prefix> = book.set(&set.name).into_iter().flat_map(|is| is.members()).copied().collect();
        let leave: Vec<Prefix> = is.iter().filter(|prefix| !set.members.contains(prefix)).copied().collect();
        let add: Vec<Prefix> = set.members.iter().copied().collect();
        book.change_set(&set.name, &add, &leave).map_err(|e| format!("[set.{}]: {e}", set.name))?;
    }
    for DeclaredLists { scope, lists, .. } in &declared.lists {
        book.replace(scope, None, lists).map_err(|e| format!("access lists of {scope}: {e}"))?;
    }
    Ok(book.to_text().into_bytes())
}
