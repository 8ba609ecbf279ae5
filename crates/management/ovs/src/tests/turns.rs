//! One list of actions with thousands of long outputs: it is carried out a part at a time, and others have their turn.

use super::*;
use crate::turns::TURN;

const OTHER: u32 = 10;
const OUTPUTS: usize = 4000;
const LEN: usize = 60_000;

/// A request that sends a packet out so often.
fn execute(outputs: usize, len: usize, pid: u32) -> Vec<u8> {
    execute_cut(outputs, len, pid, None)
}

/// The same of a packet that has come in fragments, none of which was longer than this.
fn execute_cut(outputs: usize, len: usize, pid: u32, longest: Option<u16>) -> Vec<u8> {
    let mut to = Writer::new();
    to.begin(family::PACKET.id, 1 | flag::ACK, SEQUENCE, pid);
    to.ovs_header(packet_command::EXECUTE, 1, 0);
    to.attribute(packet::PACKET, &udp(len));
    to.nest(packet::KEY, |to| to.number(3, 1));
    to.nest(packet::ACTIONS, |to| (0..outputs).for_each(|_| output(2)(to)));
    if let Some(longest) = longest {
        to.attribute(packet::MRU, &longest.to_ne_bytes());
    }
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

/// With more than 64 of them under way nobody else's request was begun: 8.5 s with 200.
#[test]
fn many_long_requests_take_turns_with_others() {
    const CLIENTS: u32 = 200;
    let mut site = Site::new();
    let clients = 100..100 + CLIENTS;
    clients.clone().chain([OTHER]).for_each(|pid| site.datapath.connected(pid));
    site.datapath.tick();
    clients.clone().for_each(|pid| site.datapath.request(pid, execute(OUTPUTS, LEN, pid)));
    for round in 0..100 {
        site.datapath.request(OTHER, execute(2, 1500, OTHER));
        let mut done = turn(&mut site.datapath).1;
        for _ in 0..2 {
            site.datapath.tick();
            done.extend(turn(&mut site.datapath).1);
        }
        assert!(done.contains(&OTHER), "{round}");
        assert!(site.datapath.turns.waiting() <= 16_384 + 4096, "{round}: {} wait", site.datapath.turns.waiting());
    }
    // The long ones are not forgotten: those that have been begun are carried out, and the next begin.
    clients.skip(8).for_each(|pid| site.datapath.disconnected(pid));
    let mut done = Vec::new();
    while site.datapath.is_busy() {
        site.datapath.tick();
        done.extend(turn(&mut site.datapath).1);
    }
    done.sort_unstable();
    assert_eq!(done, (100..108).collect::<Vec<_>>());
}

/// Short requests may have long effects: what there is no room for is refused, and nobody waits for it.
#[test]
fn long_effects_of_short_requests_have_a_bound() {
    const CLIENTS: u32 = 100;
    let mut site = Site::new();
    assert_eq!(site.put_flow(1, 5, |to| (0..1900).for_each(|_| output(2)(to))), 0);
    let clients = 100..100 + CLIENTS;
    clients.clone().for_each(|pid| site.datapath.connected(pid));
    site.datapath.tick();
    let again = |pid| {
        let mut to = Writer::new();
        to.begin(family::PACKET.id, 1 | flag::ACK, SEQUENCE, pid);
        to.ovs_header(packet_command::EXECUTE, 1, 0);
        to.attribute(packet::PACKET, &udp(8000));
        to.nest(packet::KEY, |to| to.number(3, 1));
        // Recirculation.
        to.nest(packet::ACTIONS, |to| to.number(7, 5));
        to.end();
        to.into_bytes()
    };
    clients.clone().for_each(|pid| site.datapath.request(pid, again(pid)));
    let (mut refused, mut turns) = (0, 0);
    loop {
        site.datapath.tick();
        for out in site.datapath.take() {
            if let Out::Answer(pid, answer) = out {
                assert!(clients.contains(&pid));
                refused += u32::from(error_of(&[answer]) == Refused::NO_BUFFERS.0);
            }
        }
        assert!(site.datapath.turns.waiting() <= 80_000, "{} wait", site.datapath.turns.waiting());
        if !site.datapath.is_busy() {
            break;
        }
        turns += 1;
    }
    assert!(refused > 10 && turns > 10, "{refused} refused, {turns} turns");
}

/// Each output counted as one frame, and was thousands.
#[test]
fn an_output_that_is_cut_counts_as_its_fragments() {
    let mut site = Site::new();
    site.datapath.tick();
    // 128 of them.
    site.datapath.request(PID, execute_cut(100, LEN, PID, Some(492)));
    let (mut frames, mut turns) = (0, 0);
    loop {
        let (more, _) = turn(&mut site.datapath);
        assert!(more <= TURN / 512 + 128, "{more} at once");
        (frames, turns) = (frames + more, turns + 1);
        if !site.datapath.is_busy() {
            break;
        }
        site.datapath.tick();
    }
    assert_eq!(frames, 100 * 128, "in {turns} turns");
    // In so many it has not come.
    for longest in [28, 480] {
        site.datapath.request(PID, execute_cut(100, LEN, PID, Some(longest)));
        let mut done = turn(&mut site.datapath);
        while site.datapath.is_busy() {
            site.datapath.tick();
            let (frames, finished) = turn(&mut site.datapath);
            done = (done.0 + frames, [done.1, finished].concat());
        }
        assert_eq!(done, (0, vec![PID]), "{longest}");
    }
}
