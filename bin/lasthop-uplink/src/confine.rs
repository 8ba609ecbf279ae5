//! Giving up rights, once the device is open.

use landlock::{ABI, Access, AccessFs, AccessNet, RulesetAttr, RulesetStatus, Scope};
use landlock::{CompatLevel, Compatible, Ruleset, RulesetCreatedAttr};
use lasthop_sys::sandbox::{Program, SandboxError};

/// Leaves this process its memory and its device. Call it from the only thread. What could not be done is logged.
pub fn confine() -> Result<(), SandboxError> {
    let mut report = Program::UPLINK.enter_sandbox()?;
    match no_files() {
        Ok(()) => report.done.push("no files (Landlock)"),
        Err(why) => report.left_out.push(format!("no files (Landlock: {why})")),
    }
    tracing::debug!("sandbox: {report}");
    for left_out in &report.left_out {
        tracing::debug!("sandbox: without {left_out}");
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
