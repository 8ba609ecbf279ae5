//! Ports that devices have: a command of the host's that names one is about that one, where the host has none of this name.

use super::{dir_of, found};
use crate::client::{CliError, Instance};
use crate::list::all_ports;
use std::path::Path;

/// The lasthop that has this port: of the host, or of the one of its devices that has one of this name while the host has none; and that device's name. The host's where nobody has it.
///
/// # Errors
/// The host's lasthop does not answer, several devices have such a port, or none of those that answer and one does not.
pub fn at(run_dir: &Path, port: &str) -> Result<(Instance, Option<String>), CliError> {
    let mut host = Instance::connect(run_dir)?;
    let devices = found(run_dir);
    if devices.is_empty() || has(&mut host, port)? {
        return Ok((host, None));
    }
    let (mut having, mut silent) = (Vec::new(), Vec::new());
    for device in devices {
        match Instance::connect(&dir_of(run_dir, &device.name))
            .and_then(|mut it| has(&mut it, port).map(|has| (it, has)))
        {
            Ok((instance, true)) => having.push((instance, Some(device.name))),
            Ok((_, false)) => {}
            Err(_) => silent.push(device.name),
        }
    }
    if having.len() > 1 {
        let names: Vec<_> = having.iter().filter_map(|(_, name)| name.as_deref()).collect();
        return Err(several(port, &names, run_dir));
    }
    if having.is_empty() && !silent.is_empty() {
        return Err(away(port, &silent));
    }
    Ok(having.pop().unwrap_or((host, None)))
}

fn has(instance: &mut Instance, port: &str) -> Result<bool, CliError> {
    Ok(all_ports(instance)?.iter().any(|other| other.name == port))
}

fn away(port: &str, devices: &[String]) -> CliError {
    CliError::new(format!(
        "the host has no port {port}, and device {} does not answer, which may have it: `lasthop doctor` says what is wrong there",
        devices.join(" and ")
    ))
}

fn several(port: &str, devices: &[&str], run_dir: &Path) -> CliError {
    let first = devices.first().copied().unwrap_or_default();
    CliError::new(format!(
        "devices {} each have a port {port}; say which with --run-dir, as in `--run-dir {}`",
        devices.join(" and "),
        dir_of(run_dir, first).display()
    ))
}

/// What is wrong with a command that names a port, and where else there is one of this name.
pub fn hint(error: CliError, run_dir: &Path, port: &str) -> CliError {
    let Ok((_, Some(device))) = at(run_dir, port) else { return error };
    let dir = dir_of(run_dir, &device);
    let mut hinted = CliError::new(format!("{error}; device {device} has one: add `--run-dir {}`", dir.display()));
    (hinted.status, hinted.broke_off) = (error.status, error.broke_off);
    hinted
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_of_several_has_to_be_named() {
        let said = several("a", &["nic0", "nic1"], Path::new("/run/lasthop")).to_string();
        assert!(said.contains("nic0 and nic1 each have a port a"), "{said}");
        assert!(said.contains("--run-dir /run/lasthop/devices/nic0"), "{said}");
    }
}
