//! TCP: states, windows, and what a conversation in order is.

use super::*;
use crate::entry::STATE;
use crate::tcp::{Answer, Kind, Segment, Side, Tcp};
use proptest::prelude::*;

fn state(net: &Net) -> TcpState {
    match net.only().state {
        ProtoState::Tcp(state) => state,
        other => panic!("{other:?}"),
    }
}

/// Sends each segment and wants its letters, and the state after it.
fn talk(net: &Net, ends: Ends, script: &[(&str, &'static str, u32, u32, usize, &str, TcpState)]) {
    for (n, (who, flags, seq, ack, len, letters, after)) in script.iter().enumerate() {
        let ends = if *who == ">" { ends } else { ends.back() };
        assert_eq!(net.tcp(ends, &seg(flags, *seq, *ack, *len)), *letters, "line {n}");
        assert_eq!(state(net), *after, "line {n}");
    }
}

#[test]
fn open_and_close() {
    use TcpState::*;
    for ends in [Ends::v4(1000, 80), Ends::v6(1000, 80)] {
        let net = Net::new();
        talk(
            &net,
            ends,
            &[
                (">", "S", 100, 0, 0, "N", SynSent),
                (">", "S", 100, 0, 0, "N", SynSent),
                ("<", "SA", 500, 101, 0, "E<", SynRecv),
                (">", "A", 101, 501, 0, "E", Established),
                (">", "PA", 101, 501, 10, "E", Established),
                ("<", "A", 501, 111, 0, "E<", Established),
                (">", "FA", 111, 501, 0, "E", FinWait),
                ("<", "A", 501, 112, 0, "E<", CloseWait),
                ("<", "FA", 501, 112, 0, "E<", LastAck),
                (">", "A", 112, 502, 0, "E", TimeWait),
            ],
        );
        assert_eq!(net.only().seconds_left, 120);
        // The same ports once more.
        talk(&net, ends, &[(">", "S", 9000, 0, 0, "N", SynSent)]);
        assert_eq!(net.tracker.totals().created, 2);
    }
}

#[test]
fn both_may_open_at_once() {
    use TcpState::*;
    let net = Net::new();
    talk(
        &net,
        Ends::v4(1, 2),
        &[
            (">", "S", 100, 0, 0, "N", SynSent),
            ("<", "S", 500, 0, 0, "E<", SynSent2),
            (">", "SA", 100, 501, 0, "E", SynRecv),
            ("<", "SA", 500, 101, 0, "E<", SynRecv),
            ("<", "A", 501, 101, 0, "E<", Established),
        ],
    );
}

#[test]
fn resets_are_believed_where_the_receiver_would() {
    use TcpState::*;
    let (ends, mut net) = (Ends::v4(1, 2), Net::new());
    // Refused: it was nothing.
    assert_eq!(net.tcp(ends, &seg("S", 100, 0, 0)), "N");
    assert_eq!(net.tcp(ends.back(), &seg("RA", 0, 101, 0)), "E<");
    assert!(net.all().is_empty());
    net.handshake(ends);
    talk(
        &net,
        ends,
        &[
            ("<", "A", 501, 101, 10, "E<", Established),
            (">", "A", 101, 511, 0, "E", Established),
            ("<", "R", 400, 0, 0, "I", Established),
            ("<", "R", 600, 0, 0, "E<", Established),
            ("<", "R", 9999, 0, 0, "I", Established),
            ("<", "R", 511, 0, 0, "E<", Close),
        ],
    );
    assert_eq!(net.tracker.refused(Refusal::TcpReset), 1);
    assert_eq!(net.tracker.refused(Refusal::TcpWindow), 1);
    assert_eq!(net.only().seconds_left, 10);
    net.pass(11);
    assert!(net.all().is_empty());
}

#[test]
fn what_is_out_of_the_window_is_invalid() {
    use TcpState::Established;
    let (ends, net) = (Ends::v4(1, 2), Net::new());
    net.handshake(ends);
    talk(
        &net,
        ends,
        &[
            // Both have a window of 1000.
            (">", "A", 101, 501, 1000, "E", Established),
            (">", "A", 5000, 501, 10, "I", Established),
            ("<", "A", 501, 5000, 0, "I", Established),
            ("<", "A", 501, 1101, 0, "E<", Established),
            // Long ago.
            (">", "A", 101, 501, 1000, "E", Established),
            (">", "A", 1101u32.wrapping_sub(100_000), 501, 0, "E", Established),
        ],
    );
    assert_eq!(net.tracker.refused(Refusal::TcpWindow), 2);
}

#[test]
fn windows_are_scaled_if_both_say_so() {
    let scale = |n| vec![1, 3, 3, n];
    for (both, after) in [(true, "E"), (false, "I")] {
        let (ends, net) = (Ends::v4(1, 2), Net::new());
        net.tcp(ends, &Seg { options: scale(7), ..seg("S", 100, 0, 0) });
        net.tcp(ends.back(), &Seg { options: if both { scale(7) } else { vec![] }, ..seg("SA", 500, 101, 0) });
        net.tcp(ends, &seg("A", 101, 501, 0));
        net.tcp(ends.back(), &seg("A", 501, 101, 0));
        assert_eq!(net.tcp(ends, &seg("A", 101 + 100_000, 501, 1000)), after);
    }
}

#[test]
fn a_connection_is_picked_up_in_its_middle() {
    let ends = Ends::v4(1, 2);
    let net = Net::new();
    assert_eq!(net.tcp(ends, &seg("A", 7000, 9000, 100)), "N");
    assert_eq!(net.only().seconds_left, 300);
    assert_eq!(net.tcp(ends.back(), &seg("A", 9000, 7100, 100)), "E<");
    assert_eq!(net.tcp(ends, &seg("A", 7100, 9100, 100)), "E");
    assert_eq!(net.tcp(ends, &seg("A", 900_000, 9100, 100)), "E", "its windows' scale is not known");
    let strict = Net::with(Config { tcp: TcpRules { loose: false, liberal: false }, ..Config::default() });
    assert_eq!(strict.verdict(&ends.tcp(&seg("A", 7000, 9000, 100))).refused, Some(Refusal::TcpState));
}

#[test]
fn a_syn_that_was_let_pass_counts_when_it_is_answered() {
    use TcpState::*;
    let (ends, net) = (Ends::v4(1, 2), Net::new());
    net.handshake(ends);
    talk(
        &net,
        ends,
        &[
            (">", "S", 70_000, 0, 0, "E", Established),
            ("<", "SA", 90_000, 70_001, 0, "E<", SynRecv),
            (">", "A", 70_001, 90_001, 0, "E", Established),
            (">", "A", 101, 501, 1, "E", Established),
            ("<", "A", 501, 101, 5, "E<", Established),
        ],
    );
}

#[test]
fn repetition_and_silence_shorten_the_time() {
    let (ends, net) = (Ends::v4(1, 2), Net::new());
    net.handshake(ends);
    assert_eq!(net.only().seconds_left, 432_000);
    net.tcp(ends, &seg("A", 101, 501, 10));
    assert_eq!(net.only().seconds_left, 300, "not acknowledged");
    net.tcp(ends.back(), &seg("A", 501, 111, 0));
    assert_eq!(net.only().seconds_left, 432_000);
    for _ in 0..3 {
        net.tcp(ends.back(), &seg("A", 501, 111, 0));
    }
    assert_eq!(net.only().seconds_left, 300, "the same over and over");
}

/// Where each kind of segment leads from each state: the other half of `step`, state by state in the order of [`crate::tcp::STATES`]. `-` is invalid,
/// `.` is let pass.
#[test]
fn the_table_of_states() {
    const NAMES: &str = "0sreFCLTXt";
    let table = [
        (Kind::Syn, ["ss.....sst", "-t-----s-t"]),
        (Kind::SynAck, ["--r------r", "-r.......r"]),
        (Kind::Fin, ["--FFLLLTX-", "--FFLLLTX-"]),
        (Kind::Ack, ["e-eeCCTTX-", "-.reCCTTX."]),
        (Kind::Rst, ["-XXXXXXXXX", "-XXXXXXXXX"]),
        (Kind::Bare, ["----------", "----------"]),
    ];
    for (kind, rows) in table {
        for (dir, row) in rows.iter().enumerate() {
            for (state, want) in crate::tcp::STATES.iter().zip(row.chars()) {
                let got = match crate::tcp::step(*state, dir, kind) {
                    crate::tcp::Step::To(next) => NAMES.chars().nth(next as usize).unwrap(),
                    crate::tcp::Step::Ignore => '.',
                    crate::tcp::Step::Invalid => '-',
                };
                assert_eq!(got, want, "{kind:?} {dir} {state:?}");
            }
        }
    }
}

fn side() -> impl Strategy<Value = Side> {
    (any::<[u32; 4]>(), 0..15u8, 0..32u8).prop_map(|([end, limit, window, acked], scale, flags)| Side {
        end,
        limit,
        window,
        acked,
        scale,
        flags,
    })
}

/// An end of a connection that keeps to the rules, over a network behind the tracker that loses.
#[derive(Clone, Debug)]
struct End {
    /// What it has sent, what of it has been acknowledged, what of the other's it has taken in order.
    sent: u32,
    acked: u32,
    taken: u32,
    scale: u8,
    /// How far the other lets it send.
    limit: u32,
}

proptest! {
    #[test]
    fn words_hold_all_of_a_connection(
        sides in [side(), side()],
        state in 0..10usize,
        last in (any::<[u32; 2]>(), any::<u16>(), 0..6usize, 0..2usize, 0..4u8, 0..16u8, 0..15u8),
    ) {
        let ([end, ack], win, kind, dir, repeated, flags, scale) = last;
        let last = crate::tcp::Last { end, ack, win, kind: crate::tcp::KINDS[kind], dir, repeated, flags, scale };
        let tcp = Tcp { state: crate::tcp::STATES[state], sides, last };
        let mut words = tcp.pack();
        prop_assert_eq!(words[STATE] & crate::entry::COMMON, 0);
        words[STATE] |= crate::entry::COMMON;
        prop_assert_eq!(Tcp::unpack(&words), tcp);
    }

    /// Any segments whatever: never a panic, and what is invalid leaves the state as it is.
    #[test]
    fn any_segments(
        segments in proptest::collection::vec((any::<bool>(), 0..64u16, 0..4u32, 0..4u32, any::<u16>(), 0..3u32, any::<Vec<u8>>()), 1..40),
        start in any::<u32>(),
    ) {
        let mut tcp: Option<Tcp> = None;
        for (back, flags, seq, ack, win, len, options) in segments {
            let at = |n: u32| start.wrapping_add(n.wrapping_mul(40_000));
            let segment = Segment { seq: at(seq), ack: at(ack), win, flags, len: len * 700, options: &options };
            let Some(known) = &mut tcp else {
                tcp = Tcp::open(&segment, TcpRules::default());
                continue;
            };
            let before = known.state;
            match known.packet(&segment, usize::from(back), true, back, TcpRules::default()) {
                Answer::Invalid(_) => prop_assert_eq!(known.state, before),
                Answer::Reopen => tcp = None,
                Answer::Accept | Answer::Ignore => {}
            }
            if let Some(known) = &tcp {
                prop_assert_eq!(Tcp::unpack(&known.pack()), *known);
            }
        }
    }

    /// A conversation in order is never out of order, whatever the network loses behind the tracker and however often it is said again.
    #[test]
    fn who_keeps_to_the_rules_is_never_invalid(
        starts in any::<[u32; 2]>(),
        scales in [0..15u8, 0..15u8],
        wins in [1..=u16::MAX, 1..=u16::MAX],
        steps in proptest::collection::vec((0..2usize, 0..4u8, 1..20_000u32, any::<bool>()), 1..150),
    ) {
        let (pair, net) = (Ends::v4(1, 2), Net::new());
        let dirs = [pair, pair.back()];
        let options = |n: usize| vec![1, 3, 3, scales[n]];
        prop_assert_eq!(net.tcp(pair, &Seg { options: options(0), win: wins[0], ..seg("S", starts[0], 0, 0) }), "N");
        let syn_ack = Seg { options: options(1), win: wins[1], ..seg("SA", starts[1], starts[0].wrapping_add(1), 0) };
        prop_assert_eq!(net.tcp(pair.back(), &syn_ack), "E<");
        let mut ends: [End; 2] = std::array::from_fn(|n| {
            let (own, other) = (starts[n].wrapping_add(1), starts[1 - n].wrapping_add(1));
            // A SYN's window is not scaled.
            End { sent: own, acked: own, taken: other, scale: scales[n], limit: own.wrapping_add(u32::from(wins[1 - n])) }
        });
        let ack = Seg { win: wins[0], ..seg("A", ends[0].sent, ends[0].taken, 0) };
        prop_assert_eq!(net.tcp(pair, &ack), "E");
        ends[1].limit = ends[0].taken.wrapping_add(u32::from(wins[0]) << scales[0]);
        for (who, what, len, arrives) in steps {
            let room = ends[who].limit.wrapping_sub(ends[who].sent);
            let room = if room as i32 > 0 { room } else { 0 };
            let (seq, len) = match what {
                0 => (ends[who].sent, 0),
                // Once more from what has not been acknowledged.
                1 => (ends[who].acked, len.min(ends[who].sent.wrapping_sub(ends[who].acked))),
                _ => (ends[who].sent, len.min(room)),
            };
            let segment = Seg { win: wins[who], ..seg("A", seq, ends[who].taken, len as usize) };
            let letters = net.tcp(dirs[who], &segment);
            prop_assert_eq!(letters, ["E", "E<"][who], "{:?} {:?}", ends, segment);
            let end = seq.wrapping_add(len);
            if end.wrapping_sub(ends[who].sent) as i32 > 0 {
                ends[who].sent = end;
            }
            if arrives {
                let (taken, limit) = (ends[who].taken, ends[who].taken.wrapping_add(u32::from(wins[who]) << ends[who].scale));
                let other = &mut ends[1 - who];
                if taken.wrapping_sub(other.acked) as i32 > 0 {
                    other.acked = taken;
                }
                if limit.wrapping_sub(other.limit) as i32 > 0 {
                    other.limit = limit;
                }
                if seq.wrapping_sub(other.taken) as i32 <= 0 && end.wrapping_sub(other.taken) as i32 > 0 {
                    other.taken = end;
                }
            }
        }
    }
}
