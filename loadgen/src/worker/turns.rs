//! Guests with a load of their own: turns of greedy ones, and what each port counts.
//!
//! One thread plays several guests, so what a greedy one takes of the thread would make the others late, whatever the switch does. Where
//! guests have turns ([`Settings::turn`](crate::Settings)), a round of the thread looks at every port that is not greedy, and then at one greedy
//! guest and its receiver for a fixed time. A turn takes as long if the guest is tame, and with one greedy guest as with many.

use super::super::Outcome;
use super::super::guest::Ports;
use super::{Worker, now};

impl Worker {
    /// Looks at a port once.
    pub(super) fn serve(&mut self, i: usize) -> Outcome<bool> {
        let mut busy = if self.settings.pattern.circulates() { self.pass_on(i)? } else { self.receive(i)? };
        if self.phase.sends() && !(self.settings.tame && self.cards[i].group.is_some()) {
            busy |= self.send(i)? | self.send_first(i)?;
            if self.cards[i].kicks {
                self.cards[i].port.tx.iter_mut().for_each(|ring| {
                    ring.kick.signal();
                    ring.kicks += 1;
                });
            }
        }
        Ok(busy)
    }

    /// Finds out which ports have turns: each greedy guest, and who is its partner where ports are pairs.
    pub(super) fn group(&mut self) {
        let settings = &*self.settings;
        let pairs = settings.pattern.pairs_up();
        let group_of = |port: u16| if pairs { port / 2 } else { port };
        let mut greedy: Vec<u16> = settings.guests.iter().filter(|g| g.is_greedy()).map(|g| group_of(g.port)).collect();
        greedy.retain(|group| settings.turn.is_some() && self.cards.iter().any(|c| group_of(c.port.number) == *group));
        greedy.sort_unstable();
        greedy.dedup();
        for card in &mut self.cards {
            card.group = greedy.iter().position(|group| *group == group_of(card.port.number));
        }
        (self.groups, self.turn) = (greedy.len(), 0);
    }

    /// The turn of a greedy guest, if there are any.
    pub(super) fn take_turn(&mut self) -> Outcome<bool> {
        let Some(length) = self.settings.turn.filter(|_| self.groups > 0) else { return Ok(false) };
        let mut time = now();
        let end = time + length.as_nanos() as u64;
        let mut any = false;
        self.back = true;
        while time < end {
            let mut busy = false;
            for i in 0..self.cards.len() {
                if self.cards[i].group == Some(self.turn) {
                    busy |= self.serve(i)?;
                }
            }
            self.back = false;
            any |= busy;
            if !busy {
                std::hint::spin_loop();
            }
            time = now();
        }
        self.findings.overrun_ns += time - end;
        self.turn = (self.turn + 1) % self.groups;
        Ok(any)
    }

    /// The measurement begins.
    pub(super) fn begin_counts(&mut self) {
        for card in &mut self.cards {
            card.count.kicks = card.port.tx.iter().chain(&card.port.rx).map(|r| r.kicks).sum();
            card.count_before = card.count;
        }
        self.sources_before = self.sources.iter().map(|s| (s.frames, s.bytes)).collect();
    }

    /// It ends.
    pub(super) fn end_counts(&mut self) {
        for card in &mut self.cards {
            card.count.kicks = card.port.tx.iter().chain(&card.port.rx).map(|r| r.kicks).sum();
        }
        let counts = self.cards.iter().map(|c| (c.port.number, c.count.since(c.count_before))).collect();
        let both = self.sources.iter().zip(&self.sources_before);
        let sources = both.map(|(now, (frames, bytes))| (now.frames - frames, now.bytes - bytes)).collect();
        self.ports = Ports { counts, sources, times: Vec::new() };
    }

    /// What was found of each port, times to the end included.
    pub(super) fn tell_ports(&mut self) -> Ports {
        let times = self.sources.iter_mut().zip(0..).filter_map(|(s, port)| Some((port, s.times.take()?))).collect();
        Ports { times, ..std::mem::take(&mut self.ports) }
    }
}
