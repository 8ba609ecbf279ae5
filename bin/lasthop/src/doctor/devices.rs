//! Devices of `lasthop run --device`: whether each answers, and whether they and the host reach each other.

use super::facts::{Facts, Seen, setting};
use super::finding::Finding;
use crate::device::Found;
use lasthop_api::Port;

pub fn findings(facts: &Facts<'_>) -> Vec<Finding> {
    let cable = |device: &Found| device.has_cable.then(|| cut_off(facts, &device.name)).flatten();
    facts.now.devices.iter().filter_map(|device| away(device).or_else(|| cable(device))).collect()
}

fn away(device: &Found) -> Option<Finding> {
    let why = device.away.as_ref()?;
    let what = format!("device {} does not answer: what it carries is not known", device.name);
    let finding = Finding::at(&device.name, "device-away", what).seen(why.lines().next().unwrap_or_default());
    Some(finding.remedy(
        "one that has ended is started again by itself, and the log of `lasthop run` says why it did; one that was stopped goes on with `kill -CONT PID` \
         (`ps -o pid,stat,args -C lasthop`: T)",
    ))
}

/// The port of this host that a device's cable is plugged in to.
fn port_of<'a>(seen: &'a Seen, device: &str) -> Option<&'a Port> {
    let end = format!("/{}/{device}/{}", crate::run::DEVICES_DIR, crate::run::HOST_SOCKET);
    seen.ports.iter().find(|port| port.path.ends_with(&end))
}

/// Nothing goes between the two. One that was just being started again at one of the looks is not told of.
fn cut_off(facts: &Facts<'_>, device: &str) -> Option<Finding> {
    let what = format!("device {device} and this host do not reach each other");
    let list = facts.lasthop("device list");
    let Some(port) = port_of(facts.now, device) else {
        let finding = Finding::at(device, "device-cut-off", what).seen("this host has no port for its cable");
        return Some(finding.remedy("the port was removed: start `lasthop run` again, which makes it"));
    };
    let is_away = |port: &Port| port.state != "up" && setting(port, "link") != Some("down");
    if !is_away(port) || port_of(facts.before, device).is_some_and(|before| !is_away(before)) {
        return None;
    }
    let finding = Finding::at(&port.name, "device-cut-off", what);
    let finding = finding.seen(format!("nothing is plugged in to port {}, its cable's ({})", port.name, port.state));
    Some(finding.remedy(format!(
        "`{list}` says whether the device is up; if it is, the log of `lasthop run` says why lasthop-cable ends, or it is stopped: \
         `ps -o pid,stat,args -C lasthop-cable`"
    )))
}

#[cfg(test)]
mod tests {
    use super::super::facts::testutil::*;
    use super::*;

    #[test]
    fn a_device_that_is_cut_off_is_found() {
        let site = |state: &str, link: &[(&str, &str)], has_cable| {
            let path = "/run/lasthop/devices/nic0/cable.sock".into();
            let mut now = seen(&[told(Port { state: state.into(), path, ..up("nic0") }, link)]);
            now.devices = vec![Found { name: "nic0".into(), has_cable, away: None }];
            now
        };
        let kinds =
            |before: &Seen, now: &Seen| findings(&facts(before, now)).iter().map(|f| f.kind).collect::<Vec<_>>();
        let (well, away) = (site("up", &[], true), site("waiting", &[], true));
        assert_eq!(kinds(&well, &well), [""; 0]);
        assert_eq!(kinds(&well, &away), [""; 0], "it may be just being started again");
        assert_eq!(kinds(&away, &away), ["device-cut-off"]);
        assert_eq!(kinds(&Seen::default(), &away), ["device-cut-off"], "--since-start");
        let down = site("waiting", &[("link", "down")], true);
        assert_eq!(kinds(&down, &down), [""; 0], "that is another finding");
        let without = Seen { ports: vec![up("a")], ..site("up", &[], true) };
        assert_eq!(kinds(&without, &without), ["device-cut-off"]);
        let alone = Seen { ports: vec![up("a")], ..site("up", &[], false) };
        assert_eq!(kinds(&alone, &alone), [""; 0], "cable=off");
    }
    #[test]
    fn of_a_device_that_is_away_nothing_else_is_said() {
        let mut now = seen(&[up("a")]);
        now.devices = vec![Found { name: "nic0".into(), has_cable: true, away: Some("no answer".into()) }];
        let found = findings(&facts(&now, &now));
        assert_eq!((found.len(), found[0].kind, &*found[0].evidence[0]), (1, "device-away", "no answer"));
    }
}
