//! Newly built programs in a directory, and `lasthop run` that is to become one of them.

use crate::{Lasthop, PATIENCE, binary, proc, wait_for};
use serde_json::Value;
use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Output;

/// Programs that are found beside `lasthop`.
const BESIDE: [&str; 6] =
    ["lasthop-switch", "lasthop-control", "lasthop-session", "lasthop-uplink", "lasthop-device", "lasthop-cable"];

/// A directory with all programs, of which `lasthop` is another file.
pub fn release(dir: &Path, name: &str) -> PathBuf {
    let release = dir.join(name);
    std::fs::create_dir(&release).unwrap();
    for program in BESIDE {
        std::os::unix::fs::symlink(binary(program), release.join(program)).unwrap();
    }
    std::fs::copy(binary("lasthop"), release.join("lasthop")).unwrap();
    release
}

/// The same with a script in the place of `lasthop run`; what it is asked besides, the true program answers.
pub fn script(dir: &Path, name: &str, body: &str) -> PathBuf {
    let release = release(dir, name);
    let program = release.join("lasthop");
    std::fs::remove_file(&program).unwrap();
    let lasthop = binary("lasthop");
    let text = format!(
        "#!/bin/sh\nLASTHOP={}\nif [ \"$1\" = messages ]; then exec $LASTHOP messages; fi\n{body}\n",
        lasthop.display()
    );
    std::fs::write(&program, text).unwrap();
    std::fs::set_permissions(&program, PermissionsExt::from_mode(0o755)).unwrap();
    release
}

/// Its processes, by their names.
pub fn children(lasthop: &Lasthop) -> BTreeMap<u32, String> {
    proc::children(lasthop.pid()).into_iter().collect()
}

/// Asks that it become the program of this release.
pub fn upgrade_run(lasthop: &Lasthop, release: &Path) -> Output {
    lasthop.try_command(&["upgrade", "--only", "run", "--json", "--programs", release.to_str().unwrap()])
}

/// The process becomes the program of this release, and its children stay.
pub fn becomes(lasthop: &Lasthop, release: &Path) {
    // Of one that was killed something may be left.
    wait_for("one switch to be left", PATIENCE, || {
        children(lasthop).into_values().filter(|name| name == "lasthop-switch").count() == 1
    });
    let (before, out) = (children(lasthop), upgrade_run(lasthop, release));
    assert!(out.status.success(), "{}\n{}", String::from_utf8_lossy(&out.stderr), lasthop.log());
    let said: Value = serde_json::from_slice(&out.stdout).unwrap();
    let process = &said["processes"][0];
    assert_eq!((process["process"].as_str(), process["pid"].as_u64()), (Some("run"), Some(u64::from(lasthop.pid()))));
    let runs = std::fs::read_link(format!("/proc/{}/exe", lasthop.pid())).unwrap();
    assert_eq!(runs, release.join("lasthop"));
    let open = std::fs::read_dir(format!("/proc/{}/fd", lasthop.pid())).unwrap().flatten();
    let mut open = open.filter_map(|fd| std::fs::read_link(fd.path()).ok());
    assert!(!open.any(|file| file == runs), "what it was executed by is left open");
    assert_eq!(children(lasthop), before, "its children are others");
}

/// What is wrong; the process is the program that it was.
pub fn stays(lasthop: &Lasthop, release: &Path) -> String {
    let runs = || std::fs::read_link(format!("/proc/{}/exe", lasthop.pid())).unwrap();
    let (program, before) = (runs(), children(lasthop));
    let out = upgrade_run(lasthop, release);
    assert!(!out.status.success(), "{}", String::from_utf8_lossy(&out.stdout));
    assert_eq!((runs(), children(lasthop)), (program, before));
    String::from_utf8_lossy(&out.stderr).into_owned()
}
