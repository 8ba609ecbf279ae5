//! What a command changes now and the file of `lasthop run --config` takes back at the next start: said to whoever changes it.

use super::Declared;
use super::minimums::{value_in, value_there};
use lasthop_api::Field;
use std::path::{Path, PathBuf};

/// A line for each of these settings of a port that the file of the running lasthop has otherwise. None if it has no file, or that cannot be
/// read from here.
pub fn overruled(run_dir: &Path, port: &str, told: &[Field], changed: &[Field]) -> Vec<String> {
    let Some(file) = file_of(run_dir) else { return Vec::new() };
    let Ok(declared) = Declared::read(&file) else { return Vec::new() };
    lines(&declared, port, told, changed).into_iter().map(|line| format!("{}: {line}", file.display())).collect()
}

/// The file that the running lasthop was started with.
fn file_of(run_dir: &Path) -> Option<PathBuf> {
    let process = Path::new("/proc").join(crate::client::running(run_dir)?);
    let words = std::fs::read(process.join("cmdline")).ok()?;
    let words: Vec<String> = words.split(|b| *b == 0).map(|word| String::from_utf8_lossy(word).into_owned()).collect();
    let file = given(&words)?;
    Some(std::fs::read_link(process.join("cwd")).ok()?.join(file))
}

/// What stands behind `--config`.
fn given(words: &[String]) -> Option<&str> {
    let at = words.iter().position(|word| word == "--config" || word.starts_with("--config="))?;
    words[at].strip_prefix("--config=").or_else(|| words.get(at + 1).map(String::as_str))
}

fn lines(declared: &Declared, port: &str, told: &[Field], changed: &[Field]) -> Vec<String> {
    let ports = declared.ports.iter().map(|of| (&of.name, &of.settings));
    let mut all = ports.chain(declared.uplink_settings.iter().map(|of| (&of.uplink, &of.settings)));
    let Some((_, of_file)) = all.find(|(name, _)| *name == port) else { return Vec::new() };
    let line = |name: &str| {
        let (file, now) = (value_in(of_file, name), value_there(told, name));
        let says = if file == "none" {
            format!("says no {name} for port {port}")
        } else {
            format!("says {name}={file} for port {port}")
        };
        (file != now)
            .then(|| format!("{says}, which holds again from the next start of lasthop on; change it there, too"))
    };
    changed.iter().filter_map(|field| line(&field.name)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fields(all: &[(&str, &str)]) -> Vec<Field> {
        all.iter().map(|(name, value)| Field { name: (*name).into(), value: (*value).into() }).collect()
    }

    #[test]
    fn what_the_file_takes_back_is_said() {
        let text = "[port.vm1]\nsocket = \"/run/vm1.sock\"\nvlan = 10\n";
        let declared = super::super::document::read(text, Path::new("/")).unwrap();
        let said = |port: &str, told: &[(&str, &str)], changed: &[(&str, &str)]| {
            lines(&declared, port, &fields(told), &fields(changed)).join("\n")
        };
        assert!(
            said("vm1", &[("vlan", "20")], &[("vlan", "20")])
                .starts_with("says vlan=10 for port vm1, which holds again")
        );
        assert!(
            said("vm1", &[("vlan", "10"), ("isolated", "on")], &[("isolated", "on")]).starts_with("says no isolated")
        );
        assert!(said("vm1", &[], &[("vlan", "none")]).starts_with("says vlan=10"));
        assert_eq!(said("vm1", &[("vlan", "10")], &[("vlan", "10")]), "");
        assert_eq!(said("vm2", &[("vlan", "20")], &[("vlan", "20")]), "");
    }

    #[test]
    fn the_file_is_found_on_the_command_line() {
        let words = |text: &str| -> Vec<String> { text.split(' ').map(str::to_owned).collect() };
        assert_eq!(given(&words("lasthop run --config /etc/l.toml --no-bpf")), Some("/etc/l.toml"));
        assert_eq!(given(&words("lasthop run --no-bpf --config=l.toml")), Some("l.toml"));
        assert_eq!(given(&words("lasthop run --config")), None);
        assert_eq!(given(&words("lasthop run")), None);
    }
}
