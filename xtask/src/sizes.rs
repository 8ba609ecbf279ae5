//! How long files and functions are. A file that nobody can keep in his head is split by subject, and a function that does not fit
//! on a screen is made of named steps.

use std::path::Path;
use syn::spanned::Spanned;
use syn::visit::{self, Visit};

/// Lines of a file of Rust, tests included.
const MOST_OF_FILE: usize = 600;
/// Lines of a function, from `fn` to its closing brace, in what is not a test.
const MOST_OF_FUNCTION: usize = 70;

/// What may be longer, and why. A function is `path: name`.
const EXCEPTIONS: &[(&str, &str)] = &[("bin/lasthop/src/run/supervisor.rs: assemble", "a field after the other")];

/// Folders whose code is tests, load generators' play or simulation: only their files are measured.
const NO_PRODUCT: &[&str] = &["tests/", "harness/", "loadgen/", "bench/", "sim/", "fuzz/"];

/// Functions of a file that are too long.
#[derive(Default)]
struct Long(Vec<(String, usize)>);

impl Long {
    fn look(&mut self, signature: &syn::Signature, block: &syn::Block) {
        let lines = block.span().end().line - signature.fn_token.span().start().line + 1;
        if lines > MOST_OF_FUNCTION {
            self.0.push((signature.ident.to_string(), lines));
        }
    }
}

/// Whether an item is there for tests alone.
fn is_test(attributes: &[syn::Attribute]) -> bool {
    let of_tests = |a: &syn::Attribute| match &a.meta {
        syn::Meta::List(list) => list.path.is_ident("cfg") && list.tokens.to_string() == "test",
        meta => meta.path().is_ident("test"),
    };
    attributes.iter().any(of_tests)
}

impl<'ast> Visit<'ast> for Long {
    fn visit_item_mod(&mut self, item: &'ast syn::ItemMod) {
        if !is_test(&item.attrs) {
            visit::visit_item_mod(self, item);
        }
    }

    fn visit_item_fn(&mut self, item: &'ast syn::ItemFn) {
        if !is_test(&item.attrs) {
            self.look(&item.sig, &item.block);
            visit::visit_item_fn(self, item);
        }
    }

    fn visit_impl_item_fn(&mut self, item: &'ast syn::ImplItemFn) {
        if !is_test(&item.attrs) {
            self.look(&item.sig, &item.block);
            visit::visit_impl_item_fn(self, item);
        }
    }

    fn visit_trait_item_fn(&mut self, item: &'ast syn::TraitItemFn) {
        if let Some(block) = &item.default {
            self.look(&item.sig, block);
        }
        visit::visit_trait_item_fn(self, item);
    }
}

/// What is too long in a file of this text, in a line each.
fn of_file(path: &str, text: &str) -> Result<Vec<String>, String> {
    let excepted = |what: &str| EXCEPTIONS.iter().any(|(exception, _)| *exception == what);
    let mut wrong = Vec::new();
    let lines = text.lines().count();
    if lines > MOST_OF_FILE && !excepted(path) {
        wrong.push(format!("{path} has {lines} lines, {MOST_OF_FILE} are allowed; split it by subject"));
    }
    let tests = path.ends_with("/tests.rs") || path.contains("/tests/") || path.contains("/testutil");
    if tests || NO_PRODUCT.iter().any(|folder| path.starts_with(folder)) {
        return Ok(wrong);
    }
    let mut long = Long::default();
    long.visit_file(&syn::parse_file(text).map_err(|e| format!("{path}: {e}"))?);
    for (name, lines) in long.0 {
        let what = format!("{path}: {name}");
        if !excepted(&what) {
            wrong.push(format!("{what} has {lines} lines, {MOST_OF_FUNCTION} are allowed; make named steps of it"));
        }
    }
    Ok(wrong)
}

/// What is too long in these files, whose paths are from the root of the repository.
pub fn too_long<'a>(root: &Path, files: impl Iterator<Item = &'a str>) -> Result<Vec<String>, String> {
    let mut wrong = Vec::new();
    for path in files {
        let text = std::fs::read_to_string(root.join(path)).map_err(|e| format!("{path}: {e}"))?;
        wrong.extend(of_file(path, &text)?);
    }
    Ok(wrong)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_files_and_functions_are_found() {
        let body = "    let _ = ();\n".repeat(MOST_OF_FUNCTION - 2);
        let good = format!("fn good() {{\n{body}}}\n");
        assert_eq!(of_file("crates/a/src/lib.rs", &good), Ok(Vec::new()));
        let bad = format!("struct A;\nimpl A {{\nfn bad() {{\n{body}\n}}\n}}\n");
        let found = of_file("crates/a/src/lib.rs", &bad).unwrap();
        assert!(found.len() == 1 && found[0].starts_with("crates/a/src/lib.rs: bad has 71 lines"), "{found:?}");
        let in_tests = format!("#[cfg(test)]\nmod tests {{\n{bad}}}\n");
        assert_eq!(of_file("crates/a/src/lib.rs", &in_tests), Ok(Vec::new()));
        assert_eq!(of_file("crates/a/src/tests.rs", &bad), Ok(Vec::new()));
        let long = "\n".repeat(MOST_OF_FILE + 1);
        assert!(of_file("tests/a.rs", &long).unwrap()[0].contains("601 lines"));
    }
}
