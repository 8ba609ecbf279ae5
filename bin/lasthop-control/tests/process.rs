//! The control process as `lasthop run` starts it, between a supervisor and a switch that are not real, and its API.

#[path = "process/clients.rs"]
mod clients;
mod fake;
#[path = "process/mirrors.rs"]
mod mirrors;
#[path = "process/readers.rs"]
mod readers;
#[path = "process/rounds.rs"]
mod rounds;

use command_fds::{CommandFdExt, FdMapping};
use fake::{Fake, frame};
use futures_util::StreamExt;
use lasthop_api::{ApiError, SwitchProxy};
use lasthop_flow::Action;
use lasthop_ipc::{PortState, ToControl};
use lasthop_management_ipc::SupervisorToControl;
use lasthop_text::MacAddr;
use lasthop_types::PortId;
use lasthop_uplink_ipc::MACS_PART;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};
use std::thread::JoinHandle;
use zlink::tokio::unix::{Connection, connect};

struct Control(Child);

impl Control {
    fn start() -> (Self, Fake) {
        Self::start_with(Stdio::inherit())
    }

    fn start_with(log: Stdio) -> (Self, Fake) {
        let (fake, supervisor, api) = Fake::new();
        let mut command = Command::new(env!("CARGO_BIN_EXE_lasthop-control"));
        let mappings =
            vec![FdMapping { parent_fd: supervisor, child_fd: 3 }, FdMapping { parent_fd: api, child_fd: 4 }];
        command.args(["--supervisor-fd", "3", "--api-fd", "4"]).fd_mappings(mappings).unwrap();
        let child = command.stderr(log).spawn().unwrap();
        drop(command);
        (Self(child), fake)
    }

    fn status(mut self) -> i32 {
        self.0.wait().unwrap().code().expect("control was killed")
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Runs a client in a thread of its own while the fake serves control.
fn client<T: Send + 'static>(fake: &mut Fake, ask: impl AsyncFnOnce(&mut Connection) -> T + Send + 'static) -> T {
    client_at(fake, "api.sock", ask)
}

fn client_at<T: Send + 'static>(
    fake: &mut Fake,
    socket: &str,
    ask: impl AsyncFnOnce(&mut Connection) -> T + Send + 'static,
) -> T {
    let socket = fake.dir.path().join(socket);
    let thread: JoinHandle<T> = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async move { ask(&mut connect(socket).await.unwrap()).await })
    });
    while !thread.is_finished() {
        fake.serve_for_a_moment();
    }
    thread.join().unwrap()
}

fn to(ports: &[u32]) -> Vec<Action> {
    ports.iter().map(|p| Action::Output(PortId(*p))).collect()
}

#[test]
fn answers_misses_and_keeps_flows_over_restarts() {
    let (control, mut fake) = Control::start();
    fake.add_ports(&["vm1", "vm2", "vm3"]);
    fake.attach();
    fake.serve_until(|f| f.ready && f.heard == ["ask"]);
    assert!(!fake.packet(&frame(1, 2), 1));
    fake.serve_until(|f| f.flows.len() == 1 && f.resumed.len() == 1);
    assert_eq!(fake.resumed, [(1, to(&[2, 3]))]);
    // Two packets of one flow in one go: both are answered, and only after the flows know what they have taught.
    fake.heard.clear();
    fake.packet(&frame(2, 1), 2);
    fake.packet(&frame(2, 1), 2);
    fake.serve_until(|f| f.resumed.len() == 3 && f.flows.len() == 2);
    assert_eq!(fake.resumed[1..], [(2, to(&[1])), (3, to(&[1]))]);
    assert_ne!(fake.heard[0], "resume");
    assert!(fake.packet(&frame(1, 2), 1), "meets a flow");
    let flow = fake.flows.iter().find(|(f, _)| f.key.in_port == 1).unwrap();
    assert_eq!(flow.0.actions, to(&[2]), "no flood any more");

    // Control is killed; its successor finds the flows and touches none of them.
    drop(control);
    let flows = fake.flows.clone();
    let (control, mut next) = Control::start();
    (next.flows, next.ports, next.states) = (flows.clone(), fake.ports, fake.states);
    next.announce_ports();
    next.attach();
    next.packet(&frame(3, 1), 3);
    next.serve_until(|f| f.resumed.len() == 1 && f.flows.len() == 3);
    for flow in &flows {
        assert!(next.flows.contains(flow));
    }
    let macs = client(&mut next, async |api| {
        let mut pages = Box::pin(api.mac_list().await.unwrap());
        pages.next().await.unwrap().unwrap().unwrap()
    });
    assert_eq!(macs.total, 3);
    assert_eq!((macs.macs[0].mac.as_str(), macs.macs[0].port.as_str()), ("52:54:00:00:00:01", "vm1"));

    next.supervisor.send(&SupervisorToControl::Shutdown, None).unwrap();
    assert_eq!(control.status(), 0);
}

#[test]
fn a_switch_that_is_slow_to_read_gets_everything_in_the_end() {
    const FLOWS: u16 = 2000;
    let (_control, mut fake) = Control::start();
    fake.add_ports(&["vm1", "vm2"]);
    fake.attach();
    for n in 0..FLOWS {
        let [high, low] = n.to_be_bytes();
        let mut frame = frame(1, 2);
        frame[..6].copy_from_slice(&[2, 0, 0, 0, high, low]);
        fake.packet(&frame, 1);
        fake.serve_until(|f| f.resumed.len() == usize::from(n) + 1);
    }
    fake.serve_until(|f| f.flows.len() == usize::from(FLOWS));
    // All of them flood, so all change with each port; many more messages than a socket holds.
    fake.add_ports(&["vm3"]);
    fake.add_ports(&["vm4"]);
    let last = fake.packet(&frame(4, 1), 4);
    assert!(!last);
    fake.serve_until(|f| f.flows.iter().filter(|(f, _)| f.actions.len() == 3).count() == usize::from(FLOWS));
    fake.serve_until(|f| f.resumed.len() == usize::from(FLOWS) + 1);
}

#[test]
fn ends_with_its_supervisor() {
    let (control, mut fake) = Control::start();
    fake.serve_until(|f| f.ready);
    drop(fake);
    assert_eq!(control.status(), 0);
}

#[test]
fn serves_the_api() {
    let (_control, mut fake) = Control::start();
    fake.serve_until(|f| f.ready);
    fake.add_ports(&["vm1"]);
    // Before there is a switch.
    let ports = client(&mut fake, async |api| {
        let mut pages = Box::pin(api.port_list().await.unwrap());
        pages.next().await.unwrap().unwrap().unwrap().ports
    });
    assert_eq!((ports[0].name.as_str(), ports[0].state.as_str()), ("vm1", "starting"));
    let error = client(&mut fake, async |api| {
        let mut pages = Box::pin(api.flow_list().await.unwrap());
        pages.next().await.unwrap().unwrap().unwrap_err()
    });
    assert!(matches!(error, ApiError::NotAvailable { .. }));

    fake.attach();
    let added = client(&mut fake, async |api| {
        api.port_add("vm2", "/run/x.sock", true, None, None, &[]).await.unwrap().unwrap()
    });
    assert_eq!((added.id, added.client), (2, true));
    let error = client(&mut fake, async |api| {
        api.port_add("vm2", "/run/y.sock", true, None, None, &[]).await.unwrap().unwrap_err()
    });
    assert_eq!(error.message(), "there is a port named \"vm2\" already; choose another name");

    fake.packet(&frame(1, 2), 1);
    fake.serve_until(|f| f.flows.len() == 1);
    fake.packet(&frame(2, 1), 2);
    fake.serve_until(|f| f.flows.len() == 2);
    let (ports, flows, stats) = client(&mut fake, async |api| {
        let ports = {
            let mut pages = Box::pin(api.port_list().await.unwrap());
            pages.next().await.unwrap().unwrap().unwrap()
        };
        let flows = {
            let mut pages = Box::pin(api.flow_list().await.unwrap());
            pages.next().await.unwrap().unwrap().unwrap()
        };
        (ports.ports, flows.flows, api.stats().await.unwrap().unwrap())
    });
    assert_eq!(ports.len(), 2);
    assert_eq!((ports[1].path.as_str(), ports[1].state.as_str(), ports[1].macs), ("/run/x.sock", "up", 1));
    assert_eq!(ports[0].from_guest.drops[0].reason, "acl");
    assert_eq!(flows.len(), 2);
    assert!(flows.iter().any(|f| f.outputs == ["vm2"] && f.packets == 3));
    assert_eq!((stats.misses, stats.macs, stats.flows, stats.switch_connected), (2, 2, 2, true));
    let told = (&stats.host.version[..], &stats.host.outdated[..], &stats.host.control_version[..]);
    assert_eq!(told, ("1.2.3", &["switch".to_owned()][..], env!("CARGO_PKG_VERSION")));

    let hex: String = frame(9, 1).iter().map(|b| format!("{b:02x}")).collect();
    let (report, missing, bad) = client(&mut fake, async move |api| {
        let report = api.trace("vm2", &hex).await.unwrap().unwrap();
        let missing = api.trace("vm9", &hex).await.unwrap().unwrap_err();
        (report, missing, api.trace("vm2", "0g").await.unwrap().unwrap_err())
    });
    assert!(report.flow.is_none());
    assert!(report.key.iter().any(|f| f.name == "ip_dst" && f.value == "10.0.0.1"), "{report:?}");
    assert!(report.reasons[0].contains("would be learned at vm2"), "{report:?}");
    assert_eq!((report.outputs[0].port.as_str(), report.outputs[0].state.as_str()), ("vm1", "up"));
    assert!(matches!(missing, ApiError::NoSuchPort { .. }));
    assert!(matches!(bad, ApiError::BadFrame { .. }));

    let error = client(&mut fake, async |api| {
        api.port_del("vm2").await.unwrap().unwrap();
        api.port_del("vm2").await.unwrap().unwrap_err()
    });
    assert!(matches!(error, ApiError::PortRefused { .. }));
    fake.serve_until(|f| f.flows.iter().all(|(flow, _)| flow.key.in_port == 1));
}

/// Uplinks are asked of the supervisor; nothing goes from one to another.
#[test]
fn uplinks_are_shown_and_kept_apart() {
    let (_control, mut fake) = Control::start();
    fake.serve_until(|f| f.ready);
    fake.attach();
    fake.add_ports(&["vm1", "vm2"]);
    let (list, refused, ports) = client(&mut fake, async |api| {
        let list = api.uplink_list().await.unwrap().unwrap().uplinks;
        let refused = api.uplink_add("x", "eth7", None, 1, 0, true, false, Some("10")).await.unwrap().unwrap_err();
        let ports = api.trace("vm1", "ffffffffffff0200000000010800").await.unwrap().unwrap().outputs;
        (list, refused, ports)
    });
    assert_eq!((list.len(), list[0].device.as_str(), list[0].driver.as_deref()), (1, "eth0", Some("tap")));
    assert_eq!((list[0].state.as_str(), list[0].to_network.packets, list[0].restarts), ("up", 5, 3));
    assert!(matches!(&refused, ApiError::UplinkRefused { message } if message.contains("no interface eth7")));
    assert!(ports.iter().any(|o| o.port == "vm2"));
    let both = vec![(PortId(1), None), (PortId(2), None)];
    fake.supervisor.send(&SupervisorToControl::Uplinks(both), None).unwrap();
    let (report, ports) = client(&mut fake, async |api| {
        let report = api.trace("vm1", "ffffffffffff0200000000010800").await.unwrap().unwrap();
        let ports = api.port_list().await.unwrap().collect::<Vec<_>>().await;
        (report, ports)
    });
    assert!(!report.outputs.iter().any(|o| o.port == "vm2"), "{report:?}");
    assert!(ports[0].as_ref().unwrap().as_ref().unwrap().ports.iter().all(|p| p.uplink));
    // One of them is a trunk: VLANs 0 and 8 to 15.
    let trunk = vec![(PortId(2), Some(vec![1, 0xff]))];
    fake.supervisor.send(&SupervisorToControl::Uplinks(trunk), None).unwrap();
    let (list, reports) = client(&mut fake, async |api| {
        let list = api.uplink_list().await.unwrap().unwrap().uplinks;
        let mut reports = Vec::new();
        for frame in ["ffffffffffff02000000000181000008", "ffffffffffff02000000000181000010"] {
            reports.push(api.trace("vm1", &format!("{frame}0800")).await.unwrap().unwrap());
        }
        (list, reports)
    });
    assert_eq!(list[0].vlans.as_deref(), Some("untagged:8-15"));
    assert!(reports[0].outputs.iter().any(|o| o.port == "vm2"), "{reports:?}");
    assert!(!reports[1].outputs.iter().any(|o| o.port == "vm2"), "{reports:?}");
    assert!(reports[1].reasons[1].contains("uplink vm2 does not carry VLAN 16"), "{reports:?}");
}

/// Other VLANs of an uplink are in force when the call returns: flows that say otherwise are gone from the switch.
#[test]
fn vlans_are_in_force_when_the_call_returns() {
    let (_control, mut fake) = Control::start();
    fake.add_ports(&["vm1", "vm2"]);
    fake.supervisor.send(&SupervisorToControl::Uplinks(vec![(PortId(2), None)]), None).unwrap();
    fake.attach();
    fake.packet(&frame(2, 1), 2);
    fake.packet(&frame(1, 2), 1);
    fake.serve_until(|f| f.resumed.len() == 2 && f.flows.len() == 2);
    let leaves = |f: &Fake| f.flows.iter().any(|(flow, _)| flow.actions.contains(&Action::Output(PortId(2))));
    assert!(leaves(&fake));

    (fake.holds_barriers, fake.heard) = (true, Vec::new());
    let socket = fake.dir.path().join("api.sock");
    let setting = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async move { connect(socket).await.unwrap().uplink_set("vm2", Some("10")).await.unwrap() })
    });
    fake.serve_until(|f| f.heard.contains(&"ask"));
    assert!(!setting.is_finished() && !leaves(&fake));
    // A switch that is replaced meanwhile is asked again.
    fake.holds_barriers = false;
    fake.attach();
    while !setting.is_finished() {
        fake.serve_for_a_moment();
    }
    assert_eq!(setting.join().unwrap().unwrap().uplinks[0].vlans.as_deref(), Some("10"));
    let all = client(&mut fake, async |api| api.uplink_set("vm2", None).await.unwrap().unwrap());
    assert_eq!(all.uplinks[0].vlans, None);
}

/// Stations to be announced at an uplink: not those behind uplinks, nor those of a port whose VM has gone; those of each port
/// in turn, and not too many in one message; and those of VLANs that the uplink carries.
#[test]
fn says_who_is_to_be_announced() {
    let (_control, mut fake) = Control::start();
    fake.add_ports(&["vm1", "vm2", "net", "vm4"]);
    fake.supervisor.send(&SupervisorToControl::Uplinks(vec![(PortId(3), None)]), None).unwrap();
    fake.attach();
    fake.serve_until(|f| f.ready && f.heard == ["ask"]);
    let station = |n: u16| MacAddr([0x52, 0x54, 0, 0, (n >> 8) as u8, n as u8]);
    let from = |n: u16| [&[0xff; 6][..], &station(n).0, &[8, 0], &[0; 46]].concat();
    let tagged = |n: u16| [&[0xff; 6][..], &station(n).0, &[0x81, 0, 0x20, 7, 8, 0], &[0; 46]].concat();
    let (many, last) = (4096, 5000);
    let frames = (0..many).map(|n| (from(n + 1), 1)).chain([(tagged(last), 2), (from(6000), 3), (from(7000), 4)]);
    for (n, (frame, port)) in frames.enumerate() {
        assert!(!fake.packet(&frame, port));
        fake.serve_until(|f| f.resumed.len() == n + 1);
    }
    fake.states.insert(PortId(4), PortState::Waiting);
    let gone = fake.info(PortId(4));
    fake.tell(&ToControl::Port(gone));
    // What the switch has said has been heard when this is answered.
    let states = client(&mut fake, async |api| api.trace("vm4", "ffffffffffff0200000000010800").await.unwrap().is_ok());
    assert!(states);
    fake.supervisor.send(&SupervisorToControl::Announce(PortId(3)), None).unwrap();
    fake.serve_until(|f| f.announced.iter().map(|(_, macs)| macs.len()).sum::<usize>() > usize::from(many));
    assert!(fake.announced.iter().all(|(uplink, macs)| *uplink == PortId(3) && macs.len() <= MACS_PART));
    let all: Vec<_> = fake.announced.iter().flat_map(|(_, macs)| macs).copied().collect();
    assert_eq!(all[..3], [(0, station(1)), (7, station(last)), (0, station(2))]);
    assert_eq!((all.len(), all.last()), (4097, Some(&(0, station(many)))));

    // And only in VLANs that the uplink carries.
    let seven: lasthop_policy::Vlans = "7".parse().unwrap();
    let uplinks = vec![(PortId(3), Some(seven.as_bytes().to_vec()))];
    fake.announced.clear();
    fake.supervisor.send(&SupervisorToControl::Uplinks(uplinks), None).unwrap();
    fake.supervisor.send(&SupervisorToControl::Announce(PortId(3)), None).unwrap();
    fake.serve_until(|f| !f.announced.is_empty());
    assert_eq!(fake.announced, [(PortId(3), vec![(7, station(last))])]);
}

#[test]
fn describes_itself_as_documented() {
    let (_control, mut fake) = Control::start();
    fake.serve_until(|f| f.ready);
    let call = r#"{"method":"org.varlink.service.GetInterfaceDescription","parameters":{"interface":"NAME"}}"#;
    let mut socket = UnixStream::connect(fake.dir.path().join("api.sock")).unwrap();
    socket.write_all(call.replace("NAME", lasthop_api::INTERFACE).as_bytes()).unwrap();
    socket.write_all(&[0]).unwrap();
    let mut reply = Vec::new();
    BufReader::new(socket).read_until(0, &mut reply).unwrap();
    let reply: serde_json::Value = serde_json::from_slice(reply.strip_suffix(&[0]).unwrap()).unwrap();
    let description = reply["parameters"]["description"].as_str().unwrap();
    let documented = include_str!("../org.lasthop.Switch.varlink");
    assert_eq!(words(documented), words(description), "update org.lasthop.Switch.varlink");
}

async fn load(api: &mut Connection, text: &str, ports: &[&str]) -> Result<lasthop_api::AclChanged, ApiError> {
    let half = text.len() / 2;
    for part in [&text[..half], &text[half..]] {
        api.acl_text(part).await.unwrap().unwrap();
    }
    api.acl_load("auto", "deny", ports, None, None, None).await.unwrap()
}

#[test]
fn access_lists_are_kept_then_in_force_and_then_the_call_returns() {
    let (control, mut fake) = Control::start();
    fake.add_ports(&["vm1", "vm2"]);
    fake.attach();
    fake.packet(&frame(2, 1), 2);
    fake.packet(&frame(1, 2), 1);
    fake.serve_until(|f| f.resumed.len() == 2 && f.flows.len() == 2);

    // A list that cannot be read or kept changes nothing.
    let wrong = client(&mut fake, async |api| load(api, "deny udp\npermit tpc", &[]).await.unwrap_err());
    assert!(wrong.message().starts_with("line 2, column 8: \"tpc\": expected"), "{wrong}");
    let nobody = client(&mut fake, async |api| api.acl_clear(&["vm9"], None, None).await.unwrap().unwrap_err());
    assert!(matches!(nobody, ApiError::NoSuchPort { .. }), "{nobody}");
    let nothing = client(&mut fake, async |api| load(api, "# deny udp", &["vm1"]).await.unwrap_err());
    assert!(nothing.message().contains("no rule and no default"), "{nothing}");
    fake.disk_full = true;
    let full = client(&mut fake, async |api| load(api, "deny udp", &[]).await.unwrap_err());
    assert_eq!(full.message(), "disk full; make room");
    assert_eq!((fake.flows.len(), fake.lists.as_str()), (2, ""));
    fake.disk_full = false;

    // The call waits for the switch to say that nothing follows the old flows any more.
    (fake.holds_barriers, fake.heard) = (true, Vec::new());
    let socket = fake.dir.path().join("api.sock");
    let loading = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async move { load(&mut connect(socket).await.unwrap(), "deny udp to any port 9", &[]).await })
    });
    fake.serve_until(|f| f.heard == ["clear", "ask"]);
    assert!(!loading.is_finished() && fake.flows.is_empty() && fake.lists.contains("deny udp"));
    // A switch that is replaced meanwhile is asked again.
    fake.holds_barriers = false;
    fake.attach();
    while !loading.is_finished() {
        fake.serve_for_a_moment();
    }
    assert_eq!(loading.join().unwrap().unwrap().from_guest, Some(1));
    fake.packet(&frame(1, 2), 1);
    fake.serve_until(|f| f.resumed.len() == 3 && f.flows.len() == 1);
    assert_eq!(fake.resumed[2].1, [Action::Drop(lasthop_types::DropReason::Acl)]);
    assert!(fake.packet(&frame(1, 77), 1), "one flow denies them all");

    // Its successor judges by what was kept: a flow left behind that says otherwise goes.
    drop(control);
    let mut wrong = fake.flows[0].clone();
    wrong.0.actions = to(&[2]);
    let (_control, mut next) = Control::start();
    (next.flows, next.ports, next.states, next.lists) = (vec![wrong], fake.ports, fake.states, fake.lists);
    next.announce_ports();
    next.announce_lists();
    next.attach();
    next.serve_until(|f| f.flows.iter().all(|(f, _)| f.actions != to(&[2])));
    let cleared = client(&mut next, async |api| {
        let rules = Box::pin(api.acl_show(&["vm2"], true).await.unwrap()).next().await.unwrap().unwrap().unwrap();
        assert_eq!((rules.total, rules.rules[0].text.as_str()), (2, "deny udp to any port 9"));
        api.acl_clear(&[], None, None).await.unwrap()
    });
    assert_eq!(cleared.unwrap().from_guest, None);
    assert!(!next.lists.contains("deny"));
    next.packet(&frame(1, 2), 1);
    next.serve_until(|f| f.resumed.len() == 1);
    assert_eq!(next.resumed[0].1, to(&[2]));
}

/// What guards against guests does not stop the network: its own lists do, and they hold whenever it becomes known that a port is
/// an uplink.
#[test]
fn lists_of_guests_do_not_hold_at_uplinks() {
    let (_control, mut fake) = Control::start();
    fake.add_ports(&["vm1", "net"]);
    fake.attach();
    client(&mut fake, async |api| load(api, "deny any", &[]).await.unwrap());
    fake.packet(&frame(1, 2), 1);
    fake.packet(&frame(2, 1), 2);
    fake.serve_until(|f| f.resumed.len() == 2);
    let drop = [Action::Drop(lasthop_types::DropReason::Acl)];
    assert!(fake.resumed.iter().all(|(_, actions)| *actions == drop));
    fake.supervisor.send(&SupervisorToControl::Uplinks(vec![(PortId(2), None)]), None).unwrap();
    client(&mut fake, async |api| {
        // Answered behind what came before it.
        api.uplink_list().await.unwrap().unwrap()
    });
    fake.serve_until(|f| f.flows.iter().all(|(flow, _)| flow.key.in_port != 2 || flow.actions != drop));
    fake.packet(&frame(2, 1), 2);
    fake.serve_until(|f| f.resumed.len() == 3 || f.flows.iter().any(|(flow, _)| flow.actions == to(&[1])));
    if let Some((_, actions)) = fake.resumed.get(2) {
        assert_eq!(*actions, to(&[1]));
    }
}

#[test]
fn lists_that_control_cannot_read_let_nothing_pass() {
    let (_control, mut fake) = Control::start();
    fake.lists = "nonsense".into();
    fake.announce_lists();
    fake.add_ports(&["vm1", "vm2"]);
    fake.attach();
    fake.packet(&frame(1, 2), 1);
    fake.serve_until(|f| f.resumed.len() == 1);
    assert_eq!(fake.resumed[0].1, [Action::Drop(lasthop_types::DropReason::Acl)]);
}

/// Whoever changes lists is told what became of them when the switch does not answer; whoever looks, that it does not.
#[test]
fn a_switch_that_does_not_answer_is_told_from_one_that_is_away() {
    let (_control, mut fake) = Control::start();
    fake.serve_until(|f| f.ready);
    fake.add_ports(&["vm1", "vm2"]);
    let trace = async |api: &mut Connection| api.trace("vm1", &"00".repeat(60)).await.unwrap().map(drop).unwrap_err();
    let away = client(&mut fake, trace);
    assert!(away.message().contains("not connected") && away.message().contains("in a second"), "{away}");

    fake.attach();
    fake.serve_until(|f| f.heard.contains(&"ask"));
    fake.hangs = true;
    let hangs = client(&mut fake, async |api| {
        Box::pin(api.port_list().await.unwrap()).next().await.unwrap().unwrap().map(drop).unwrap_err()
    });
    assert!(matches!(hangs, ApiError::NotAvailable { .. }));
    let said = hangs.message();
    assert!(said.contains("lasthop-switch does not answer") && said.contains("--watchdog is off"), "{said}");

    let loaded = client(&mut fake, async |api| load(api, "deny udp", &["vm2"]).await.unwrap_err());
    let said = loaded.message();
    assert!(said.contains("saved and hold for new flows") && said.contains("`lasthop acl show`"), "{said}");
    assert!(fake.lists.contains("deny udp"));

    fake.keeps_lists_waiting = true;
    let unknown = client(&mut fake, async |api| load(api, "deny icmp", &["vm2"]).await.unwrap_err());
    let said = unknown.message();
    assert!(said.contains("not known whether it was done") && said.contains("`lasthop acl show`"), "{said}");
}

/// Lists that are cleared where there are none: no flow is withdrawn, nothing is written.
#[test]
fn to_clear_nothing_touches_nothing() {
    let (_control, mut fake) = Control::start();
    fake.serve_until(|f| f.ready);
    fake.add_ports(&["vm1"]);
    fake.attach();
    fake.serve_until(|f| f.heard.contains(&"ask"));
    fake.heard.clear();
    let cleared = client(&mut fake, async |api| api.acl_clear(&[], None, None).await.unwrap().unwrap());
    assert_eq!((cleared.removed, cleared.applies_to), (0, vec!["guests".to_owned()]));
    assert!(!fake.heard.contains(&"clear") && fake.lists.is_empty(), "{:?}", fake.heard);
}

/// An interface description without comments and layout.
fn words(description: &str) -> Vec<String> {
    let lines = description.lines().map(|line| line.split('#').next().unwrap_or_default());
    let text = lines.collect::<Vec<_>>().join(" ");
    let text = text.replace('(', " ( ").replace(')', " ) ").replace(',', " , ");
    text.split_whitespace().map(str::to_owned).collect()
}

#[test]
fn survives_clients_and_switches_that_misbehave() {
    let (_control, mut fake) = Control::start();
    fake.add_ports(&["vm1", "vm2"]);
    fake.attach();
    fake.serve_until(|f| f.ready);
    // A call without end is cut off.
    let mut endless = UnixStream::connect(fake.dir.path().join("api.sock")).unwrap();
    let mut cut = false;
    for _ in 0..1024 {
        cut |= endless.write_all(&[b'x'; 1024]).is_err();
    }
    assert!(cut || endless.read(&mut [0]).map_or(true, |n| n == 0), "a megabyte without an end was taken");
    // So is nonsense.
    let mut nonsense = UnixStream::connect(fake.dir.path().join("api.sock")).unwrap();
    nonsense.write_all(b"{]\0").unwrap();
    assert_eq!(nonsense.read(&mut [0; 8]).unwrap_or(0), 0);
    // Nobody else notices.
    fake.packet(&frame(1, 2), 1);
    fake.serve_until(|f| f.flows.len() == 1 && f.resumed.len() == 1);
    // The switch dies and comes back empty.
    fake.switch = None;
    fake.flows.clear();
    fake.attach();
    fake.heard.clear();
    fake.tell(&ToControl::PortGone(PortId(77)));
    fake.packet(&frame(2, 1), 2);
    fake.serve_until(|f| f.resumed.len() == 2);
    assert_eq!(fake.resumed[1].1, to(&[1]), "what was learned is still known");
}

#[test]
fn says_what_is_wrong_with_its_arguments() {
    for args in [&["--api-fd", "4"][..], &[], &["--supervisor-fd", "x"], &["--help"]] {
        let output = Command::new(env!("CARGO_BIN_EXE_lasthop-control")).args(args).output().unwrap();
        assert_eq!(output.status.code(), Some(2));
        assert!(String::from_utf8(output.stderr).unwrap().contains("lasthop run"));
    }
}
