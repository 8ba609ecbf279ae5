//! Settings of ports as text: options of `--port`, arguments of `lasthop port set`. What they mean is policy's.

use lasthop_management_ipc::Settings;
use lasthop_policy::{FLAGS, PortSettings};

/// The settings after these changes. `before` is `None`: changes of the default.
pub fn changed(before: Option<&PortSettings>, changes: &Settings) -> Result<PortSettings, String> {
    let changes = changes.iter().map(|(name, value)| (name.as_str(), value.as_str()));
    before.cloned().unwrap_or_default().change(changes)
}

/// Options of a `--port` or an `--uplink` that are settings of these names (`lasthop port set`), and the text without them. A list has an option for each of its
/// members, since commas separate options, or ':' between VLANs.
pub fn take_settings(text: &str, names: &[&str]) -> Result<(String, Settings), String> {
    let name = |word: &&str| names.contains(&word.split_once('=').map_or(*word, |(name, _)| name));
    let (settings, rest): (Vec<&str>, Vec<&str>) = text.split(',').partition(name);
    let pair = |word: &str| match word.split_once('=') {
        Some((name, value)) => Ok((name.to_owned(), value.to_owned())),
        None if FLAGS.contains(&word) => Ok((word.to_owned(), "on".to_owned())),
        None => Err(format!("{word} needs a value; write {word}={}", value_of(word))),
    };
    let settings = settings.into_iter().map(pair).collect::<Result<Settings, String>>()?;
    changed(None, &settings)?;
    Ok((rest.join(","), settings))
}

/// What is written behind the name of a setting, as in the help of its option.
fn value_of(setting: &str) -> &'static str {
    match setting {
        "vlan" | "native" => "ID",
        "trunk" => "LIST, with ':' between its VLANs",
        "mac" => "MAC",
        "addr" => "IP",
        "connections" | "nat-ports" | "grants" | "max-ring" | "weight" | "priority" => "N",
        "max-cpu" | "max-cpu-to" => "PERCENT",
        "tx-batch" | "rx-batch" => "US:PACKETS or off",
        "engine" => "poll-CPU or ports",
        "link" => "up|down",
        "static-mac" => "MAC[@VLAN]",
        "queue-of" => "UPLINK[:FRAMES]",
        _ => "RATE",
    }
}

#[cfg(test)]
mod tests {
    use super::super::args::parse_port;
    use super::*;

    #[test]
    fn settings_are_among_the_options() {
        let settings = |text: &str| {
            let port = parse_port(text).unwrap();
            (changed(None, &port.settings).unwrap().to_string(), port.client, port.device.map(|d| d.device))
        };
        assert_eq!(settings("a=/x,client,vlan=10,isolated"), ("vlan=10 isolated=on".into(), true, None));
        assert_eq!(settings("a=device:veth1,trunk=10:20-30"), ("trunk=10:20-30".into(), false, Some("veth1".into())));
        let (shown, ..) = settings("a=/x,mac=52:54:00:00:00:01,addr=10.0.0.1,addr=fd00::1");
        assert_eq!(shown, "mac=52:54:00:00:00:01 addr=10.0.0.1,fd00::1");
    }
}
