//! A run's tables in a Markdown file, between two marks, in place of the last run's.

use crate::results::Results;
use crate::table;
use lasthop_harness::stop::{Outcome, failed};
use std::path::Path;

const BEGIN: &str = "<!-- lasthop-bench: begin -->";
const END: &str = "<!-- lasthop-bench: end -->";

/// An error when [`page`] would find no marks in `file`; to be asked before a long run.
pub fn check(file: &Path) -> Outcome<()> {
    prepare(file, "").map(drop)
}

/// What `file` says with the tables of this run between its marks; the drawings are linked in the directory beside it.
pub fn page(results: &Results, file: &Path) -> Outcome<String> {
    let drawings = file.file_stem().unwrap_or_default().to_string_lossy();
    prepare(file, &render(results, &drawings))
}

fn prepare(file: &Path, tables: &str) -> Outcome<String> {
    let name = file.display();
    let old = std::fs::read_to_string(file).map_err(|e| failed(format!("cannot read {name}: {e}")))?;
    replace(&old, tables)
        .ok_or_else(|| failed(format!("{name} has no lines {BEGIN} and {END}, between which the tables would go")))
}

fn replace(old: &str, tables: &str) -> Option<String> {
    let (before, rest) = old.split_once(BEGIN)?;
    let (_, after) = rest.split_once(END)?;
    Some(format!("{before}{BEGIN}\n{tables}\n{END}{after}"))
}

fn render(results: &Results, drawings: &str) -> String {
    let m = &results.machine;
    let mut text = format!(
        "{}, {} CPUs, Linux {}; {}. Guests on CPU {}, switch on CPU {}. Best of {} rounds of {} s, or of those that \
         the line below a table names; load average before the \
         run {}; {:.1} % of the processor time stolen by the hypervisor.\n",
        m.processor,
        m.cpus,
        m.kernel,
        m.programs.join("; "),
        results.cpus.guests,
        results.cpus.switch,
        results.rounds,
        results.seconds,
        m.load_before,
        m.stolen_percent,
    );
    if let Some(targets) = crate::target::render(results) {
        text += &format!("\n### Targets\n\n{targets}");
    }
    for scenario in &results.scenarios {
        text += &format!("\n### {}", table::render(scenario));
        if scenario.contenders.iter().any(|c| !c.rounds.is_empty()) {
            text += &format!("\n![{}]({drawings}/{}.svg)\n", scenario.title, scenario.name);
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpus::Cpus;
    use crate::machine::Machine;

    #[test]
    fn tables_replace_those_of_the_last_run() {
        let results = Results {
            version: "0",
            machine: Machine::look(),
            cpus: Cpus { guests: 0, switch: 1 },
            rounds: 5,
            seconds: 3,
            scenarios: vec![crate::results::tests::sample()],
        };
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("performance.md");
        std::fs::write(&file, format!("# Method\n{BEGIN}\nold\n{END}\n# Log\n")).unwrap();
        for _ in 0..2 {
            let text = page(&results, &file).unwrap();
            std::fs::write(&file, &text).unwrap();
            assert!(text.starts_with("# Method\n") && text.ends_with("\n# Log\n") && !text.contains("old"), "{text}");
            assert_eq!(text.matches("### loop: a loop\n").count(), 1);
            assert!(text.contains("| lasthop |") && text.contains("](performance/loop.svg)"), "{text}");
        }
    }

    #[test]
    fn a_file_without_marks_is_left_alone() {
        assert_eq!(replace("text", "tables"), None);
        assert_eq!(replace(&format!("{END}{BEGIN}"), "tables"), None);
    }
}
