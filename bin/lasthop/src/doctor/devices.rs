//! Devices of `lasthop run --device`: whether each answers, whether its DMA engine runs, and whether they and the host reach each other.

use super::facts::{Facts, Seen, setting};
use super::finding::Finding;
use crate::device::Found;
use lasthop_api::{DeviceDma, Port};

pub fn findings(facts: &Facts<'_>) -> Vec<Finding> {
    let cable = |device: &Found| device.has_cable.then(|| cut_off(facts, &device.name)).flatten();
    let cut_off = facts.now.devices.iter().filter_map(|device| away(device).or_else(|| cable(device)));
    let engines =
        facts.now.devices.iter().filter_map(|device| hangs(Some(&device.name), device.table()?.dma.as_ref()?));
    // This lasthop may be a device's own.
    let own = facts.now.switch.device.as_ref().and_then(|table| hangs(None, table.dma.as_ref()?));
    cut_off.chain(engines).chain(own).collect()
}

/// Its DMA engine was given up.
fn hangs(device: Option<&str>, dma: &DeviceDma) -> Option<Finding> {
    let finding = match device {
        Some(name) => {
            Finding::at(name, "dma-hangs", format!("the DMA engine of device {name} hangs, and the processor copies"))
        }
        None => Finding::of_all("dma-hangs", "the DMA engine of this device hangs, and the processor copies"),
    };
    let copies = |n: u64| if n == 1 { "1 copy".to_owned() } else { format!("{n} copies") };
    let finding = finding.seen(format!("it hung in {}, whose receivers' ports broke", copies(dma.lost)));
    let finding = finding.seen(format!("{} that it had not begun were made by the processor", copies(dma.taken_back)));
    let remedy = "a device that is started again has a new engine: `pgrep -a lasthop-device`, and `kill` it; guests' ports connect anew by themselves";
    (dma.state != "runs").then(|| finding.remedy(remedy))
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
    use lasthop_api::DeviceTable;

    #[test]
    fn a_device_that_is_cut_off_is_found() {
        let site = |state: &str, link: &[(&str, &str)], has_cable| {
            let path = "/run/lasthop/devices/nic0/cable.sock".into();
            let mut now = seen(&[told(Port { state: state.into(), path, ..up("nic0") }, link)]);
            now.devices = vec![Found { name: "nic0".into(), has_cable, ..Found::default() }];
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
    fn a_dma_engine_that_hangs_is_found_by_the_host_and_by_the_device() {
        let engine = |state: &str| DeviceDma { state: state.into(), lost: 1, taken_back: 30, ..DeviceDma::default() };
        let found = |state: &str| {
            let mut now = seen(&[up("a")]);
            now.switch.device = Some(DeviceTable { dma: Some(engine(state)), ..DeviceTable::default() });
            now.devices = vec![Found { name: "nic0".into(), stats: Some(now.switch.clone()), ..Found::default() }];
            findings(&facts(&now, &now))
        };
        assert!(found("runs").is_empty());
        let found = found("hangs");
        assert_eq!(
            found.iter().map(|f| (f.kind, f.port.as_deref())).collect::<Vec<_>>(),
            [("dma-hangs", Some("nic0")), ("dma-hangs", None)]
        );
        assert_eq!(&*found[0].evidence[0], "it hung in 1 copy, whose receivers' ports broke");
    }

    #[test]
    fn of_a_device_that_is_away_nothing_else_is_said() {
        let mut now = seen(&[up("a")]);
        now.devices = vec![Found { name: "nic0".into(), has_cable: true, away: Some("no answer".into()), stats: None }];
        let found = findings(&facts(&now, &now));
        assert_eq!((found.len(), found[0].kind, &*found[0].evidence[0]), (1, "device-away", "no answer"));
    }
}
