//! Chores of the repository: `cargo xtask walls`, `counts`, `deb`, `rpm` and `test`.

mod aarch64;
mod counts;
mod coverage;
mod deb;
mod lines;
mod links;
mod prescribed;
mod rpm;
mod second;
mod several;
mod sizes;
mod suite;
mod walls;

use clap::{Parser, Subcommand};
use lines::Count;
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

#[derive(Parser)]
#[command(about = "Chores of this repository")]
struct Arguments {
    #[command(subcommand)]
    chore: Chore,
}

#[derive(Subcommand)]
enum Chore {
    /// Check who may depend on whom, and count the lines that lasthop-switch trusts
    Walls,
    /// Compare the instructions of the packet path's stages with the stored counts (needs valgrind)
    Counts {
        /// Store what is counted now
        #[arg(long)]
        update: bool,
    },
    /// Build a package for Debian, in target/deb
    Deb {
        /// Where programs are that were built already
        #[arg(long, value_name = "DIR")]
        programs: Option<PathBuf>,
    },
    /// Build a package for distributions with rpm, in target/rpm
    Rpm {
        /// Where programs are that were built already
        #[arg(long, value_name = "DIR")]
        programs: Option<PathBuf>,
    },
    /// Run all tests and close with one line that adds them up
    Test {
        /// Only the tests that need neither root nor virtual machines
        #[arg(long)]
        quick: bool,
        /// Those that take minutes as well: models of threads with more interruptions, and the unit tests of the data plane for
        /// aarch64 under qemu-user
        #[arg(long, conflicts_with = "quick")]
        long: bool,
        /// Where to write the closing line as well
        #[arg(long)]
        summary: Option<PathBuf>,
    },
    /// Run one program of tests, as cargo does for `test`
    #[command(hide = true, disable_help_flag = true)]
    Program {
        /// Its file
        program: PathBuf,
        /// Its arguments
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<OsString>,
    },
}

fn main() -> ExitCode {
    let outcome = match Arguments::parse().chore {
        Chore::Walls => check_walls(),
        Chore::Counts { update } => counts::run(update),
        Chore::Deb { programs } => deb::run(programs.as_deref()),
        Chore::Rpm { programs } => rpm::run(programs.as_deref()),
        Chore::Test { quick, long, summary } => suite::run(quick, long, summary.as_deref()),
        Chore::Program { program, arguments } => Err(several::run(&program, &arguments)),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("{why}");
            ExitCode::FAILURE
        }
    }
}

/// The repository's root.
fn root() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
}

/// Runs cargo in the repository and returns its stdout.
fn cargo(arguments: &[&str]) -> Result<Vec<u8>, String> {
    let out = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
        .args(arguments)
        .current_dir(root())
        .output()
        .map_err(|e| format!("cargo: {e}"))?;
    if out.status.success() {
        return Ok(out.stdout);
    }
    Err(format!("cargo {}: {}", arguments.join(" "), String::from_utf8_lossy(&out.stderr)))
}

/// The repository's files whose names match, relative to its root.
fn files(pattern: &str) -> Result<Vec<String>, String> {
    let files =
        Command::new("git").args(["ls-files", "-co", "--exclude-standard", pattern]).current_dir(root()).output();
    let files = files.map_err(|e| format!("git: {e}"))?;
    let all = String::from_utf8_lossy(&files.stdout).into_owned();
    Ok(all.lines().filter(|path| root().join(path).exists()).map(String::from).collect())
}

/// Files and functions that are too long.
fn check_sizes() -> Result<Vec<String>, String> {
    sizes::too_long(root(), files("*.rs")?.iter().map(String::as_str))
}

/// Crates of others in the switch, and their lines as far as they can be told: without limit, to be looked at.
fn print_foreign(graph: &walls::Graph, features: &BTreeMap<String, BTreeSet<String>>) {
    // What is built for the switch alone; the graph knows every feature that anything in the workspace turns on.
    let foreign = graph.foreign("lasthop-switch").into_iter().filter(|(name, _)| features.contains_key(name));
    let mut all: Vec<(usize, String)> =
        foreign.map(|(name, folder)| (lines::of_folder(&folder.join("src")).unwrap_or_default(), name)).collect();
    all.sort_by(|a, b| b.cmp(a));
    let lines: usize = all.iter().map(|(lines, _)| lines).sum();
    let named: Vec<String> = all.iter().map(|(lines, name)| format!("{name} {lines}")).collect();
    println!("{} crates of others in it, with all their features {lines} lines: {}", all.len(), named.join(", "));
}

/// The texts of the repository's files whose names match, by their paths.
fn texts(pattern: &str) -> Result<BTreeMap<PathBuf, String>, String> {
    let read = |path: String| match std::fs::read_to_string(root().join(&path)) {
        Ok(text) => Ok((path.into(), text)),
        Err(e) => Err(format!("{path}: {e}")),
    };
    files(pattern)?.into_iter().map(read).collect()
}

/// Links of documents, and names of documents in comments, that lead nowhere.
fn check_links() -> Result<Vec<String>, String> {
    let exists = |path: &Path| root().join(path).exists();
    let mut broken = links::broken(&texts("*.md")?, exists);
    broken.extend(links::broken_in_comments(&texts("*.rs")?, exists));
    Ok(broken)
}

/// Counts the lines of each crate that the switch trusts and of all, and prints both in the repository's format and in the prescribed one.
fn count_trusted(
    trusted: &BTreeMap<String, PathBuf>,
    features: &BTreeMap<String, BTreeSet<String>>,
) -> Result<Count, String> {
    let (mut total, mut total_prescribed) = (Count::default(), Count::default());
    println!("lines that lasthop-switch trusts: its own crates, without comments and blank lines");
    println!("(prescribed: the linked ones, formatted 100 columns wide and with rustfmt's default heuristics)");
    println!("  {:20} {:>6} {:>10} {:>8} {:>9} {:>7}", "", "linked", "prescribed", "tests", "left out", "unsafe");
    let line = |name: &str, count: &Count, prescribed: &Count| {
        let Count { linked, tests, left_out, with_unsafe } = count;
        format!("  {name:20} {linked:6} {:10} {tests:8} {left_out:9} {with_unsafe:7}", prescribed.linked)
    };
    let none = BTreeSet::new();
    for (name, folder) in trusted {
        let (src, features) = (folder.join("src"), features.get(name).unwrap_or(&none));
        let (count, prescribed) = (lines::count(&src, features)?, prescribed::count(name, &src, features)?);
        println!("{}", line(name, &count, &prescribed));
        total.add(&count);
        total_prescribed.add(&prescribed);
    }
    println!("{}   budget of linked lines {}", line("all", &total, &total_prescribed), walls::LINE_BUDGET);
    Ok(total)
}

fn check_walls() -> Result<(), String> {
    let metadata = cargo(&["metadata", "--format-version", "1"])?;
    let metadata = serde_json::from_slice(&metadata).map_err(|e| format!("cargo metadata: {e}"))?;
    let graph = walls::Graph::from_metadata(&metadata)?;
    let trusted = graph.trusted("lasthop-switch")?;
    // Features as they are when the switch is built alone, as it is for a package.
    let tree = ["tree", "--package", "lasthop-switch", "--edges", "normal", "--prefix", "none", "--format", "{p}\t{f}"];
    let features = walls::features(&String::from_utf8_lossy(&cargo(&tree)?));
    let total = count_trusted(&trusted, &features)?;
    print_foreign(&graph, &features);
    let mut wrong: Vec<String> = graph.breaches();
    if total.linked > walls::LINE_BUDGET {
        wrong.push(format!("{} lines of code are trusted, {} are allowed", total.linked, walls::LINE_BUDGET));
    }
    wrong.extend(check_sizes()?);
    wrong.extend(check_links()?);
    wrong.extend(texts("docs/coverage.md")?.values().flat_map(|text| coverage::wrong(text)));
    if wrong.is_empty() {
        println!(
            "walls: no crate depends on what it must not see, no file and no function is too long, no link leads nowhere, and \
             coverage is counted right"
        );
        return Ok(());
    }
    Err(wrong.iter().map(|w| format!("walls: {w}")).collect::<Vec<_>>().join("\n"))
}
