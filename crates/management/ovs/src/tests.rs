//! Open vSwitch's requests and the switch's misses in; answers, flows and frames out.

use crate::{Datapath, Out, PACKET_PORT};
use lasthop_flow::{Action, FlowSpec};
use lasthop_frame::{Depth, Edit, FlowKey, FlowMask, extract};
use lasthop_ipc::{DatapathReply, DatapathRequest, FlowInfo, FromControl, ToControl, UpcallPacket};
use lasthop_management_ipc::{ControlToSupervisor, PortConfig, SupervisorToControl};
use lasthop_ovs_abi::family::{self, command, datapath, flow, packet, packet_command, vport};
use lasthop_ovs_abi::netlink::{Message, OVS_HEADER, Writer, attributes, flag, kind, messages, table, u32_of};
use lasthop_ovs_abi::{Key, Refused};
use lasthop_types::PortId;
use proptest::prelude::*;
use std::collections::BTreeMap;
use whole::fetch;

mod away;
mod connections;
mod counters;
mod labels;
mod leaving;
mod lengths;
mod meters;
mod orders;
mod restore;
mod samples;
mod second_walk;
mod service_headers;
mod shaping;
mod turns;

const PID: u32 = 9;
const VM1: PortId = PortId(1);
const VM2: PortId = PortId(2);
const PACKETS: PortId = PortId(3);
const SEQUENCE: u32 = 77;

/// A datapath, Open vSwitch on one side and the switch on the other.
struct Site {
    datapath: Datapath,
    /// What the switch was told, and has not been looked at.
    to_switch: Vec<FromControl>,
    to_supervisor: Vec<ControlToSupervisor>,
    frames: Vec<Vec<u8>>,
    upcalls: Vec<Vec<u8>>,
    answers: Vec<Vec<u8>>,
    /// What was noted, one behind the other.
    notes: Vec<u8>,
    finished: usize,
    /// What the switch's meters have counted.
    metered: BTreeMap<u32, [[u64; 2]; 2]>,
}

fn config(id: PortId, name: &str) -> PortConfig {
    PortConfig {
        id,
        name: name.into(),
        path: String::new(),
        client: true,
        tx_batch: (0, 0),
        rx_batch: (0, 0),
        owner: None,
    }
}

impl Site {
    /// With a datapath, and ports 1 and 2 that are vm1 and vm2.
    fn new() -> Self {
        let mut site = Self {
            datapath: Datapath::new(),
            to_switch: Vec::new(),
            to_supervisor: Vec::new(),
            frames: Vec::new(),
            upcalls: Vec::new(),
            answers: Vec::new(),
            notes: Vec::new(),
            finished: 0,
            metered: BTreeMap::new(),
        };
        site.datapath.set_now(1000);
        site.datapath.hear_switch(&ToControl::Hello);
        site.ports(&[(VM1, "vm1"), (VM2, "vm2"), (PACKETS, PACKET_PORT)]);
        site.datapath.connected(PID);
        site.ask(family::DATAPATH.id, command::NEW, flag::ACK, |to| {
            to.text(datapath::NAME, "ovs-system");
            to.number(datapath::UPCALL_PID, 0);
            to.number(datapath::USER_FEATURES, datapath::FEATURES);
            to.number(datapath::PER_CPU_PIDS, PID);
        });
        for name in ["vm1", "vm2"] {
            assert_eq!(site.add_port(name, vport::NETDEV), 0);
        }
        site.settle();
        site.to_switch.clear();
        site
    }

    fn ports(&mut self, ports: &[(PortId, &str)]) {
        let ports = ports.iter().map(|(id, name)| config(*id, name)).collect();
        self.datapath.hear_supervisor(&SupervisorToControl::Ports(ports));
    }

    fn collect(&mut self) {
        for out in self.datapath.take() {
            match out {
                Out::Answer(PID, answer) => self.answers.push(answer),
                Out::Upcall { pid: PID, datagram, .. } => self.upcalls.push(datagram),
                Out::Finished(PID) => self.finished += 1,
                Out::Note(note) => self.notes.extend(note),
                Out::Switch(message) => self.to_switch.push(*message),
                Out::Supervisor(message) => self.to_supervisor.push(message),
                Out::Frame(frame) => self.frames.push(frame),
                other => panic!("for nobody: {other:?}"),
            }
        }
    }

    /// The switch answers what it was asked, and has carried nothing.
    fn settle(&mut self) {
        self.settle_with(&[]);
    }

    /// The same; these flows have carried something.
    fn settle_with(&mut self, carried: &[FlowInfo]) {
        self.collect();
        let mut at = 0;
        while at < self.to_switch.len() || self.datapath.is_busy() {
            self.answer_from(&mut at, carried);
            if self.datapath.is_busy() {
                self.datapath.tick();
                self.collect();
            }
        }
        self.to_switch.retain(|message| !matches!(message, FromControl::Ask { .. }));
    }

    /// The switch answers what it was asked, from this message on.
    fn answer_from(&mut self, at: &mut usize, carried: &[FlowInfo]) {
        while let Some(message) = self.to_switch.get(*at).cloned() {
            *at += 1;
            let FromControl::Ask { request, question } = message else { continue };
            let reply = match question {
                DatapathRequest::Flows { .. } => DatapathReply::Flows { flows: carried.to_vec(), next: None },
                DatapathRequest::Lookup(key) => {
                    let flow = carried.iter().find(|info| key.masked(&info.flow.mask) == info.flow.key);
                    DatapathReply::Lookup { key, flow: flow.cloned().map(Box::new) }
                }
                DatapathRequest::Ports => DatapathReply::Ports(Vec::new()),
                DatapathRequest::Meter(id) => {
                    let [passed, dropped] = self.metered.get(&id).copied().unwrap_or_default();
                    DatapathReply::Meter { id, passed, dropped }
                }
                DatapathRequest::Barrier => DatapathReply::Barrier,
            };
            assert!(self.datapath.hear_switch(&ToControl::Reply { request, last: true, reply }));
            self.collect();
        }
    }

    /// Sends a request. Its answers come when the switch has settled.
    fn send(&mut self, family: u16, command: u8, flags: u16, fill: impl FnOnce(&mut Writer)) {
        let mut to = Writer::new();
        to.begin(family, flags | 1, SEQUENCE, PID);
        to.ovs_header(command, 1, 0);
        fill(&mut to);
        to.end();
        self.datapath.request(PID, to.into_bytes());
        self.collect();
    }

    /// The same, and takes its answers.
    fn ask(&mut self, family: u16, command: u8, flags: u16, fill: impl FnOnce(&mut Writer)) -> Vec<Vec<u8>> {
        self.send(family, command, flags, fill);
        self.settle();
        std::mem::take(&mut self.answers)
    }

    /// The error of a port that is to be added.
    fn add_port(&mut self, name: &str, kind: u32) -> i32 {
        error_of(&self.ask(family::VPORT.id, command::NEW, flag::ACK, |to| {
            to.text(vport::NAME, name);
            to.number(vport::TYPE, kind);
            to.number(vport::UPCALL_PID, PID);
        }))
    }

    /// Installs a flow for UDP from a port.
    fn put_flow(&mut self, in_port: u32, recirculation: u32, acts: impl FnOnce(&mut Writer)) -> i32 {
        let id = ufid(in_port, recirculation);
        error_of(&self.ask(family::FLOW.id, command::NEW, flag::ACK | flag::CREATE, |to| {
            to.attribute(flow::UFID, &id);
            to.nest(flow::KEY, |to| key_of(in_port, recirculation, &udp(64)).write(to));
            to.nest(flow::MASK, |to| {
                to.number(3, u32::MAX);
                to.number(20, u32::MAX);
                to.attribute(6, &[0xff; 2]);
                to.attribute(7, &[0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, 0xff, 0, 0, 0xff]);
            });
            to.nest(flow::ACTIONS, acts);
        }))
    }

    /// A frame that the switch has no flow for.
    fn miss(&mut self, port: PortId, frame: &[u8]) {
        let header = frame[..frame.len().min(192)].to_vec();
        let mut key = FlowKey { in_port: port.0, ..FlowKey::default() };
        extract(&mut key, &header, frame.len(), Depth::Full);
        let upcall = UpcallPacket { id: 5, copy: None, key, header, frame_len: frame.len() as u32 };
        assert!(!self.datapath.hear_switch(&ToControl::Upcall(upcall)));
        self.collect();
    }

    /// What the switch was told since this was last asked.
    fn told(&mut self) -> Vec<FromControl> {
        std::mem::take(&mut self.to_switch)
    }

    /// The one flow that it was told.
    fn told_flow(&mut self) -> FlowSpec {
        match &self.told()[..] {
            [FromControl::PutFlow(flow)] => flow.clone(),
            other => panic!("no flow: {other:?}"),
        }
    }

    /// Packets and bytes of a flow, as Open vSwitch is told them.
    fn statistics(&mut self, in_port: u32, recirculation: u32, carried: &[FlowInfo]) -> (u64, u64) {
        let id = ufid(in_port, recirculation);
        self.send(family::FLOW.id, command::GET, 0, |to| to.attribute(flow::UFID, &id));
        self.settle_with(carried);
        let answer = std::mem::take(&mut self.answers).remove(0);
        let found = table::<12>(body(&only(&answer))).unwrap();
        let stats = found[usize::from(flow::STATS)].unwrap_or(&[0; 16]);
        let number = |at: usize| u64::from_ne_bytes(stats[at..at + 8].try_into().unwrap());
        (number(0), number(8))
    }
}

fn ufid(in_port: u32, recirculation: u32) -> [u8; 16] {
    let mut id = [7; 16];
    (id[0], id[1]) = (in_port as u8, recirculation as u8);
    id
}

fn only(datagram: &[u8]) -> Message<'_> {
    messages(datagram).next().expect("a message")
}

fn body<'a>(message: &Message<'a>) -> &'a [u8] {
    &message.payload[OVS_HEADER..]
}

/// The number that a request was refused with, 0 if it was not.
fn error_of(answers: &[Vec<u8>]) -> i32 {
    let errors = answers.iter().map(|answer| only(answer)).filter(|message| message.kind == kind::ERROR);
    let number = |message: Message<'_>| -i32::from_ne_bytes(message.payload[..4].try_into().unwrap());
    errors.map(number).next().expect("an acknowledgement")
}

/// UDP from 10.0.0.1 to 10.0.0.2, so many bytes long.
fn udp(len: usize) -> Vec<u8> {
    let mut frame = vec![2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 8, 0, 0x45, 0];
    frame.extend(((len - 14) as u16).to_be_bytes());
    frame.extend([0, 0, 0, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2, 0x12, 0x34, 0, 53]);
    frame.extend(((len - 34) as u16).to_be_bytes());
    frame.extend([0, 0]);
    frame.extend((42..len).map(|i| i as u8));
    frame
}

fn key_of(in_port: u32, recirculation: u32, frame: &[u8]) -> Key {
    let mut key = Key::default();
    extract(&mut key.packet, &frame[..frame.len().min(192)], frame.len(), Depth::Full);
    (key.packet.in_port, key.packet.recirculation) = (in_port, recirculation);
    key
}

/// The frame as it comes here or goes from here: with the tag that names the port.
fn tagged(port: u16, frame: &[u8]) -> Vec<u8> {
    [&frame[..12], &[0x88, 0xa8], &(port + 1).to_be_bytes(), &frame[12..]].concat()
}

fn output(port: u32) -> impl FnOnce(&mut Writer) {
    move |to| to.number(1, port)
}

fn info(flow: &FlowSpec, packets: u64) -> FlowInfo {
    FlowInfo { flow: flow.clone(), packets, bytes: packets * 100, idle_ms: 10 }
}

#[test]
fn a_packet_that_met_no_flow_goes_whole_to_open_vswitch_and_back() {
    let mut site = Site::new();
    let frame = udp(1000);
    site.miss(VM1, &frame);
    assert_eq!(site.told(), [FromControl::Resume { id: 5, actions: fetch(1) }]);
    site.datapath.frame(&tagged(1, &frame));
    site.collect();
    let upcall = site.upcalls.remove(0);
    let message = only(&upcall);
    assert_eq!((message.kind, message.payload[0]), (family::PACKET.id, packet_command::MISS));
    let found = table::<{ packet::COUNT }>(body(&message)).unwrap();
    assert_eq!(found[usize::from(packet::PACKET)], Some(&frame[..]));
    let key = found[usize::from(packet::KEY)].unwrap();
    assert_eq!(Key::read(key, None).unwrap().0, key_of(1, 0, &frame));

    // What it is answered with: a flow, and what is to become of the packet itself.
    let acts = |to: &mut Writer| {
        to.attribute(packet::PACKET, &frame);
        to.nest(packet::KEY, |to| to.raw(key));
        to.nest(packet::ACTIONS, output(2));
    };
    site.ask(family::PACKET.id, packet_command::EXECUTE, 0, acts);
    assert_eq!(site.frames, [tagged(2, &frame)]);
}

#[test]
fn a_flow_becomes_one_of_the_switchs_and_counts_what_that_carries() {
    let mut site = Site::new();
    assert_eq!(site.put_flow(1, 0, output(2)), 0);
    site.miss(VM1, &udp(100));
    let flow = site.told_flow();
    assert_eq!(flow.actions, [Action::Output(VM2)]);
    let mask = flow.mask.0;
    assert_eq!((flow.key.in_port, mask.in_port, mask.eth_type), (1, u32::MAX, u16::MAX));
    assert_eq!((mask.ip_dst[12..].to_vec(), mask.ip_src, mask.eth_src), (vec![0xff; 4], [0; 16], [0; 6]));
    assert_eq!((mask.vlan_tci, mask.l4_dst, mask.recirculation), (u16::MAX, 0, 0));

    assert_eq!(site.statistics(1, 0, &[info(&flow, 3)]), (3, 300));
    assert_eq!(site.statistics(1, 0, &[info(&flow, 3)]), (3, 300), "nothing is counted twice");
    // The switch evicted it, and was told it again.
    assert_eq!(site.statistics(1, 0, &[info(&flow, 2)]), (5, 500));
}

#[test]
fn packets_that_are_looked_up_again_are_one_flow_of_the_switchs() {
    let mut site = Site::new();
    let pop_and_again = |to: &mut Writer| {
        to.nest(11, |to| {
            to.attribute(
                4,
                &[[2, 9, 9, 9, 9, 9, 0, 0, 0, 0, 0, 0], [255, 255, 255, 255, 255, 255, 0, 0, 0, 0, 0, 0]].concat(),
            )
        });
        to.number(7, 50);
    };
    site.put_flow(1, 0, pop_and_again);
    site.miss(VM1, &udp(100));
    assert!(
        matches!(&site.told()[..], [FromControl::Resume { .. }]),
        "the second lookup misses: Open vSwitch is asked"
    );
    site.put_flow(1, 50, output(2));
    site.miss(VM1, &udp(100));
    let flow = site.told_flow();
    assert_eq!(flow.actions.last(), Some(&Action::Output(VM2)));
    assert!(matches!(flow.actions[0], Action::Edit(Edit::Set(_))), "{:?}", flow.actions);
    for recirculation in [0, 50] {
        assert_eq!(site.statistics(1, recirculation, &[info(&flow, 3)]), (3, 300), "id {recirculation}");
    }
    // Either takes it along.
    site.ask(family::FLOW.id, command::DEL, 0, |to| to.attribute(flow::UFID, &ufid(1, 50)));
    assert!(site.told().contains(&FromControl::DelFlow { key: flow.key, mask: flow.mask, tell: true }));
}

/// As Open vSwitch does for a packet that a rule sends to a controller.
#[test]
fn a_packet_that_is_sent_may_come_back_with_its_key() {
    let mut site = Site::new();
    let frame = udp(600);
    site.ask(family::PACKET.id, packet_command::EXECUTE, 0, |to| {
        to.attribute(packet::PACKET, &frame);
        to.nest(packet::KEY, |to| to.number(3, 1));
        to.nest(packet::ACTIONS, |to| to.nest(2, |to| to.attribute(2, b"cookie")));
    });
    let upcall = site.upcalls.remove(0);
    let found = table::<{ packet::COUNT }>(body(&only(&upcall))).unwrap();
    assert_eq!(found[usize::from(packet::PACKET)], Some(&frame[..]));
    assert_eq!(Key::read(found[usize::from(packet::KEY)].unwrap(), None).unwrap().0, key_of(1, 0, &frame));
}

#[test]
fn a_clone_leaves_the_packet_as_it_was_and_a_cut_is_for_one_output() {
    let mut site = Site::new();
    site.put_flow(1, 0, |to| {
        to.nest(20, |to| {
            to.attribute(4, &[0x81, 0, 0x10, 5]);
            to.number(1, 2);
        });
        to.number(13, 60);
        to.number(1, 2);
        to.number(1, 2);
    });
    let frame = udp(300);
    site.datapath.frame(&tagged(1, &frame));
    site.collect();
    let with_tag = [&frame[..12], &[0x81, 0, 0, 5], &frame[12..]].concat();
    assert_eq!(site.frames, [tagged(2, &with_tag), tagged(2, &frame[..60]), tagged(2, &frame)]);
}

#[test]
fn a_port_that_no_bridge_has_is_dropped_until_one_has() {
    let mut site = Site::new();
    site.ports(&[(VM1, "vm1"), (VM2, "vm2"), (PACKETS, PACKET_PORT), (PortId(7), "vm7")]);
    site.miss(PortId(7), &udp(100));
    let flow = site.told_flow();
    assert_eq!((flow.actions.len(), flow.key.in_port), (0, 7));
    assert_eq!(flow.mask, FlowMask(FlowKey { in_port: u32::MAX, ..FlowKey::default() }));
    assert_eq!(site.add_port("vm7", vport::NETDEV), 0);
    assert!(site.told().contains(&FromControl::ClearFlows));
}

#[test]
fn an_internal_port_is_opened_before_it_is_answered_and_closed_with_it() {
    let mut site = Site::new();
    site.datapath.request(PID, {
        let mut to = Writer::new();
        to.begin(family::VPORT.id, flag::ACK | 1, SEQUENCE, PID);
        to.ovs_header(command::NEW, 1, 0);
        to.text(vport::NAME, "br0");
        to.number(vport::TYPE, vport::INTERNAL);
        to.number(vport::UPCALL_PID, PID);
        to.end();
        to.into_bytes()
    });
    site.settle();
    let Some(ControlToSupervisor::UplinkAdd { request, uplink }) = site.to_supervisor.pop() else { panic!("none") };
    assert_eq!((uplink.device.as_str(), uplink.driver.as_deref(), uplink.guest), ("br0", Some("tap"), true));
    assert!(site.answers.is_empty());
    site.ports(&[(VM1, "vm1"), (VM2, "vm2"), (PACKETS, PACKET_PORT), (PortId(8), "br0")]);
    let reply = SupervisorToControl::UplinkReply { request, result: Ok(Vec::new()) };
    assert!(site.datapath.hear_supervisor(&reply));
    site.settle();
    assert_eq!(error_of(&std::mem::take(&mut site.answers)), 0);

    site.send(family::VPORT.id, command::DEL, flag::ACK, |to| to.text(vport::NAME, "br0"));
    site.settle();
    let Some(ControlToSupervisor::PortDel { request, name }) = site.to_supervisor.pop() else { panic!("none") };
    assert_eq!((name.as_str(), site.answers.len()), ("br0", 0));
    site.ports(&[(VM1, "vm1"), (VM2, "vm2"), (PACKETS, PACKET_PORT)]);
    let result = Ok(config(PortId(8), "br0"));
    assert!(site.datapath.hear_supervisor(&SupervisorToControl::Reply { request, result }));
    site.settle();
    assert_eq!(error_of(&site.answers), 0);
}

#[test]
fn an_interface_that_cannot_be_opened_is_no_port() {
    let mut site = Site::new();
    site.send(family::VPORT.id, command::NEW, flag::ACK, |to| {
        to.text(vport::NAME, "eth7");
        to.number(vport::TYPE, vport::NETDEV);
        to.number(vport::UPCALL_PID, PID);
    });
    site.settle();
    let Some(ControlToSupervisor::UplinkAdd { request, .. }) = site.to_supervisor.pop() else { panic!("none") };
    let reply = SupervisorToControl::UplinkReply { request, result: Err("there is no interface eth7".into()) };
    site.datapath.hear_supervisor(&reply);
    site.settle();
    assert_eq!(error_of(&site.answers), Refused::NO_DEVICE.0);
}

#[test]
fn what_is_not_implemented_is_refused_as_the_kernel_refuses_it() {
    let mut site = Site::new();
    for unknown in [17, 23] {
        assert_eq!(site.put_flow(1, 0, |to| to.nest(unknown, |_| ())), Refused::INVALID.0, "action {unknown}");
    }
    let features = |to: &mut Writer| {
        to.text(datapath::NAME, "ovs-system");
        to.number(datapath::USER_FEATURES, 1 << 31);
    };
    assert_eq!(error_of(&site.ask(family::DATAPATH.id, command::SET, flag::ACK, features)), Refused::UNSUPPORTED.0);
    assert_eq!(site.add_port("erspan_sys", 107), Refused::UNSUPPORTED.0);
    assert_eq!(site.add_port("genev_sys_6081", vport::GENEVE), Refused::INVALID.0, "it has no port");
    assert_eq!(site.add_port("vm1", vport::NETDEV), Refused::EXISTS.0);
    assert_eq!(site.put_flow(1, 0, output(2)), 0);
    assert_eq!(site.put_flow(1, 0, output(2)), Refused::EXISTS.0);
    let unknown = |to: &mut Writer| to.attribute(flow::UFID, &[1; 16]);
    assert_eq!(error_of(&site.ask(family::FLOW.id, command::GET, 0, unknown)), Refused::NO_ENTRY.0);
}

#[test]
fn a_dump_has_all_flows_in_parts_and_an_end() {
    let mut site = Site::new();
    let count = 400u32;
    for recirculation in 0..count {
        site.ask(family::FLOW.id, command::NEW, flag::CREATE, |to| {
            to.nest(flow::KEY, |to| key_of(1, recirculation + 1, &udp(64)).write(to));
            to.nest(flow::ACTIONS, output(2));
        });
    }
    assert!(site.ask(family::FLOW.id, command::GET, flag::DUMP | flag::ACK, |_| ()).is_empty());
    let mut parts = Vec::new();
    while let Some(part) = site.datapath.more(PID) {
        parts.push(part);
    }
    let kinds: Vec<_> = parts.iter().flat_map(|part| messages(part)).map(|message| message.kind).collect();
    assert!(parts.len() > 2, "{}", parts.len());
    assert_eq!((kinds.len(), kinds.last()), (count as usize + 1, Some(&kind::DONE)));
    let keys = parts.iter().flat_map(|part| messages(part)).filter(|m| m.kind == family::FLOW.id);
    let numbers = keys.map(|message| {
        let key = attributes(body(&message)).map(Result::unwrap).find(|(kind, _)| *kind == flow::KEY).unwrap().1;
        u32_of(attributes(key).map(Result::unwrap).find(|(kind, _)| *kind == 20).unwrap().1).unwrap()
    });
    assert_eq!(numbers.collect::<Vec<_>>(), (1..=count).collect::<Vec<_>>());
}

#[test]
fn a_new_switch_is_told_how_frames_go_out_and_nothing_else() {
    let mut site = Site::new();
    site.put_flow(1, 0, output(2));
    site.miss(VM1, &udp(100));
    site.told();
    site.datapath.switch_is(false);
    site.datapath.switch_is(true);
    site.datapath.hear_switch(&ToControl::Hello);
    site.settle();
    let told = site.told();
    assert_eq!(told[0], FromControl::ClearFlows);
    let out: Vec<_> = told[1..]
        .iter()
        .map(|message| match message {
            FromControl::PutFlow(flow) => (flow.key.in_port, flow.key.vlan_tci & 0xfff, flow.actions.last().copied()),
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(out, [(PACKETS.0, 2, Some(Action::Output(VM1))), (PACKETS.0, 3, Some(Action::Output(VM2)))]);
    site.miss(VM1, &udp(100));
    assert_eq!(site.told_flow().actions, [Action::Output(VM2)]);
}

mod tunnels;
mod whole;

proptest! {
    /// Whatever a client sends, it is answered once, and the datapath goes on.
    #[test]
    fn any_request_is_answered(
        family in prop::sample::select(vec![16u16, 0x20, 0x21, 0x22, 0x23, 0x24, 3]),
        command in 0u8..6,
        flags in any::<u16>(),
        body in prop::collection::vec(any::<u8>(), 0..200),
        attributes in prop::collection::vec((0u16..13, prop::collection::vec(any::<u8>(), 0..40)), 0..6),
    ) {
        let mut site = Site::new();
        let before = site.finished;
        site.send(family, command, flags, |to| {
            attributes.iter().for_each(|(kind, value)| to.attribute(*kind, value));
            to.raw(&body);
        });
        while let Some(message) = site.to_supervisor.pop() {
            if let ControlToSupervisor::UplinkAdd { request, .. } = message {
                site.datapath.hear_supervisor(&SupervisorToControl::UplinkReply { request, result: Err("no".into()) });
            }
        }
        site.settle();
        prop_assert_eq!(site.finished, before + 1);
    }

    #[test]
    fn any_frame_is_borne(frame in prop::collection::vec(any::<u8>(), 0..100)) {
        let mut site = Site::new();
        site.put_flow(1, 0, |to| {
            to.number(7, 3);
            to.attribute(5, &[]);
            to.number(1, 2);
        });
        site.datapath.frame(&frame);
        site.datapath.frame(&tagged(1, &[frame, vec![0; 14]].concat()));
        site.collect();
        prop_assert!(site.frames.len() <= 2);
    }
}
