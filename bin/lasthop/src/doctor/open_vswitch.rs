//! Open vSwitch, where it decides: whether it is there, alone, and takes what it is shown.

use super::facts::{Facts, Rise, Way};
use super::finding::Finding;
use lasthop_api::{OpenVswitch, Port, named};
use lasthop_text::counted;

/// A lasthop-ovs that has just been started is connected to again after less, in ms.
const GRACE_MS: u64 = 1000;

pub fn findings(facts: &Facts<'_>) -> Vec<Finding> {
    let Some(deciders) = &facts.now.switch.deciders else { return Vec::new() };
    let socket = facts.now.ovs_socket.as_ref().map(|why| {
        Finding::of_all(
            "ovs-socket-gone",
            "no program of Open vSwitch's reaches lasthop: its socket is not where it was made",
        )
        .seen(why.clone())
        .remedy("lasthop makes it anew: if it stays so, the log of `lasthop run` says what is in the way")
    });
    let there = match (deciders.away_ms.is_some(), deciders.processes.is_empty()) {
        (true, true) => away(facts, deciders),
        (true, false) => displaced(facts, deciders),
        _ => late(facts, deciders),
    };
    let outdated = (!deciders.outdated.is_empty()).then(|| outdated(deciders));
    let left_over = (!deciders.left_over.is_empty()).then(|| left_over(facts, deciders));
    let ports = of_ports(facts, deciders);
    socket.into_iter().chain(outdated).chain(left_over).chain(there).chain(twice(deciders)).chain(ports).collect()
}

/// Ports of which Open vSwitch drops what they send, and those of its own that are nothing here.
fn of_ports(facts: &Facts<'_>, deciders: &OpenVswitch) -> Vec<Finding> {
    let before = facts.before.switch.deciders.as_ref();
    let dropped = |port: &Port| -> Option<Finding> {
        let (rise, name) = (facts.drops(port, Way::From, "policy"), &port.name);
        let aside = |of: &OpenVswitch| of.dropped_of.iter().find(|of| of.port == *name).map_or(0, |of| of.packets);
        let aside = rise_of(before.map_or(0, aside), aside(deciders));
        if deciders.ports.contains(name) {
            let finding = Finding::at(name, "rule-drops", "rules of Open vSwitch drop what it sends").remedy(format!(
                "`{}` shows what is dropped, by names of ports (`drop`), `ovs-appctl dpctl/dump-flows` also what `ct` and a rule behind it drop, and `ovs-appctl \
                 ofproto/trace BRIDGE in_port={name},…` by which rule; LLDP and the like are dropped by every bridge",
                facts.lasthop("flow list")
            ));
            let finding = if rise.now > 0 { finding.seen(rise.said("dropped as policy")) } else { finding };
            let finding =
                if aside.now > 0 { finding.seen(aside.said("dropped in lasthop-ovs, one by one")) } else { finding };
            return (rise.now + aside.now > 0).then_some(finding);
        }
        // Without a datapath no bridge has any port.
        let has_bridges = deciders.away_ms.is_none() && deciders.left_over.is_empty();
        (rise.now > 0 && has_bridges).then(|| {
            Finding::at(name, "no-bridge", "no bridge of Open vSwitch has it: all that it sends is dropped")
                .seen(rise.said("dropped as policy"))
                .remedy(format!("`ovs-vsctl add-port BRIDGE {name}`"))
        })
    };
    let metered = |port: &Port| -> Option<Finding> {
        let rise = facts.drops(port, Way::From, "meter");
        (rise.now > 0).then(|| {
            Finding::at(&port.name, "meter-drops", "more comes from it than a meter of OpenFlow's, or a queue's `max-rate`, lets through")
                .seen(rise.said("dropped as meter"))
                .remedy("`ovs-ofctl -O OpenFlow13 meter-stats BRIDGE` and `ovs-ofctl queue-stats BRIDGE` say which; raise it (`ovs-ofctl mod-meter`, the queue's `other_config:max-rate`), or take it back")
        })
    };
    let without = deciders.without.iter().map(|name| {
        Finding::of_all(
            "port-without-interface",
            format!(
                "Open vSwitch has a port {name}, which is neither a VM's nor an interface here: no packet passes it"
            ),
        )
        .remedy(format!(
            "`lasthop port add {name} SOCKET` for a VM; if it is of no use any more: `ovs-vsctl del-port {name}`"
        ))
    });
    facts.ports().filter_map(dropped).chain(facts.ports().filter_map(metered)).chain(without).collect()
}

/// Packets that nobody took while this command looked, as evidence.
fn lost(facts: &Facts<'_>, deciders: &OpenVswitch) -> (u64, String) {
    let before = facts.before.switch.deciders.as_ref().map_or(0, |before| before.lost);
    // A process that was replaced counts anew.
    let now = deciders.lost.checked_sub(before).unwrap_or(deciders.lost);
    (
        now,
        format!(
            "{} that met no flow dropped while this command looked, {} in all",
            counted(now, "packet"),
            deciders.lost
        ),
    )
}

/// Of a counter that begins anew with its process.
fn rise_of(before: u64, now: u64) -> Rise {
    Rise { now: now.checked_sub(before).unwrap_or(now), ever: now }
}

/// Another one took the datapath over, and is gone.
fn displaced(facts: &Facts<'_>, deciders: &OpenVswitch) -> Option<Finding> {
    let away_ms = deciders.away_ms.filter(|ms| *ms >= GRACE_MS)?;
    let what = format!(
        "ovs-vswitchd ({}) is there, but takes no packets: another one had taken the datapath over, and is gone; packets that meet no flow are dropped",
        named(&deciders.processes)
    );
    Some(
        Finding::of_all("open-vswitch-displaced", what)
            .seen(format!("nobody has taken packets that meet no flow for {}", counted(away_ms / 1000, "second")))
            .seen(lost(facts, deciders).1)
            .remedy(
                "restart it: `systemctl restart openvswitch-switch`, or end it and start it again by `lasthop ovs exec`",
            ),
    )
}

/// Its library and this lasthop do not understand each other.
fn outdated(deciders: &OpenVswitch) -> Finding {
    let what = format!(
        "Open vSwitch ({}) has a liblasthop_ovs.so of another version, and is refused: nothing passes",
        named(&deciders.outdated)
    );
    Finding::of_all("open-vswitch-outdated", what)
        .seen("the hello of its library is of another version; its own log says that the kernel module is probably not loaded")
        .remedy("install library and programs from one package or build, and restart it: `systemctl restart openvswitch-switch`, or end it and start it again by `lasthop ovs exec`")
}

fn away(facts: &Facts<'_>, deciders: &OpenVswitch) -> Option<Finding> {
    let away_ms = deciders
        .away_ms
        .filter(|ms| *ms >= GRACE_MS && deciders.left_over.is_empty() && deciders.outdated.is_empty())?;
    let seconds = counted(away_ms / 1000, "second");
    let since = match deciders.has_come {
        true => format!("nobody has taken packets that meet no flow for {seconds}"),
        false => format!("no ovs-vswitchd has come since lasthop-ovs was started, {seconds} ago"),
    };
    let exec = facts.lasthop("ovs exec");
    Some(
        Finding::of_all("open-vswitch-away", "Open vSwitch is not there: known flows go on, and packets that meet none are dropped")
            .seen(since)
            .seen(lost(facts, deciders).1)
            .remedy(format!(
                "`systemctl status ovs-vswitchd` says why; start it with the unit of `lasthop ovs install`, or by `{exec} -- ovs-vswitchd …`: one \
                 that was started otherwise is over the kernel's datapath, or over another lasthop (`--run-dir`), and not over this one"
            )),
    )
}

fn late(facts: &Facts<'_>, deciders: &OpenVswitch) -> Option<Finding> {
    let (now, said) = lost(facts, deciders);
    (now > 0).then(|| {
        let what = format!("ovs-vswitchd ({}) does not take first packets of new flows in time", named(&deciders.processes));
        Finding::of_all("open-vswitch-late", what)
            .seen(said)
            .remedy("see whether it is stopped (`ps -o pid,stat,comm -C ovs-vswitchd`: T) or short of processor time (`ovs-appctl coverage/show`); many new flows a second come from guests that scan: `lasthop stats --verbose`, column MISSED")
    })
}

fn left_over(facts: &Facts<'_>, deciders: &OpenVswitch) -> Finding {
    let what = format!(
        "ovs-vswitchd ({}) goes on with the datapath of a `lasthop run` before this one, which is gone: nothing passes",
        named(&deciders.left_over)
    );
    Finding::of_all("open-vswitch-left-over", what)
        .seen("it was connected to another lasthop, and has made no datapath here")
        .seen(lost(facts, deciders).1)
        .remedy(
            "restart it: `systemctl restart openvswitch-switch`, or end it and start it again by `lasthop ovs exec`; what was set by `ovs-ofctl` alone is gone with its \
             process, unless the service's script saves it",
        )
}

fn twice(deciders: &OpenVswitch) -> Option<Finding> {
    (deciders.processes.len() > 1).then(|| {
        let what = format!("several ovs-vswitchd change one datapath ({}): each takes away what another has made", named(&deciders.processes));
        Finding::of_all("open-vswitch-twice", what)
            .seen(format!("{} take packets, or did and are still connected", counted(deciders.processes.len() as u64, "process")))
            .remedy("end all but one: `ps -o pid,lstart,args -C ovs-vswitchd` shows when each was started, and how; then restart that one")
    })
}

#[cfg(test)]
mod tests {
    use super::super::facts::Seen;
    use super::super::facts::testutil::*;
    use super::*;
    use lasthop_api::{Drops, LostOf};

    fn site(deciders: OpenVswitch) -> Seen {
        let mut now = seen(&[up("a")]);
        (now.switch.open_vswitch, now.switch.deciders) = (Some(Vec::new()), Some(deciders));
        now
    }

    fn there(processes: &[u32], lost: u64) -> Seen {
        site(OpenVswitch { processes: processes.to_vec(), has_come: true, lost, ..OpenVswitch::default() })
    }

    fn kinds(before: &Seen, now: &Seen) -> Vec<&'static str> {
        findings(&facts(before, now)).iter().map(|f| f.kind).collect()
    }

    #[test]
    fn whether_it_is_there_alone_and_keeps_up() {
        let well = there(&[7], 3);
        assert_eq!(kinds(&well, &well), [""; 0]);
        assert_eq!(kinds(&seen(&[]), &seen(&[])), [""; 0], "the learning switch decides");
        assert_eq!(kinds(&well, &there(&[7], 5)), ["open-vswitch-late"]);
        assert_eq!(kinds(&well, &there(&[7, 9], 3)), ["open-vswitch-twice"]);
        let away = |away_ms, has_come| site(OpenVswitch { away_ms: Some(away_ms), has_come, ..OpenVswitch::default() });
        assert_eq!(kinds(&away(100, true), &away(100, true)), [""; 0], "lasthop-ovs was replaced just now");
        let gone = &findings(&facts(&well, &away(5000, true)))[0];
        assert_eq!(
            (gone.kind, &*gone.evidence[0]),
            ("open-vswitch-away", "nobody has taken packets that meet no flow for 5 seconds")
        );
        assert!(findings(&facts(&well, &away(5000, false)))[0].evidence[0].starts_with("no ovs-vswitchd has come"));
        let left = site(OpenVswitch { away_ms: Some(5000), left_over: vec![7], ..OpenVswitch::default() });
        assert_eq!(kinds(&left, &left), ["open-vswitch-left-over"]);
        let none = OpenVswitch { without: vec!["vm9".into()], ..well.switch.deciders.clone().unwrap() };
        let none = site(none);
        assert_eq!(kinds(&none, &none), ["port-without-interface"]);
        let dropping = |packets, ports: &[&str]| {
            let ports = ports.iter().map(|port| (*port).to_owned()).collect();
            let mut seen = site(OpenVswitch { ports, ..well.switch.deciders.clone().unwrap() });
            seen.ports[0].from_guest.drops = vec![Drops { reason: "policy".into(), packets }];
            seen
        };
        assert_eq!(kinds(&dropping(3, &["a"]), &dropping(5, &["a"])), ["rule-drops"]);
        assert_eq!(kinds(&dropping(3, &[]), &dropping(5, &[])), ["no-bridge"]);
        // Nothing is known of bridges while it is away.
        let mut left = dropping(5, &[]);
        left.switch.deciders.as_mut().unwrap().left_over = vec![7];
        assert_eq!(kinds(&dropping(3, &[]), &left), ["open-vswitch-left-over"]);
        // What a connection's state, or a meter, drops.
        let aside = |packets, ports: &[&str]| {
            let mut seen = dropping(0, ports);
            seen.switch.deciders.as_mut().unwrap().dropped_of = vec![LostOf { port: "a".into(), packets }];
            seen
        };
        assert_eq!(kinds(&aside(3, &["a"]), &aside(4, &["a"])), ["rule-drops"]);
        assert_eq!(kinds(&aside(3, &["a"]), &aside(3, &["a"])), [""; 0]);
        let metered = |packets| {
            let mut seen = dropping(0, &["a"]);
            seen.ports[0].from_guest.drops = vec![Drops { reason: "meter".into(), packets }];
            seen
        };
        assert_eq!(kinds(&metered(3), &metered(5)), ["meter-drops"]);
        assert_eq!(kinds(&metered(5), &metered(5)), [""; 0]);
        let displaced = OpenVswitch { processes: vec![7], away_ms: Some(5000), ..OpenVswitch::default() };
        let displaced = site(displaced);
        assert_eq!(kinds(&displaced, &displaced), ["open-vswitch-displaced"]);
        let outdated = OpenVswitch { outdated: vec![7], away_ms: Some(5000), ..OpenVswitch::default() };
        let outdated = site(outdated);
        assert_eq!(kinds(&outdated, &outdated), ["open-vswitch-outdated"]);
        assert_eq!(kinds(&dropping(3, &["a"]), &dropping(3, &["a"])), [""; 0]);
        let gone = Seen { ovs_socket: Some("gone".into()), ..there(&[7], 3) };
        assert_eq!(kinds(&gone, &gone), ["ovs-socket-gone"]);
    }
}
