//! SCTP as somebody in between sees it: the association's state by the chunks that went by (RFC 9260), and their verification tags.

use crate::refusal::Refusal;

/// State of an association, by Linux's names.
#[allow(missing_docs)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SctpState {
    #[default]
    None,
    Closed,
    CookieWait,
    CookieEchoed,
    Established,
    ShutdownSent,
    ShutdownRecd,
    ShutdownAckSent,
    HeartbeatSent,
}

use SctpState::{
    Closed, CookieEchoed, CookieWait, Established, HeartbeatSent, None as Unknown, ShutdownAckSent, ShutdownRecd,
    ShutdownSent,
};

/// All states in the order of their numbers.
pub(crate) const STATES: [SctpState; 9] = [
    Unknown,
    Closed,
    CookieWait,
    CookieEchoed,
    Established,
    ShutdownSent,
    ShutdownRecd,
    ShutdownAckSent,
    HeartbeatSent,
];

const INIT: u8 = 1;
const INIT_ACK: u8 = 2;
const HEARTBEAT: u8 = 4;
const HEARTBEAT_ACK: u8 = 5;
const ABORT: u8 = 6;
const SHUTDOWN: u8 = 7;
const SHUTDOWN_ACK: u8 = 8;
const ERROR: u8 = 9;
const COOKIE_ECHO: u8 = 10;
const COOKIE_ACK: u8 = 11;
const SHUTDOWN_COMPLETE: u8 = 14;

/// A packet's verification tag, and its chunks as far as they were read.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Chunks<'a> {
    pub tag: u32,
    pub bytes: &'a [u8],
}

struct Chunk {
    kind: u8,
    /// The tag is the receiver's own (RFC 9260 §8.5.1).
    reflected: bool,
    /// The first word of its content.
    word: Option<u32>,
    alone: bool,
}

impl Chunks<'_> {
    /// The chunks, if they go together. A chunk of length zero ends them, so there are at most as many as there are words.
    fn read(&self) -> impl Iterator<Item = Chunk> {
        let (mut rest, mut first) = (self.bytes, true);
        std::iter::from_fn(move || {
            let (&[kind, flags, a, b], content) = rest.split_first_chunk::<4>()?;
            let len = usize::from(u16::from_be_bytes([a, b])).next_multiple_of(4);
            rest = if len == 0 { &[] } else { rest.get(len..).unwrap_or_default() };
            let alone = std::mem::take(&mut first) && (rest.is_empty() || matches!(kind, COOKIE_ACK | COOKIE_ECHO));
            let word = content.first_chunk::<4>().map(|word| u32::from_be_bytes(*word));
            (len != 0).then_some(Chunk { kind, reflected: flags & 1 != 0, word, alone })
        })
    }
}

/// An association.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Sctp {
    pub state: SctpState,
    /// The tag that packets of each direction must have; 0: unknown.
    pub tags: [u32; 2],
}

impl Sctp {
    pub fn open(chunks: &Chunks<'_>) -> Option<Self> {
        let mut new = Self::default();
        if let Some(ShutdownAckSent) = chunks.read().next().map(|chunk| step(Unknown, 0, chunk.kind)) {
            // Out of the blue: its answer has the same tag.
            new.tags = [chunks.tag; 2];
        }
        new.packet(chunks, 0).ok()?;
        Some(new)
    }

    /// Checks a packet, and goes on by its chunks. What is refused changes nothing.
    pub fn packet(&mut self, chunks: &Chunks<'_>, dir: usize) -> Result<(), Refusal> {
        let (mut new, mut any) = (*self, false);
        for chunk in chunks.read() {
            any = true;
            let own = new.tags[dir];
            let wanted = match chunk.kind {
                INIT => 0,
                ABORT | SHUTDOWN_COMPLETE if chunk.reflected => new.tags[1 - dir],
                // Another path of an association that is known elsewhere.
                HEARTBEAT | HEARTBEAT_ACK if own == 0 => chunks.tag,
                // One that was taken over.
                kind if own == 0 && new.state == Established && kind != INIT => chunks.tag,
                _ => own,
            };
            let must_be_alone = matches!(chunk.kind, INIT | INIT_ACK | SHUTDOWN_COMPLETE | COOKIE_ACK | COOKIE_ECHO);
            let next = step(new.state, dir, chunk.kind);
            if chunks.tag != wanted || must_be_alone && !chunk.alone || next == Unknown {
                return Err(Refusal::Sctp);
            }
            match chunk.kind {
                INIT | INIT_ACK => new.tags[1 - dir] = chunk.word.ok_or(Refusal::Sctp)?,
                HEARTBEAT | HEARTBEAT_ACK => new.tags[dir] = chunks.tag,
                _ if own == 0 => new.tags[dir] = chunks.tag,
                _ => {}
            }
            new.state = next;
        }
        *self = new;
        if any { Ok(()) } else { Err(Refusal::Sctp) }
    }
}

/// Where a chunk leads from a state; `dir` 0 is the direction of the first. Unknown: nowhere, it is not valid there.
fn step(state: SctpState, dir: usize, chunk: u8) -> SctpState {
    match (chunk, dir, state) {
        (INIT, 0, Unknown | Closed | HeartbeatSent) => CookieWait,
        (HEARTBEAT, 0, Unknown) => HeartbeatSent,
        (SHUTDOWN_ACK, 0, Unknown) => ShutdownAckSent,
        (_, _, Unknown) => Unknown,
        (ABORT, ..) => Closed,
        (COOKIE_ECHO, 0, CookieWait) => CookieEchoed,
        (COOKIE_ACK, 1, CookieEchoed) | (HEARTBEAT_ACK, 1, HeartbeatSent) => Established,
        (ERROR, 1, CookieEchoed) => Closed,
        (SHUTDOWN, 0, Established) => ShutdownSent,
        (SHUTDOWN, 1, Established) => ShutdownRecd,
        (SHUTDOWN_ACK, _, ShutdownSent | ShutdownRecd) => ShutdownAckSent,
        (SHUTDOWN_COMPLETE, _, ShutdownAckSent) => Closed,
        _ => state,
    }
}
