//! Giving up rights, once the device is open.

use landlock::{ABI, Access, AccessFs, AccessNet, RulesetAttr, RulesetStatus, Scope};
use landlock::{CompatLevel, Compatible, Ruleset, RulesetCreatedAttr};
use lasthop_sys::sandbox::{Program, SandboxError};

/// Leaves this process its memory and its device. Call it from the only thread. What could not be done is logged; `again`: a
/// process before this one has said so already.
pub fn confine(device: &str, again: bool) -> Result<(), SandboxError> {
    let mut report = Program::UPLINK.enter_sandbox()?;
    match no_files() {
        Ok(()) => report.done.push("no files (Landlock)"),
        Err(why) => report.left_out.push(format!("no files (Landlock: {why})")),
    }
    tracing::debug!("sandbox: {report}");
    for left_out in report.left_out.iter().filter(|_| !again) {
        tracing::warn!(device, "sandbox: without {left_out}");
    }
    Ok(())
}

/// No path, no TCP port, no abstract socket of others: whatever of it the kernel's Landlock knows. A second wall behind the
/// system call filter, for starts without root, which cannot have an empty root directory.
fn no_files() -> Result<(), String> {
    let abi = ABI::V6;
    let ruleset = Ruleset::default().set_compatibility(CompatLevel::BestEffort);
    let ruleset = ruleset.handle_access(AccessFs::from_all(abi)).map_err(|e| e.to_string())?;
    let ruleset = ruleset.handle_access(AccessNet::from_all(abi)).map_err(|e| e.to_string())?;
    let ruleset = ruleset.scope(Scope::from_all(abi)).map_err(|e| e.to_string())?;
    let created = ruleset.create().map_err(|e| e.to_string())?;
    // "No new privileges" is set already, and the filter knows no way to set it again.
    let status = created.no_new_privs(false).restrict_self().map_err(|e| e.to_string())?;
    match status.ruleset {
        RulesetStatus::NotEnforced => Err("this kernel has none".into()),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{File, OpenOptions, read_dir};
    use std::io::{ErrorKind, Read};

    /// Landlock holds for a thread, so one that ends leaves the others as they were. The system call filter, which comes before
    /// it in an uplink and kills for the same, is left out here.
    #[test]
    fn landlock_alone_keeps_every_file_closed() {
        let mut open = File::open("/proc/self/status").unwrap();
        let confined = std::thread::spawn(move || {
            rustix::thread::set_no_new_privs(true).unwrap();
            if let Err(why) = no_files() {
                println!("skipped: Landlock: {why}");
                return;
            }
            let own = std::env::temp_dir().join(format!("lasthop-landlock-{}", std::process::id()));
            let tries = [
                ("read a file", File::open("/etc/passwd").map(drop)),
                ("read memory of others", File::open("/proc/1/mem").map(drop)),
                ("write a file", OpenOptions::new().append(true).open("/etc/passwd").map(drop)),
                ("make a file", File::create(&own).map(drop)),
                ("make a link", std::os::unix::fs::symlink("/etc/passwd", &own)),
                ("list a directory", read_dir("/").map(drop)),
                ("open a device", File::open("/dev/net/tun").map(drop)),
            ];
            for (what, result) in tries {
                assert_eq!(result.map_err(|e| e.kind()), Err(ErrorKind::PermissionDenied), "{what}");
            }
            // What was open before stays.
            assert!(open.read(&mut [0; 16]).is_ok_and(|n| n > 0));
        });
        confined.join().unwrap();
        assert!(File::open("/etc/passwd").is_ok(), "the other threads are as they were");
    }
}
