//! The load generator sees what goes wrong: behind the switch a station sends every frame back, as it does where uplinks are
//! measured, but one of them not at all, twice, after the next, or with a wrong byte.

use lasthop_tests_process::{Guest, Lasthop, Options, Port, binary, scratch};
use lasthop_text::MacAddr;
use serde_json::Value;
use std::collections::BTreeMap;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// What the station does to one frame.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Fault {
    Nothing,
    Drop,
    Double,
    Swap,
    Flip,
}

/// Which frame it does that to, of how many.
const AT: u32 = 100;
const FRAMES: u32 = 200;

/// The station: hands on what it gets, and keeps `held` for after the next.
struct Station {
    guest: Guest,
    fault: Fault,
    frames: u32,
    held: Option<Vec<u8>>,
}

impl Station {
    fn serve(&mut self) {
        let Some((_, mut frame)) = self.guest.recv_within(Duration::from_millis(20)) else { return };
        // Announcements are for everybody, and come back to nobody.
        if frame[0] & 1 != 0 {
            return;
        }
        let (to, from) = frame[..12].split_at_mut(6);
        to.swap_with_slice(from);
        self.frames += 1;
        let now = self.frames == AT;
        match self.fault {
            Fault::Drop if now => return,
            Fault::Double if now => self.guest.send(&frame),
            Fault::Swap if now => {
                self.held = Some(frame);
                return;
            }
            Fault::Flip if now => *frame.last_mut().unwrap() ^= 0x20,
            _ => {}
        }
        self.guest.send(&frame);
        if let Some(held) = self.held.take() {
            self.guest.send(&held);
        }
    }
}

/// What the generator exits with, and what it found wrong.
fn play(fault: Fault, options: &[&str]) -> (Option<i32>, BTreeMap<&'static str, u64>) {
    let dir = scratch();
    let (near, far) = (Port::listen("near", dir.path()), Port::listen("far", dir.path()));
    let _lasthop = Lasthop::start(&[near.clone(), far.clone()]);
    let guest = Guest::connect(&far.socket, MacAddr([2, 0, 0, 0, 0, 0x99]), Options::default());
    let mut station = Station { guest, fault, frames: 0, held: None };
    let mut command = Command::new(binary("lasthop-loadgen"));
    command.arg(format!("{},client", near.socket.display())).args(["--pattern", "reflect", "--size", "200"]);
    command.args(["--packets", &FRAMES.to_string(), "--window", "16", "--warmup", "0", "--seconds", "60", "--json"]);
    command.args(["--notify", "sleep", "--ring", "256", "--huge", "no"]).args(options);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let over = AtomicBool::new(false);
    let out = std::thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                station.serve();
            }
        });
        let out = command.output();
        over.store(true, Ordering::Relaxed);
        out.unwrap()
    });
    let json: Value = serde_json::from_slice(&out.stdout)
        .unwrap_or_else(|e| panic!("{fault:?}: {e}: {}", String::from_utf8_lossy(&out.stderr)));
    assert_eq!(station.frames, FRAMES, "{fault:?}: {json}");
    let wrong = ["lost", "reordered", "doubled", "damaged", "stray"];
    let wrong = wrong.into_iter().map(|name| (name, json[name].as_u64().unwrap())).filter(|(_, count)| *count > 0);
    (out.status.code(), wrong.collect())
}

#[test]
fn each_fault_is_reported_as_what_it_is() {
    let check = |fault, expected: &[(&'static str, u64)]| {
        let expected: BTreeMap<_, _> = expected.iter().copied().collect();
        let exit = if expected.is_empty() { 0 } else { 1 };
        assert_eq!(play(fault, &["--check", "content", "--strict"]), (Some(exit), expected), "{fault:?}");
    };
    check(Fault::Nothing, &[]);
    check(Fault::Drop, &[("lost", 1)]);
    check(Fault::Double, &[("doubled", 1)]);
    check(Fault::Swap, &[("reordered", 1)]);
    check(Fault::Flip, &[("damaged", 1)]);
}

#[test]
fn a_fault_fails_only_if_asked_to_and_only_what_is_checked_is_found() {
    assert_eq!(play(Fault::Drop, &["--check", "content"]), (Some(0), [("lost", 1)].into()));
    assert_eq!(play(Fault::Flip, &["--check", "order", "--strict"]), (Some(0), [].into()));
    assert_eq!(play(Fault::Swap, &["--check", "order", "--strict"]), (Some(1), [("reordered", 1)].into()));
    assert_eq!(play(Fault::Swap, &["--check", "count", "--strict"]), (Some(0), [].into()));
}
