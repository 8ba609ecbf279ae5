//! Files of rules, whoever wrote them: an error names a place in the file, and what was read reads back as it was written.

use lasthop_policy::acl::{Action, Book, Direction, Lists, Located, Scope, read, read_classbench};

pub(crate) fn run(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    for only in [None, Some(Direction::FromGuest), Some(Direction::ToGuest)] {
        match read(text, only) {
            Ok(lists) => reads_back(&lists),
            Err(e) => is_in(text, &e),
        }
    }
    match read_classbench(text, Action::Permit) {
        Ok(set) => reads_back(&Lists::of(Direction::FromGuest, set.rules, Action::Deny)),
        Err(e) => is_in(text, &e),
    }
    if let Ok(book) = Book::from_text(text) {
        assert_eq!(Book::from_text(&book.to_text()).as_ref(), Ok(&book));
        takes_back(book);
    }
}

/// What leaves sets and joins them again leaves no trace, and no set goes that a rule names.
fn takes_back(book: Book) {
    let mut changed = book.clone();
    let sets: Vec<_> = book.sets().map(|(name, set)| (name, set.members().copied().collect::<Vec<_>>())).collect();
    for (name, members) in &sets {
        let half = members.get(..members.len().div_ceil(2)).unwrap_or_default();
        let gone = changed.change_set(name, &[], half).expect("they are members");
        let back = changed.change_set(name, half, &[]).expect("there was room for them");
        assert_eq!(gone, back, "{name}");
    }
    assert_eq!(changed, book);
    for (name, _) in &sets {
        let used = book.users(name).next().is_some();
        assert_eq!(changed.clone().remove_set(name).is_err(), used, "{name}");
    }
}

fn reads_back(lists: &Lists) {
    let mut book = Book::default();
    for set in lists.sets() {
        book.change_set(set, &[], &[]).expect("a rule's name is a set's");
    }
    book.replace(&Scope::Guests, None, lists).expect("a file's rules fit");
    let text = book.to_text();
    assert_eq!(Book::from_text(&text).as_ref(), Ok(&book), "{text}");
}

fn is_in(text: &str, error: &Located) {
    let line = text.lines().nth(error.line - 1).unwrap_or_default();
    assert!(error.line == 1 || error.line <= text.lines().count(), "{error}");
    assert!((1..=line.chars().count() + 1).contains(&error.column), "{error} in {line:?}");
}
