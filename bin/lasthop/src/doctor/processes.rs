//! Programs: whether all run, are of one version, and have the rights that they want.

use super::facts::{Facts, RECENT_MS};
use super::finding::Finding;
use lasthop_api::Replaced;
use lasthop_text::counted;

/// A process that was replaced so often, the last time not long ago, keeps being replaced.
const KEEPS: u64 = 3;

/// This command's version.
const VERSION: &str = env!("CARGO_PKG_VERSION");

pub fn findings(facts: &Facts<'_>) -> Vec<Finding> {
    let mut found: Vec<_> = [away(facts), versions(facts, VERSION), outdated(facts)].into_iter().flatten().collect();
    found.extend(facts.now.switch.replaced.iter().filter_map(|replaced| restarted(facts, replaced)));
    found.extend(rights(facts));
    found.extend(facts.now.switch.host.state_faults.iter().map(|fault| state(fault)));
    found
}

/// What ports, settings and lists are to be is not kept: said as what is wrong and, behind a semicolon, what to do.
fn state(fault: &str) -> Finding {
    let (seen, remedy) = fault.rsplit_once("; ").unwrap_or((fault, ""));
    let what = "the state directory is damaged: lasthop goes on, and the next start or the next command fails";
    Finding::of_all("state-directory", what).seen(seen).remedy(remedy)
}

fn away(facts: &Facts<'_>) -> Option<Finding> {
    (!facts.now.switch.switch_connected).then(|| {
        Finding::of_all("switch-away", "lasthop-switch is not there: no packet is carried, and no counters are known")
            .seen("control has no connection to it")
            .remedy("it is being started; if this stays so, the log of `lasthop run` says why")
    })
}

fn versions(facts: &Facts<'_>, own: &str) -> Option<Finding> {
    let host = &facts.now.switch.host;
    let decider = facts.decider();
    let same = host.version == own && host.control_version == own;
    (!same).then(|| {
        let shown = |version: &str| if version.is_empty() { "an older one that does not say".to_owned() } else { version.to_owned() };
        let (run, control) = (shown(&host.version), shown(&host.control_version));
        Finding::of_all("other-version", "programs of different versions run together")
            .seen(format!("this command {own}, lasthop run {run}, {decider} {control}"))
            .remedy("install all programs of one version, and restart lasthop: `systemctl restart lasthop`, or end `lasthop run` and start it again")
    })
}

fn outdated(facts: &Facts<'_>) -> Option<Finding> {
    let outdated = &facts.now.switch.host.outdated;
    (!outdated.is_empty()).then(|| {
        Finding::of_all(
            "outdated",
            "programs run whose files are not there any more: one that ends is replaced by what is there now, or by nothing",
        )
        .seen(format!("their files were removed or replaced since they were started: {}", outdated.join(", ")))
        .remedy("see that all programs of one version are installed; then `lasthop upgrade` replaces them while VMs run, and where it refuses, restart lasthop (`systemctl restart lasthop`, or end `lasthop run` and start it again): VMs reconnect")
    })
}

fn restarted(facts: &Facts<'_>, replaced: &Replaced) -> Option<Finding> {
    let before = facts.before.switch.replaced.iter().find(|r| r.process == replaced.process).map_or(0, |r| r.times);
    let (times, age_ms) = (replaced.times, replaced.age_ms?);
    let now = !facts.before.ports.is_empty() && times > before;
    let keeps = times >= KEEPS && age_ms < 10 * RECENT_MS;
    (now || keeps).then(|| {
        // `uplink NAME`, `port NAME`, `cable of device NAME`.
        let port = replaced.process.rsplit_once(' ').map(|(_, port)| port.to_owned());
        let is_cable = replaced.process.starts_with("cable ");
        let what = if keeps { "keeps being replaced" } else { "was replaced while this command looked" };
        let why = replaced.why.as_deref().unwrap_or("not known");
        let process = if replaced.process == "control" { facts.decider() } else { &*replaced.process };
        let finding = Finding::of_all("restarted", format!("process {process} {what}"))
            .seen(format!("{}, the last {} s ago: {why}", counted(times, "time"), age_ms / 1000))
            .remedy(if is_cable {
                "a cable ends with the switch at either of its ends and is started again: see first why those ended, in the log of `lasthop run`"
            } else {
                "the log of `lasthop run` has a line for each time; signal 9 without somebody's `kill` is the kernel's want of memory, signal 31 a bug to report"
            });
        Finding { port, ..finding }
    })
}

/// What lasthop wants of the kernel and is not given.
fn rights(facts: &Facts<'_>) -> Vec<Finding> {
    let host = &facts.now.switch.host;
    let vms = host.vms_unknown.as_ref().map(|why| {
        Finding::of_all("no-ebpf", "it is not known which VMs run and which cores are idle: receivers are interrupted more often, and any core helps")
            .seen(why.clone())
            .remedy("run `lasthop run` as root, or with CAP_BPF and CAP_PERFMON (systemd: AmbientCapabilities=); or with --no-bpf, if it is to go without")
    });
    let helpers = host.no_helpers.as_ref().map(|why| {
        Finding::of_all("no-helpers", "no core helps with busy rings: the thread of each port is alone")
            .seen(format!("a thread may not leave the idle class: {why}"))
            .remedy("run `lasthop run` as root, or with CAP_SYS_NICE (systemd: AmbientCapabilities=)")
    });
    [vms, helpers].into_iter().flatten().collect()
}

#[cfg(test)]
mod tests {
    use super::super::facts::Seen;
    use super::super::facts::testutil::*;
    use super::*;
    use lasthop_api::Host;

    fn site(host: Host, times: u64, age_ms: u64) -> Seen {
        let mut now = seen(&[up("a")]);
        (now.switch.host.version, now.switch.host.control_version) = (VERSION.into(), VERSION.into());
        now.switch.host = Host { version: VERSION.into(), control_version: VERSION.into(), ..host };
        now.switch.replaced =
            vec![Replaced { process: "uplink net".into(), times, age_ms: Some(age_ms), why: Some("hung".into()) }];
        now
    }

    fn kinds(before: &Seen, now: &Seen) -> Vec<&'static str> {
        findings(&facts(before, now)).iter().map(|f| f.kind).collect()
    }

    #[test]
    fn one_restart_is_no_habit() {
        let once = site(Host::default(), 1, 30_000);
        assert_eq!(kinds(&once, &once), [""; 0]);
        let thrice = site(Host::default(), 3, 30_000);
        assert_eq!(kinds(&once, &thrice), ["restarted"]);
        assert_eq!(kinds(&thrice, &thrice), ["restarted"]);
        assert_eq!(findings(&facts(&thrice, &thrice))[0].port.as_deref(), Some("net"));
        let mut cable = site(Host::default(), 3, 0);
        cable.switch.replaced[0].process = "cable of device nic0".into();
        let finding = findings(&facts(&cable, &cable)).remove(0);
        assert_eq!(finding.port.as_deref(), Some("nic0"));
        assert!(!finding.remedy.contains("31") && finding.remedy.contains("either of its ends"), "{finding:?}");
        let mut control = site(Host::default(), 3, 0);
        control.switch.replaced[0].process = "control".into();
        control.switch.open_vswitch = Some(Vec::new());
        assert!(findings(&facts(&control, &control))[0].what.contains("lasthop-ovs keeps"));
        let long_ago = site(Host::default(), 3, 3_600_000);
        assert_eq!(kinds(&long_ago, &long_ago), [""; 0]);
        assert_eq!(kinds(&site(Host::default(), 0, 0), &site(Host::default(), 1, 100)), ["restarted"]);
    }

    #[test]
    fn versions_and_rights() {
        let host = Host {
            vms_unknown: Some("eBPF is not permitted here".into()),
            no_helpers: Some("EPERM".into()),
            outdated: vec!["switch".into()],
            state_faults: vec!["/s/ports.json: wrong; repair it".into()],
            ..Host::default()
        };
        let now = site(host, 0, 0);
        assert_eq!(kinds(&now, &now), ["outdated", "no-ebpf", "no-helpers", "state-directory"]);
        let finding = findings(&facts(&now, &now)).pop().expect("four");
        assert_eq!((&*finding.evidence[0], &*finding.remedy), ("/s/ports.json: wrong", "repair it"));
        let finding = versions(&facts(&now, &now), "9.9.9").expect("another version");
        assert!(finding.evidence[0].starts_with("this command 9.9.9, lasthop run "), "{finding:?}");
        let mut older = site(Host::default(), 0, 0);
        older.switch.host.version.clear();
        assert!(findings(&facts(&older, &older))[0].evidence[0].contains("an older one"));
        older.switch.switch_connected = false;
        assert_eq!(kinds(&older, &older)[0], "switch-away");
    }
}
