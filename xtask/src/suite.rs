//! `cargo test` over the whole workspace and the instruction counts, with one closing line that adds up what cargo prints
//! per test program, and each counted stage.

use crate::counts::{self, Comparison};
use crate::second::Failed;
use crate::{aarch64, root, several};
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// The package whose tests boot virtual machines.
const VM_TESTS: &str = "lasthop-tests-vm";
/// The package of models of threads.
const MODELS: &str = "lasthop-tests-models";
/// By this the tests with virtual machines have their ports on a device, and what it is told: all that a device can have.
const ON_DEVICE: (&str, &str) = ("LASTHOP_TEST_DEVICE", "walk=on,dma=on");
/// Programs of tests with guests of our own that pass there as well.
const ALSO_ON_DEVICE: &[&str] =
    &["acl", "congestion", "connections", "flows", "forwarding", "hostile_frames", "hostile_rings", "mirrors", "nat"];
/// Packages, and test programs of each (none: all of it), whose ignored tests are the long suite. Of what is not named here, tests are
/// ignored that measure, and are started by hand.
const LONG: &[(&str, &[&str])] = &[
    (MODELS, &[]),
    (
        "lasthop-tests-process",
        &[
            "bench_compare",
            "console",
            "container_image",
            "control_rings",
            "device_shares",
            "idle_ports",
            "kernel_conntrack",
            "libvirt",
            "max_cpu",
            "migration",
            "near",
            "open_vswitch",
            "open_vswitch_controllers",
            "open_vswitch_links",
            "open_vswitch_suite",
            "package",
            "queue_flood",
            "shares",
            "systemd",
            "uplink_nice",
            "upgrade_hundred",
        ],
    ),
    (VM_TESTS, &[]),
];

/// What one or several test programs came to.
#[derive(Debug, Default, PartialEq, Eq)]
struct Sum {
    passed: usize,
    failed: usize,
    skipped: usize,
}

impl Sum {
    /// Adds what a line such as `test result: ok. 3 passed; 0 failed; 1 ignored; …` says; other lines count nothing.
    fn add_line(&mut self, line: &str) {
        let Some(rest) = line.trim_start().strip_prefix("test result: ") else { return };
        for part in rest.split([';', '.']) {
            let mut words = part.split_ascii_whitespace();
            let (Some(number), Some(what)) = (words.next().and_then(|n| n.parse::<usize>().ok()), words.next()) else {
                continue;
            };
            match what {
                "passed" => self.passed += number,
                "failed" => self.failed += number,
                "ignored" => self.skipped += number,
                _ => {}
            }
        }
    }

    /// Adds what a comparison of instruction counts came to, and prints it; false unless all stages passed.
    fn add_counts(&mut self, comparison: Result<Comparison, String>) -> bool {
        let failed = match comparison {
            Ok(comparison) => {
                comparison.print();
                self.passed += comparison.passed;
                comparison.failures.len()
            }
            Err(why) => {
                println!("{why}");
                1
            }
        };
        self.failed += failed;
        failed == 0
    }

    fn line(&self) -> String {
        let Self { passed, failed, skipped } = self;
        match skipped {
            0 => format!("{passed} passed, {failed} failed"),
            n => format!("{passed} passed, {failed} failed, {n} skipped"),
        }
    }
}

/// Runs everything, first what is quick, then (unless `quick`) the instruction counts, whether the data plane compiles for
/// aarch64, and the tests with virtual machines, one at a time; if `long`, what takes minutes besides, and tests of
/// guests a second time, on a device. The closing line goes to stdout, last, and to the file `summary`.
pub fn run(quick: bool, long: bool, summary: Option<&Path>) -> Result<(), String> {
    let mut sum = Sum::default();
    // Cargo's own failure (a test that does not compile) has no result line and must fail the run all the same.
    let [config, runner] = several::arguments()?;
    let all = ["test", &config, &runner, "--workspace", "--exclude", VM_TESTS, "--no-fail-fast"];
    let mut broken = !twice(&all, &[], &mut sum)?;
    if !quick {
        broken |= !count(&mut sum);
        broken |= !for_aarch64(long, &mut sum);
        broken |= !twice(&["test", "--package", VM_TESTS, "--no-fail-fast"], &["--test-threads=1"], &mut sum)?;
    }
    if long {
        for (package, programs) in LONG {
            let mut arguments = vec!["test", "--package", package, "--no-fail-fast"];
            arguments.extend(programs.iter().flat_map(|program| ["--test", program]));
            // Models take processors, all there are, and nothing else; the others what may be there once.
            let one_at_a_time = if *package == MODELS { None } else { Some("--test-threads=1") };
            let words: Vec<_> = ["--ignored"].into_iter().chain(one_at_a_time).collect();
            broken |= !cargo(&arguments, &words, &mut sum)?;
        }
        broken |= !on_device(&mut sum)?;
    }
    if broken && sum.failed == 0 {
        // Something failed that no test counted.
        sum.failed = 1;
    }
    if let Some(file) = summary {
        std::fs::write(file, sum.line() + "\n").map_err(|e| format!("{}: {e}", file.display()))?;
    }
    println!("{}", sum.line());
    if broken { Err("some tests failed; their output is above".into()) } else { Ok(()) }
}

/// The tests with virtual machines, all of them, and some with guests of our own, with their ports on a device. False when one failed.
fn on_device(sum: &mut Sum) -> Result<bool, String> {
    let (name, options) = ON_DEVICE;
    println!("once more, with {name}={options}");
    let mut run = |arguments: &[&str], words: &[&str]| {
        cargo_with(arguments, words, &[(name, options.into())], sum, &mut Failed::default())
    };
    let mut played = vec!["test", "--package", "lasthop-tests-process", "--no-fail-fast"];
    played.extend(ALSO_ON_DEVICE.iter().flat_map(|program| ["--test", program]));
    let vms = ["test", "--package", VM_TESTS, "--no-fail-fast"];
    Ok(run(&played, &["--test-threads=1"])? & run(&vms, &["--include-ignored", "--test-threads=1"])?)
}

/// Compares instruction counts, each stage a test. False when one failed or none could be counted.
fn count(sum: &mut Sum) -> bool {
    let started = Instant::now();
    let passed = sum.add_counts(counts::compare_with_stored());
    println!("cargo xtask counts: {:.0} s", started.elapsed().as_secs_f32());
    passed
}

/// Compiles the data plane for aarch64, which is a test, and if `long` runs its unit tests. False when something failed.
fn for_aarch64(long: bool, sum: &mut Sum) -> bool {
    let check = || {
        let arguments = aarch64::check()?;
        cargo(&arguments.iter().map(String::as_str).collect::<Vec<_>>(), &[], &mut Sum::default())
    };
    let compiles = check();
    match &compiles {
        Ok(true) => sum.passed += 1,
        Ok(false) => sum.failed += 1,
        // Without the target's library, which not every registry has, there is nothing to compile with: said, and skipped.
        Err(why) => {
            println!("{why}");
            sum.skipped += 1;
        }
    }
    if !long {
        return !matches!(compiles, Ok(false));
    }
    let test = aarch64::test().and_then(|call| {
        cargo_with(
            &call.arguments.iter().map(String::as_str).collect::<Vec<_>>(),
            &aarch64::FOR_TESTS,
            &call.environment,
            sum,
            &mut Failed::default(),
        )
    });
    matches!(compiles, Ok(true))
        & test.unwrap_or_else(|why| {
            println!("{why}");
            sum.failed += 1;
            false
        })
}

/// Runs cargo, lets its output through without the names of tests that passed, and adds the results. False when it failed.
fn cargo(arguments: &[&str], for_tests: &[&str], sum: &mut Sum) -> Result<bool, String> {
    cargo_with(arguments, for_tests, &[], sum, &mut Failed::default())
}

/// The same, with a second try, alone, for tests that have one. What passes then has passed, and is named.
fn twice(arguments: &[&str], for_tests: &[&str], sum: &mut Sum) -> Result<bool, String> {
    let mut failed = Failed::default();
    if cargo_with(arguments, for_tests, &[], sum, &mut failed)? {
        return Ok(true);
    }
    let Some((programs, tests)) = failed.again() else { return Ok(false) };
    println!("once more, alone: {}", tests.join(", "));
    let words: Vec<_> = ["--exact", "--test-threads=1"].into_iter().chain(tests.iter().map(String::as_str)).collect();
    let (mut again, mut all) = (Sum::default(), true);
    for arguments in programs {
        all &= cargo(&arguments, &words, &mut again)?;
    }
    if !all || again.passed < tests.len() {
        return Ok(false);
    }
    println!("unsteady: passed only when run once more, alone: {}", tests.join(", "));
    sum.failed -= tests.len().min(sum.failed);
    sum.passed += tests.len();
    Ok(true)
}

/// The same, in an environment. Without words for tests none are said to follow: not all commands take them.
fn cargo_with(
    arguments: &[&str],
    for_tests: &[&str],
    environment: &[(&str, String)],
    sum: &mut Sum,
    failed: &mut Failed,
) -> Result<bool, String> {
    let started = Instant::now();
    let mut child = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
        .args(arguments)
        .args(for_tests.first().map(|_| "--"))
        .args(for_tests)
        .envs(environment.iter().map(|(name, value)| (*name, value)))
        .current_dir(root())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|e| format!("cargo: {e}"))?;
    let (tell, errors) = std::sync::mpsc::channel();
    if let Some(stderr) = child.stderr.take() {
        std::thread::spawn(move || {
            for line in BufReader::new(stderr).lines().map_while(Result::ok) {
                eprintln!("{line}");
                let _ = tell.send(line);
            }
        });
    }
    if let Some(stdout) = child.stdout.take() {
        for line in BufReader::new(stdout).lines().map_while(Result::ok) {
            sum.add_line(&line);
            failed.add_result(&line);
            let noise =
                line.is_empty() || line.starts_with("running ") || (line.starts_with("test ") && line.ends_with(" ok"));
            // Slow tests are worth a line of progress each.
            let is_vm_test = !for_tests.is_empty() && !line.is_empty();
            if !noise || is_vm_test {
                println!("{line}");
            }
        }
    }
    let status = child.wait().map_err(|e| format!("cargo: {e}"))?;
    // Until the end, or as long as something that a test left behind holds it open.
    while let Ok(line) = errors.recv_timeout(Duration::from_secs(1)) {
        failed.add_program(&line);
    }
    println!("cargo {}: {:.0} s", arguments.join(" "), started.elapsed().as_secs_f32());
    Ok(status.success())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every test that says so is run by `--long`.
    #[test]
    fn what_is_ignored_as_long_is_in_the_long_suite() {
        let mut says = 0;
        for (folder, package) in [
            ("tests/models/tests", MODELS),
            ("tests/process/tests", "lasthop-tests-process"),
            ("tests/vm/tests", VM_TESTS),
        ] {
            let (_, programs) = LONG.iter().find(|(name, _)| *name == package).unwrap();
            let mut folders = vec![root().join(folder)];
            while let Some(folder) = folders.pop() {
                for entry in std::fs::read_dir(&folder).unwrap() {
                    let path = entry.unwrap().path();
                    if path.is_dir() {
                        folders.push(path);
                        continue;
                    }
                    let text = std::fs::read_to_string(&path).unwrap_or_default();
                    let ignored = text.lines().map(str::trim).filter(|line| line.starts_with("#[ignore"));
                    let long = ignored.filter(|line| line.contains("--long")).count();
                    says += long;
                    let inside =
                        path.strip_prefix(root().join(format!("tests/{}/tests", package.rsplit('-').next().unwrap())));
                    let program =
                        inside.unwrap().iter().next().unwrap().to_str().unwrap().trim_end_matches(".rs").to_owned();
                    let runs = programs.is_empty() || programs.contains(&program.as_str());
                    assert!(long == 0 || runs, "{} says that --long runs it", path.display());
                }
            }
        }
        assert!(says > 10, "{says}");
    }

    #[test]
    fn result_lines_add_up() {
        let mut sum = Sum::default();
        for line in [
            "running 5 tests",
            "test result: ok. 5 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.05s",
            "test a::b ... ok",
            "test result: FAILED. 3 passed; 2 failed; 0 ignored; 0 measured; 7 filtered out; finished in 21.28s",
        ] {
            sum.add_line(line);
        }
        assert_eq!(sum, Sum { passed: 8, failed: 2, skipped: 1 });
        assert_eq!(sum.line(), "8 passed, 2 failed, 1 skipped");
    }

    #[test]
    fn each_counted_stage_is_a_test_and_a_failure_to_count_is_one_that_failed() {
        let mut sum = Sum::default();
        assert!(sum.add_counts(Ok(Comparison { passed: 3, ..Comparison::default() })));
        let failures = vec!["walk/a".into(), "walk/b".into()];
        assert!(!sum.add_counts(Ok(Comparison { passed: 1, failures, ..Comparison::default() })));
        assert!(!sum.add_counts(Err("valgrind is missing".into())));
        assert_eq!(sum, Sum { passed: 4, failed: 3, skipped: 0 });
    }
}
