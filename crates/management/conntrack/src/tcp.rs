//! TCP as somebody in between sees it: states and windows, with the meaning they have in Linux (nf_conntrack). What tells a
//! segment that is in order from one that is not was first described by van Rooij ("Real stateful TCP packet filtering in IP Filter", 2000):
//!
//! * it begins no further right than its receiver has let its sender send (`limit`);
//! * it ends no further left than what its receiver may still have had room for (`end` of its sender less `window` of its receiver);
//! * it acknowledges nothing that has not been sent (`end` of its receiver), and nothing that lies too far back.

use crate::refusal::Refusal;
use crate::timeouts::Class;

/// State of a TCP connection, by Linux's names.
#[allow(missing_docs)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum TcpState {
    #[default]
    None,
    SynSent,
    SynRecv,
    Established,
    FinWait,
    CloseWait,
    LastAck,
    TimeWait,
    Close,
    SynSent2,
}

use TcpState::{
    Close, CloseWait, Established, FinWait, LastAck, None as Unknown, SynRecv, SynSent, SynSent2, TimeWait,
};

/// All states in the order of their numbers.
pub(crate) const STATES: [TcpState; 10] =
    [Unknown, SynSent, SynRecv, Established, FinWait, CloseWait, LastAck, TimeWait, Close, SynSent2];

/// What a segment is, by its flags.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Kind {
    #[default]
    Bare,
    Syn,
    SynAck,
    Fin,
    Ack,
    Rst,
}

pub(crate) const KINDS: [Kind; 6] = [Kind::Bare, Kind::Syn, Kind::SynAck, Kind::Fin, Kind::Ack, Kind::Rst];

pub(crate) const FIN: u16 = 1;
pub(crate) const SYN: u16 = 2;
pub(crate) const RST: u16 = 4;
pub(crate) const ACK: u16 = 16;
pub(crate) const URG: u16 = 32;

/// A segment's header.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Segment<'a> {
    pub seq: u32,
    pub ack: u32,
    pub win: u16,
    pub flags: u16,
    /// Bytes of payload.
    pub len: u32,
    pub options: &'a [u8],
}

impl Segment<'_> {
    fn has(&self, flag: u16) -> bool {
        self.flags & flag != 0
    }

    fn end(&self) -> u32 {
        let marks = u32::from(self.has(SYN)) + u32::from(self.has(FIN));
        self.seq.wrapping_add(self.len).wrapping_add(marks)
    }

    pub fn kind(&self) -> Kind {
        match self.flags {
            f if f & RST != 0 => Kind::Rst,
            f if f & (SYN | ACK) == SYN | ACK => Kind::SynAck,
            f if f & SYN != 0 => Kind::Syn,
            f if f & FIN != 0 => Kind::Fin,
            f if f & ACK != 0 => Kind::Ack,
            _ => Kind::Bare,
        }
    }

    /// Whether any TCP sends these flags together; PSH, ECE and CWR may always be there.
    pub fn is_sane(&self) -> bool {
        const SYN_URG: u16 = SYN | URG;
        const FIN_URG: u16 = FIN | ACK | URG;
        let known = self.flags & (FIN | SYN | RST | ACK | URG);
        matches!(known, SYN | SYN_URG | 0x12 | RST | 0x14 | 0x11 | FIN_URG | ACK | 0x30)
    }

    /// The options by number and content; what is malformed ends them.
    fn options(&self) -> impl Iterator<Item = (u8, &[u8])> {
        let mut rest = self.options;
        std::iter::from_fn(move || {
            while let [1, behind @ ..] = rest {
                rest = behind;
            }
            let (&kind, &len) = (rest.first().filter(|kind| **kind != 0)?, rest.get(1)?);
            let (option, behind) = rest.split_at_checked(usize::from(len))?;
            rest = behind;
            Some((kind, option.get(2..)?))
        })
    }

    /// The furthest right edge of what is acknowledged selectively, or `ack`.
    #[inline]
    fn sack(&self) -> u32 {
        const TIMESTAMPS: [u8; 4] = [1, 1, 8, 10];
        // What most segments have, and those without any.
        if self.options.len() == 12 && self.options.starts_with(&TIMESTAMPS) {
            return self.ack;
        }
        let blocks = self.options().find(|(kind, blocks)| *kind == 5 && !blocks.is_empty() && blocks.len() % 8 == 0);
        let edges = blocks.into_iter().flat_map(|(_, blocks)| blocks.as_chunks::<8>().0);
        let edge = edges.map(|&[_, _, _, _, a, b, c, d]| u32::from_be_bytes([a, b, c, d]));
        edge.fold(self.ack, furthest)
    }
}

/// What is known of one side.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Side {
    /// Behind the furthest that it has sent.
    pub end: u32,
    /// Behind the furthest that it may send, as the other side has said.
    pub limit: u32,
    /// The largest window that it has offered; 0: nothing has been seen of it.
    pub window: u32,
    /// The furthest that it has acknowledged.
    pub acked: u32,
    pub scale: u8,
    /// Bits of this module's constants.
    pub flags: u8,
}

/// It said how its windows are scaled.
const SCALES: u8 = 1;
/// It may send selective acknowledgements.
const SACKS: u8 = 2;
/// Nobody saw its beginning: what is out of its window is let pass.
const LIBERAL: u8 = 4;
/// It began to close.
const CLOSES: u8 = 8;
/// `acked` is known.
const ACKED: u8 = 16;

impl Side {
    /// Begins with a segment that has SYN.
    fn begin(&mut self, segment: &Segment<'_>) {
        (self.end, self.limit, self.window) = (segment.end(), segment.end(), u32::from(segment.win).max(1));
        (self.scale, self.flags) = (0, self.flags & LIBERAL);
        for (kind, content) in segment.options() {
            match (kind, content) {
                (3, [scale]) => (self.scale, self.flags) = ((*scale).min(14), self.flags | SCALES),
                (4, []) => self.flags |= SACKS,
                _ => {}
            }
        }
    }
}

/// What was last seen, in order or not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Last {
    pub end: u32,
    pub ack: u32,
    pub win: u16,
    pub kind: Kind,
    pub dir: usize,
    /// How often the last acknowledgement has been repeated, up to 3.
    pub repeated: u8,
    /// Of a SYN that was let pass: its side's flags, and the two below.
    pub flags: u8,
    pub scale: u8,
}

/// The answer to a SYN that was let pass may be an acknowledgement of no meaning (RFC 5961).
const CHALLENGED: u8 = 4;
/// Both sides have sent a SYN.
const SIMULTANEOUS: u8 = 8;

/// A connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tcp {
    pub state: TcpState,
    pub sides: [Side; 2],
    pub last: Last,
}

/// What a segment is to its connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    /// In order: what it changed holds.
    Accept,
    /// Let pass; the connection stays as it is.
    Ignore,
    /// Out of order.
    Invalid(Refusal),
    /// The connection is over, and this begins another one.
    Reopen,
}

pub(crate) enum Step {
    To(TcpState),
    Ignore,
    Invalid,
}

/// How strict somebody wants it.
#[derive(Clone, Copy, Debug)]
pub struct TcpRules {
    /// Connections whose beginning nobody saw are picked up.
    pub loose: bool,
    /// Nothing is checked by windows.
    pub liberal: bool,
}

impl Default for TcpRules {
    fn default() -> Self {
        Self { loose: true, liberal: false }
    }
}

const RETRANSMISSIONS: u8 = 3;
/// An acknowledgement may always lie so far back.
const ACK_WINDOW: u32 = 66_000;

fn before(a: u32, b: u32) -> bool {
    (a.wrapping_sub(b) as i32) < 0
}

pub(crate) fn furthest(a: u32, b: u32) -> u32 {
    if before(a, b) { b } else { a }
}

/// Where a segment leads from a state; `dir` 0 is the direction of the first.
pub(crate) fn step(state: TcpState, dir: usize, kind: Kind) -> Step {
    match (kind, dir, state) {
        (Kind::Ack, _, Established) | (Kind::Ack, 0, Unknown | SynRecv) => Step::To(Established),
        (Kind::Syn, 0, Unknown) => Step::To(SynSent),
        (Kind::Bare, ..) | (_, _, Unknown) => Step::Invalid,
        (Kind::Rst, ..) => Step::To(Close),
        (Kind::Ack, _, FinWait | CloseWait) => Step::To(CloseWait),
        (Kind::Ack, _, LastAck | TimeWait) | (Kind::Fin, _, TimeWait) => Step::To(TimeWait),
        (Kind::Ack | Kind::Fin, _, Close) => Step::To(Close),
        (Kind::Ack, _, SynRecv) => Step::To(SynRecv),
        (Kind::Ack, 0, SynSent | SynSent2) | (Kind::Fin, _, SynSent | SynSent2) => Step::Invalid,
        (Kind::Ack, ..) => Step::Ignore,
        (Kind::Fin, _, SynRecv | Established) => Step::To(FinWait),
        (Kind::Fin, ..) => Step::To(LastAck),
        (Kind::Syn, 0, SynSent | TimeWait | Close) | (Kind::Syn, _, TimeWait) => Step::To(SynSent),
        (Kind::Syn, 0, SynSent2) | (Kind::Syn, _, SynSent | SynSent2) => Step::To(SynSent2),
        (Kind::Syn, 0, _) => Step::Ignore,
        (Kind::Syn, ..) => Step::Invalid,
        (Kind::SynAck, 0, SynRecv | SynSent2) | (Kind::SynAck, 1, SynSent | SynSent2) => Step::To(SynRecv),
        (Kind::SynAck, 0, _) => Step::Invalid,
        (Kind::SynAck, ..) => Step::Ignore,
    }
}

impl Tcp {
    /// What the first segment of a connection makes of it; `None` if it cannot be one.
    pub fn open(segment: &Segment<'_>, rules: TcpRules) -> Option<Self> {
        let mut new = Self::default();
        let side = &mut new.sides[0];
        match segment.kind() {
            Kind::Syn => side.begin(segment),
            Kind::Ack if rules.loose => {
                (side.end, side.window) = (segment.end(), u32::from(segment.win).max(1));
                side.limit = side.end.wrapping_add(side.window);
                new.sides.iter_mut().for_each(|side| side.flags = SACKS | LIBERAL);
            }
            _ => return None,
        }
        (new.packet(segment, 0, false, false, rules) == Answer::Accept).then_some(new)
    }

    /// A connection that was established before anybody here knew of it.
    pub fn adopted() -> Self {
        let side = Side { flags: SACKS | LIBERAL, ..Side::default() };
        Self { state: Established, sides: [side; 2], last: Last::default() }
    }

    /// Segments pass unseen: what is known of sequence numbers is out of date.
    pub fn relax(&mut self) {
        for side in &mut self.sides {
            side.flags = (side.flags | LIBERAL) & !ACKED;
        }
    }

    /// Checks a segment; `replied` and `assured` say what was so before it.
    pub fn packet(
        &mut self,
        segment: &Segment<'_>,
        dir: usize,
        replied: bool,
        assured: bool,
        rules: TcpRules,
    ) -> Answer {
        let kind = segment.kind();
        let mut next = match step(self.state, dir, kind) {
            Step::To(next) => next,
            Step::Ignore => return self.ignore(segment, dir, kind),
            Step::Invalid => return Answer::Invalid(Refusal::TcpState),
        };
        let mut by_windows = true;
        match next {
            Established => {}
            SynSent if self.state >= TimeWait => {
                let closed = (self.sides[0].flags | self.sides[1].flags) & CLOSES != 0;
                if closed || self.last.dir == dir && self.last.kind == Kind::Rst {
                    return Answer::Reopen;
                }
                return self.ignore(segment, dir, kind);
            }
            TimeWait if self.state == LastAck && kind == Kind::Ack && self.is_challenge(dir) => {
                self.last.flags &= !CHALLENGED;
                return Answer::Ignore;
            }
            SynSent2 => self.last.flags |= SIMULTANEOUS,
            SynRecv if dir == 1 && kind == Kind::Ack && self.last.flags & SIMULTANEOUS != 0 => next = Established,
            Close if kind == Kind::Rst => match self.reset(segment, dir, replied, assured) {
                Reset::ByWindows(state) => next = state,
                Reset::Believe => by_windows = false,
                Reset::Invalid => return Answer::Invalid(Refusal::TcpReset),
            },
            _ => {}
        }
        if by_windows {
            match self.window(segment, dir, kind, rules) {
                Answer::Accept => {}
                out @ Answer::Invalid(_) => {
                    let other_ended = self.last.dir != dir && matches!(self.last.kind, Kind::Fin | Kind::Rst);
                    if assured && !other_ended && matches!(kind, Kind::Fin | Kind::Rst) {
                        (self.last.kind, self.last.dir) = (kind, dir);
                    }
                    return out;
                }
                other => return other,
            }
        }
        (self.last.kind, self.last.dir) = (kind, dir);
        if self.state != next && next == FinWait {
            self.sides[dir].flags |= CLOSES;
        }
        self.state = next;
        Answer::Accept
    }

    fn is_challenge(&self, dir: usize) -> bool {
        self.last.dir != dir && self.last.kind == Kind::Syn && self.last.flags & CHALLENGED != 0
    }

    /// What may be right although it does not fit: the two ends may know better than we. What it says is remembered.
    fn ignore(&mut self, segment: &Segment<'_>, dir: usize, kind: Kind) -> Answer {
        let last = &mut self.last;
        if kind == Kind::SynAck && last.kind == Kind::Syn && last.dir != dir && segment.ack == last.end {
            // It answers a SYN that was let pass: both ends are at the beginning of a connection.
            let asked = &mut self.sides[1 - dir];
            (asked.end, asked.limit, asked.window) = (last.end, last.end, u32::from(last.win).max(1));
            (asked.scale, asked.flags) = (last.scale, last.flags & (SCALES | SACKS));
            let liberal = self.sides[dir].flags & LIBERAL;
            self.sides[dir] = Side { flags: liberal, ..Side::default() };
            let answer = self.window(segment, dir, kind, TcpRules::default());
            if answer == Answer::Accept {
                (self.last.kind, self.last.dir, self.state) = (kind, dir, SynRecv);
            }
            return answer;
        }
        (last.kind, last.dir, last.end, last.win) = (kind, dir, segment.end(), segment.win);
        if kind == Kind::Syn && dir == 0 {
            let mut side = Side::default();
            side.begin(segment);
            let challenged = if self.state == LastAck { CHALLENGED } else { 0 };
            (last.flags, last.scale) = (side.flags | challenged, side.scale);
        }
        if self.state == SynSent && kind == Kind::Ack && dir == 1 {
            last.ack = segment.ack;
        }
        Answer::Ignore
    }

    /// A RST ends a connection only where the receiver would believe it.
    fn reset(&self, segment: &Segment<'_>, dir: usize, replied: bool, assured: bool) -> Reset {
        let (receiver, last) = (&self.sides[1 - dir], &self.last);
        let established = assured && self.state == Established;
        if matches!(self.state, FinWait | CloseWait | LastAck | TimeWait | Close) {
            return Reset::Believe;
        }
        let mut next = Close;
        if receiver.flags & ACKED != 0 && last.kind != Kind::Syn {
            if segment.seq == 0 && !established {
                return Reset::ByWindows(Close);
            }
            if before(segment.seq, receiver.acked) {
                return Reset::Invalid;
            }
            // The last of a train of segments, or exactly where its receiver waits. Anything else is answered by a challenge.
            let of_train = last.kind == Kind::Ack && last.dir == dir && segment.seq == last.end;
            if !established || segment.seq == receiver.acked || of_train {
                return Reset::ByWindows(Close);
            }
            next = self.state;
        }
        // What was let pass is answered by its receiver: a RST behind its sender's own SYN answers nothing.
        let answers = replied && last.kind == Kind::Syn && last.dir != dir;
        let ignored = answers || !assured && last.kind == Kind::Ack;
        let challenge = self.state == SynSent && last.kind == Kind::Ack && last.dir == 1 && segment.seq == last.ack;
        if ignored && segment.ack == last.end || challenge { Reset::Believe } else { Reset::ByWindows(next) }
    }

    /// Checks a segment by the windows, and moves them.
    fn window(&mut self, segment: &Segment<'_>, dir: usize, kind: Kind, rules: TcpRules) -> Answer {
        let state = self.state;
        let [first, second] = &mut self.sides;
        let (sender, receiver) = if dir == 0 { (first, second) } else { (second, first) };
        let (mut seq, mut end, mut ack) = (segment.seq, segment.end(), segment.ack);
        let mut sack = if receiver.flags & SACKS != 0 { segment.sack() } else { ack };
        let again = segment.has(SYN) && before(sender.end, end) && matches!(state, SynSent | SynRecv);
        if sender.window == 0 && !segment.has(SYN) {
            // In the middle of a connection whose history nobody knows.
            sender.end = end;
            sender.window = (u32::from(segment.win) << sender.scale).max(1);
            sender.limit = end.wrapping_add(sender.window);
            if receiver.window == 0 {
                (receiver.end, receiver.limit) = (sack, sack);
            } else if sack == receiver.end.wrapping_add(1) {
                // The answer to a keep-alive.
                receiver.end = sack;
            }
        } else if sender.window == 0 || again {
            let simultaneous = !segment.has(ACK) && (sender.window == 0 || dir == 1);
            sender.begin(segment);
            if dir == 1 && sender.flags & receiver.flags & SCALES == 0 {
                (sender.scale, receiver.scale) = (0, 0);
            }
            if simultaneous {
                return Answer::Accept;
            }
        }
        if !segment.has(ACK) || segment.has(RST) && ack == 0 {
            (ack, sack) = (receiver.end, receiver.end);
        }
        if segment.has(RST) && seq == 0 && state == SynSent {
            (seq, end) = (sender.end, sender.end);
        }
        if let Some(answer) = check(sender, receiver, [seq, end, sack]) {
            return if sender.flags & LIBERAL != 0 || rules.liberal { Answer::Accept } else { answer };
        }
        let scaled = u32::from(segment.win) << if segment.has(SYN) { 0 } else { sender.scale };
        sender.window = sender.window.max(scaled.wrapping_add(sack.wrapping_sub(ack)));
        sender.end = furthest(sender.end, end);
        if segment.has(ACK) {
            sender.acked = if sender.flags & ACKED != 0 { furthest(sender.acked, ack) } else { ack };
            sender.flags |= ACKED;
        }
        if receiver.window != 0 && before(sender.limit, end) {
            receiver.window = receiver.window.wrapping_add(end.wrapping_sub(sender.limit));
        }
        let limit = sack.wrapping_add(scaled);
        if !before(limit, receiver.limit) {
            receiver.limit = limit.wrapping_add(u32::from(scaled == 0));
        }
        if kind == Kind::Ack {
            let now = Last { end, ack, win: segment.win, dir, ..self.last };
            let same = now == self.last;
            self.last = Last { repeated: if same { (now.repeated + 1).min(RETRANSMISSIONS) } else { 0 }, ..now };
        }
        Answer::Accept
    }

    /// What the connection's time is taken from: the least of these.
    pub fn classes(&self, kind: Kind, replied: bool) -> [Class; 2] {
        let own = Class::tcp(self.state);
        let open =
            |dir: usize| self.sides[1 - dir].flags & ACKED != 0 && self.sides[dir].end != self.sides[1 - dir].acked;
        let other = match () {
            () if self.last.repeated >= RETRANSMISSIONS => Class::TcpRetransmitted,
            () if kind == Kind::Rst => Class::TcpClose,
            () if open(0) || open(1) || !replied && self.state == Established => Class::TcpUnacknowledged,
            () if self.last.win == 0 => Class::TcpRetransmitted,
            () => own,
        };
        [own, other]
    }
}

enum Reset {
    /// By the windows; then this is the state.
    ByWindows(TcpState),
    Believe,
    Invalid,
}

/// What is wrong with a segment from `seq` to `end` that acknowledges up to `sack`, if anything.
#[inline]
fn check(sender: &mut Side, receiver: &Side, [seq, end, sack]: [u32; 3]) -> Option<Answer> {
    let back = sender.end.wrapping_sub(receiver.window).wrapping_sub(1);
    let oldest = receiver.end.wrapping_sub(sender.window.max(ACK_WINDOW)).wrapping_sub(1);
    let (is_new, ack_is_new) = (before(back, end), before(oldest, sack));
    let ack_is_sent = !before(receiver.end, sack);
    if before(sender.limit, seq) {
        let over = end.wrapping_sub(sender.limit).wrapping_add(1);
        if receiver.window == 0 || !is_new || !ack_is_new || over > receiver.window || !ack_is_sent {
            return Some(Answer::Invalid(Refusal::TcpWindow));
        }
        // Somebody sends more than he may. If it is taken, its acknowledgement must be in order.
        sender.end = end;
        return Some(Answer::Ignore);
    }
    if !ack_is_sent {
        return Some(Answer::Invalid(Refusal::TcpWindow));
    }
    (receiver.window != 0 && !is_new || !ack_is_new).then_some(Answer::Ignore)
}
