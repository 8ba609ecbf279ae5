//! Counting lines of Rust.

use std::fs;
use std::path::Path;

/// Lines, comments and blank ones included.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Count {
    /// In files that are part of the program.
    pub code: usize,
    /// In files that only tests see: `tests.rs`, `testutil.rs` and everything under a folder `tests`.
    pub tests: usize,
}

impl Count {
    /// Adds another count.
    pub fn add(&mut self, other: &Self) {
        self.code += other.code;
        self.tests += other.tests;
    }
}

/// Counts all `.rs` files under `folder`.
pub fn count(folder: &Path) -> Result<Count, String> {
    let mut sum = Count::default();
    let error = |e: std::io::Error| format!("{}: {e}", folder.display());
    for entry in fs::read_dir(folder).map_err(error)? {
        let path = entry.map_err(error)?.path();
        let name = path.file_name().and_then(|n| n.to_str()).unwrap_or_default();
        if path.is_dir() {
            let Count { code, tests } = count(&path)?;
            sum.add(&if name == "tests" { Count { code: 0, tests: code + tests } } else { Count { code, tests } });
        } else if name.ends_with(".rs") {
            let lines = fs::read_to_string(&path).map_err(error)?.lines().count();
            let only_tests = matches!(name, "tests.rs" | "testutil.rs");
            sum.add(&if only_tests { Count { code: 0, tests: lines } } else { Count { code: lines, tests: 0 } });
        }
    }
    Ok(sum)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_files_are_counted_apart() {
        let dir = std::env::temp_dir().join(format!("xtask-lines-{}", std::process::id()));
        fs::create_dir_all(dir.join("a/tests")).unwrap();
        for (file, text) in [
            ("lib.rs", "// one\n\nfn two() {}\n"),
            ("a/mod.rs", "x\n"),
            ("a/tests.rs", "1\n2\n"),
            ("a/tests/more.rs", "3\n"),
            ("readme.md", "no\n"),
        ] {
            fs::write(dir.join(file), text).unwrap();
        }
        let counted = count(&dir);
        fs::remove_dir_all(&dir).unwrap();
        assert_eq!(counted, Ok(Count { code: 4, tests: 3 }));
        assert!(count(&dir).is_err());
    }
}
