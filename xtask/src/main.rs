//! Chores of the repository: `cargo xtask walls` and `cargo xtask test`.

mod lines;
mod suite;
mod walls;

use clap::{Parser, Subcommand};
use std::path::Path;
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
    /// Run all tests and close with one line that adds them up
    Test {
        /// Only the tests that need neither root nor virtual machines
        #[arg(long)]
        quick: bool,
        /// Where to write the closing line as well
        #[arg(long)]
        summary: Option<std::path::PathBuf>,
    },
}

fn main() -> ExitCode {
    let outcome = match Arguments::parse().chore {
        Chore::Walls => check_walls(),
        Chore::Test { quick, summary } => suite::run(quick, summary.as_deref()),
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

fn check_walls() -> Result<(), String> {
    let out = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
        .args(["metadata", "--format-version", "1"])
        .current_dir(root())
        .output()
        .map_err(|e| format!("cargo metadata: {e}"))?;
    if !out.status.success() {
        return Err(format!("cargo metadata: {}", String::from_utf8_lossy(&out.stderr)));
    }
    let metadata = serde_json::from_slice(&out.stdout).map_err(|e| format!("cargo metadata: {e}"))?;
    let graph = walls::Graph::from_metadata(&metadata)?;
    let breaches = graph.breaches();
    let trusted = graph.trusted("lasthop-switch")?;
    let mut total = lines::Count::default();
    println!(
        "lines that lasthop-switch trusts (its own crates, comments included; tests in files of their own apart):"
    );
    for (name, folder) in &trusted {
        let count = lines::count(&folder.join("src"))?;
        println!("  {name:20} {:6} {:>8}", count.code, format!("+{}", count.tests));
        total.add(&count);
    }
    println!("  {:20} {:6} {:>8}   budget {}", "all", total.code, format!("+{}", total.tests), walls::LINE_BUDGET);
    if total.code > walls::LINE_BUDGET {
        return Err(format!("walls: {} lines are trusted, {} are allowed", total.code, walls::LINE_BUDGET));
    }
    if breaches.is_empty() {
        println!("walls: no crate depends on what it must not see");
        return Ok(());
    }
    Err(breaches.iter().map(|b| format!("walls: {b}")).collect::<Vec<_>>().join("\n"))
}
