//! How many tests of one program run at once. libtest starts as many as there are processors. Tests of processes mostly wait for what others do, so more of
//! them fit in where there are few; but not of those that measure times or shares, or want processors that nobody else uses.

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

/// The folder of the package whose tests start processes, in which cargo runs them.
const FOLDER: &str = "tests/process";
/// At least so many at once.
const AT_ONCE: usize = 4;
/// Its programs that have no more beside them than there are processors.
const MEASURED: &[&str] = &[
    "bench_compare",
    "cpu_time",
    "device_shares",
    "helpers",
    "hostile_load",
    "load",
    "load_attack",
    "load_faults",
    "load_program",
    "max_cpu",
    "on_call",
    "quota",
    "scheduling",
    "shares",
    "turnover",
    "uplink_nice",
    "watchdog",
];

/// What cargo is told to start each program of tests by [`run`].
pub fn arguments() -> Result<[String; 2], String> {
    let own = std::env::current_exe().map_err(|e| format!("this program's own path: {e}"))?;
    Ok(["--config".into(), format!("target.'cfg(all())'.runner = [{:?}, \"program\"]", own.display().to_string())])
}

/// How many at once of this program, which cargo has built, in this folder; nothing: as many as libtest has.
fn at_once(folder: &Path, program: &Path) -> Option<usize> {
    // Behind the name is what tells builds apart.
    let name = program.file_stem()?.to_str()?.rsplit_once('-')?.0;
    let processors = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    (folder.ends_with(FOLDER) && !MEASURED.contains(&name)).then(|| processors.max(AT_ONCE))
}

/// Becomes a program of tests; returns why not.
pub fn run(program: &Path, arguments: &[OsString]) -> String {
    const THREADS: &str = "RUST_TEST_THREADS";
    let folder = std::env::current_dir().unwrap_or_default();
    let mut command = Command::new(program);
    command.args(arguments);
    if let Some(count) = at_once(&folder, program).filter(|_| std::env::var_os(THREADS).is_none()) {
        command.env(THREADS, count.to_string());
    }
    format!("{}: {}", program.display(), command.exec())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn those_that_wait_are_several_and_those_that_measure_are_not() {
        let at_once = |folder: &str, program: &str| at_once(Path::new(folder), Path::new(program));
        assert!(at_once("/l/tests/process", "/l/target/debug/deps/doctor-396168718789adc5") >= Some(AT_ONCE));
        assert_eq!(at_once("/l/tests/process", "/l/target/debug/deps/load_attack-396168718789adc5"), None);
        assert_eq!(at_once("/l/crates/management/ovs", "/l/target/debug/deps/doctor-396168718789adc5"), None);
    }

    #[test]
    fn what_measures_is_there() {
        for name in MEASURED {
            let file = crate::root().join(FOLDER).join("tests").join(format!("{name}.rs"));
            assert!(file.exists(), "{}", file.display());
        }
    }
}
