//! The same code in the format that the budget's task prescribes: rustfmt's width of 100 columns and its default heuristics. The
//! repository itself is kept wider (`rustfmt.toml`), which makes fewer lines of the same code; the count in this format is one that
//! no setting of ours has made smaller.

use crate::lines::{self, Count};
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// What rustfmt is told for the copy.
const FORMAT: &str = "max_width = 100\nuse_small_heuristics = \"Default\"\n";

/// A copy of a crate's sources, removed with the value.
struct Copy(PathBuf);

impl Drop for Copy {
    fn drop(&mut self) {
        // What is left behind lies in the temporary directory and does no harm.
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Counts the crate whose source folder is `src` as [`lines::count`] does, in the prescribed format. Formats a copy in the system's
/// temporary directory; `name` tells the copies of several crates apart.
pub fn count(name: &str, src: &Path, features: &BTreeSet<String>) -> Result<Count, String> {
    let copy = Copy(std::env::temp_dir().join(format!("xtask-prescribed-{}-{name}", std::process::id())));
    copy_sources(src, &copy.0)?;
    fs::write(copy.0.join("rustfmt.toml"), FORMAT).map_err(|e| format!("{}: {e}", copy.0.display()))?;
    let roots = ["lib.rs", "main.rs"].iter().map(|root| copy.0.join(root)).filter(|root| root.exists());
    // It follows `mod` from there, whatever `cfg` stands above.
    let out = Command::new("rustfmt").args(["--edition", "2024"]).args(roots).output();
    let out = out.map_err(|e| format!("rustfmt: {e}; rustup component add rustfmt"))?;
    if !out.status.success() {
        return Err(format!("rustfmt of a copy of {}: {}", src.display(), String::from_utf8_lossy(&out.stderr)));
    }
    lines::count(&copy.0, features)
}

/// Copies the Rust files below a folder.
fn copy_sources(from: &Path, to: &Path) -> Result<(), String> {
    let failed = |path: &Path, e: std::io::Error| format!("{}: {e}", path.display());
    fs::create_dir_all(to).map_err(|e| failed(to, e))?;
    for entry in fs::read_dir(from).map_err(|e| failed(from, e))? {
        let entry = entry.map_err(|e| failed(from, e))?;
        let (path, copy) = (entry.path(), to.join(entry.file_name()));
        if path.is_dir() {
            copy_sources(&path, &copy)?;
        } else if path.extension().is_some_and(|e| e == "rs") {
            fs::copy(&path, &copy).map_err(|e| failed(&path, e))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_over_100_columns_is_several_and_the_original_stays() {
        let dir = std::env::temp_dir().join(format!("xtask-prescribed-test-{}", std::process::id()));
        fs::create_dir_all(dir.join("a")).unwrap();
        let parameters = "first: usize, second: usize, third: usize, fourth: usize, fifth: usize";
        // A head of 103 columns: at 100 rustfmt gives each parameter a line.
        let long = format!("pub fn total_of_them({parameters}) -> usize {{\n    first + second\n}}\n");
        fs::write(dir.join("lib.rs"), format!("mod a;\n\n// A comment is free.\n{long}")).unwrap();
        fs::write(dir.join("a/mod.rs"), &long).unwrap();
        let none = BTreeSet::new();
        let (as_is, prescribed) = (lines::count(&dir, &none), count("test", &dir, &none));
        let after = fs::read_to_string(dir.join("a/mod.rs")).unwrap();
        fs::remove_dir_all(&dir).unwrap();
        assert_eq!(as_is.unwrap().linked, 1 + 3 + 3);
        assert_eq!(prescribed.unwrap().linked, 1 + 9 + 9, "a head of seven lines, a body and an end");
        assert_eq!(after, long);
    }
}
