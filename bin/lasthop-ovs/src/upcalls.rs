//! Upcalls that wait for room with a client. Packets of all ports come to few sockets, so ports take turns, and when there is no room the port that has most
//! waiting loses one: a port that floods loses its own.

use std::collections::{BTreeMap, VecDeque};

/// Most upcalls that wait for room with a client.
const MOST: usize = 512;
/// Most bytes of them.
const MOST_BYTES: usize = 4 << 20;

/// What waits of a port.
#[derive(Debug, Default)]
struct OfPort {
    datagrams: VecDeque<Vec<u8>>,
    bytes: usize,
}

/// All of a client's.
#[derive(Debug, Default)]
pub(crate) struct Upcalls {
    /// Ports that have something waiting, by Open vSwitch's number.
    ports: BTreeMap<u32, OfPort>,
    waiting: usize,
    bytes: usize,
    /// The port whose turn was the last.
    last: u32,
}

impl Upcalls {
    /// One more of a port waits. The ports of those that were dropped for it, which may be the same.
    pub fn push(&mut self, port: u32, datagram: Vec<u8>) -> Vec<u32> {
        self.bytes += datagram.len();
        self.waiting += 1;
        let of_port = self.ports.entry(port).or_default();
        of_port.bytes += datagram.len();
        of_port.datagrams.push_back(datagram);
        let mut losers = Vec::new();
        while self.waiting > MOST || self.bytes > MOST_BYTES {
            let by_count = self.waiting > MOST;
            let most = |(_, of): &(&u32, &OfPort)| if by_count { of.datagrams.len() } else { of.bytes };
            let Some(loser) = self.ports.iter().max_by_key(most).map(|(port, _)| *port) else { break };
            // The last of what came: those before it are older, and the first of a flow.
            self.take(loser, VecDeque::pop_back);
            losers.push(loser);
        }
        losers
    }

    /// Whether one more of this port's would find room, or take that of another's.
    pub fn has_room_for(&self, port: u32) -> bool {
        let of_port = self.ports.get(&port);
        let (waiting, bytes) = of_port.map_or((0, 0), |of| (of.datagrams.len(), of.bytes));
        let ports = self.ports.len() + usize::from(of_port.is_none());
        (self.waiting < MOST && self.bytes < MOST_BYTES) || waiting < MOST / ports && bytes < MOST_BYTES / ports
    }

    /// The next, of the port whose turn it is. It stays until it is [taken](Upcalls::pop).
    pub fn front(&self) -> Option<&[u8]> {
        self.ports.get(&self.next()?)?.datagrams.front().map(Vec::as_slice)
    }

    /// Takes the next.
    pub fn pop(&mut self) -> Option<Vec<u8>> {
        self.last = self.next()?;
        self.take(self.last, VecDeque::pop_front)
    }

    pub fn is_empty(&self) -> bool {
        self.ports.is_empty()
    }

    fn next(&self) -> Option<u32> {
        let behind = self.last.checked_add(1).and_then(|from| self.ports.range(from..).next());
        behind.or_else(|| self.ports.first_key_value()).map(|(port, _)| *port)
    }

    fn take(&mut self, port: u32, take: impl Fn(&mut VecDeque<Vec<u8>>) -> Option<Vec<u8>>) -> Option<Vec<u8>> {
        let of_port = self.ports.get_mut(&port)?;
        let taken = take(&mut of_port.datagrams);
        let len = taken.as_ref().map_or(0, Vec::len);
        of_port.bytes -= len;
        self.bytes -= len;
        self.waiting -= usize::from(taken.is_some());
        if of_port.datagrams.is_empty() {
            self.ports.remove(&port);
        }
        taken
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn upcall(port: u32, n: u32) -> Vec<u8> {
        [port.to_ne_bytes(), n.to_ne_bytes()].concat()
    }

    /// All that are still waiting, as they would be sent.
    fn drain(upcalls: &mut Upcalls) -> Vec<(u32, u32)> {
        let mut all = Vec::new();
        while let Some(front) = upcalls.front().map(<[u8]>::to_vec) {
            let taken = upcalls.pop().expect("it is there");
            assert_eq!(taken, front);
            let word = |at: usize| u32::from_ne_bytes(taken[at..at + 4].try_into().expect("four"));
            all.push((word(0), word(4)));
        }
        assert!(upcalls.is_empty() && upcalls.bytes == 0 && upcalls.waiting == 0);
        all
    }

    #[test]
    fn a_port_that_floods_loses_its_own() {
        let mut upcalls = Upcalls::default();
        for n in 0..2000 {
            let losers = upcalls.push(7, upcall(7, n));
            assert_eq!(losers.len(), usize::from(n >= MOST as u32));
            assert!(losers.iter().all(|loser| *loser == 7));
        }
        assert!(!upcalls.has_room_for(7) && upcalls.has_room_for(3));
        assert_eq!(upcalls.push(3, upcall(3, 0)), [7]);
        assert_eq!(upcalls.push(9, upcall(9, 0)), [7]);
        let all = drain(&mut upcalls);
        assert_eq!(all.len(), MOST);
        // In turn, and of each port the first that came, in order.
        assert_eq!(all[..4], [(3, 0), (7, 0), (9, 0), (7, 1)]);
        let of_flooder: Vec<u32> = all.iter().filter(|(port, _)| *port == 7).map(|(_, n)| *n).collect();
        assert_eq!(of_flooder, (0..MOST as u32 - 2).collect::<Vec<_>>());
    }

    #[test]
    fn bytes_have_a_bound_of_their_own() {
        let mut upcalls = Upcalls::default();
        let long = vec![1; 60_000];
        let lost: usize = (0..100).map(|_| upcalls.push(1, long.clone()).len()).sum();
        assert_eq!(lost, 100 - MOST_BYTES / long.len());
        // One that has many short ones keeps them, and finds room for a long one.
        (0..100).for_each(|n| assert!(upcalls.push(2, upcall(2, n)).iter().all(|loser| *loser == 1)));
        assert_eq!(upcalls.push(2, long), [1]);
        assert!(upcalls.bytes <= MOST_BYTES);
    }

    #[test]
    fn many_ports_share_what_there_is() {
        let mut upcalls = Upcalls::default();
        for n in 0..4 * MOST as u32 {
            upcalls.push(n % 256, upcall(n % 256, n / 256));
        }
        let all = drain(&mut upcalls);
        assert_eq!(all.len(), MOST);
        for port in 0..256 {
            assert_eq!(all.iter().filter(|(of, _)| *of == port).count(), 2, "{port}");
        }
        // With most at the far end of the numbers, turns go on from the first.
        upcalls.push(u32::MAX, upcall(u32::MAX, 0));
        upcalls.push(u32::MAX, upcall(u32::MAX, 1));
        upcalls.pop();
        upcalls.push(0, upcall(0, 0));
        assert_eq!(drain(&mut upcalls), [(0, 0), (u32::MAX, 1)]);
    }
}
