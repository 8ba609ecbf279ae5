//! One list of actions with thousands of long outputs: it is carried out a part at a time, and others have their turn.

use super::*;
use crate::turns::TURN;

const OTHER: u32 = 10;
const OUTPUTS: usize = 4000;
const LEN: usize = 60_000;

/// A request that sends a packet out so often.
fn execute(outputs: usize, len: usize, pid: u32) -> Vec<u8> {
    let mut to = Writer::new();
    to.begin(family::PACKET.id, 1 | flag::ACK, SEQUENCE, pid);
    to.ovs_header(packet_command::EXECUTE, 1, 0);
    to.attribute(packet::PACKET, &udp(len));
    to.nest(packet::KEY, |to| to.number(3, 1));
    to.nest(packet::ACTIONS, |to| (0..outputs).for_each(|_| output(2)(to)));
    to.end();
    to.into_bytes()
}

/// Frames, and requests that are finished, of all that is to be sent now, which is no more than a turn's and one frame.
fn turn(datapath: &mut Datapath) -> (usize, Vec<u32>) {
    let (mut frames, mut finished, mut bytes) = (0, Vec::new(), 0);
    loop {
        let out = datapath.take();
        if out.is_empty() {
            break;
        }
        for out in out {
            match out {
                Out::Frame(frame) => (frames, bytes) = (frames + 1, bytes + frame.len()),
                Out::Finished(pid) => finished.push(pid),
                _ => {}
            }
        }
    }
    assert!(bytes <= TURN + LEN + 4, "{bytes} bytes at once");
    (frames, finished)
}

/// It took 240 MB at once.
#[test]
fn a_request_with_thousands_of_long_outputs_takes_turns_with_others() {
    let mut site = Site::new();
    site.datapath.connected(OTHER);
    site.datapath.tick();
    // Two messages: the second is carried out when the packets of the first are sent.
    let both = [execute(OUTPUTS, LEN, PID), execute(3, 100, PID)].concat();
    site.datapath.request(PID, both);
    let (mut frames, mut finished) = turn(&mut site.datapath);
    assert!((10..100).contains(&frames) && finished.is_empty(), "{frames}, {finished:?}");
    let mut turns = 1;
    while site.datapath.is_busy() {
        // Somebody else, of whom each request is answered in the turn after it.
        site.datapath.request(OTHER, execute(1, 100, OTHER));
        site.datapath.tick();
        let (more, done) = turn(&mut site.datapath);
        assert!(done.contains(&OTHER), "turn {turns}: {done:?}");
        (frames, turns) = (frames + more - 1, turns + 1);
        finished.extend(done.into_iter().filter(|pid| *pid == PID));
    }
    assert_eq!((frames, &finished[..]), (OUTPUTS + 3, &[PID][..]), "in {turns} turns");
    assert!(turns > OUTPUTS * LEN / TURN);
}

/// Packets that come whole wait while those before are being sent.
#[test]
fn a_flow_with_thousands_of_long_outputs_lets_others_have_their_turn() {
    let mut site = Site::new();
    site.datapath.connected(OTHER);
    const OF_FLOW: usize = 1900;
    assert_eq!(site.put_flow(1, 0, |to| (0..OF_FLOW).for_each(|_| output(2)(to))), 0);
    site.datapath.tick();
    assert!(site.datapath.takes_frames());
    site.datapath.frame(&tagged(1, &udp(LEN)));
    let (mut frames, _) = turn(&mut site.datapath);
    while !site.datapath.takes_frames() {
        site.datapath.request(OTHER, execute(1, 100, OTHER));
        site.datapath.tick();
        let (more, done) = turn(&mut site.datapath);
        assert_eq!(done, [OTHER]);
        frames += more - 1;
    }
    assert_eq!(frames, OF_FLOW);
}

#[test]
fn what_a_client_that_is_gone_had_not_sent_is_not_sent() {
    let mut site = Site::new();
    site.datapath.tick();
    site.datapath.request(PID, execute(OUTPUTS, LEN, PID));
    turn(&mut site.datapath);
    assert!(site.datapath.is_busy());
    site.datapath.disconnected(PID);
    assert!(!site.datapath.is_busy());
    site.datapath.tick();
    assert_eq!(turn(&mut site.datapath), (0, Vec::new()));
}

/// Each message may ask for a flow with actions of 16 KiB.
#[test]
fn answers_to_one_datagram_have_a_bound() {
    let mut site = Site::new();
    let userdata = vec![7; 15_000];
    let long = |to: &mut Writer| {
        to.nest(2, |to| {
            to.number(1, PID);
            to.attribute(2, &userdata);
        });
    };
    assert_eq!(site.put_flow(1, 0, long), 0);
    let too_long = vec![7; 20_000];
    let change = |to: &mut Writer| {
        to.attribute(flow::UFID, &ufid(1, 0));
        to.nest(flow::ACTIONS, |to| {
            to.nest(2, |to| {
                to.number(1, PID);
                to.attribute(2, &too_long);
            });
        });
    };
    let refused = error_of(&site.ask(family::FLOW.id, command::SET, flag::ACK, change));
    assert_eq!(refused, Refused::INVALID.0, "a flow gets no longer by a change");
    let mut to = Writer::new();
    for _ in 0..1000 {
        to.begin(family::FLOW.id, 1, SEQUENCE, PID);
        to.ovs_header(command::GET, 1, 0);
        to.attribute(flow::UFID, &ufid(1, 0));
        to.end();
    }
    site.datapath.request(PID, to.into_bytes());
    site.settle();
    let bytes: usize = site.answers.iter().map(Vec::len).sum();
    assert!(bytes < 5 << 20, "{bytes}");
    let refused = site.answers.iter().filter(|answer| only(answer).kind == kind::ERROR);
    assert_eq!((site.answers.len(), error_of(&refused.cloned().collect::<Vec<_>>())), (1000, Refused::NO_BUFFERS.0));
}
