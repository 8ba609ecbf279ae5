//! `cargo xtask counts`: instructions of each stage of the packet path, beside those that are stored in the repository.

#[path = "../../bench/stages/src/amount.rs"]
mod amount;

use crate::{cargo, root};
use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Where the counts are stored, from the repository's root.
const STORED: &str = "bench/instructions.txt";
/// How far a stage may move, in percent of its stored count.
const TOLERANCE: f64 = 5.0;
/// How to say that a change is meant.
const UPDATE: &str = "run `cargo xtask counts --update` and commit bench/instructions.txt with the reason";

/// Instructions a packet by stage, as `walk/split_64`, and the compiler that made them.
#[derive(Clone, Debug, Default, PartialEq)]
struct Counts {
    compiler: String,
    stages: BTreeMap<String, f64>,
}

/// What a comparison came to.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Comparison {
    /// Stages that are where they were, or cheaper.
    pub passed: usize,
    /// A line for each stage that is not.
    pub failures: Vec<String>,
    /// A line for each stage that got so much cheaper that the stored count is out of date.
    pub notes: Vec<String>,
}

impl Comparison {
    /// Prints all of it.
    pub fn print(&self) {
        for line in self.notes.iter().chain(&self.failures) {
            println!("counts: {line}");
        }
        let Self { passed, failures, .. } = self;
        println!("counts: {passed} stages within {TOLERANCE} % of their stored counts, {} not", failures.len());
    }
}

/// Counts all stages and compares, or (with `update`) stores what it counted.
pub fn run(update: bool) -> Result<(), String> {
    if !update {
        let comparison = compare_with_stored()?;
        comparison.print();
        return if comparison.failures.is_empty() { Ok(()) } else { Err("counts: see above".into()) };
    }
    let counted = count()?;
    let path = root().join(STORED);
    // What is not there, or cannot be read, is written anew all the same.
    let before = std::fs::read_to_string(&path).ok().and_then(|text| Counts::parse(&text).ok()).unwrap_or_default();
    std::fs::write(&path, counted.text()).map_err(|e| format!("{}: {e}", path.display()))?;
    for (stage, now) in &counted.stages {
        match before.stages.get(stage) {
            Some(before) => println!("counts: {stage}: {}", moved(*before, *now)),
            None => println!("counts: {stage}: {now:.1} instructions a packet, new"),
        }
    }
    for stage in before.stages.keys().filter(|stage| !counted.stages.contains_key(*stage)) {
        println!("counts: {stage}: gone");
    }
    println!("counts: {STORED} is written; commit it with the reason");
    Ok(())
}

/// Counts all stages and compares them with the stored counts.
pub fn compare_with_stored() -> Result<Comparison, String> {
    let path = root().join(STORED);
    let stored = std::fs::read_to_string(&path).map_err(|e| format!("counts: {}: {e}; {UPDATE}", path.display()))?;
    let stored = Counts::parse(&stored)?;
    Ok(compare(&stored, &count()?))
}

/// Instructions a packet before and now.
fn moved(before: f64, now: f64) -> String {
    format!("{now:.1} instructions a packet, {before:.1} stored, {:+.1} %", 100.0 * (now - before) / before)
}

fn compare(stored: &Counts, counted: &Counts) -> Comparison {
    let mut comparison = Comparison::default();
    for (stage, now) in &counted.stages {
        let Some(before) = stored.stages.get(stage) else {
            comparison.failures.push(format!("{stage}: has no stored count; {UPDATE}"));
            continue;
        };
        if *now > before * (1.0 + TOLERANCE / 100.0) {
            comparison.failures.push(format!("{stage}: {}: make it cheaper, or {UPDATE}", moved(*before, *now)));
            continue;
        }
        comparison.passed += 1;
        if *now < before * (1.0 - TOLERANCE / 100.0) {
            comparison.notes.push(format!("{stage}: {}: cheaper; so that it stays, {UPDATE}", moved(*before, *now)));
        }
    }
    for stage in stored.stages.keys().filter(|stage| !counted.stages.contains_key(*stage)) {
        comparison.failures.push(format!("{stage}: is stored, but no such stage is counted; {UPDATE}"));
    }
    if stored.compiler != counted.compiler && !(comparison.failures.is_empty() && comparison.notes.is_empty()) {
        let Counts { compiler, .. } = counted;
        comparison.notes.insert(0, format!("stored with {}, counted with {compiler}", stored.compiler));
    }
    comparison
}

impl Counts {
    /// As [`Counts::text`] writes them: a stage and its count in each line; comments begin with `#`.
    fn parse(text: &str) -> Result<Self, String> {
        let mut counts = Self::default();
        for (n, line) in text.lines().enumerate() {
            let bad = || format!("{STORED}, line {}: `{line}` is not a stage and its count; {UPDATE}", n + 1);
            if let Some(compiler) = line.strip_prefix("compiler ") {
                counts.compiler = compiler.trim().to_owned();
                continue;
            }
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let (stage, count) = line.split_once(char::is_whitespace).ok_or_else(bad)?;
            let count = count.trim().parse::<f64>().ok().filter(|c| c.is_finite() && *c > 0.0).ok_or_else(bad)?;
            if counts.stages.insert(stage.to_owned(), count).is_some() {
                return Err(format!("{STORED}, line {}: {stage} is there twice; {UPDATE}", n + 1));
            }
        }
        Ok(counts)
    }

    fn text(&self) -> String {
        let mut text = String::from(
            "# Instructions a packet in each stage of the packet path. Written by `cargo xtask counts --update`;\n\
             # docs/performance.md says how they are counted. Commit a change of this file with its reason.\n",
        );
        let _ = writeln!(text, "compiler {}", self.compiler);
        for (stage, count) in &self.stages {
            let _ = writeln!(text, "{stage:<28} {count:>10.1}");
        }
        text
    }
}

/// Counts all stages: builds the benchmark and has gungraun run each under callgrind.
fn count() -> Result<Counts, String> {
    let runner = runner()?;
    let out = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
        .args(["bench", "--quiet", "--package", "lasthop-bench-stages", "--bench", "stages", "--"])
        .args(["--output-format=json", "--parallel=auto"])
        .current_dir(root())
        .env("GUNGRAUN_RUNNER", runner)
        .env("GUNGRAUN_HOME", root().join("target/counts"))
        // Counts are those of the plain release build, whatever this user's configuration adds.
        .env("RUSTFLAGS", "")
        .env_remove("CARGO_ENCODED_RUSTFLAGS")
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()
        .map_err(|e| format!("cargo: {e}"))?;
    if !out.status.success() {
        return Err("counts: a stage could not be counted; the reason is above".into());
    }
    let version = Command::new("rustc").arg("--version").current_dir(root()).output();
    let version = version.map_err(|e| format!("rustc: {e}"))?;
    let stages = read_summaries(&out.stdout)?;
    Ok(Counts { compiler: String::from_utf8_lossy(&version.stdout).trim().to_owned(), stages })
}

/// The runner and valgrind, if they are there: otherwise what to do.
fn runner() -> Result<PathBuf, String> {
    let valgrind = Command::new("valgrind").arg("--version").output();
    if !valgrind.is_ok_and(|out| out.status.success()) {
        return Err("counts: valgrind is missing: run scripts/setup, or install Debian's package valgrind".into());
    }
    let wanted = library_version()?;
    let runner = root().join("target/tools/bin/gungraun-runner");
    let version = Command::new(&runner).arg("--version").output().ok();
    let version = version.as_ref().map(|out| String::from_utf8_lossy(&out.stdout)).unwrap_or_default();
    if version.trim() == format!("gungraun-runner {wanted}") {
        return Ok(runner);
    }
    let found = if version.is_empty() { "missing" } else { version.trim() };
    Err(format!(
        "counts: {} has to be of version {wanted} and is {found}: run scripts/setup, or \
         `cargo install --locked --debug --root target/tools gungraun-runner@{wanted}`",
        runner.strip_prefix(root()).unwrap_or(Path::new("gungraun-runner")).display()
    ))
}

/// The version of the gungraun library that the benchmark is built with.
fn library_version() -> Result<String, String> {
    let metadata = cargo(&["metadata", "--format-version", "1"])?;
    let metadata: serde_json::Value = serde_json::from_slice(&metadata).map_err(|e| format!("cargo metadata: {e}"))?;
    let packages = metadata["packages"].as_array().into_iter().flatten();
    let version = packages.filter(|p| p["name"] == "gungraun").find_map(|p| p["version"].as_str());
    version.map(str::to_owned).ok_or_else(|| "counts: the workspace does not use gungraun".into())
}

/// Instructions a packet by stage, from gungraun's summaries, one JSON document each.
fn read_summaries(json: &[u8]) -> Result<BTreeMap<String, f64>, String> {
    let mut stages = BTreeMap::new();
    for summary in serde_json::Deserializer::from_slice(json).into_iter::<serde_json::Value>() {
        let summary = summary.map_err(|e| format!("counts: gungraun's summary: {e}"))?;
        let name = |field: &str| summary[field].as_str().unwrap_or_default().to_owned();
        let stage = format!("{}/{}", name("function_name"), name("id"));
        let profiles = summary["profiles"].as_array().into_iter().flatten();
        let instructions = profiles
            .filter(|profile| profile["tool"] == "Callgrind")
            .find_map(|profile| profile["data"]["total"]["metrics"]["Ir"]["values"]["new"].as_u64())
            .filter(|count| *count > 0)
            .ok_or_else(|| {
                let version = &summary["version"];
                format!("counts: gungraun's summary of {stage} (format {version}) says nothing of instructions")
            })?;
        stages.insert(stage, instructions as f64 / amount::PACKETS as f64);
    }
    if stages.is_empty() { Err("counts: gungraun counted no stage".into()) } else { Ok(stages) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(stages: &[(&str, f64)]) -> Counts {
        let stages = stages.iter().map(|(stage, count)| (stage.to_string(), *count)).collect();
        Counts { compiler: "rustc 1.95.0".into(), stages }
    }

    #[test]
    fn six_percent_more_fail_and_four_pass() {
        let stored = counts(&[("walk/a", 1000.0), ("walk/b", 1000.0)]);
        let comparison = compare(&stored, &counts(&[("walk/a", 1060.0), ("walk/b", 1040.0)]));
        assert_eq!(comparison.passed, 1);
        assert_eq!(comparison.notes, [""; 0]);
        let [failure] = &comparison.failures[..] else { panic!("{comparison:?}") };
        for part in ["walk/a: 1060.0", "1000.0 stored", "+6.0 %", "cargo xtask counts --update"] {
            assert!(failure.contains(part), "{failure}");
        }
    }

    #[test]
    fn six_percent_less_pass_with_a_note_and_four_without() {
        let stored = counts(&[("walk/a", 1000.0), ("walk/b", 1000.0)]);
        let comparison = compare(&stored, &counts(&[("walk/a", 940.0), ("walk/b", 960.0)]));
        assert_eq!((comparison.passed, comparison.failures.len()), (2, 0));
        let [note] = &comparison.notes[..] else { panic!("{comparison:?}") };
        assert!(note.starts_with("walk/a: 940.0 instructions a packet, 1000.0 stored, -6.0 %: cheaper"), "{note}");
    }

    #[test]
    fn a_missing_and_a_new_stage_are_named() {
        let comparison = compare(&counts(&[("walk/old", 1.0)]), &counts(&[("walk/new", 1.0)]));
        assert_eq!(comparison.passed, 0);
        let [new, old] = &comparison.failures[..] else { panic!("{comparison:?}") };
        assert!(new.starts_with("walk/new: has no stored count; run"), "{new}");
        assert!(old.starts_with("walk/old: is stored, but no such stage is counted; run"), "{old}");
    }

    #[test]
    fn another_compiler_is_named_when_a_stage_has_moved() {
        let stored = Counts { compiler: "rustc 1.94.0".into(), ..counts(&[("walk/a", 1000.0)]) };
        assert_eq!(compare(&stored, &counts(&[("walk/a", 1001.0)])).notes, [""; 0]);
        let notes = compare(&stored, &counts(&[("walk/a", 1100.0)])).notes;
        assert_eq!(notes, ["stored with rustc 1.94.0, counted with rustc 1.95.0"]);
    }

    #[test]
    fn what_is_written_can_be_read() {
        let counts = counts(&[("walk/a", 1234.5), ("take/split", 82.3)]);
        assert_eq!(Counts::parse(&counts.text()), Ok(counts));
    }

    #[test]
    fn lines_that_are_no_counts_are_named() {
        for line in ["walk/a", "walk/a many", "walk/a -1", "walk/a 0", "walk/a inf", "walk/a 1 2"] {
            let error = Counts::parse(&format!("# counts\n{line}\n")).unwrap_err();
            assert!(error.contains("line 2") && error.contains(line), "{error}");
        }
        let twice = Counts::parse("walk/a 1\nwalk/a 2\n").unwrap_err();
        assert!(twice.contains("walk/a is there twice"), "{twice}");
    }

    #[test]
    fn summaries_are_read_and_their_gaps_named() {
        let summary = |id: &str, metrics: &str| {
            format!(
                r#"{{"function_name":"walk","id":"{id}","version":"7","profiles":[{{"tool":"Callgrind",
                "data":{{"parts":[],"total":{{"metrics":{metrics},"regressions":[]}}}}}}]}}"#
            )
        };
        let new = summary("a", r#"{"Ir":{"values":{"new":25600}}}"#);
        let both = summary("b", r#"{"Ir":{"values":{"new":51200,"old":1},"changes":{}}}"#);
        let stages = read_summaries(format!("{new}\n{both}\n").as_bytes()).unwrap();
        let packets = amount::PACKETS as f64;
        let wanted = [("walk/a".to_owned(), 25600.0 / packets), ("walk/b".to_owned(), 51200.0 / packets)];
        assert_eq!(stages, wanted.into());
        let error = read_summaries(summary("c", "{}").as_bytes()).unwrap_err();
        assert!(error.contains("walk/c") && error.contains("format \"7\""), "{error}");
        assert!(read_summaries(b"").unwrap_err().contains("no stage"));
        assert!(read_summaries(b"{").is_err());
    }
}
