//! Guests that do their worst, beside those whose packets are measured.
//!
//! Attackers are played by the first thread of the generator, between the turns of its other ports, and *every turn costs the
//! same*: an attacker has a slot of processor time, and what its attack leaves of the slot is spun away. A tame attacker, to
//! compare with, behaves well in slots of the same length. So what the others lose is lost in the switch and at the
//! rings, and not to the attacker's own work; where a slot did not suffice, that is counted ([`Tally::overrun_ns`]).
//!
//! They attack as long as there is traffic (warm-up and measurement), and behave well before and after.
//!
//! | module | holds |
//! |---|---|
//! | `puppet` | one port of an attacker: its memory, its rings, and what can be done with them |
//! | `deed` | what each attack does in a slot |

mod deed;
mod puppet;

use super::port::{Listener, Memory, connect};
use super::{Outcome, Phase, Settings};
use deed::Deed;
use puppet::{Puppet, Shape};
use serde::Serialize;
use std::time::Duration;

/// Ports that an attack by itself takes: who attacks, and a helper or victim of its own.
pub const PORTS: usize = 2;

/// What attackers do. Each has two ports: the first does it, the second helps or takes what is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Attack {
    /// The first posts one receive buffer a millisecond; the second sends to it as fast as it can, and port 0, an honest
    /// guest, sends it as many packets as it sends to port 1
    Trickle,
    /// The first sends 64 KiB TCP packets, 64 at once, to be cut into 2037 and 510 segments, to the second, which takes no
    /// packets uncut and has 32 768 buffers: they run out in the middle of a packet
    Segments,
    /// The first sends each frame to another unknown address, during the warm-up, so that it owns a flow for each; then its
    /// receive ring is disabled and enabled, in turns, as fast as the switch takes the messages
    Flap,
    /// The first sends frames of random bytes to unknown addresses, each from another address, and half of them to the second
    Scan,
    /// The first sends UDP and TCP of random addresses and ports of the networks that guests have and that access lists may be about,
    /// to the second, so that a classifier needs as many masks and entries as it lets one guest have
    Headers,
    /// The first sends 64-byte broadcasts as fast as it can
    Storm,
    /// The first sends 64 KiB broadcasts, to be cut for everybody, as fast as it can
    LargeStorm,
    /// All of these at once (not `headers` and `incast`), each with two ports of its own, in turns slot by slot
    All,
    /// The first takes 32 frames a slot; the second sends to it as fast as it can, and port 0 as many packets as to port 1
    Incast,
    /// Not a guest but its front-end: the first's call descriptors are full counters that block whoever signals them; the
    /// second sends to it, a frame each slot, and port 0 as many packets as to port 1
    Call,
    /// The first's front-end has the switch map sparse files, 2 TiB each, one after the other
    Regions,
}

impl Attack {
    /// What [`Self::All`] is.
    const EACH: [Self; 6] = [Self::Trickle, Self::Segments, Self::Flap, Self::Scan, Self::Storm, Self::LargeStorm];

    /// What it consists of.
    fn parts(self) -> Vec<Self> {
        if self == Self::All { Self::EACH.to_vec() } else { vec![self] }
    }

    /// Ports of attackers that it takes.
    pub fn ports(self) -> usize {
        PORTS * self.parts().len()
    }

    /// Whether it takes a switch that segments.
    pub fn is_large(self) -> bool {
        matches!(self, Self::Segments | Self::LargeStorm | Self::All)
    }

    /// Whether the second sends to the first, and port 0 does too.
    fn draws(self) -> bool {
        matches!(self, Self::Trickle | Self::Incast | Self::Call)
    }

    /// The rings of the two ports of one that is one.
    fn shapes(self) -> [Shape; PORTS] {
        if self == Self::Segments { [Shape::USUAL, Shape::LONG] } else { [Shape::USUAL; PORTS] }
    }

    /// The attackers' port, counted from their first, to which port 0 sends as many packets as to port 1.
    pub(super) fn lures(self) -> Option<usize> {
        self.parts().iter().position(|part| part.draws()).map(|part| PORTS * part)
    }
}

/// What attackers did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Tally {
    /// Frames that the switch took from their rings.
    pub sent: u64,
    /// Frames that the switch gave them (segments, where it cut).
    pub received: u64,
    /// Messages of an attacking front-end: rings disabled or enabled, files to be mapped.
    pub messages: u64,
    /// Slots.
    pub turns: u64,
    /// Nanoseconds by which slots were too short.
    pub overrun_ns: u64,
}

impl Tally {
    fn each(self, other: Self, f: impl Fn(u64, u64) -> u64) -> Self {
        Self {
            sent: f(self.sent, other.sent),
            received: f(self.received, other.received),
            messages: f(self.messages, other.messages),
            turns: f(self.turns, other.turns),
            overrun_ns: f(self.overrun_ns, other.overrun_ns),
        }
    }

    /// The difference to an earlier one.
    pub fn since(self, earlier: Self) -> Self {
        self.each(earlier, u64::saturating_sub)
    }
}

/// What is played of them now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mood {
    /// They take what comes, and send nothing.
    Quiet,
    /// The first of each pair sends the second a frame a millisecond as well: what there is to compare with.
    Tame,
    /// Worst, before it counts.
    Prepare,
    /// Worst.
    Wild,
}

/// All attackers.
pub(super) struct Attackers {
    memory: Memory,
    pairs: Vec<Pair>,
    slot_ns: u64,
    /// Whose slot comes next.
    turn: usize,
    tally: Tally,
}

/// An attack's two ports.
struct Pair {
    deed: Deed,
    ports: [Puppet; PORTS],
}

impl Attackers {
    /// Plugs them in; nothing where there is no attack.
    pub fn connect(
        settings: &Settings,
        listeners: &[Option<Listener>],
        check: &dyn Fn() -> Outcome<()>,
    ) -> Outcome<Option<Self>> {
        let Some(attack) = settings.attack else { return Ok(None) };
        let parts = attack.parts();
        let bytes = parts.iter().flat_map(|p| p.shapes()).map(|shape| shape.bytes(settings)).sum();
        let mut memory = Memory::new(bytes, settings.huge)?;
        let mut pairs = Vec::new();
        for (part, sockets) in parts.into_iter().zip(settings.attackers.chunks(PORTS)) {
            let mut ports = Vec::new();
            for (i, (socket, shape)) in sockets.iter().zip(part.shapes()).enumerate() {
                let at = PORTS * pairs.len() + i;
                let listener = listeners.get(at).and_then(Option::as_ref);
                let front = connect(socket, listener, settings.patience, check)?;
                let number = (settings.sockets.len() + at) as u16;
                let large = part.is_large() && i == 0;
                ports.push(Puppet::new(front, number, settings, large, shape, &mut memory)?);
            }
            let Ok(ports) = <[Puppet; PORTS]>::try_from(ports) else { continue };
            pairs.push(Pair { deed: Deed::new(part, &ports, &mut memory)?, ports });
        }
        let slot_ns = settings.slot.as_nanos() as u64;
        Ok(Some(Self { memory, pairs, slot_ns, turn: 0, tally: Tally::default() }))
    }

    /// Everybody tells where it is.
    pub fn announce(&mut self) -> Outcome<()> {
        let ports = self.pairs.iter_mut().flat_map(|p| &mut p.ports);
        ports.into_iter().try_for_each(|port| port.announce(&self.memory))
    }

    /// One slot.
    pub fn turn(&mut self, mood: Mood) -> Outcome<()> {
        let start = super::worker::now();
        if let Some(pair) = self.pairs.get_mut(self.turn) {
            pair.deed.act(mood, start, &mut pair.ports, &self.memory, &mut self.tally)?;
        }
        self.turn = (self.turn + 1) % self.pairs.len().max(1);
        self.tally.turns += 1;
        if mood == Mood::Quiet {
            return Ok(());
        }
        let end = start + self.slot_ns;
        let mut now = super::worker::now();
        self.tally.overrun_ns += now.saturating_sub(end);
        while now < end {
            std::hint::spin_loop();
            now = super::worker::now();
        }
        Ok(())
    }

    /// What they have done so far.
    pub fn tally(&self) -> Tally {
        let ports = self.pairs.iter().flat_map(|p| &p.ports);
        let (sent, received) = ports.fold((0, 0), |(sent, received), p| (sent + p.sent, received + p.received));
        Tally { sent, received, ..self.tally }
    }
}

/// The mood of a phase.
pub(super) fn mood(settings: &Settings, phase: Phase) -> Mood {
    match phase {
        _ if !phase.sends() => Mood::Quiet,
        _ if settings.tame => Mood::Tame,
        Phase::Warm => Mood::Prepare,
        _ => Mood::Wild,
    }
}

/// The usual length of a slot: what adding and taking back a burst takes, or a message to the switch that wakes it.
pub const SLOT: Duration = Duration::from_micros(10);

#[cfg(test)]
mod tests;
