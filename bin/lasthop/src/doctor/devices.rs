//! Devices of `lasthop run --device`: whether each answers, whether its DMA engine runs, whether its uplinks carry frames, and whether they and the host
//! reach each other.

use super::facts::{Facts, Rise, Seen, setting};
use super::finding::Finding;
use super::interface;
use crate::device::{CableProcess, Found};
use lasthop_api::{DeviceDma, Port};

/// An uplink of a device's own is in trouble.
const UPLINK: &str = "device-uplink";

pub fn findings(facts: &Facts<'_>) -> Vec<Finding> {
    let cable = |device: &Found| {
        device.has_cable.then(|| stopped(facts, device).or_else(|| cut_off(facts, &device.name))).flatten()
    };
    let cut_off = facts.now.devices.iter().filter_map(|device| away(device).or_else(|| cable(device)));
    let engines =
        facts.now.devices.iter().filter_map(|device| hangs(Some(&device.name), device.table()?.dma.as_ref()?));
    // This lasthop may be a device's own.
    let own = facts.now.switch.device.as_ref().and_then(|table| hangs(None, table.dma.as_ref()?));
    cut_off.chain(engines).chain(own).chain(facts.now.devices.iter().flat_map(uplinks)).collect()
}

/// An uplink of a device's own is in trouble, or nobody says whether one is. What to do is the same as for one of the host's.
fn uplinks(device: &Found) -> Vec<Finding> {
    let name = &device.name;
    let all = match &device.uplinks {
        Ok(all) => all,
        Err(why) => {
            let what = format!("device {name} does not say how its uplinks are");
            let finding = Finding::at(name, UPLINK, what).seen(why.lines().next().unwrap_or_default());
            return vec![finding.remedy(
                "one that is busy may say it in a second; else the log of `lasthop run` says what is wrong with the device",
            )];
        }
    };
    let troubled = all.iter().filter_map(|uplink| {
        let Finding { what, evidence, remedy, command, .. } = interface::link(uplink)?;
        let what = format!("{} of device {name}: {what}", uplink.name);
        Some(Finding { evidence, remedy, command, ..Finding::at(name, UPLINK, what) })
    });
    troubled.collect()
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
    let finding = finding.seen(match dma.lost {
        0 => "it hung in a sender's memory, before it wrote anything: no port broke. A front-end that takes its memory away while it sends does that"
            .to_owned(),
        lost => format!("it hung in {}, whose receivers' ports broke", copies(lost)),
    });
    let finding = finding.seen(format!("{} that it had not begun were made by the processor", copies(dma.taken_back)));
    let remedy = "a device that is started again has a new engine: `kill` the `lasthop-device` below this device's `lasthop run` (`ps -ef --forest`); guests' ports connect anew by themselves";
    (dma.state != "runs").then(|| finding.remedy(remedy))
}

/// Both its ports are up, and nothing goes over it.
fn stopped(facts: &Facts<'_>, device: &Found) -> Option<Finding> {
    let pid = device.cable.filter(|cable| cable.stopped)?.pid;
    let port = port_of(facts.now, &device.name).map_or(&device.name, |port| &port.name);
    let what = format!("device {} and this host do not reach each other: the cable's process is stopped", device.name);
    let finding =
        Finding::at(port, "device-cut-off", what).seen(format!("lasthop-cable, pid {pid}, is in state T (stopped)"));
    Some(finding.remedy("somebody has stopped it by a signal; let it go on").command(format!("kill -CONT {pid}")))
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

/// What goes to a device's cable is lost: its process hangs, or is too slow. Of one that is stopped another finding tells.
pub fn does_not_take(facts: &Facts<'_>, port: &Port, (lost, taken): (Rise, u64)) -> Option<Finding> {
    let device = facts.now.devices.iter().find(|device| port.path.ends_with(&socket_of(&device.name)));
    let cable = device.and_then(|device| device.cable);
    if cable.is_some_and(|cable| cable.stopped) {
        return None;
    }
    let (end, look) = match cable {
        Some(CableProcess { pid, .. }) => (format!("`kill -9 {pid}` ends it"), format!("`top -p {pid}`")),
        None => ("`kill -9` ends it (`pgrep -af lasthop-cable` shows its pid)".into(), "`top`".into()),
    };
    let (kind, what, remedy) = if taken == 0 {
        let remedy = format!("{end}, and another is started; report it, with the log of `lasthop run`");
        ("receiver-stuck", "the cable's process, lasthop-cable, takes no packets", remedy)
    } else {
        let remedy = format!("give its one thread processor time ({look}): other processes have it");
        ("receiver-slow", "the cable's process, lasthop-cable, does not keep up", remedy)
    };
    let seen = format!("{}; {taken} taken", lost.said("dropped as no_buffers"));
    Some(Finding::at(&port.name, kind, what).seen(seen).remedy(remedy))
}

/// How the path of a device's cable's socket on this host ends.
fn socket_of(device: &str) -> String {
    format!("/{}/{device}/{}", crate::run::DEVICES_DIR, crate::run::HOST_SOCKET)
}

/// The port of this host that a device's cable is plugged in to.
fn port_of<'a>(seen: &'a Seen, device: &str) -> Option<&'a Port> {
    let end = socket_of(device);
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
    use lasthop_api::{DeviceTable, Uplink};

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
        let mut stopped = site("up", &[], true);
        stopped.devices[0].cable = Some(CableProcess { pid: 7, stopped: true });
        let found = findings(&facts(&stopped, &stopped));
        assert_eq!(
            (found.len(), found[0].kind, found[0].command.as_deref()),
            (1, "device-cut-off", Some("kill -CONT 7"))
        );
        stopped.devices[0].cable = Some(CableProcess { pid: 7, stopped: false });
        assert_eq!(kinds(&stopped, &stopped), [""; 0]);
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
    fn an_uplink_of_a_device_that_carries_nothing_is_found() {
        let found = |link: &str, state: &str| {
            let uplink = Uplink { name: "wire".into(), device: "eth1".into(), ..Uplink::default() };
            let uplink = Uplink { link: link.into(), state: state.into(), ..uplink };
            let mut now = seen(&[up("a")]);
            now.devices = vec![Found { name: "nic0".into(), uplinks: Ok(vec![uplink]), ..Found::default() }];
            findings(&facts(&now, &now))
        };
        assert_eq!(found("up", "up"), []);
        assert_eq!(found("up", "starting"), [], "it may be just being started");
        let [down] = &found("down", "down")[..] else { panic!("one") };
        assert_eq!((down.kind, down.port.as_deref()), (UPLINK, Some("nic0")));
        assert_eq!(
            (&*down.what, down.command.as_deref()),
            ("wire of device nic0: eth1 is set down", Some("ip link set eth1 up"))
        );
        let [missing] = &found("missing", "waiting")[..] else { panic!("one") };
        assert!(missing.what.ends_with("there is no interface eth1") && !missing.evidence.is_empty());
        let mut now = seen(&[up("a")]);
        now.devices = vec![Found { name: "nic0".into(), uplinks: Err("no answer".into()), ..Found::default() }];
        let [unknown] = &findings(&facts(&now, &now))[..] else { panic!("one") };
        assert_eq!((unknown.kind, &*unknown.evidence[0]), (UPLINK, "no answer"));
    }

    #[test]
    fn a_cable_that_takes_nothing_hangs_and_one_that_takes_some_is_slow() {
        let mut now = seen(&[up("nic0")]);
        now.devices = vec![Found { name: "nic0".into(), has_cable: true, ..Found::default() }];
        now.devices[0].cable = Some(CableProcess { pid: 7, stopped: false });
        now.ports[0].path = "/run/lasthop/devices/nic0/cable.sock".into();
        now.ports[0].to_guest.drops = dropped("no_buffers", 9);
        let before = Seen { ports: vec![Port { to_guest: Default::default(), ..now.ports[0].clone() }], ..seen(&[]) };
        let of = |before: &Seen, now: &Seen| {
            let found = super::super::front_end::findings(&facts(before, now));
            found.into_iter().map(|finding| (finding.kind, finding.remedy)).collect::<Vec<_>>()
        };
        let slow = of(&before, &now);
        assert!(slow.len() == 1 && slow[0].0 == "receiver-slow" && slow[0].1.contains("top -p 7"), "{slow:?}");
        now.ports[0].to_guest.packets = 0;
        let stuck = of(&before, &now);
        assert!(stuck.len() == 1 && stuck[0].0 == "receiver-stuck" && stuck[0].1.contains("kill -9 7"), "{stuck:?}");
        now.devices[0].cable = Some(CableProcess { pid: 7, stopped: true });
        assert_eq!(of(&before, &now), [], "that is another finding");
    }

    #[test]
    fn of_a_device_that_is_away_nothing_else_is_said() {
        let mut now = seen(&[up("a")]);
        now.devices =
            vec![Found { name: "nic0".into(), has_cable: true, away: Some("no answer".into()), ..Found::default() }];
        let found = findings(&facts(&now, &now));
        assert_eq!((found.len(), found[0].kind, &*found[0].evidence[0]), (1, "device-away", "no answer"));
    }
}
