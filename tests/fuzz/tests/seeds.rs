//! The seeds in `fuzz/seeds` are what the example writes: messages that have changed since would be read as others.

#[allow(dead_code, reason = "its main writes the files")]
#[path = "../examples/seeds.rs"]
mod seeds;

#[test]
fn seeds_are_up_to_date() {
    let stale: Vec<_> = seeds::files()
        .into_iter()
        .filter(|(path, seed)| std::fs::read(path).ok().as_ref() != Some(seed))
        .map(|(path, _)| path.display().to_string())
        .collect();
    assert!(stale.is_empty(), "stale: {stale:#?}; `cargo run -p lasthop-tests-fuzz --example seeds` writes them");
}
