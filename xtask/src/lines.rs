//! Counting the lines of Rust that are compiled into a program: modules are followed from `lib.rs` and `main.rs`, so that
//! tests and what a feature leaves out are told apart.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// Lines of code: neither blank nor comment alone.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Count {
    /// Part of the program.
    pub linked: usize,
    /// In modules that only tests see (`#[cfg(test)]`), in the same file or one of their own.
    pub tests: usize,
    /// In modules of a feature that the program does not turn on.
    pub left_out: usize,
    /// Of those linked, the lines that say `unsafe`.
    pub with_unsafe: usize,
}

impl Count {
    /// Adds another count.
    pub fn add(&mut self, other: &Self) {
        self.linked += other.linked;
        self.tests += other.tests;
        self.left_out += other.left_out;
        self.with_unsafe += other.with_unsafe;
    }

    fn of(&mut self, kind: Kind) -> &mut usize {
        match kind {
            Kind::Linked => &mut self.linked,
            Kind::Test => &mut self.tests,
            Kind::LeftOut => &mut self.left_out,
        }
    }
}

/// Where a module's lines go. What is not linked stays so in the modules below.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Linked,
    Test,
    LeftOut,
}

/// Counts the crate whose source folder is `src`, built with `features`.
pub fn count(src: &Path, features: &BTreeSet<String>) -> Result<Count, String> {
    let roots: Vec<PathBuf> = ["lib.rs", "main.rs"].iter().map(|f| src.join(f)).filter(|f| f.exists()).collect();
    if roots.is_empty() {
        return Err(format!("{}: neither lib.rs nor main.rs", src.display()));
    }
    let mut sum = Count::default();
    for root in roots {
        walk(&root, src, Kind::Linked, features, &mut sum)?;
    }
    Ok(sum)
}

/// Counts one file and the modules it declares, whose files lie in `folder`.
fn walk(file: &Path, folder: &Path, kind: Kind, features: &BTreeSet<String>, sum: &mut Count) -> Result<(), String> {
    let text = fs::read_to_string(file).map_err(|e| format!("{}: {e}", file.display()))?;
    // The kind that an attribute above sets for the module it stands on; and that of the inline module we are in.
    let (mut attribute, mut inline) = (kind, None);
    for line in text.lines() {
        if inline.is_none() && line.starts_with("#[cfg(") && kind == Kind::Linked {
            attribute = gate(line, features);
        }
        // Blank lines need no trust, and comments are wanted: neither is to be saved.
        if is_code(line) {
            let kind = inline.unwrap_or(attribute);
            *sum.of(kind) += 1;
            sum.with_unsafe += usize::from(kind == Kind::Linked && says_unsafe(line));
        }
        if inline.is_some() {
            if line == "}" {
                (attribute, inline) = (kind, None);
            }
        } else if let Some((name, has_body)) = module(line) {
            if has_body {
                inline = Some(attribute);
            } else {
                let flat = folder.join(format!("{name}.rs"));
                let file = if flat.exists() { flat } else { folder.join(name).join("mod.rs") };
                walk(&file, &folder.join(name), attribute, features, sum)?;
                attribute = kind;
            }
        } else if !line.starts_with("#[") && !line.starts_with("//") {
            attribute = kind;
        }
    }
    Ok(())
}

/// Whether a line holds more than white space and a comment. The project has no block comments.
fn is_code(line: &str) -> bool {
    let line = line.trim();
    !line.is_empty() && !line.starts_with("//")
}

/// Whether `unsafe` stands in a line before any comment.
fn says_unsafe(line: &str) -> bool {
    let code = line.split("//").next().unwrap_or_default();
    code.split(|c: char| !c.is_alphanumeric() && c != '_').any(|word| word == "unsafe")
}

/// Lines of code of all Rust files below a folder, tests and all: what somebody else's crate comes to at most.
pub fn of_folder(folder: &Path) -> Result<usize, String> {
    let mut lines = 0;
    for entry in fs::read_dir(folder).map_err(|e| format!("{}: {e}", folder.display()))? {
        let path = entry.map_err(|e| e.to_string())?.path();
        if path.is_dir() {
            lines += of_folder(&path)?;
        } else if path.extension().is_some_and(|e| e == "rs") {
            let text = fs::read_to_string(&path).map_err(|e| format!("{}: {e}", path.display()))?;
            lines += text.lines().filter(|line| is_code(line)).count();
        }
    }
    Ok(lines)
}

/// What `#[cfg(…)]` makes of the item below it.
fn gate(attribute: &str, features: &BTreeSet<String>) -> Kind {
    if attribute == "#[cfg(test)]" {
        return Kind::Test;
    }
    let named: Vec<&str> = attribute.split("feature = \"").skip(1).filter_map(|s| s.split('"').next()).collect();
    if named.is_empty() || attribute.contains("not(") || named.iter().any(|f| features.contains(*f)) {
        Kind::Linked
    } else if attribute.contains("(test,") {
        Kind::Test
    } else {
        Kind::LeftOut
    }
}

/// The name of the module that a line at the left margin declares, and whether its body follows.
fn module(line: &str) -> Option<(&str, bool)> {
    let rest = line.strip_prefix("pub ").or_else(|| line.strip_prefix("pub(crate) ")).unwrap_or(line);
    let rest = rest.strip_prefix("mod ")?;
    let body = rest.ends_with('{');
    let name = rest.trim_end_matches([';', '{', ' ']);
    (body || rest.ends_with(';')).then_some((name, body))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unsafe_is_a_word_of_code() {
        assert!(says_unsafe("    unsafe { f() }") && says_unsafe("pub unsafe fn f() {"));
        assert!(!says_unsafe("#![allow(unsafe_code)]") && !says_unsafe("x(); // unsafe"));
    }

    #[test]
    fn tests_and_features_are_counted_apart() {
        let dir = std::env::temp_dir().join(format!("xtask-lines-{}", std::process::id()));
        fs::create_dir_all(dir.join("a")).unwrap();
        fs::create_dir_all(dir.join("driver")).unwrap();
        for (file, text) in [
            // 2 of its own besides blank ones and the comment, 2 of the attribute and module of tests, 2 of the feature's.
            (
                "lib.rs",
                "// one\n\npub mod a;\n#[cfg(test)]\nmod tests;\n#[cfg(feature = \"driver\")]\npub mod driver;\nfn x() {}\n\n",
            ),
            // 2 of its own, 4 of tests.
            ("a.rs", "mod b;\n#[cfg(test)]\nmod tests {\n    mod inner {\n}\nfn y() {}\n"),
            ("a/b.rs", "1\n"),
            ("tests.rs", "1\n2\n"),
            ("driver/mod.rs", "1\nmod net;\n3\n"),
            ("driver/net.rs", "1\n"),
            ("not_declared.rs", "1\n"),
        ] {
            fs::write(dir.join(file), text).unwrap();
        }
        let features = |f: &[&str]| f.iter().map(|s| (*s).to_owned()).collect();
        let (without, with) = (count(&dir, &features(&[])), count(&dir, &features(&["driver"])));
        fs::remove_dir_all(&dir).unwrap();
        assert_eq!(without, Ok(Count { linked: 2 + 2 + 1, tests: 2 + 4 + 2, left_out: 2 + 4, with_unsafe: 0 }));
        assert_eq!(with, Ok(Count { linked: 2 + 2 + 1 + 2 + 4, tests: 2 + 4 + 2, left_out: 0, with_unsafe: 0 }));
        assert!(count(&dir, &features(&[])).is_err());
    }

    #[test]
    fn comments_and_blank_lines_are_free() {
        assert!(is_code("    let x = 1; // with a comment"));
        for line in ["", "   ", "// a", "    /// b", "//! c"] {
            assert!(!is_code(line), "{line:?}");
        }
    }

    #[test]
    fn attributes() {
        let features = BTreeSet::from(["on".to_owned()]);
        for (line, kind) in [
            ("#[cfg(test)]", Kind::Test),
            ("#[cfg(any(test, feature = \"testutil\"))]", Kind::Test),
            ("#[cfg(any(test, feature = \"on\"))]", Kind::Linked),
            ("#[cfg(feature = \"off\")]", Kind::LeftOut),
            ("#[cfg(not(feature = \"off\"))]", Kind::Linked),
            ("#[cfg(target_os = \"linux\")]", Kind::Linked),
        ] {
            assert!(gate(line, &features) == kind, "{line}");
        }
    }
}
