//! How often each process had to be replaced, when last and why: for `lasthop stats`.

use super::handover::{Giver, Moment, Taker};
use lasthop_management_ipc::{MAX_REPLACED, Replaced};
use std::collections::BTreeMap;
use std::time::Instant;

/// A reason is cut off here, in bytes: it may hold what an uplink says.
const MAX_WHY: usize = 200;

#[derive(Debug, Default)]
struct Record {
    times: u64,
    /// When it ended last, and why.
    last: Option<(Instant, String)>,
}

/// What another program of this process goes on with: of each process how often it was replaced, when last and why.
pub type ReplacementsState = Vec<(String, u64, Option<(Moment, String)>)>;

/// By process: `switch`, `control`, `uplink NAME`, or `port NAME` of one that is an interface.
#[derive(Debug)]
pub struct Replacements(BTreeMap<String, Record>);

impl Replacements {
    /// None yet; the switch and control are there in any case.
    pub fn new() -> Self {
        Self(["switch", "control"].map(|process| (process.to_owned(), Record::default())).into())
    }

    /// What another program of this process goes on with.
    pub fn hand_over(&self, giver: &Giver) -> ReplacementsState {
        let last = |(at, why): &(Instant, String)| (giver.moment(*at), why.clone());
        let of =
            |(process, Record { times, last: l }): (&String, &Record)| (process.clone(), *times, l.as_ref().map(last));
        self.0.iter().map(of).collect()
    }

    /// Goes on with it.
    pub fn resumed(state: ReplacementsState, taker: &Taker) -> Self {
        let of = |(process, times, last): (String, u64, Option<(Moment, String)>)| {
            (process, Record { times, last: last.map(|(at, why)| (taker.at(at), why)) })
        };
        Self(state.into_iter().map(of).collect())
    }

    /// A process has ended that was not asked to.
    pub fn note(&mut self, process: &str, why: &str, now: Instant) {
        let record = self.0.entry(process.to_owned()).or_default();
        record.times += 1;
        record.last = Some((now, why.get(..why.floor_char_boundary(MAX_WHY)).unwrap_or_default().to_owned()));
    }

    /// How often a process has been replaced.
    pub fn times(&self, process: &str) -> u64 {
        self.0.get(process).map_or(0, |record| record.times)
    }

    /// It is called something else now.
    pub fn rename(&mut self, from: &str, to: &str) {
        if let Some(record) = self.0.remove(from) {
            self.0.insert(to.to_owned(), record);
        }
    }

    /// There is no such process any more.
    pub fn forget(&mut self, process: &str) {
        self.0.remove(process);
    }

    /// All that there is to say, those first that were replaced last; as many as fit into a message.
    pub fn list(&self, now: Instant) -> Vec<Replaced> {
        let of = |(process, record): (&String, &Record)| Replaced {
            process: process.clone(),
            times: record.times,
            last: record.last.as_ref().map(|(at, why)| {
                let ago_ms = now.saturating_duration_since(*at).as_millis();
                (u64::try_from(ago_ms).unwrap_or(u64::MAX), why.clone())
            }),
        };
        let mut all: Vec<_> = self.0.iter().map(of).collect();
        all.sort_by_key(|replaced| replaced.last.as_ref().map_or(u64::MAX, |(ago_ms, _)| *ago_ms));
        all.truncate(MAX_REPLACED);
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_and_keeps_the_last_reason() {
        let (mut replaced, now) = (Replacements::new(), Instant::now());
        assert_eq!(replaced.list(now).iter().map(|r| r.times).collect::<Vec<_>>(), [0, 0]);
        replaced.note("control", "ended: signal: 9 (SIGKILL)", now);
        replaced.note("control", &"é".repeat(200), now);
        replaced.note("uplink net", "hung", now);
        let list = replaced.list(now);
        let control = list.iter().find(|r| r.process == "control").unwrap();
        assert_eq!((control.times, control.last.as_ref().map(|(ago, why)| (*ago, why.len()))), (2, Some((0, 200))));
        assert_eq!(list.iter().find(|r| r.process == "switch").unwrap().last, None);
        replaced.forget("uplink net");
        assert_eq!(replaced.list(now).len(), 2);
        // As many as there are uplinks.
        (0..1000).for_each(|n| replaced.note(&format!("uplink {n}"), "hung", now));
        assert_eq!(replaced.list(now).len(), MAX_REPLACED);
    }
}
