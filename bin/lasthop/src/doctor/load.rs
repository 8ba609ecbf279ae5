//! Rates that drop, and mirrors that lose.

use super::facts::{Facts, Way, setting};
use super::finding::Finding;
use super::minimums;
use lasthop_api::{CpuBound, Mirror, Port};
use lasthop_policy::{RATE_TO, Rate};
use lasthop_text::counted;

pub fn findings(facts: &Facts<'_>) -> Vec<Finding> {
    let rates = facts.ports().flat_map(|port| rates(facts, port));
    let mirrors = facts.now.mirrors.iter().filter_map(|mirror| of_mirror(facts, mirror));
    let late = facts.ports().filter_map(|port| control_late(facts, port));
    rates.chain(late).chain(mirrors).collect()
}

fn rates(facts: &Facts<'_>, port: &Port) -> Vec<Finding> {
    let limits = [
        (RATE_TO, facts.drops(port, Way::To, "rate"), "what is sent to it is more than its limit"),
        (
            "storm",
            facts.drops(port, Way::From, "storm"),
            "its guest floods more than its limit: broadcasts, multicasts, unknown destinations",
        ),
        (
            "rate-from",
            facts.counter(port, |p| p.from_guest.held),
            "its guest sends more than its limit, and what is more waits there",
        ),
    ];
    let mut found = Vec::new();
    for (name, rise, what) in limits {
        if rise.now == 0 {
            continue;
        }
        let of_ovs = facts.rate_of_ovs(port, name);
        let Some(told) = setting(port, name).or(of_ovs) else { continue };
        // Its bound of processor time is the lower one, and is a finding itself.
        let by_bound = |bound: &Option<CpuBound>| bound.as_ref().is_some_and(|bound| bound.held_to().is_some());
        if name == "rate-from" && by_bound(&port.cpu_bound) || name == RATE_TO && by_bound(&port.copy_bound) {
            continue;
        }
        let shown = match name {
            "rate-from" => format!("held {} while this command looked", counted(rise.now, "time")),
            "storm" => rise.said("dropped as storm"),
            _ => rise.said("dropped as rate"),
        };
        if let Some(rate) = of_ovs {
            // It goes before what the port is told, which taken back would mend nothing.
            let how = match name {
                RATE_TO => format!(
                    "`ovs-vsctl list port {}` names its `qos`; raise its `max-rate`, or take it back: `ovs-vsctl clear port {} qos`",
                    port.name, port.name
                ),
                _ => format!(
                    "raise it, or take it back: `ovs-vsctl set interface {} ingress_policing_rate=0 ingress_policing_kpkts_rate=0`",
                    port.name
                ),
            };
            found.push(
                Finding::at(&port.name, name, what).seen(format!("Open vSwitch sets {rate}")).seen(shown).remedy(how),
            );
            continue;
        }
        let finding = Finding::at(&port.name, name, what).seen(format!("told {name}={told}")).seen(shown);
        let raise = format!("raise it (`lasthop port set {} --{name} RATE`)", port.name);
        // Minimum rates are parts of it: taken back, it would be refused.
        let promised = if port.uplink && name == RATE_TO { minimums::promised(facts) } else { None };
        found.push(match promised {
            Some(bits) => finding.remedy(format!(
                "{raise}, if its network takes more; ports are to get {} of it at least (min-rate), so it cannot be taken back",
                Rate::of_bits(bits)
            )),
            None => finding
                .remedy(format!("{raise}, or take it back"))
                .command(facts.lasthop(&format!("port set {} --{name} none", port.name))),
        });
    }
    found
}

/// First packets that control does not answer in time.
fn control_late(facts: &Facts<'_>, port: &Port) -> Option<Finding> {
    // Then the finding is another.
    if facts.now.switch.deciders.as_ref().is_some_and(|deciders| deciders.processes.is_empty()) {
        return None;
    }
    let lost = ["miss_queue_full", "miss_timeout"].map(|reason| (reason, facts.drops(port, Way::From, reason)));
    let (reason, lost) = lost.into_iter().find(|(_, lost)| lost.now > 0)?;
    let decider = if facts.is_open_vswitchs() { "ovs-vswitchd or lasthop-ovs" } else { "lasthop-control" };
    Some(
        Finding::at(&port.name, "control-late", format!("{decider} does not decide in time what becomes of new flows' first packets"))
            .seen(lost.said(&format!("dropped as {reason}")))
            .remedy("give it processor time; look at the log of `lasthop run` whether it is being restarted; a guest that scans does this to itself only"),
    )
}

fn of_mirror(facts: &Facts<'_>, mirror: &Mirror) -> Option<Finding> {
    let Mirror { name, to, .. } = mirror;
    if let Some(note) = &mirror.note {
        let finding =
            Finding::at(to, "mirror-idle", format!("mirror {name} does not copy all that it is to")).seen(note.clone());
        let (list, show) = (facts.lasthop("mirror list"), facts.lasthop(&format!("show {to}")));
        let finding = finding.remedy(match facts.port(to) {
            Some(port) if port.state != "up" => {
                format!("start the guest that reads at {to}; `{show}` says why it carries nothing")
            }
            _ => format!("add the ports that are missing, or make the mirror with others; `{list}` shows all"),
        });
        // One to a port that will not come is taken away by a command.
        let gone = facts.port(to).is_none();
        return Some(if gone { finding.command(facts.lasthop(&format!("mirror del {name}"))) } else { finding });
    }
    let port = facts.port(to)?;
    let reasons = [(Way::To, "mirror_copy"), (Way::To, "rate"), (Way::Outside, "no_room")];
    let lost = reasons.map(|(way, reason)| (reason, facts.drops(port, way, reason)));
    let (reason, lost) = lost.into_iter().find(|(_, lost)| lost.now > 0)?;
    let remedy = match reason {
        "no_room" => "make room on the disk of the file",
        "rate" => "raise the destination's --rate-to, or mirror less",
        _ => {
            "see that whoever reads at the destination keeps up (longer rings, more processor time), or mirror less: fewer ports, one direction, --sample 1/N"
        }
    };
    let finding = Finding::at(to, "mirror-loses", format!("mirror {name} loses copies: {to} does not take them"));
    let finding = finding.seen(lost.said(&format!("dropped as {reason}"))).remedy(remedy);
    Some(mirror.from.iter().take(8).fold(finding, |finding, from| finding.also(from)))
}

#[cfg(test)]
mod tests {
    use super::super::facts::Seen;
    use super::super::facts::testutil::*;
    use super::*;
    use lasthop_api::{OpenVswitch, RatesOf};

    fn found(before: &Seen, now: &Seen) -> Vec<Finding> {
        findings(&facts(before, now))
    }

    #[test]
    fn a_rate_that_drops_can_be_taken_back() {
        let site = |lost, flooded, held| {
            let mut port = told(up("a"), &[("rate-to", "1M"), ("storm", "10pps"), ("rate-from", "2M")]);
            (port.to_guest.drops, port.from_guest.drops) = (dropped("rate", lost), dropped("storm", flooded));
            port.from_guest.held = held;
            seen(&[port])
        };
        assert!(found(&site(5, 5, 5), &site(5, 5, 5)).is_empty());
        let all = found(&site(5, 5, 5), &site(6, 7, 8));
        let shown: Vec<_> = all.iter().map(|f| (f.kind, f.command.as_deref().unwrap_or_default())).collect();
        let set = |name: &'static str, command| (name, command);
        assert_eq!(
            shown,
            [
                set("rate-to", "lasthop port set a --rate-to none"),
                set("storm", "lasthop port set a --storm none"),
                set("rate-from", "lasthop port set a --rate-from none")
            ]
        );
    }

    #[test]
    fn a_rate_is_named_unless_a_bound_of_processor_time_is_lower() {
        let site = |held, [packets_per_second, bytes_per_second]: [Option<u64>; 2]| {
            let mut port = told(up("a"), &[("rate-from", "2M")]);
            port.cpu_bound = Some(CpuBound { packets_per_second, bytes_per_second, ..CpuBound::default() });
            port.from_guest.held = held;
            seen(&[port])
        };
        assert_eq!(found(&site(5, [None; 2]), &site(6, [None; 2]))[0].kind, "rate-from");
        let lower = [None, Some(1_024_000)];
        assert!(found(&site(5, lower), &site(6, lower)).is_empty());
    }

    /// It advised `--rate-to none`, which is refused there.
    #[test]
    fn a_rate_of_which_minimums_are_parts_is_not_taken_back() {
        let site = |lost, least: &[(&str, &str)]| {
            let mut net = Port { uplink: true, ..told(up("net"), &[("rate-to", "100M")]) };
            net.to_guest.drops = dropped("rate", lost);
            seen(&[told(up("a"), least), net])
        };
        let [finding] = &found(&site(1, &[("min-rate", "70M")]), &site(2, &[("min-rate", "70M")]))[..] else {
            panic!("one")
        };
        assert_eq!((finding.kind, &finding.command), ("rate-to", &None));
        assert!(finding.remedy.contains("ports are to get 70M of it at least"), "{}", finding.remedy);
        let [finding] = &found(&site(1, &[]), &site(2, &[]))[..] else { panic!("one") };
        assert_eq!(finding.command.as_deref(), Some("lasthop port set net --rate-to none"));
    }

    /// It said to take back what the port is told, which has no effect beside what Open vSwitch sets, and nothing where the port is told nothing.
    #[test]
    fn a_rate_of_open_vswitch_is_taken_back_there() {
        let site = |held, told_too: bool| {
            let settings: &[(&str, &str)] = if told_too { &[("rate-from", "5M")] } else { &[] };
            let mut port = told(up("a"), settings);
            port.from_guest.held = held;
            let mut seen = seen(&[port]);
            let rates = vec![RatesOf { port: "a".into(), from: Some("8000 bits a second".into()), to: None }];
            seen.switch.deciders = Some(OpenVswitch { rates, ..OpenVswitch::default() });
            seen
        };
        for told_too in [false, true] {
            let [finding] = &found(&site(1, told_too), &site(2, told_too))[..] else { panic!("one") };
            assert_eq!(
                (finding.kind, &finding.command, &*finding.evidence[0]),
                ("rate-from", &None, "Open vSwitch sets 8000 bits a second")
            );
            assert!(finding.remedy.contains("ovs-vsctl set interface a"), "{}", finding.remedy);
        }
    }

    #[test]
    fn mirrors_that_lose_and_that_copy_nothing() {
        let mirror = Mirror { name: "m".into(), from: vec!["a".into()], to: "ids".into(), ..Mirror::default() };
        let site = |lost, note: Option<&str>| {
            let mut port = up("ids");
            port.to_guest.drops = dropped("mirror_copy", lost);
            let mirrors = vec![Mirror { note: note.map(str::to_owned), ..mirror.clone() }];
            Seen { mirrors, ..seen(&[up("a"), port]) }
        };
        assert!(found(&site(1, None), &site(1, None)).is_empty());
        let [finding] = &found(&site(1, None), &site(3, None))[..] else { panic!("one") };
        assert_eq!(
            (finding.kind, finding.port.as_deref(), &finding.also[..]),
            ("mirror-loses", Some("ids"), &["a".to_owned()][..])
        );
        let [finding] = &found(&site(1, Some("there is no port b yet")), &site(1, Some("there is no port b yet")))[..]
        else {
            panic!("one")
        };
        assert_eq!((finding.kind, &finding.command), ("mirror-idle", &None));
        let gone = Seen { mirrors: site(0, Some("nothing is copied")).mirrors, ..seen(&[up("a")]) };
        assert_eq!(found(&gone, &gone)[0].command.as_deref(), Some("lasthop mirror del m"));
    }

    #[test]
    fn first_packets_that_wait_in_vain() {
        let mut port = up("a");
        port.from_guest.drops = dropped("miss_timeout", 2);
        assert_eq!(found(&seen(&[up("a")]), &seen(&[port]))[0].kind, "control-late");
    }
}
