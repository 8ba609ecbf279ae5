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
    }
}

fn reads_back(lists: &Lists) {
    let mut book = Book::default();
    book.replace(&Scope::Guests, None, lists).expect("a file's rules fit");
    let text = book.to_text();
    assert_eq!(Book::from_text(&text).as_ref(), Ok(&book), "{text}");
}

fn is_in(text: &str, error: &Located) {
    let line = text.lines().nth(error.line - 1).unwrap_or_default();
    assert!(error.line == 1 || error.line <= text.lines().count(), "{error}");
    assert!((1..=line.chars().count() + 1).contains(&error.column), "{error} in {line:?}");
}
