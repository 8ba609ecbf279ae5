//! A second try for tests of real processes and machines: they share this machine with each other and with whatever else runs, and some
//! of a thousand may be late once. What fails when run once more, alone, has failed; what passes is named, as unsteady, for somebody to
//! mend. Tests of plain code have no second try, and the long suite has none.

/// Packages whose tests start processes.
const PACKAGES: [&str; 3] = ["lasthop", "lasthop-tests-process", "lasthop-tests-vm"];
/// More that fail at once are no chance.
const MOST: usize = 5;

/// What has failed of one call of cargo.
#[derive(Debug, Default)]
pub struct Failed {
    /// Arguments by which `cargo test` runs each program again.
    programs: Vec<Vec<String>>,
    tests: Vec<String>,
}

impl Failed {
    /// A line such as `test a::b ... FAILED` of a test program.
    pub fn add_result(&mut self, line: &str) {
        if let Some(test) = line.strip_prefix("test ").and_then(|rest| rest.strip_suffix(" ... FAILED")) {
            self.tests.push(test.to_owned());
        }
    }

    /// A line in cargo's list of programs that failed, such as `` `-p lasthop --test a` ``.
    pub fn add_program(&mut self, line: &str) {
        if let Some(words) = line.trim().strip_prefix('`').and_then(|rest| rest.strip_suffix('`'))
            && words.starts_with("-p ")
        {
            self.programs.push(words.split(' ').map(str::to_owned).collect());
        }
    }

    /// Arguments of `cargo` for each program, and names of tests, if those have a second try. A program that has ended without saying which
    /// test failed has none.
    pub fn again(&self) -> Option<(Vec<Vec<&str>>, &[String])> {
        let ours = |program: &&Vec<String>| program.get(1).is_some_and(|package| PACKAGES.contains(&package.as_str()));
        let all = !self.tests.is_empty() && self.tests.len() >= self.programs.len() && self.tests.len() <= MOST;
        if !all || self.programs.is_empty() || !self.programs.iter().all(|program| ours(&program)) {
            return None;
        }
        let words = self
            .programs
            .iter()
            .map(|program| ["test"].into_iter().chain(program.iter().map(String::as_str)).collect());
        Some((words.collect(), &self.tests))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failed(results: &[&str], programs: &[&str]) -> Failed {
        let mut failed = Failed::default();
        results.iter().for_each(|line| failed.add_result(line));
        programs.iter().for_each(|line| failed.add_program(line));
        failed
    }

    #[test]
    fn tests_of_processes_are_tried_again() {
        let results = ["test a ... ok", "test s::b ... FAILED", "test c ... ignored", "test d ... FAILED"];
        let programs =
            ["error: 2 targets failed:", "    `-p lasthop-tests-process --test reload`", "    `-p lasthop --test s`"];
        let failed = failed(&results, &programs);
        let (programs, tests) = failed.again().unwrap();
        assert_eq!(
            programs,
            [["test", "-p", "lasthop-tests-process", "--test", "reload"], ["test", "-p", "lasthop", "--test", "s"]]
        );
        assert_eq!(tests, ["s::b", "d"]);
    }

    #[test]
    fn other_failures_are_failures() {
        let ours = "    `-p lasthop-tests-process --test reload`";
        assert!(failed(&["test a ... FAILED"], &[ours]).again().is_some());
        // Plain code; a program that broke off; a test that does not compile; many at once.
        assert!(failed(&["test a ... FAILED"], &[ours, "    `-p lasthop-guestmem --lib`"]).again().is_none());
        assert!(failed(&["test a ... FAILED"], &[ours, "    `-p lasthop --test s`"]).again().is_none());
        assert!(failed(&[], &[ours]).again().is_none());
        assert!(failed(&["test a ... FAILED"; MOST + 1], &[ours]).again().is_none());
        assert!(failed(&["test a ... FAILED"], &[]).again().is_none());
    }
}
