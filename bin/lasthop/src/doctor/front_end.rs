//! VMs: whether a front-end is there, its memory is shared, its driver runs and it goes on.

use super::facts::{Facts, Way};
use super::finding::Finding;
use super::moves::is_move;
use lasthop_api::Port;

/// What a port's `last_error` says after a VM was ended, or its device unplugged.
const LEFT: &str = "the front-end disconnected";

/// What is said of a ring whose pages of I/O addresses are not one piece of the guest's memory.
const APART: &str = "do not lie together";

/// What notes begin with, the kind of each, and what is to be done where the note does not say it.
const NOTES: [(&str, &str, &str); 8] = [
    (
        "cannot start session",
        "no-session-process",
        "see that lasthop's host has memory, descriptors and processes left; it is tried again by itself",
    ),
    ("its memory is not shared", "memory-not-shared", ""),
    (
        "its front-end has handed over no memory",
        "memory-refused",
        "docs/troubleshooting.md, \"Guest memory\", says what each refusal means",
    ),
    (
        "its guest's virtio-net driver has not started",
        "driver-not-started",
        "boot the guest, and load virtio-net in it: `modprobe virtio_net`, `ip link set eth0 up`; nothing, if a VM is being moved here",
    ),
    ("its driver has started, and its front-end", "rings-not-started", ""),
    (
        "its rings are stopped",
        "rings-stopped",
        "wait for the guest to boot, load its virtio-net driver again, or let a paused machine go on (QMP: cont; virsh resume)",
    ),
    ("all that is seen of its rings", "rings-blank", ""),
    ("a second front-end was refused", "second-front-end", ""),
];

pub fn findings(facts: &Facts<'_>) -> Vec<Finding> {
    facts.guests().flat_map(|port| of_guest(facts, port)).collect()
}

fn of_guest(facts: &Facts<'_>, port: &Port) -> Vec<Finding> {
    let mut found = Vec::new();
    match port.state.as_str() {
        "broken" => found.push(broken(port)),
        "waiting" => found.extend(waiting(facts, port)),
        _ => {}
    }
    if let Some(note) = port.note.as_ref().filter(|note| !is_move(note)) {
        found.push(noted(port, note));
    }
    found.extend(buffers(facts, port));
    found
}

fn broken(port: &Port) -> Finding {
    let apart = port.error.as_ref().and_then(|why| why.split_once(APART)?.1.split_once("; "));
    let (what, remedy) = match apart {
        Some((_, remedy)) => ("a ring cannot be started: its guest's IOMMU maps it in pieces", remedy),
        None => (
            "a ring was stopped, because what its guest wrote there cannot be",
            "reset the device: unload and load the guest's driver, or reboot the guest; if it comes again, report it with the guest's kernel and front-end",
        ),
    };
    let mut finding = Finding::at(&port.name, "broken", what).remedy(remedy);
    finding.evidence.extend(port.error.clone());
    for queue in port.queues.iter().filter(|queue| queue.error.is_some()) {
        finding.evidence.push(format!("queue {}: {}", queue.index, queue.error.as_deref().unwrap_or_default()));
    }
    finding
}

/// No front-end is there. That a VM does not run is no fault, unless somebody asks for its port, or it was turned away.
fn waiting(facts: &Facts<'_>, port: &Port) -> Option<Finding> {
    if port.note.is_some() {
        // What keeps front-ends away is said by the note.
        return None;
    }
    let last = port.last_error.as_ref().filter(|why| *why != LEFT);
    if last.is_none() && facts.named != Some(&*port.name) {
        return None;
    }
    let lines = facts.lasthop(&format!("attach {}", port.name));
    let path = &port.path;
    let remedy = match last {
        Some(why) if why.contains("must be shared") => {
            "give the VM shared memory (QEMU: share=on; Cloud Hypervisor: shared=on)".to_owned()
        }
        Some(why) if why.contains("the port belongs to") => {
            "run the VM as the port's owner, or name another owner".to_owned()
        }
        _ if port.client => {
            format!("start the VM, with its front-end listening at {path}; `{lines}` prints its lines")
        }
        _ => format!("start the VM, with its front-end connecting to {path}; `{lines}` prints its lines"),
    };
    let finding = Finding::at(&port.name, "no-front-end", "no front-end is connected").remedy(remedy);
    Some(match last.or(port.last_error.as_ref()) {
        Some(why) => {
            let age = port.last_error_age_ms.map_or_else(String::new, |ms| format!(", {} s ago", ms / 1000));
            finding.seen(format!("last connection{age}: {why}"))
        }
        None => finding.seen(format!("nobody has connected to {}", port.path)),
    })
}

/// Notes say what is wrong and, behind a semicolon, what to do.
fn noted(port: &Port, note: &str) -> Finding {
    let (what, to_do) = note.split_once("; ").unwrap_or((note, ""));
    let known = NOTES.iter().find(|(begins, ..)| note.starts_with(begins));
    let (kind, remedy) = known.map_or(("front-end", ""), |(_, kind, remedy)| (*kind, *remedy));
    let (what, seen) = what.split_once(": ").unwrap_or((what, ""));
    let finding = Finding::at(&port.name, kind, what).remedy(if to_do.is_empty() { remedy } else { to_do });
    if seen.is_empty() { finding.seen(format!("the port is {}", port.state)) } else { finding.seen(seen) }
}

/// A receiver without buffers: slow, or not there at all.
fn buffers(facts: &Facts<'_>, port: &Port) -> Option<Finding> {
    let lost = facts.drops(port, Way::To, "no_buffers");
    if lost.now == 0 {
        let small = facts.drops(port, Way::To, "buffer_too_small");
        return (small.now > 0).then(|| {
            Finding::at(
                &port.name,
                "buffers-too-small",
                "its guest's receive buffers are shorter than what is sent to it",
            )
            .seen(small.said("dropped as buffer_too_small"))
            .remedy("leave mrg_rxbuf on (QEMU: mrg_rxbuf=on), or enlarge the driver's buffers")
        });
    }
    let taken = facts.counter(port, |p| p.to_guest.packets).now;
    if facts.is_cable(port) {
        return super::devices::does_not_take(facts, port, (lost, taken));
    }
    let (kind, what) = if taken == 0 {
        ("receiver-stuck", "its guest takes no packets: it gives the switch no receive buffers")
    } else {
        ("receiver-slow", "its guest does not keep up: its receive buffers run out")
    };
    // The pages of a longer ring do not lie together where an IOMMU maps them.
    let longer = if port.translation.is_some() { "" } else { "a longer ring (QEMU: rx_queue_size=1024), " };
    let doing = port.vm.as_ref().map_or_else(String::new, |vm| format!("; its VM is {vm}"));
    Some(
        Finding::at(&port.name, kind, what)
            .seen(format!("{}; {taken} taken{doing}", lost.said("dropped as no_buffers")))
            .remedy(format!(
                "see that the guest runs and its interface is up; give it processor time, {longer}more queue pairs"
            )),
    )
}

#[cfg(test)]
mod tests {
    use super::super::facts::Seen;
    use super::super::facts::testutil::*;
    use super::*;

    fn kinds(before: &Seen, now: &Seen) -> Vec<&'static str> {
        findings(&facts(before, now)).iter().map(|f| f.kind).collect()
    }

    #[test]
    fn notes_become_findings_with_what_to_do() {
        let note = "its memory is not shared with lasthop: its guest kicks, and all that is seen of its rings is zeros; QEMU: share=on";
        let now = seen(&[Port { note: Some(note.into()), ..up("a") }]);
        let [finding] = &findings(&facts(&now, &now))[..] else { panic!("one") };
        assert_eq!((finding.kind, finding.remedy.as_str()), ("memory-not-shared", "QEMU: share=on"));
        assert_eq!(finding.evidence, ["its guest kicks, and all that is seen of its rings is zeros"]);
        let note =
            "its guest's virtio-net driver has not started: nothing passes before the guest has booted and loaded it";
        let now = seen(&[Port { note: Some(note.into()), state: "connected".into(), ..up("a") }]);
        let [finding] = &findings(&facts(&now, &now))[..] else { panic!("one") };
        assert!(finding.kind == "driver-not-started" && finding.remedy.contains("modprobe"), "{finding:?}");
        let now = seen(&[Port { note: Some("/run/a.sock: no such directory; make it".into()), ..up("a") }]);
        assert_eq!(kinds(&now, &now), ["front-end"], "a note that no kind is known of is not lost");
        for (note, evidence, remedy) in [
            (
                "cannot start session a: /p: No such file; install it there again; it is",
                "/p: No such file",
                "install it there again; it is",
            ),
            ("cannot start session a: it ended; the log says more", "it ended", "the log says more"),
            ("cannot start session a: Too many open files", "Too many open files", "descriptors"),
        ] {
            let now = seen(&[Port { note: Some(note.into()), state: "waiting".into(), ..up("a") }]);
            let named = Facts { named: Some("a"), ..facts(&now, &now) };
            let [finding] = &findings(&named)[..] else { panic!("one") };
            assert_eq!((finding.kind, &finding.evidence[..]), ("no-session-process", &[evidence.to_owned()][..]));
            assert!(finding.remedy.contains(remedy), "{finding:?}");
        }
        let note = "a second front-end was refused 3 s ago, for one is connected: process 7 of user 5; end it";
        let now = seen(&[Port { note: Some(note.into()), ..up("a") }]);
        let [finding] = &findings(&facts(&now, &now))[..] else { panic!("one") };
        assert_eq!((finding.kind, finding.remedy.as_str()), ("second-front-end", "end it"));
        assert_eq!(finding.evidence, ["process 7 of user 5"]);
    }

    #[test]
    fn a_vm_that_does_not_run_is_a_fault_only_for_who_asks() {
        let port = Port { state: "waiting".into(), last_error: Some(LEFT.into()), path: "/a.sock".into(), ..up("a") };
        let now = seen(std::slice::from_ref(&port));
        assert_eq!(kinds(&now, &now), [""; 0]);
        let named = Facts { named: Some("a"), ..facts(&now, &now) };
        assert_eq!(findings(&named).iter().map(|f| f.kind).collect::<Vec<_>>(), ["no-front-end"]);
        let refused = "process 7 of user 5 was refused: the port belongs to vm";
        let now = seen(&[Port { last_error: Some(refused.into()), ..port }]);
        let [finding] = &findings(&facts(&now, &now))[..] else { panic!("one") };
        assert!(finding.remedy.contains("owner") && finding.evidence[0].ends_with(refused), "{finding:?}");
    }

    #[test]
    fn a_slow_receiver_is_told_from_one_that_takes_nothing() {
        let with = |lost, taken| {
            let mut port = up("a");
            (port.to_guest.drops, port.to_guest.packets) = (dropped("no_buffers", lost), taken);
            seen(&[port])
        };
        assert_eq!(kinds(&with(5, 9), &with(5, 9)), [""; 0], "it is over");
        assert_eq!(kinds(&with(5, 9), &with(7, 9)), ["receiver-stuck"]);
        assert_eq!(kinds(&with(5, 9), &with(7, 90)), ["receiver-slow"]);
        let remedy = |now: &Seen| findings(&facts(&with(5, 9), now))[0].remedy.clone();
        assert!(remedy(&with(7, 90)).contains("rx_queue_size=1024"));
        let mut translates = with(7, 90);
        translates.ports[0].translation = Some(lasthop_api::Translation::default());
        assert!(!remedy(&translates).contains("rx_queue_size"), "such a ring breaks");
        let mut now = up("a");
        now.to_guest.drops = dropped("buffer_too_small", 1);
        assert_eq!(kinds(&seen(&[up("a")]), &seen(&[now])), ["buffers-too-small"]);
    }

    #[test]
    fn a_broken_ring_says_why() {
        let now = seen(&[Port { state: "broken".into(), error: Some("descriptor 9 is beyond".into()), ..up("a") }]);
        let [finding] = &findings(&facts(&now, &now))[..] else { panic!("one") };
        assert!(finding.kind == "broken" && finding.evidence == ["descriptor 9 is beyond"], "{finding:?}");
        let apart = "queue 0: ring spans pages of I/O addresses that do not lie together in the guest's memory (512 entries, at 0x1000); use rings of 256";
        let now = seen(&[Port { state: "broken".into(), error: Some(apart.into()), ..up("a") }]);
        let [finding] = &findings(&facts(&now, &now))[..] else { panic!("one") };
        assert_eq!((finding.remedy.as_str(), &finding.evidence[..]), ("use rings of 256", &[apart.to_owned()][..]));
    }
}
