//! Replays what the fuzz targets start from, and every input that ever made one of them fail.

use lasthop_tests_fuzz::TARGETS;
use std::path::Path;

/// Runs a target over every file of a folder; how many there were.
fn replay(name: &str, target: fn(&[u8]), kind: &str) -> usize {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz").join(kind).join(name);
    let Ok(entries) = std::fs::read_dir(&folder) else { return 0 };
    let mut paths: Vec<_> = entries.map(|e| e.expect("an entry").path()).collect();
    paths.sort();
    for path in &paths {
        // Shown when the test fails.
        println!("{}", path.display());
        target(&std::fs::read(path).expect("a file"));
    }
    paths.len()
}

#[test]
fn seeds_and_past_crashers_pass() {
    for (name, target) in TARGETS {
        target(&[]);
        assert!(replay(name, *target, "seeds") > 0, "{name} has seeds");
        replay(name, *target, "regressions");
    }
}
