//! Children for the tests: they speak the real messages and print what they see.

use lasthop_ipc::{
    Channel, ChannelError, ControlEnd, PortLimits, SupervisorToSwitch, SwitchEnd, SwitchToSupervisor, ToControl,
};
use lasthop_management_ipc::{ControlToSupervisor, SupervisorToControl};
use lasthop_session_ipc::{SessionToSupervisor, SupervisorToSession};
use lasthop_sys::{Epoll, Trigger, inherited_fd};
use lasthop_types::PortId;
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::time::Duration;

const SUPERVISOR: u64 = 0;
const PEER: u64 = 1;
const API: u64 = 2;
/// Connections: this plus the port's number.
const CONNECTION: u64 = 100;

fn say(program: &str, what: &str) {
    println!("{program}[{}]: {what}", std::process::id());
}

fn arguments() -> String {
    std::env::args().skip(1).collect::<Vec<_>>().join(" ")
}

fn introduce(program: &str) {
    say(program, &format!("arguments {}", arguments()));
    let mut numbers: Vec<i32> = std::fs::read_dir("/proc/self/fd")
        .unwrap()
        .map(|entry| entry.unwrap().file_name().to_str().unwrap().parse().unwrap())
        .collect();
    numbers.sort_unstable();
    say(program, &format!("descriptors {numbers:?}"));
    let mut names: Vec<String> = std::env::vars().map(|(name, _)| name).collect();
    names.retain(|name| name != "RUST_BACKTRACE");
    say(program, &format!("environment {names:?}"));
}

fn behaviour(called: &Path) -> String {
    std::fs::read_to_string(called.with_file_name("behaviour")).unwrap_or_default()
}

/// All messages there are; the program ends when the supervisor does.
fn messages<S: serde::Serialize, R: serde::de::DeserializeOwned>(
    channel: &mut Channel<S, R>,
) -> Vec<(R, Option<OwnedFd>)> {
    let mut all = Vec::new();
    loop {
        match channel.recv() {
            Ok(message) => all.push(message),
            Err(ChannelError::WouldBlock) => return all,
            Err(_) => std::process::exit(0),
        }
    }
}

/// The program ends when the supervisor has.
fn tell<S: serde::Serialize, R: serde::de::DeserializeOwned>(channel: &mut Channel<S, R>, message: &S) {
    match channel.send(message, None) {
        Ok(()) => {}
        Err(ChannelError::Closed) => std::process::exit(0),
        Err(e) => panic!("{e}"),
    }
}

/// `lasthop-switch`.
pub fn switch(called: &Path) {
    introduce("switch");
    let behaviour = behaviour(called);
    if behaviour == "switch fails" {
        say("switch", "failing as told");
        std::process::exit(3);
    }
    let mut supervisor = Channel::<SwitchToSupervisor, SupervisorToSwitch>::new(inherited_fd(3).unwrap());
    let journal = std::fs::File::from(inherited_fd(4).unwrap());
    assert_eq!(journal.metadata().unwrap().len(), 1 << 20);
    assert!(journal.set_len(0).is_err(), "sealed");
    let mut count = [0];
    journal.read_exact_at(&mut count, 0).unwrap();
    count[0] += 1;
    journal.write_all_at(&count, 0).unwrap();
    say("switch", &format!("journal {}", count[0]));

    let epoll = Epoll::new().unwrap();
    epoll.add(&supervisor, SUPERVISOR, Trigger::Level).unwrap();
    tell(&mut supervisor, &SwitchToSupervisor::Ready);
    if behaviour == "switch is slow" {
        std::thread::sleep(Duration::from_millis(300));
    }
    let mut control: Option<SwitchEnd> = None;
    let mut connections: BTreeMap<u32, OwnedFd> = BTreeMap::new();
    let mut ready = Vec::new();
    loop {
        epoll.wait(&mut ready, None).unwrap();
        for token in ready.clone() {
            if token == SUPERVISOR {
                for (message, fd) in messages(&mut supervisor) {
                    match message {
                        SupervisorToSwitch::Start(_, settings) => say("switch", &format!("{settings:?}")),
                        SupervisorToSwitch::Limits(port, PortLimits { rates, weight, batches: [tx, rx], .. }) => {
                            let bytes = rates.map(|limit| limit.bytes);
                            say("switch", &format!("limits {port} {bytes:?} weight {weight} batches {tx:?} {rx:?}"));
                        }
                        SupervisorToSwitch::AddPort(port, name) => say("switch", &format!("add {port} {name}")),
                        SupervisorToSwitch::DelPort(PortId(id)) => {
                            connections.remove(&id).into_iter().for_each(|fd| epoll.delete(fd).unwrap());
                            say("switch", &format!("delete {id}"));
                        }
                        SupervisorToSwitch::Connection(PortId(id), vm) => {
                            let fd = fd.unwrap();
                            epoll.add(&fd, CONNECTION + u64::from(id), Trigger::Level).unwrap();
                            assert!(connections.insert(id, fd).is_none(), "one at a time");
                            say("switch", &format!("connection {id} vm {vm:?}"));
                        }
                        SupervisorToSwitch::ControlChannel => {
                            let mut rings = SwitchEnd::new(fd.unwrap()).unwrap();
                            rings.send(&ToControl::Hello).unwrap();
                            // Control may have ended since, as everything does at a shutdown.
                            match rings.flush() {
                                Ok(()) | Err(ChannelError::Closed) => {}
                                Err(e) => panic!("{e}"),
                            }
                            control = Some(rings);
                        }
                        SupervisorToSwitch::Shutdown if behaviour == "switch stays" => say("switch", "staying as told"),
                        SupervisorToSwitch::Shutdown => {
                            say("switch", &format!("shutdown, control known: {}", control.is_some()));
                            return;
                        }
                    }
                }
            } else {
                let id = u32::try_from(token - CONNECTION).unwrap();
                let Some(fd) = connections.get(&id) else { continue };
                // Nothing is what a session process says when the connection has ended.
                if rustix::io::read(fd, &mut [0u8; 64]).is_ok_and(|n| n > 0) {
                    continue;
                }
                // The supervisor may still hold its copy, which would keep the registration alive.
                epoll.delete(fd).unwrap();
                connections.remove(&id);
                say("switch", &format!("closed {id}"));
                let closed = SwitchToSupervisor::ConnectionClosed { port: PortId(id), reason: "hung up".into() };
                tell(&mut supervisor, &closed);
            }
        }
    }
}

/// Is busy with one thing for ever, as its watchdog sees it.
fn spin() -> ! {
    let all = arguments();
    let number = all.rsplit_once("--pulse-fd ").unwrap().1.parse().unwrap();
    lasthop_sys::map_pulse(inherited_fd(number).unwrap()).unwrap();
    let beat = lasthop_sys::Beat::new();
    beat.work();
    say("control", "spinning as told");
    loop {
        std::hint::spin_loop();
    }
}

/// `lasthop-control`, whose API is one line for a question and one for the answer.
pub fn control(_called: &Path) {
    introduce("control");
    let mut supervisor = Channel::<ControlToSupervisor, SupervisorToControl>::new(inherited_fd(3).unwrap());
    let api = UnixListener::from(inherited_fd(5).unwrap());
    let epoll = Epoll::new().unwrap();
    epoll.add(&supervisor, SUPERVISOR, Trigger::Level).unwrap();
    epoll.add(&api, API, Trigger::Level).unwrap();
    tell(&mut supervisor, &ControlToSupervisor::Ready);
    let mut datapath: Option<ControlEnd> = None;
    let mut ports = None;
    // What ports were told, since somebody asked.
    let mut told = Vec::new();
    let mut waiting: BTreeMap<u64, UnixStream> = BTreeMap::new();
    let mut request = 0;
    let mut ready = Vec::new();
    loop {
        epoll.wait(&mut ready, None).unwrap();
        for token in ready.clone() {
            match token {
                SUPERVISOR => {
                    for (message, fd) in messages(&mut supervisor) {
                        match message {
                            SupervisorToControl::DatapathChannel => {
                                let rings = ControlEnd::new(fd.unwrap()).unwrap();
                                epoll.add(&rings, PEER, Trigger::Level).unwrap();
                                datapath = Some(rings);
                            }
                            SupervisorToControl::Ports(list) => {
                                let list = list.iter().map(|port| format!("{}={}", port.id, port.name));
                                ports = Some(list.collect::<Vec<_>>().join(" "));
                            }
                            SupervisorToControl::Reply { request, result } => {
                                let mut client = waiting.remove(&request).unwrap();
                                match result {
                                    Ok(port) => writeln!(client, "ok {}", port.id).unwrap(),
                                    Err(e) => writeln!(client, "error {e}").unwrap(),
                                }
                            }
                            SupervisorToControl::Lists(_)
                            | SupervisorToControl::LargerTable { .. }
                            | SupervisorToControl::DmaCounters
                            | SupervisorToControl::ListsKept(_)
                            | SupervisorToControl::Uplinks(_)
                            | SupervisorToControl::Devices(_)
                            | SupervisorToControl::LogLevel { .. }
                            | SupervisorToControl::PortFault { .. }
                            | SupervisorToControl::ApiSocket { .. }
                            | SupervisorToControl::OvsSocket
                            | SupervisorToControl::Forget(_)
                            | SupervisorToControl::Announce(_)
                            | SupervisorToControl::Mirrors(_)
                            | SupervisorToControl::MirrorReply { .. }
                            | SupervisorToControl::CpuTimes { .. }
                            | SupervisorToControl::CpuBounds(_)
                            | SupervisorToControl::Places(_)
                            | SupervisorToControl::Renamed { .. }
                            | SupervisorToControl::UpgradeReply { .. }
                            | SupervisorToControl::Engines { .. }
                            | SupervisorToControl::UplinkReply { .. } => {}
                            SupervisorToControl::Settings { port, text } => {
                                told.push(format!("{port}={text:?}"));
                                say("control", &format!("port {port} is told {text:?}"));
                            }
                            SupervisorToControl::PeerRefused { reason, .. } => say("control", &reason),
                            SupervisorToControl::SecondRefused { who, .. } => say("control", &format!("second: {who}")),
                            SupervisorToControl::Shutdown => return say("control", "shutdown"),
                        }
                    }
                }
                PEER => match datapath.as_mut().map(|rings| rings.woken().and_then(|()| rings.recv())) {
                    Some(Ok(_)) => say("control", "heard the switch"),
                    Some(Err(ChannelError::WouldBlock)) | None => {}
                    Some(Err(_)) => datapath = None,
                },
                _ => {
                    // Taken only once the list of ports is here, so that every answer is complete.
                    let Some(ports) = &ports else { continue };
                    let Ok((client, _)) = api.accept() else { continue };
                    client.set_nonblocking(false).unwrap();
                    let mut line = String::new();
                    BufReader::new(&client).read_line(&mut line).unwrap();
                    let words: Vec<&str> = line.split_whitespace().collect();
                    let asked = match words[..] {
                        ["pid"] => Err(std::process::id().to_string()),
                        ["arguments"] => Err(arguments()),
                        ["spin"] => spin(),
                        ["ports"] => Err(ports.clone()),
                        ["told"] => Err(std::mem::take(&mut told).join(" ")),
                        ["set", name, setting] => {
                            let (setting, value) = setting.split_once('=').unwrap();
                            let settings = vec![(setting.into(), value.into())];
                            Ok(ControlToSupervisor::PortSet { request, name: name.into(), settings })
                        }
                        ["add", name, path, how] => Ok(ControlToSupervisor::PortAdd {
                            tx_batch: None,
                            owner: None,
                            settings: Vec::new(),
                            request,
                            name: name.into(),
                            path: path.into(),
                            client: how == "client",
                        }),
                        ["del", name] => Ok(ControlToSupervisor::PortDel { request, name: name.into() }),
                        _ => Err(format!("what is {line:?}?")),
                    };
                    match asked {
                        Err(answer) => writeln!(&client, "{answer}").unwrap(),
                        Ok(message) => {
                            tell(&mut supervisor, &message);
                            waiting.insert(request, client);
                            request += 1;
                        }
                    }
                }
            }
        }
    }
}

/// `lasthop-session`: of each connection it says to the switch only that it has ended, and to its front-end that the switch has.
pub fn session(_called: &Path) {
    let mut supervisor = Channel::<SessionToSupervisor, SupervisorToSession>::new(inherited_fd(3).unwrap());
    let epoll = Epoll::new().unwrap();
    epoll.add(&supervisor, SUPERVISOR, Trigger::Level).unwrap();
    tell(&mut supervisor, &SessionToSupervisor::Ready);
    // The switch, the front-end.
    let (mut next, mut both) = (None, None::<[OwnedFd; 2]>);
    let mut ready = Vec::new();
    loop {
        epoll.wait(&mut ready, None).unwrap();
        for token in ready.clone() {
            if token == SUPERVISOR {
                for (message, fd) in messages(&mut supervisor) {
                    match message {
                        SupervisorToSession::Bounds(_) | SupervisorToSession::Move(_) => {}
                        SupervisorToSession::Switch => next = fd,
                        SupervisorToSession::Connection => {
                            let ends = [next.take().unwrap(), fd.unwrap()];
                            ends.iter().for_each(|end| epoll.add(end, PEER, Trigger::Level).unwrap());
                            for end in both.replace(ends).into_iter().flatten() {
                                epoll.delete(end).unwrap();
                            }
                        }
                    }
                }
                continue;
            }
            let Some(ends) = &both else { continue };
            let flags = rustix::net::RecvFlags::DONTWAIT;
            // Whatever a front-end says is fine here; nothing is what it says when it has hung up.
            let over = |end| rustix::net::recv(end, &mut [0u8; 64], flags).is_ok_and(|(n, _)| n == 0);
            if ends.iter().any(over) {
                for end in both.take().into_iter().flatten() {
                    // Others may have copies.
                    let _ = rustix::net::shutdown(&end, rustix::net::Shutdown::Both);
                    epoll.delete(end).unwrap();
                }
            }
        }
    }
}
