//! Places for connections: a fixed number, of which nobody holds one by silence.
//!
//! When all are taken, a connection whose request is not there yet gives its place to the next one: the oldest first. Where there is none, one
//! does that was answered and does not take the answer. Connections that wait for an answer keep their places, for they all get the
//! same one, and at the same time.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::Instant;

/// Connections at a time.
const CONNECTIONS: usize = 64;
/// So long each has to say what it wants, or to take its answer, however many others come: a scraper says it at once.
const UNDISTURBED: Duration = Duration::from_millis(200);

/// How far a connection is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stage {
    Silent,
    Answered,
    Asked,
}

#[derive(Debug)]
struct Seat {
    stage: Stage,
    since: Instant,
    given_away: Arc<Notify>,
}

#[derive(Debug, Default)]
pub struct Places {
    /// By number, in the order in which they came.
    seats: Mutex<BTreeMap<u64, Seat>>,
    freed: Notify,
}

/// A connection's place, until it goes out of scope.
#[derive(Debug)]
pub struct Place {
    places: Arc<Places>,
    number: u64,
    given_away: Arc<Notify>,
}

impl Places {
    /// A place for the next connection. One task takes them all.
    pub async fn take(self: &Arc<Self>) -> Place {
        loop {
            let freed = self.freed.notified();
            let wait = match self.make_room() {
                Ok(place) => return place,
                Err(wait) => wait,
            };
            // Whichever is first.
            let _ = tokio::time::timeout(wait, freed).await;
        }
    }

    /// A place, or how long until there may be one.
    fn make_room(self: &Arc<Self>) -> Result<Place, Duration> {
        let mut seats = self.seats();
        if seats.len() >= CONNECTIONS {
            let least = seats.iter().filter(|(_, seat)| seat.stage != Stage::Asked);
            let Some((number, seat)) = least.min_by_key(|(number, seat)| (seat.stage, **number)) else {
                return Err(UNDISTURBED);
            };
            if let Some(wait) = UNDISTURBED.checked_sub(seat.since.elapsed()).filter(|wait| !wait.is_zero()) {
                return Err(wait);
            }
            seat.given_away.notify_one();
            let number = *number;
            seats.remove(&number);
        }
        let number = seats.last_key_value().map_or(0, |(number, _)| number + 1);
        let given_away = Arc::new(Notify::new());
        let seat = Seat { stage: Stage::Silent, since: Instant::now(), given_away: given_away.clone() };
        seats.insert(number, seat);
        Ok(Place { places: self.clone(), number, given_away })
    }

    fn seats(&self) -> MutexGuard<'_, BTreeMap<u64, Seat>> {
        self.seats.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Place {
    /// The connection has come so far.
    pub fn reached(&self, stage: Stage) {
        if let Some(seat) = self.seat(&mut self.places.seats()) {
            (seat.stage, seat.since) = (stage, Instant::now());
        }
    }

    /// Until somebody else has the place.
    pub async fn given_away(&self) {
        self.given_away.notified().await;
    }

    /// Its seat, and not that of another that has its number since.
    fn seat<'a>(&self, seats: &'a mut BTreeMap<u64, Seat>) -> Option<&'a mut Seat> {
        seats.get_mut(&self.number).filter(|seat| Arc::ptr_eq(&seat.given_away, &self.given_away))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut seats = self.places.seats();
        if self.seat(&mut seats).is_some() {
            seats.remove(&self.number);
            self.places.freed.notify_one();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whether its place was given away.
    fn is_gone(place: &Place) -> bool {
        place.seat(&mut place.places.seats()).is_none()
    }

    #[tokio::test]
    async fn the_silent_go_first_and_those_that_asked_stay() {
        let places: Arc<Places> = Arc::default();
        let mut taken = Vec::new();
        for n in 0..CONNECTIONS {
            let place = places.take().await;
            match n {
                0 => place.reached(Stage::Asked),
                1 => place.reached(Stage::Answered),
                _ => {}
            }
            taken.push(place);
        }
        let start = Instant::now();
        let next = places.take().await;
        assert!(start.elapsed() >= UNDISTURBED, "each may speak for a while");
        let gone: Vec<usize> = (0..CONNECTIONS).filter(|n| is_gone(&taken[*n])).collect();
        assert_eq!(gone, [2]);
        taken[2].given_away().await;
        taken[3..].iter().chain([&next]).for_each(|place| place.reached(Stage::Asked));
        let last = places.take().await;
        assert!(is_gone(&taken[1]) && !is_gone(&taken[0]) && !is_gone(&next));
        last.reached(Stage::Asked);
        // All of them wait for an answer: the next one waits for a place.
        assert!(places.make_room().is_err());
        drop(taken.swap_remove(0));
        assert_eq!(places.take().await.number, last.number + 1);
        drop(taken);
        assert_eq!(places.seats().len(), 2, "those that were given away are no one's to free");
    }
}
