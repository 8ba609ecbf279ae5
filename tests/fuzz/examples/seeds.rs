//! Writes the seeds that the fuzz targets start from to `fuzz/seeds`: real frames, real messages, and short programs for
//! the targets whose input is one. `cargo run -p lasthop-tests-fuzz --example seeds`

use lasthop_flow::{Action, FlowSpec};
use lasthop_frame::testutil::{Frame, arp, neighbour_solicitation};
use lasthop_frame::{Edit, FlowKey, FlowMask, Part, Set, VnetHdr};
use lasthop_ipc::{
    DatapathReply, DatapathRequest, FlowInfo, FromControl, SupervisorToSwitch, SwitchToSupervisor, ToControl,
    UpcallPacket,
};
use lasthop_management_ipc::{ControlToSupervisor, CpuBound, PortConfig, PortWork, SupervisorToControl};
use lasthop_ovs_abi::limit::Limit;
use lasthop_ovs_abi::meter::{Band, Meter};
use lasthop_ovs_abi::netlink::Writer;
use lasthop_text::MacAddr;
use lasthop_types::{Level, LogLine, PortId};
use lasthop_uplink_ipc::{
    COUNTERS_ROW, SupervisorToUplink, UplinkCounters, UplinkDevice, UplinkDriver, UplinkDrops, UplinkToSupervisor,
};
use std::path::{Path, PathBuf};

fn main() -> std::io::Result<()> {
    for (path, seed) in files() {
        path.parent().map_or(Ok(()), std::fs::create_dir_all)?;
        std::fs::write(path, seed)?;
    }
    Ok(())
}

/// Every file of seeds as it should be.
pub fn files() -> Vec<(PathBuf, Vec<u8>)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/seeds");
    let named = |name: &str, n: usize| root.join(name).join(format!("start-{n:02}"));
    let of = |(name, seeds): (&str, Vec<Vec<u8>>)| {
        seeds.into_iter().enumerate().map(|(n, seed)| (named(name, n), seed)).collect::<Vec<_>>()
    };
    seeds().into_iter().flat_map(of).collect()
}

fn seeds() -> Vec<(&'static str, Vec<Vec<u8>>)> {
    let mut all: Vec<(&str, Vec<Vec<u8>>)> = vec![("frame_key", frame_key()), ("messages", messages())];
    for (name, count, len, first) in [
        ("offload", 24, 40, None),
        ("session", 12, 90, Some(0x37)),
        ("split_device", 12, 240, None),
        ("packed_device", 12, 240, None),
        ("driver", 12, 160, None),
        ("flow_table", 6, 240, None),
        ("learning", 6, 240, None),
        ("walk", 16, 300, None),
        ("gro", 12, 160, None),
        ("control_rings", 12, 300, None),
        ("connections", 12, 300, None),
        ("tunnel", 8, 120, None),
        ("netlink", 12, 200, None),
        ("translations", 8, 400, None),
        ("moved", 8, 300, Some(0)),
    ] {
        all.push((name, (0..count).map(|n| program(name, n, len, first)).collect()));
    }
    if let Some((_, seeds)) = all.iter_mut().find(|(name, _)| *name == "walk") {
        seeds.extend([two_receivers(), deeper_in_the_middle(), cut_in_the_middle(), behind_nothing(), edited()]);
        seeds.extend([0, 8].into_iter().flat_map(|first| [false, true].map(|answered| actions(first, answered))));
    }
    if let Some((_, seeds)) = all.iter_mut().find(|(name, _)| *name == "moved") {
        seeds.extend([exported(""), exported(r#"{"name":"connections","value":"3"}"#)]);
    }
    if let Some((_, seeds)) = all.iter_mut().find(|(name, _)| *name == "gro") {
        seeds.push(streams());
    }
    if let Some((_, seeds)) = all.iter_mut().find(|(name, _)| *name == "tunnel") {
        // Geneve with OVN's option, VXLAN, and GRE with all that it may have.
        let (geneve, vxlan) =
            ([0, 2, 0x40, 0x65, 0x58, 0, 0, 5, 0, 1, 2, 0x80, 1, 0, 1, 0, 2], [1, 8, 0, 0, 0, 0, 0, 5, 0]);
        let gre = [4, 0xb0, 0, 0x65, 0x58, 0, 0, 0, 0, 0, 0, 0, 5, 0, 0, 0, 1];
        seeds.extend([&geneve[..], &vxlan[..], &gre[..]].map(|header| [header, &[2; 60]].concat()));
    }
    if let Some((_, seeds)) = all.iter_mut().find(|(name, _)| *name == "netlink") {
        seeds.extend(netlink());
    }
    all
}

/// The file of a port with settings: one connection that its guest has opened, and one that it has been asked.
fn exported(settings: &str) -> Vec<u8> {
    let connection = |from, to, src, dst| {
        let direction = |src, dst, sport, dport| {
            format!(r#"{{"src":"10.0.0.{src}","dst":"10.0.0.{dst}","sport":{sport},"dport":{dport}}}"#)
        };
        let (original, reply) = (direction(src, dst, 40_000, 80), direction(dst, src, 80, 40_000));
        format!(
            r#"{{"proto":"tcp","proto_number":6,"state":"ESTABLISHED","vlan":0,"from":"{from}","to":"{to}","original":{original},"reply":{reply},"replied":true,"assured":true,"seconds_left":432000,"flows":2}}"#
        )
    };
    let (opened, asked) = (connection("vm1", "web", 1, 2), connection("net", "vm1", 9, 1));
    let lists = r#"["stateful\ndefault permit\n","stateful\ndefault deny\npermit tcp to any port 80\n"]"#;
    let stations = r#"[{"mac":"02:00:00:00:00:01","vlan":0}]"#;
    let file = format!(
        r#"{{"lasthop_port":1,"name":"vm1","settings":[{settings}],"lists":{lists},"stations":{stations},"connections":[{opened},{asked}]}}"#
    );
    [&[1, 7, 1], file.as_bytes()].concat()
}

/// What Open vSwitch says: a flow's key, what it does, a meter, limits.
fn netlink() -> Vec<Vec<u8>> {
    let key = |to: &mut Writer| {
        to.number(3, 1);
        to.attribute(4, &[2; 12]);
        to.attribute(6, &[8, 0]);
        to.attribute(7, &[10, 0, 0, 1, 10, 0, 0, 2, 6, 0, 64, 0]);
        to.attribute(9, &[0, 80, 4, 0]);
    };
    let acts = |to: &mut Writer| {
        to.nest(12, |to| to.attribute(2, &[5, 0]));
        to.number(19, 7);
        to.attribute(9, &[0, 0, 0x31, 0x40, 0x88, 0x47, 0, 0]);
        to.nest(20, |to| to.number(1, 2));
    };
    let band = Some(Band { rate: 100, burst: 10 });
    let limits = [Limit { zone: None, limit: 10, count: 0 }, Limit { zone: Some(3), limit: 2, count: 1 }];
    let of = |first: u8, fill: &dyn Fn(&mut Writer)| {
        let mut to = Writer::new();
        fill(&mut to);
        [&[first][..], &to.into_bytes()].concat()
    };
    let message = |to: &mut Writer| {
        to.begin(0x22, 5, 7, 9);
        to.ovs_header(1, 1, 3);
        to.nest(1, key);
        to.nest(2, acts);
        to.end();
    };
    vec![
        of(0, &message),
        of(1, &key),
        of(2, &acts),
        of(3, &|to| lasthop_ovs_abi::meter::write_set(5, &Meter { kilobits: true, band }, to)),
        of(4, &|to| Limit::write(&limits, to)),
        of(5, &|to| lasthop_ovs_abi::conntrack::Meant { zone: Some(3), end: Some(Default::default()) }.write(to)),
    ]
}

/// Bytes that always come out the same.
fn program(name: &str, n: u64, len: usize, first: Option<u8>) -> Vec<u8> {
    let mut state = name.bytes().fold(n + 1, |s, b| s.wrapping_mul(0x100_0000_01b3) ^ u64::from(b)) | 1;
    let mut bytes: Vec<u8> = (0..len)
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 24) as u8
        })
        .collect();
    if let Some(first) = first {
        bytes[0] = first | (bytes[0] & 0x0c);
    }
    bytes
}

/// The walk: port 1 sends to port 2, which runs out of buffers, and to port 3, whose packets overtake.
fn two_receivers() -> Vec<u8> {
    const TO: [u8; 2] = [1 | 1 << 2, 1 | 2 << 2];
    // Three guests with mergeable buffers, control that answers, a flow for each of two destinations.
    let mut out = vec![8, 8, 8, 1, 13, 0, 1 | 2 << 2, TO[0], 13, 0, 1 | 3 << 2, TO[1]];
    for n in 0..24u8 {
        // UDP over IPv4 from station 1 to 2 or 3, a payload of 100 bytes and a few, nothing spoilt, one piece.
        out.extend([0, 0, 3, 1 | (2 + n % 2) << 2, 0, 0, 100 + n, 0, 0, 0]);
        if n % 4 == 3 {
            out.extend([7, 0]);
        }
        if n % 6 == 5 {
            // The second receiver looks after its buffers.
            out.extend([11, 2, 19]);
        }
    }
    // Time passes, the first receiver wakes up.
    out.extend([17, 0, 3, 7, 0, 11, 1, 19, 7, 0]);
    out
}

/// The walk: flows look at stations, and one that looks at ports comes in the middle of a burst; it lets the fifth packet pass and
/// not those behind it, which look like that one.
fn deeper_in_the_middle() -> Vec<u8> {
    let (first, second) = ([13, 0, 1 | 2 << 2, 1 | 1 << 2], [26, 0, 1, 3 | 3 << 2, 1 | 2 << 2]);
    let burst = [23, 0, 2 | 3 << 2, 0b1110_0000, 4, 7, 0, 11, 1, 19, 11, 2, 19];
    [&[0x18, 0x18, 0x18, 1][..], &first, &second, &burst].concat()
}

/// The walk: a packet that is cut into five finds three buffers, and all of them later.
fn cut_in_the_middle() -> Vec<u8> {
    let filled = [13, 0, 1 | 2 << 2, 1 | 1 << 2, 23, 0, 2 | 2 << 2, 0, 0, 7, 0, 11, 1, 2];
    let cut = [25, 0, 0xd0, 7, 50, 2, 7, 0, 11, 1, 19, 7, 0, 11, 1, 19];
    [&[0, 0, 0, 1][..], &filled, &cut].concat()
}

/// The walk: frames behind hundreds of descriptors that hold nothing, more than are walked in one turn.
fn behind_nothing() -> Vec<u8> {
    let sent = (0..7).flat_map(|n| [0, 0, 1, 1, n, 0, 5 << 3, 200 + n]);
    [&[4, 5, 4, 1][..], &[13, 0, 0, 1 | 1 << 2]]
        .concat()
        .into_iter()
        .chain(sent)
        .chain([7, 0, 7, 0, 11, 1, 19])
        .collect()
}

/// The walk: port 2 gets packets as they are and port 3 with a tag, or, after a change, port 3 as they are and port 2 without the tags
/// that some of them have; the last ones miss, and control says the same of them.
fn edited() -> Vec<u8> {
    const PUSH: u8 = 3 | 1 << 2 | 2 << 4 | 1 << 6;
    const POP: u8 = 3 | 2 << 2 | 1 << 4 | 2 << 6;
    let mut out = vec![12, 8, 24, 1];
    for (to, answer) in [(Some(PUSH), 0), (Some(POP), 0), (None, PUSH), (None, POP)] {
        match to {
            Some(to) => out.extend([13, 0, 0, to]),
            None => out.extend([14, 0]),
        }
        for n in 0..4u8 {
            // UDP over IPv4, untagged or tagged, a payload of 60 bytes and a few or of 600, nothing spoilt, three pieces.
            let high = if n < 2 { 0 } else { 2 };
            out.extend([0, 0, 3, 1 | 2 << 2, n & 1, 0, 60 + n, high, 0, 2, 20, 30]);
        }
        out.extend([7, 0]);
        if to.is_none() {
            out.extend([15, 0, 3, answer, 0, answer, 0, answer, 0, answer, 0]);
        }
        out.extend([11, 1, 19, 11, 2, 19]);
    }
    out
}

/// The walk: eight kinds of actions on eight kinds of packets, by flows or `answered` by control.
fn actions(first: u8, answered: bool) -> Vec<u8> {
    // To port 2 before and to port 3 behind, or to port 2 behind and of a truncated one to port 3.
    const AROUND: u8 = 3 | 1 << 2 | 2 << 4 | 1 << 6;
    const BEHIND: u8 = 3 | 1 << 2 | 1 << 4 | 1 << 6;
    const V6: u8 = 8;
    const TCP: u8 = 32;
    const ICMP: u8 = 64;
    let mut out = vec![12, 8, 24, 1];
    for how in first..first + 8 {
        let to = if matches!(how, 11 | 13) { BEHIND } else { AROUND };
        if answered {
            out.extend([14, 0]);
        } else {
            out.extend([13, 0, how << 4, to]);
        }
        for kind in [0, TCP, ICMP, V6, V6 | TCP, V6 | ICMP] {
            // Tagged where tags are changed, a payload of 100 bytes, nothing spoilt, one piece.
            out.extend([0, 0, 3 | kind, 1 | 2 << 2, u8::from(matches!(how, 6 | 14)), 0, 100, 0, 0, 0]);
        }
        out.extend([0, 0, 1, 1, 1 | 2 << 2, 0, 0]);
        out.extend([0, 0, 2, 1, 0, 0]);
        out.extend([7, 0]);
        if answered {
            out.extend([15, 0, 7]);
            out.extend([to, how].repeat(8));
        }
        out.extend([11, 1, 19, 11, 2, 19]);
    }
    out
}

/// Receive aggregation: three streams in turns, then one alone.
fn streams() -> Vec<u8> {
    let mut out: Vec<u8> = (0..30).flat_map(|n| [100 + n % 3, 200]).collect();
    out.extend([100, 250].repeat(20));
    out
}

fn frame_key() -> Vec<Vec<u8>> {
    let v4 = || Frame::new(1, 2).ipv4([10, 0, 0, 1], [10, 0, 0, 2]);
    let v6 = || Frame::new(1, 2).ipv6([0xfd; 16], [0xfe; 16]);
    let mac = MacAddr([2, 0, 0, 0, 0, 7]);
    let options = |options: &[u8]| v6().ttl(255).icmp(136, 0).payload([&[0; 20][..], options].concat()).build();
    let link = |kind| [kind, 1, 2, 0, 0, 0, 0, 9];
    let llc = [Frame::new(1, 2).ether_type(60).build(), vec![0xaa, 0xaa, 3, 0, 0, 0, 0x88, 0xcc]].concat();
    let frames = [
        Frame::new(1, 2).build(),
        v4().tcp(1000, 80).tcp_fields(0x1a, 1, &[1; 12]).payload([7; 30]).build(),
        v4().vlan(5).vlan(7).ip_options(&[1; 8]).udp(53, 5353).payload([1; 20]).padding(20).build(),
        Frame::new(1, 2).vlan(5).vlan(7).vlan(9).ipv4([1; 4], [2; 4]).udp(1, 2).build(),
        v4().fragment(0x2000).udp(1, 2).payload([0; 16]).build(),
        v4().fragment(9).protocol(17).payload([0; 16]).build(),
        v4().icmp(8, 0).payload([0; 20]).build(),
        v4().protocol(132).payload([9; 20]).build(),
        v6().extension(0, &[0; 7]).extension(43, &[0; 7]).extension(60, &[0; 7]).tcp(1, 2).build(),
        v6().extension(51, &[4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]).udp(5, 6).build(),
        v6().extension(44, &[0, 0, 1, 0, 0, 0, 9]).udp(7, 9).payload([0; 8]).build(),
        v6().extension(60, &[&[19][..], &[0; 158]].concat()).tcp(5, 6).payload([0; 100]).build(),
        neighbour_solicitation((mac, [0xfe; 16]), [0xfd; 16]),
        arp(1, (mac, [10, 0, 0, 1]), (MacAddr([2; 6]), [10, 0, 0, 2])),
        llc,
        options(&[link(1), link(2)].concat()),
        options(&[link(2), link(2)].concat()),
        options(&[link(14), link(1), link(1)].concat()),
    ];
    frames.iter().map(|f| [&[1], &f[..]].concat()).collect()
}

fn messages() -> Vec<Vec<u8>> {
    fn seed(choice: u8, message: &impl serde::Serialize) -> Vec<u8> {
        let mut out = vec![choice];
        out.extend(postcard::to_extend(message, Vec::new()).expect("a message"));
        out
    }
    let id = PortId(3);
    let config = PortConfig {
        id,
        name: "vm3".into(),
        path: "/run/vm3".into(),
        client: true,
        tx_batch: (125, 64),
        rx_batch: (125, 64),
        owner: None,
    };
    let key = FlowKey { in_port: 3, eth_src: [2; 6], ..FlowKey::default() };
    let mask = FlowMask(FlowKey { in_port: u32::MAX, ..FlowKey::default() });
    let flow = FlowSpec { key, mask, actions: vec![Action::Output(id)], epoch: 9 };
    let push = Action::Edit(Edit::PushVlan { tpid: 0x88a8, tci: 0x2005 });
    let edited = FlowSpec { actions: vec![push, Action::Edit(Edit::PopVlan), Action::Output(id)], ..flow.clone() };
    let info = FlowInfo { flow: flow.clone(), packets: 300, bytes: 70_000, idle_ms: 5 };
    let header: Vec<u8> = VnetHdr::default().to_bytes().into();
    let upcall = UpcallPacket { id: 1 << 40, copy: None, key, header, frame_len: 60 };
    let copied = UpcallPacket { copy: Some(7), ..upcall.clone() };
    let set = Edit::Set(Set { part: Part::Ipv4, word: 3, value: 0x0a00_0001, mask: u32::MAX });
    let all_kinds = vec![
        Action::Edit(set),
        Action::Edit(Edit::DecTtl),
        Action::Meter(3),
        Action::Sample(1 << 31, 1),
        Action::ToControl(9),
        Action::Truncated(id, 100),
    ];
    let all_kinds = FlowSpec { actions: all_kinds, ..flow.clone() };
    let device = UplinkDevice {
        driver: UplinkDriver::AfXdp,
        mode: "native, copy".into(),
        mac: MacAddr([2; 6]),
        mtu: 1500,
        queues: 1,
        created: false,
        made_now: false,
    };
    let bound = CpuBound {
        port: id,
        most_ns: 9,
        spent_ns: 99,
        held_to: Some([1000, 1_024_000]),
        presses: true,
        missed_ms: Some(7),
        missed: 1,
    };
    let drops = vec![UplinkDrops { reason: "overrun".into(), packets: 3 }];
    let counters = UplinkCounters { to_network_packets: 5, to_network_bytes: 300, drops, ..UplinkCounters::default() };
    let mut page = vec![0; 7 * COUNTERS_ROW];
    for (row, name) in ["a", "b", "c", "d", "e", "stale", "probe"].into_iter().enumerate() {
        page[row * COUNTERS_ROW..][..name.len()].copy_from_slice(name.as_bytes());
        page[row * COUNTERS_ROW + COUNTERS_ROW - 8] = 9;
    }
    let reply = |reply| ToControl::Reply { request: 8, last: true, reply };
    vec![
        seed(0, &SupervisorToSwitch::AddPort(id, config.name.clone())),
        seed(0x10, &SupervisorToSwitch::Connection(id, Some(3))),
        seed(0x20, &SupervisorToSwitch::ControlChannel),
        seed(1, &SwitchToSupervisor::ConnectionClosed { port: id, reason: "closed".into() }),
        seed(
            1,
            &SwitchToSupervisor::Log(LogLine { port: id, level: Level::Warn, text: "it stopped".into(), left_out: 3 }),
        ),
        seed(2, &SupervisorToControl::Ports(vec![config.clone(), config.clone()])),
        seed(2, &SupervisorToControl::Reply { request: 4, result: Ok(config) }),
        seed(2, &SupervisorToControl::Reply { request: 4, result: Err("no".into()) }),
        seed(2, &SupervisorToControl::CpuBounds([vec![bound], Vec::new()])),
        seed(
            3,
            &ControlToSupervisor::Done([
                vec![PortWork { port: id, busy_ns: 9, packets: 1, bytes: 60, woken: 2 }],
                Vec::new(),
            ]),
        ),
        seed(
            3,
            &ControlToSupervisor::PortAdd {
                request: 1,
                name: "a".into(),
                path: "/b".into(),
                client: false,
                tx_batch: Some((9, 7)),
                owner: None,
                settings: vec![("vlan".into(), "10".into())],
            },
        ),
        seed(4, &ToControl::Hello),
        seed(4, &ToControl::PortGone(id)),
        seed(4, &ToControl::Upcall(upcall)),
        seed(4, &reply(DatapathReply::Flows { flows: vec![info.clone(), info.clone()], next: Some((1, 2, 3)) })),
        seed(4, &reply(DatapathReply::Meter { id: 3, passed: [7, 700], dropped: [1, 100] })),
        seed(4, &reply(DatapathReply::Ports(Vec::new()))),
        seed(4, &reply(DatapathReply::Lookup { key, flow: Some(Box::new(info)) })),
        seed(6, &FromControl::PutFlow(flow)),
        seed(6, &FromControl::DelFlow { key, mask, tell: true }),
        seed(6, &FromControl::Resume { id: 9, actions: vec![Action::Output(id); 3] }),
        seed(6, &FromControl::Ask { request: 2, question: DatapathRequest::Barrier }),
        seed(6, &FromControl::Ask { request: 2, question: DatapathRequest::Lookup(key) }),
        seed(6, &FromControl::Ask { request: 2, question: DatapathRequest::Meter(3) }),
        seed(0x18, &UplinkToSupervisor::Keep),
        seed(8, &UplinkToSupervisor::Ready(device)),
        seed(8, &UplinkToSupervisor::QueueOwners(vec![0, 7, 0])),
        seed(8, &UplinkToSupervisor::Failed("the device is gone".into())),
        seed(8, &UplinkToSupervisor::Pong { number: 7, counters }),
        seed(8, &UplinkToSupervisor::Heard { token: [9; 16], vlan: 7 }),
        seed(0x1b, &SupervisorToUplink::Connection { away_ms: 1500 }),
        seed(11, &SupervisorToUplink::Ping(7)),
        seed(11, &SupervisorToUplink::Shutdown { remove: true }),
        seed(11, &SupervisorToUplink::Probe { instance: [1; 16], token: [2; 16], vlans: vec![1, 4094] }),
        seed(11, &SupervisorToUplink::Announce(vec![(0, MacAddr([2; 6])), (7, MacAddr([4; 6]))])),
        [&[14], &page[..]].concat(),
        seed(6, &FromControl::PutFlow(edited)),
        seed(4, &ToControl::Upcall(copied)),
        seed(6, &FromControl::PutFlow(all_kinds)),
        seed(6, &FromControl::SetMeter { id: 3, rates: Some([1 << 40, 0, 1_000_000]) }),
        seed(6, &FromControl::SetMeter { id: 3, rates: None }),
    ]
}
