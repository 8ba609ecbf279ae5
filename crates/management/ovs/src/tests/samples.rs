//! Samples: the switch draws them, and Open vSwitch is told of each what its flow says.

use super::*;

/// A flow of the first port's whose packets are sampled with this chance, and go to the second port.
fn put_sampled(site: &mut Site, probability: u32, data: &[u8]) {
    site.put_flow(1, 0, |to| {
        to.nest(6, |to| {
            to.number(1, probability);
            to.nest(2, |to| {
                to.nest(2, |to| {
                    to.number(1, u32::MAX);
                    to.attribute(2, data);
                    to.attribute(4, &[]);
                });
            });
        });
        output(2)(to);
    });
}

/// The switch tells of a packet that it has drawn.
fn draw(site: &mut Site, number: u32, frame: &[u8]) {
    let header = frame[..frame.len().min(192)].to_vec();
    let key = FlowKey { in_port: VM1.0, ..FlowKey::default() };
    let upcall = UpcallPacket { id: 1 << 32, copy: Some(number), key, header, frame_len: frame.len() as u32 };
    site.datapath.hear_switch(&ToControl::Upcall(upcall));
    site.collect();
}

#[test]
fn the_switch_draws_and_open_vswitch_is_told() {
    let mut site = Site::new();
    put_sampled(&mut site, u32::MAX / 8, b"sFlow");
    site.miss(VM1, &udp(100));
    let flow = site.told_flow();
    let [Action::Sample(chance, 1), Action::ToControl(number), Action::Output(VM2)] = flow.actions[..] else {
        panic!("{:?}", flow.actions);
    };
    assert_eq!(chance, u32::MAX / 8);
    // Not the packet that the flow was made of: what is told is what this one shows.
    let mut frame = udp(1000);
    frame[6..12].copy_from_slice(&[2, 0, 0, 0, 0, 0x77]);
    draw(&mut site, number, &frame);
    let upcall = site.upcalls.remove(0);
    let message = only(&upcall);
    assert_eq!((message.kind, message.payload[0]), (family::PACKET.id, packet_command::ACTION));
    let found = table::<{ packet::COUNT }>(body(&message)).unwrap();
    assert_eq!(found[usize::from(packet::USERDATA)], Some(&b"sFlow"[..]));
    let told = Key::read(found[usize::from(packet::KEY)].unwrap(), None).unwrap().0;
    assert_eq!(told, key_of(1, 0, &frame));
    let packet = found[usize::from(packet::PACKET)].unwrap();
    assert_eq!((packet.len(), &packet[..192]), (1000, &frame[..192]), "as long as it was");
    assert!(packet[192..].iter().all(|byte| *byte == 0));
    let acts: Vec<_> = attributes(found[usize::from(packet::ACTIONS)].unwrap()).map(|act| act.unwrap().0).collect();
    assert_eq!(acts, [6, 1], "the flow's actions, as it wanted them");
    assert!(site.told().is_empty() && site.frames.is_empty(), "the packet itself has gone on");

    // What was drawn for a flow that is gone is not told as another's.
    let id = ufid(1, 0);
    site.ask(family::FLOW.id, command::DEL, flag::ACK, |to| to.attribute(flow::UFID, &id));
    site.told();
    put_sampled(&mut site, u32::MAX / 8, b"other");
    site.miss(VM1, &udp(100));
    let [_, Action::ToControl(other), _] = site.told_flow().actions[..] else { panic!() };
    assert_ne!(number, other);
    draw(&mut site, number, &frame);
    assert!(site.upcalls.is_empty());
    draw(&mut site, other, &frame);
    assert_eq!(site.upcalls.len(), 1);
}

/// As IPFIX wants it of what leaves through a tunnel (`OVS_PACKET_ATTR_EGRESS_TUN_KEY`): from here to the other end.
#[test]
fn what_leaves_through_a_tunnel_is_told_with_its_outer_header() {
    let mut site = tunnels::site();
    let told = |to: &mut Writer| {
        to.nest(2, |to| {
            to.number(1, PID);
            to.number(3, tunnels::NO.into());
        });
    };
    let egress = |site: &mut Site| {
        let upcall = site.upcalls.remove(0);
        let found = table::<{ packet::COUNT }>(body(&only(&upcall))).unwrap();
        let key = found[usize::from(packet::EGRESS_TUN_KEY)]?;
        let found = |kind: u16| {
            attributes(key).map(Result::unwrap).find(|(of, _)| *of == kind).map(|(_, value)| value.to_vec())
        };
        // The network, the source, the destination.
        Some([found(0), found(1), found(2)])
    };
    let header = Some([Some(5u64.to_be_bytes().to_vec()), Some(vec![10, 1, 0, 1]), Some(vec![10, 1, 0, 2])]);
    site.put_flow(1, 0, |to| {
        told(to);
        tunnels::encapsulate_from(&[10, 1, 0, 1], to);
        told(to);
        to.nest(2, |to| to.number(3, 2));
    });
    site.datapath.frame(&tagged(1, &udp(100)));
    site.collect();
    assert_eq!([egress(&mut site), egress(&mut site)], [None, header.clone()], "nothing has said where to; a tunnel");
    assert_eq!(egress(&mut site), None, "no tunnel's port");

    // The same, drawn by the switch.
    site.put_flow(2, 0, |to| {
        tunnels::encapsulate_from(&[10, 1, 0, 1], to);
        to.nest(6, |to| {
            to.number(1, u32::MAX / 8);
            to.nest(2, told);
        });
    });
    site.miss(VM2, &udp(100));
    let flow = site.told_flow();
    let number = flow
        .actions
        .iter()
        .find_map(|action| if let Action::ToControl(number) = action { Some(*number) } else { None });
    draw(&mut site, number.expect("a sample"), &udp(100));
    assert_eq!(egress(&mut site), header);
}

/// What a sample does beside telling Open vSwitch is done packet by packet.
#[test]
fn a_sample_that_does_more_is_no_flow() {
    let mut site = Site::new();
    site.put_flow(1, 0, |to| {
        to.nest(6, |to| {
            to.number(1, u32::MAX / 2);
            to.nest(2, output(2));
        });
    });
    site.miss(VM1, &udp(100));
    assert_eq!(site.told(), [FromControl::Resume { id: 5, actions: fetch(1) }]);
    let rounds = 1000;
    for _ in 0..rounds {
        site.datapath.frame(&tagged(1, &udp(100)));
    }
    site.collect();
    // Half of them, with a standard deviation of 16.
    assert!((400..600).contains(&site.frames.len()), "{} of {rounds}", site.frames.len());
}

/// Which packets are drawn was the same after each start, so that a guest could know.
#[test]
fn chance_follows_from_the_seed() {
    let drawn = |seed: u64| {
        let mut site = Site::new();
        site.datapath = std::mem::take(&mut site.datapath).with_seed(seed);
        site.put_flow(1, 0, |to| {
            to.nest(6, |to| {
                to.number(1, u32::MAX / 2);
                to.nest(2, output(2));
            });
        });
        let frames = (0..64).map(|_| {
            site.datapath.frame(&tagged(1, &udp(100)));
            site.collect();
            std::mem::take(&mut site.frames).len()
        });
        frames.collect::<Vec<_>>()
    };
    assert_eq!(drawn(5), drawn(5));
    assert_ne!(drawn(5), drawn(0x1234_5678_9abc_def1));
}
