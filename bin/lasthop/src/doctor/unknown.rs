//! What cannot be known from here, said instead of "all is well"; and drops that are over.

use super::facts::{Facts, RECENT_MS, Way};
use lasthop_api::Port;

/// Reasons at a sender that are no fault of the network: how it works, or what `rules` tells with the rule.
const QUIET: [&str; 10] = [
    "link_local",
    "hairpin",
    "no_other_port",
    "no_port",
    "mirror_port",
    "acl",
    "spoofed",
    "isolated",
    "vlan",
    "port_down",
];
/// As many are told one by one.
const FEW: usize = 8;

pub fn not_known(facts: &Facts<'_>) -> Vec<String> {
    let (mut lines, named) = (Vec::new(), |port: &&Port| facts.named.is_none_or(|name| port.name == name));
    let waiting = |port: &&Port| port.state == "waiting" && port.note.is_none() && !facts.is_cable(port);
    let away = names(facts.guests().filter(named).filter(waiting).filter(|p| facts.named != Some(&*p.name)));
    if let Some(away) = away {
        lines.push(format!("guests of {away}: no front-end is connected"));
    }
    let young = |port: &&Port| matches!(port.state.as_str(), "connected" | "starting") && port.note.is_none();
    if let Some(young) = names(facts.guests().filter(named).filter(young)) {
        lines.push(format!("why {young} carries nothing yet: it has just connected, or the switch has just started; ask again in a second"));
    }
    let silent = |port: &&Port| port.state == "up" && port.from_guest.packets == 0 && port.note.is_none();
    if let Some(silent) = names(facts.guests().filter(named).filter(silent)) {
        lines.push(format!(
            "whether memory is shared and the interface is set up in the guests of {silent}: they have sent nothing yet"
        ));
    }
    let uplinks = facts.now.interfaces.iter().any(|interface| !interface.guest);
    let without = |port: &&Port| uplinks && port.state == "up" && port.mtu == 0;
    if let Some(without) = names(facts.guests().filter(named).filter(without)) {
        lines.push(format!("whether the MTU inside the guests of {without} fits: their front-ends announced none"));
    }
    lines.extend(super::minimums::not_known(facts));
    if facts.now.switch.open_vswitch.is_some() {
        lines.push(
            "which rule of Open vSwitch's drops a packet, and its VLANs: `ovs-appctl ofproto/trace` says it".into(),
        );
    }
    lines
}

/// What was counted before the first look and did not go on.
pub fn over(facts: &Facts<'_>) -> Vec<String> {
    let mut lines = Vec::new();
    for port in facts.ports().filter(|port| facts.named.is_none_or(|name| port.name == name)) {
        let outside = facts.interface(&port.name).map_or(&[][..], |interface| &interface.drops);
        let all = [
            (Way::From, &port.from_guest.drops[..], "from"),
            (Way::To, &port.to_guest.drops, "to"),
            (Way::Outside, outside, "outside"),
        ];
        for (way, drops, word) in all {
            for d in drops.iter().filter(|d| !QUIET.contains(&&*d.reason) && facts.drops(port, way, &d.reason).now == 0)
            {
                lines.push(format!(
                    "{} dropped {word} {} as {}, none while this command looked",
                    d.packets, port.name, d.reason
                ));
            }
        }
    }
    for replaced in &facts.now.switch.replaced {
        let (port, before) = (replaced.process.rsplit_once(' ').map(|(_, port)| port), &facts.before.switch.replaced);
        let before = before.iter().find(|r| r.process == replaced.process).map_or(0, |r| r.times);
        let Some(age_ms) = replaced.age_ms.filter(|age_ms| *age_ms < RECENT_MS && replaced.times == before) else {
            continue;
        };
        if port.is_none() || facts.named.is_none_or(|name| port == Some(name)) {
            let why = replaced.why.as_deref().unwrap_or("not known");
            lines.push(format!("process {} was replaced {} s ago: {why}", replaced.process, age_ms / 1000));
        }
    }
    if let Some(more) = lines.len().checked_sub(FEW).filter(|more| *more > 0) {
        lines.truncate(FEW);
        lines.push(format!("{more} more; `lasthop stats` shows them"));
    }
    lines
}

/// The first of these, by name, if there are any.
fn names<'a>(ports: impl Iterator<Item = &'a Port>) -> Option<String> {
    let names: Vec<_> = ports.map(|port| port.name.as_str()).collect();
    let more = names.len().saturating_sub(FEW);
    let shown = names.get(..FEW).unwrap_or(&names).join(", ");
    (!names.is_empty()).then(|| if more > 0 { format!("{shown} and {more} more") } else { shown })
}

#[cfg(test)]
mod tests {
    use super::super::facts::testutil::*;
    use super::*;
    use lasthop_api::Replaced;

    #[test]
    fn what_is_not_known_is_said() {
        let silent = |name: &str| {
            let mut port = up(name);
            port.from_guest.packets = 0;
            port
        };
        let waiting = Port { state: "waiting".into(), ..up("b") };
        let now = seen(&[silent("a"), waiting, up("c")]);
        let lines = not_known(&facts(&now, &now));
        assert!(
            matches!(&lines[..], [away, quiet] if away.starts_with("guests of b:") && quiet.contains("guests of a:")),
            "{lines:?}"
        );
        let all: Vec<_> = (0..10).map(|n| silent(&format!("vm{n}"))).collect();
        let now = seen(&all);
        assert!(not_known(&facts(&now, &now))[0].contains("vm7 and 2 more"));
    }

    #[test]
    fn a_process_that_was_replaced_before_this_command_looked() {
        let site = |process: &str, times, age_ms| {
            let mut now = seen(&[up("a")]);
            let why = Some("ended: signal: 9 (SIGKILL)".into());
            now.switch.replaced = vec![Replaced { process: process.into(), times, age_ms: Some(age_ms), why }];
            now
        };
        let now = site("switch", 1, 5000);
        let line = "process switch was replaced 5 s ago: ended: signal: 9 (SIGKILL)";
        assert_eq!(over(&facts(&now, &now)), [line]);
        assert!(over(&facts(&site("switch", 0, 0), &now)).is_empty(), "that is a finding");
        let old = site("switch", 1, RECENT_MS);
        assert!(over(&facts(&old, &old)).is_empty());
        let uplink = site("uplink net", 1, 5000);
        assert!(over(&Facts { named: Some("a"), ..facts(&uplink, &uplink) }).is_empty());
        assert_eq!(over(&Facts { named: Some("a"), ..facts(&now, &now) }).len(), 1);
    }

    #[test]
    fn what_is_over_is_told_apart_from_what_goes_on() {
        let mut port = up("a");
        port.to_guest.drops = dropped("no_buffers", 5);
        let now = seen(&[port]);
        assert_eq!(over(&facts(&now, &now)), ["5 dropped to a as no_buffers, none while this command looked"]);
        assert!(over(&facts(&seen(&[up("a")]), &now)).is_empty());
    }
}
