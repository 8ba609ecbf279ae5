//! Names of ports.

/// Longest port name, in characters.
const MAX_NAME: usize = 63;

/// What `lasthop acl load --for` knows without a port of that name.
const SPOKEN_FOR: [&str; 3] = ["guests", "uplinks", "all"];

/// Checks a port name: 1 to 63 characters of `[A-Za-z0-9._-]`. The error says what is wrong and what would be right.
pub fn check_name(name: &str) -> Result<(), String> {
    if name.is_empty() || name.len() > MAX_NAME {
        return Err(format!(
            "the port name has {}; use 1 to {MAX_NAME}",
            lasthop_text::counted(name.len() as u64, "character")
        ));
    }
    match name.chars().find(|c| !(c.is_ascii_alphanumeric() || "._-".contains(*c))) {
        Some(bad) => Err(format!("{bad:?} cannot be in a port name; use letters, digits, '.', '_' and '-'")),
        None => Ok(()),
    }
}

/// Checks the name of a port that is to be made. Ports remembered under a word of access lists stay, so only new ones are asked.
pub fn check_new_name(name: &str) -> Result<(), String> {
    check_name(name)?;
    if SPOKEN_FOR.contains(&name) {
        return Err(format!(
            "{name} is whom an access list is for (`lasthop acl load --for {name}`); choose another name"
        ));
    }
    Ok(())
}
