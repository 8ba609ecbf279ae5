//! A thread that panics takes the process with it. Tried with this program itself.

use lasthop_log::Log;
use std::os::unix::process::ExitStatusExt;
use std::process::Command;

const PLAYS: &str = "LASTHOP_PANICS";

#[test]
fn a_thread_that_panics_takes_the_process_with_it() {
    if std::env::var_os(PLAYS).is_some() {
        let log = Log::new();
        log.end_with_panics();
        log.start(std::io::stderr()).unwrap();
        let thread = std::thread::Builder::new().name("port-x".into()).spawn(|| panic!("two\nlines")).unwrap();
        let _ = thread.join();
        println!("still here");
        return;
    }
    let mut again = Command::new(std::env::current_exe().unwrap());
    let out = again.args(["--nocapture"]).env(PLAYS, "1").output().unwrap();
    let (said, log) = (String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr));
    assert_eq!(out.status.signal(), Some(libc::SIGABRT), "{said}{log}");
    assert!(!said.contains("still here"), "{said}");
    let line = log.lines().find(|line| line.contains("thread port-x panicked at")).unwrap_or_default();
    assert!(line.contains("panics.rs") && line.contains("two lines"), "{log}");
}
