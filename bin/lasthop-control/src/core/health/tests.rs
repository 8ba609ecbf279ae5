//! Ports that are not well, and guests that are on their way.

use super::*;
use lasthop_ipc::{LastError, QueueInfo};

const DRIVER: u64 = 1 << 32 | PROTOCOL_FEATURES;

fn port(state: PortState, features: u64, memory_regions: u32, kicks: u64) -> PortInfo {
    let ring = |index| QueueInfo { index, size: 256, packed: false, enabled: true, blank: true, error: None };
    let mut port = PortInfo {
        id: PortId(1),
        name: "vm1".into(),
        queues: if state == PortState::Up { vec![ring(0), ring(1)] } else { Vec::new() },
        connected: state != PortState::Waiting,
        up: state == PortState::Up,
        broken: None,
        features,
        protocol_features: 0,
        mtu: 0,
        memory_bytes: 0,
        memory_regions,
        translation: None,
        last_error: None,
        from_guest: Default::default(),
        to_guest: Default::default(),
        waiting: 0,
        vm: None,
    };
    port.from_guest.notifications = kicks;
    port
}

/// A port that waited, was connected at 0 and is like this since 10 ms.
fn health(port: &PortInfo) -> Health {
    let mut health = Health::default();
    health.port_is(&self::port(PortState::Waiting, 0, 0, 0), 0);
    health.port_is(&self::port(PortState::Connected, 0, 0, 0), 0);
    health.port_is(port, 10);
    health
}

#[test]
fn no_memory_at_all() {
    let connected = port(PortState::Connected, DRIVER, 0, 0);
    let mut health = health(&connected);
    assert_eq!(health.note(&connected, 900), None, "it may still come");
    let note = health.note(&connected, 1000).unwrap();
    assert!(note.contains("not shared") && note.contains("share=on") && note.contains("attach vm1"), "{note}");
    assert!(health.is_due(1000) && !health.is_due(1000));
    assert!(health.look(&connected, 1000).unwrap().starts_with("port vm1: its memory is not shared"));
    let later = health.deadline_ms().unwrap();
    assert!(health.is_due(later));
    assert_eq!(health.look(&connected, later), None, "it is said once");
    let much_later = later + SAY_AGAIN_MS;
    assert!(health.is_due(much_later) && health.look(&connected, much_later).is_some());
}

/// It was handed over, and could not be taken: whoever looks is not told of another cause.
#[test]
fn memory_that_was_refused_is_said_to_have_been() {
    let mut connected = port(PortState::Connected, DRIVER, 0, 0);
    let error = |line: &str, of_memory| Some(LastError { line: line.into(), of_memory });
    connected.last_error = error("refused: SET_MEM_TABLE: memory region at 0x0 is of a file on a disk", true);
    let note = health(&connected).note(&connected, 1000).unwrap();
    assert!(
        note.contains("that could be taken")
            && note.contains("refused last: SET_MEM_TABLE: memory")
            && note.ends_with("is of a file on a disk"),
        "{note}"
    );
    connected.last_error = error("queue 0: what it says is as good as SET_MEM_TABLE", false);
    assert!(health(&connected).note(&connected, 1000).unwrap().contains("not shared"));
}

#[test]
fn a_guest_that_boots_is_no_news() {
    let connected = port(PortState::Connected, PROTOCOL_FEATURES, 0, 0);
    let mut health = health(&connected);
    assert!(health.note(&connected, 1000).unwrap().contains("driver has not started"));
    assert!(health.is_due(1000));
    assert_eq!(health.look(&connected, 1000), None, "and nothing for the log");
}

#[test]
fn kicks_that_lead_to_nothing() {
    let up = |kicks| port(PortState::Up, DRIVER, 1, kicks);
    let health_of = || health(&up(0));
    // QEMU's own kick of a ring that starts.
    assert_eq!(health_of().note(&up(1), 5000), None);
    let note = health_of().note(&up(2), 5000).unwrap();
    assert!(note.contains("not shared") && note.contains("zeros") && note.contains("share=on"), "{note}");
    assert_eq!(health_of().note(&up(2), 500), None, "its packets may be on their way");
    // Of several queue pairs each is kicked once.
    let mut many = up(2);
    many.queues.extend_from_within(..);
    assert_eq!(health_of().note(&many, 5000), None);
    // A kick long after the start is the driver's, whoever kicked at the start.
    let mut late = health_of();
    assert!(late.is_due(1010));
    assert_eq!(late.look(&up(0), 1010), None);
    assert!(late.note(&up(1), 5000).is_some());
    // What has ever passed shows that the memory is shared.
    let mut busy = up(9);
    busy.from_guest.packets = 1;
    assert_eq!(health_of().note(&busy, 5000), None);
    let mut filled = up(9);
    filled.queues[0].blank = false;
    assert_eq!(health_of().note(&filled, 5000), None);
}

/// The guest's kick fell together with QEMU's own, or its interface is down.
#[test]
fn rings_that_stay_blank_for_long_have_two_causes() {
    let up = port(PortState::Up, DRIVER, 1, 1);
    let health = health(&up);
    assert_eq!(health.note(&up, 10 + OPENED_MS - 1), None, "it may still be set up");
    let note = health.note(&up, 10 + OPENED_MS).unwrap();
    assert!(note.contains("interface up") && note.contains("not shared") && note.contains("share=on"), "{note}");
    let mut filled = up.clone();
    filled.queues[0].blank = false;
    assert_eq!(health.note(&filled, 9000), None);
    let mut stopped = up;
    stopped.queues.clear();
    assert_eq!(health.note(&stopped, 9000), None);
}

/// The driver closed the device, or was reset, and the note became that of a guest that reboots.
#[test]
fn kicks_that_led_to_nothing_are_still_known_when_the_driver_stops() {
    let up = |kicks| port(PortState::Up, DRIVER, 1, kicks);
    let closed = |kicks| port(PortState::Connected, PROTOCOL_FEATURES, 1, kicks);
    let note = |kicks_up, kicks_closed, packets| {
        let mut health = health(&up(0));
        assert!(health.is_due(1010));
        health.look(&up(kicks_up), 1010);
        let mut closed = closed(kicks_closed);
        closed.from_guest.packets = packets;
        health.port_is(&closed, 1500);
        health.note(&closed, 1500)
    };
    assert!(note(1, 2, 0).is_some_and(|note| note.contains("not shared") && note.contains("zeros")));
    assert_eq!(note(1, 1, 0), None, "QEMU's own kick");
    assert_eq!(note(1, 2, 1), None, "something has passed");
    // With the next start it is looked at anew.
    let mut health = health(&up(0));
    for state in [up(5), closed(5), up(6), closed(6)] {
        health.port_is(&state, 20);
    }
    assert_eq!(health.note(&closed(6), 30), None, "QEMU's own kick of the second start");
}

#[test]
fn counters_of_the_guest_before_do_not_count() {
    let mut old = port(PortState::Waiting, 0, 0, 70);
    old.from_guest.packets = 50;
    let mut health = Health::default();
    health.port_is(&old, 0);
    let mut new = port(PortState::Up, DRIVER, 1, 71);
    new.from_guest.packets = 50;
    health.port_is(&new, 10);
    assert_eq!(health.note(&new, 5000), None);
    new.from_guest.notifications = 72;
    assert!(health.note(&new, 5000).is_some());
}

/// QEMU has logging begin while the rings run, and stops them at the end; its log ends with it, or the guest goes on and nothing is logged.
#[test]
fn a_guest_on_its_way_to_another_host() {
    let up = port(PortState::Up, DRIVER, 1, 0);
    let down = PortInfo { queues: up.queues.clone(), ..port(PortState::Connected, DRIVER, 1, 0) };
    let logging = |port: &PortInfo| PortInfo { features: DRIVER | LOG_ALL, ..port.clone() };
    let mut health = health(&up);
    let mut news = |port: &PortInfo, now_ms| {
        health.port_is(port, now_ms);
        let news = health.move_news(port, now_ms).map(|line| line.split([':', ' ']).next().unwrap_or_default());
        (news, health.note(port, now_ms + SETTLED_MS).map(|note| note.split(':').next().unwrap_or_default().to_owned()))
    };
    assert_eq!(news(&up, 100), (None, None));
    assert_eq!(news(&logging(&up), 2000), (Some("migrating"), Some("migrating".into())));
    assert_eq!(news(&logging(&up), 3100), (None, Some("migrating".into())), "said once");
    assert_eq!(news(&logging(&down), 3200), (Some("moved"), Some("moved".into())));
    // It goes on here, for the move has failed.
    assert_eq!(news(&up, 5000), (Some("migrating"), None));
    // A front-end that has logging begin and end all the time.
    let said = (6000..8000).filter(|ms| news(&if ms % 2 == 0 { logging(&up) } else { up.clone() }, *ms).0.is_some());
    assert!(said.count() <= 3);
    let stopped = news(&down, 20_000).1.unwrap();
    assert!(stopped.contains("rings are stopped"), "{stopped}");
}

#[test]
fn a_second_front_end_that_was_refused_is_told_of_for_a_while() {
    let mut up = port(PortState::Up, DRIVER, 1, 0);
    (up.from_guest.packets, up.queues[0].blank) = (1, false);
    let mut health = health(&up);
    health.second_refused(up.id, "process 7 of user 0".into(), 9000);
    let note = health.note(&up, 12_000).unwrap();
    assert!(
        note.starts_with("a second front-end was refused 3 s ago, for one is connected: process 7 of user 0; "),
        "{note}"
    );
    assert_eq!(health.note(&up, 9000 + REFUSED_MS), None);
}

#[test]
fn when_it_went_wrong_is_known_of_what_was_told_later() {
    let with = |line: &str| {
        let last_error = Some(LastError { line: line.into(), of_memory: false });
        PortInfo { last_error, ..port(PortState::Waiting, 0, 0, 0) }
    };
    let mut health = Health::default();
    health.port_is(&with("old"), 1000);
    assert_eq!(health.erred_ms_ago(PortId(1), 5000), None, "control is younger than that");
    health.port_is(&with("new"), 6000);
    health.port_is(&with("new"), 7000);
    assert_eq!(health.erred_ms_ago(PortId(1), 9000), Some(3000));
}

#[test]
fn a_port_that_flaps_fills_no_log() {
    let (up, down) = (port(PortState::Up, DRIVER, 1, 0), port(PortState::Connected, DRIVER, 1, 0));
    let mut health = Health::default();
    let said = (0..3000).filter(|ms| {
        let news = health.port_is(&up, *ms);
        health.port_is(&down, *ms);
        news
    });
    assert_eq!(said.count(), 3);
}

#[test]
fn a_port_that_carries_is_not_looked_at_again() {
    let mut up = port(PortState::Up, DRIVER, 1, 0);
    let mut health = health(&up);
    up.from_guest.packets = 1;
    assert!(health.is_due(1010));
    assert_eq!(health.look(&up, 1010), None);
    assert_eq!(health.deadline_ms(), None);
}
