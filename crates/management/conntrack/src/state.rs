//! What a packet does to its connection's words, by protocol.

use crate::entry::{ASSURED, COMMON, REPLIED, STATE, Words};
use crate::packet::Body;
use crate::refusal::Refusal;
use crate::sctp::{self, Sctp, SctpState};
use crate::tcp::{Answer, Kind, Tcp, TcpRules, TcpState};
use crate::timeouts::Class;
use crate::tuple::{SCTP, TCP};

/// Ticks of 125 ms that a second has.
pub(crate) const SECOND: u32 = 8;
/// A datagram that comes so long after the first makes a stream of them.
const STREAM: u32 = 2 * SECOND;

/// The word that says when datagrams were first answered, in ticks.
pub(crate) const ANSWERED: usize = 1;

/// What becomes of a connection by a packet.
pub(crate) struct Outcome {
    pub words: Words,
    /// Its time is the least of these; none: as it was.
    pub classes: Option<[Class; 2]>,
    /// It is over.
    pub ends: bool,
}

impl Outcome {
    fn new(words: Words, classes: [Class; 2]) -> Self {
        Self { words, classes: Some(classes), ends: false }
    }
}

/// Why a packet is not taken.
pub(crate) enum Out {
    /// It is invalid; what it changed all the same.
    Invalid(Refusal, Words),
    /// It begins a new connection in place of this one.
    Reopen,
}

/// The first packet of a connection.
pub(crate) fn open(body: &Body<'_>, now: u32, rules: TcpRules) -> Result<Outcome, Refusal> {
    let timed = || [u64::from(now) << 32, 0, 0, 0, 0, 0, 0];
    Ok(match body {
        Body::Tcp(segment) => {
            let tcp = Tcp::open(segment, rules).ok_or(Refusal::TcpState)?;
            Outcome::new(tcp.pack(), tcp.classes(segment.kind(), false))
        }
        Body::Sctp(chunks) => {
            let sctp = Sctp::open(chunks).ok_or(Refusal::Sctp)?;
            Outcome::new(pack(&sctp), [Class::sctp(sctp.state); 2])
        }
        Body::Udp => Outcome::new(timed(), [Class::Udp; 2]),
        Body::Icmp { asks: true } => Outcome::new(timed(), [Class::Icmp; 2]),
        Body::Icmp { .. } => return Err(Refusal::Unrelated),
        _ => Outcome::new(timed(), [Class::Generic; 2]),
    })
}

/// A packet of a connection that is known.
#[inline]
pub(crate) fn packet(old: &Words, body: &Body<'_>, dir: usize, now: u32, rules: TcpRules) -> Result<Outcome, Out> {
    let mut common = old[STATE] & COMMON;
    let replied = common & REPLIED != 0;
    let with = |mut words: Words, common| {
        words[STATE] |= common;
        words
    };
    let mut outcome = match body {
        Body::Tcp(segment) => {
            let mut tcp = Tcp::unpack(old);
            let (kind, before) = (segment.kind(), tcp.state);
            let answer = tcp.packet(segment, dir, replied, common & ASSURED != 0, rules);
            let words = tcp.pack();
            match answer {
                Answer::Reopen => return Err(Out::Reopen),
                Answer::Invalid(refusal) => return Err(Out::Invalid(refusal, with(words, common))),
                Answer::Ignore => Outcome { words, classes: None, ends: false },
                Answer::Accept => {
                    let was_open = matches!(before, TcpState::SynRecv | TcpState::Established);
                    if replied && was_open && tcp.state == TcpState::Established {
                        common |= ASSURED;
                    }
                    // Whoever sends SYNs over and over does not keep it.
                    let again = !replied && kind == Kind::Syn && before == TcpState::SynSent;
                    let classes = (!again).then(|| tcp.classes(kind, replied));
                    Outcome { words, classes, ends: kind == Kind::Rst && !replied }
                }
            }
        }
        Body::Sctp(chunks) => {
            let mut sctp = unpack(old);
            let before = sctp.state;
            sctp.packet(chunks, dir).map_err(|refusal| Out::Invalid(refusal, *old))?;
            if before == SctpState::CookieEchoed && sctp.state == SctpState::Established {
                common |= ASSURED;
            }
            Outcome::new(pack(&sctp), [Class::sctp(sctp.state); 2])
        }
        Body::Udp if replied && now.wrapping_sub((old[STATE] >> 32) as u32) >= STREAM => {
            common |= ASSURED;
            Outcome::new(*old, [Class::UdpStream; 2])
        }
        Body::Udp => {
            let mut words = *old;
            if dir == 1 && !replied {
                words[ANSWERED] = u64::from(now);
            }
            Outcome::new(words, [Class::Udp; 2])
        }
        Body::Icmp { .. } => Outcome::new(*old, [Class::Icmp; 2]),
        Body::Later | Body::Error(_) => Outcome { words: *old, classes: None, ends: false },
        Body::Other => Outcome::new(*old, [Class::Generic; 2]),
    };
    common |= if dir == 1 { REPLIED } else { 0 };
    outcome.words[STATE] |= common;
    Ok(outcome)
}

/// Whether datagrams are a stream that have passed unseen, the last one then: they went on behind the first answer. That one itself makes none.
pub(crate) fn goes_on(words: &Words, used: u32) -> bool {
    words[STATE] & REPLIED != 0 && used.wrapping_sub(words[ANSWERED] as u32) as i32 >= STREAM as i32
}

/// An association that was established before anybody here knew of it; its tags are not known.
pub(crate) fn sctp_established() -> Words {
    pack(&Sctp { state: SctpState::Established, tags: [0; 2] })
}

fn pack(sctp: &Sctp) -> Words {
    [sctp.state as u64, u64::from(sctp.tags[0]) | u64::from(sctp.tags[1]) << 32, 0, 0, 0, 0, 0]
}

fn unpack(words: &Words) -> Sctp {
    let state = sctp::STATES.get(words[STATE] as usize & 15).copied().unwrap_or_default();
    Sctp { state, tags: [words[1] as u32, (words[1] >> 32) as u32] }
}

/// State of a connection's protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProtoState {
    /// TCP's.
    Tcp(TcpState),
    /// SCTP's.
    Sctp(SctpState),
    /// Another protocol, which has none.
    Stateless,
}

impl ProtoState {
    pub(crate) fn of(proto: u8, words: &Words) -> Self {
        match proto {
            TCP => Self::Tcp(Tcp::unpack(words).state),
            SCTP => Self::Sctp(unpack(words).state),
            _ => Self::Stateless,
        }
    }
}

/// Whether the connection is given up for a new one where there is no room: it is not assured, or it is about to end. Of TCP and SCTP
/// a handshake assures it, of UDP that it goes on behind an answer, and nothing of protocols that have neither: one answer costs an attacker little.
pub(crate) fn is_expendable(proto: u8, words: &Words) -> bool {
    use TcpState::{Close, CloseWait, FinWait, LastAck, TimeWait};
    let closing = matches!(
        ProtoState::of(proto, words),
        ProtoState::Tcp(FinWait | CloseWait | LastAck | TimeWait | Close) | ProtoState::Sctp(SctpState::Closed)
    );
    words[STATE] & ASSURED == 0 || closing
}
