//! Stateful lists against their definition, which looks at every packet and knows nothing of flows.

use super::*;
use crate::acl::{Direction, List, Standing};
use lasthop_conntrack::Tuple;

/// Lists that a port may have; the first is none at all.
const LISTS: [&str; 7] = [
    "",
    "stateful\ndefault to-guest deny\npermit to-guest udp to any port 1\n",
    "default to-guest deny\npermit to-guest established\n",
    "deny to-guest udp from any port 2\n",
    "stateful\ndeny from-guest udp to any port 2\ndeny to-guest icmp\n",
    "stateful\ndeny from-guest udp from 10.0.0.2\ndefault to-guest deny\npermit to-guest udp from 10.0.0.0/31\n",
    "stateful\ndefault to-guest deny\ndefault from-guest deny\npermit from-guest udp\n",
];

#[derive(Clone, Debug)]
enum Event {
    /// From a port, by its guest's Ethernet address; source and destination addresses and ports; an echo instead, request or answer.
    Packet {
        port: u8,
        src: u8,
        dst: u8,
        ports: [u16; 2],
        echo: Option<bool>,
    },
    Load([usize; 3]),
}

#[derive(Clone, Debug)]
struct Connection {
    original: Tuple,
    ports: [u8; 2],
    answered: bool,
    lists: u32,
    opener: FlowKey,
}

#[derive(Default)]
struct Model {
    lists: [PortLists; 3],
    loaded: u32,
    connections: Vec<Connection>,
}

impl Model {
    fn list(&self, port: u8, direction: Direction) -> Option<&List> {
        Some(&self.lists[usize::from(port) - 1][direction as usize].as_ref()?.1)
    }

    fn permits(&self, port: u8, direction: Direction, key: &FlowKey, standing: Standing) -> bool {
        self.list(port, direction)
            .is_none_or(|list| list.check(key, standing, direction, &mut FlowMask::default()).permits())
    }

    fn tracks(&self, port: u8) -> bool {
        Direction::ALL.iter().any(|direction| self.list(port, *direction).is_some_and(List::tracks))
    }

    fn load(&mut self, lists: [PortLists; 3]) {
        self.lists = lists;
        self.loaded += 1;
        if !(1..=3).any(|port| self.tracks(port)) {
            self.connections.clear();
        }
    }

    /// Whether a packet from one port gets to another.
    fn packet(&mut self, from: u8, to: u8, key: &FlowKey, tuple: Tuple, asks: bool) -> bool {
        let here = |c: &Connection| {
            (c.original == tuple && c.ports[0] == from) || (c.original.inverse() == Some(tuple) && c.ports[1] == from)
        };
        let mut at = self.connections.iter().position(here);
        if let Some(n) = at {
            let c = self.connections[n].clone();
            let reply = c.original != tuple;
            // One that was judged by other lists is judged again, as it was opened.
            let stands = self.permits(c.ports[0], Direction::FromGuest, &c.opener, Standing::New)
                && self.permits(c.ports[1], Direction::ToGuest, &c.opener, Standing::New);
            if c.lists != self.loaded && (c.answered || reply) && !stands {
                self.connections.remove(n);
                at = None;
            }
        }
        // One with its addresses, of other ports: if nobody has answered it, it gives way to what opens one.
        let same = |c: &Connection| c.original == tuple || c.original.inverse() == Some(tuple);
        let other = self.connections.iter().position(same).filter(|_| at.is_none());
        let gives_way = other.filter(|n| asks && !self.connections[*n].answered);
        let taken = other.is_some() && gives_way.is_none();
        let (mut near, mut far) = (Standing::New, Standing::New);
        if let Some(c) = at.map(|n| &self.connections[n]) {
            let reply = c.original != tuple;
            if reply || c.answered {
                near = Standing::Established;
                far = if c.ports[usize::from(!reply)] == to { near } else { Standing::New };
            }
        } else if !asks && !taken {
            (near, far) = (Standing::Invalid, Standing::Invalid);
        }
        let passes =
            self.permits(from, Direction::FromGuest, key, near) && self.permits(to, Direction::ToGuest, key, far);
        let tracked = self.tracks(from) || self.tracks(to);
        match at {
            Some(n) if passes && tracked => {
                let loaded = self.loaded;
                let c = &mut self.connections[n];
                c.answered |= c.original != tuple;
                c.lists = loaded;
            }
            Some(n)
                if !passes
                    && self.connections[n].lists != self.loaded
                    && near == Standing::New
                    && self.tracked_denial(from, to, key, near) =>
            {
                self.connections.remove(n);
            }
            None if passes && tracked && !taken && asks => {
                gives_way.map(|n| self.connections.remove(n));
                let (ports, lists, opener) = ([from, to], self.loaded, *key);
                self.connections.push(Connection { original: tuple, ports, answered: false, lists, opener });
            }
            _ => {}
        }
        passes
    }

    /// A list that asks about connections has denied it.
    fn tracked_denial(&self, from: u8, to: u8, key: &FlowKey, standing: Standing) -> bool {
        let ways = [(from, Direction::FromGuest), (to, Direction::ToGuest)];
        let first = ways.iter().find(|(port, direction)| !self.permits(*port, *direction, key, standing));
        first.is_some_and(|(port, direction)| self.list(*port, *direction).is_some_and(List::tracks))
    }
}

fn event() -> impl Strategy<Value = Event> {
    let packet = (1u8..4, 1u8..4, 1u8..4, 1u16..4, 1u16..4, prop::option::weighted(0.2, any::<bool>()))
        .prop_map(|(port, src, dst, sport, dport, echo)| Event::Packet { port, src, dst, ports: [sport, dport], echo });
    prop_oneof![20 => packet, 1 => prop::array::uniform3(0..LISTS.len()).prop_map(Event::Load)]
}

fn play(first: [usize; 3], events: Vec<Event>, small: bool) {
    let usual = Limits { connections: 256, ..Limits::default() };
    let limits = if small { Limits { masks: 3, flows: 12, flows_per_port: 6, ..usual } } else { usual };
    let (mut b, mut model) = (Bench::new(limits, 3), Model::default());
    (1..=3u8).for_each(|host| drop(b.frame(u32::from(host), &arp(host))));
    for event in [Event::Load(first)].into_iter().chain(events) {
        match event {
            Event::Load(of) => {
                let lists = of.map(|n| if n == 0 { PortLists::default() } else { super::lists(LISTS[n]) });
                b.load((1..).map(PortId).zip(lists.clone()).collect());
                model.load(lists);
            }
            Event::Packet { port, src, dst, .. } if dst == port || src == dst => {}
            Event::Packet { port, src, dst, ports, echo } => {
                let e = ends(src, dst, ports);
                let mut frame = echo.map_or_else(|| e.udp(9), |is_answer| e.echo(is_answer, 7));
                frame[11] = port;
                let mut key = FlowKey { in_port: port.into(), ..FlowKey::default() };
                lasthop_frame::extract(&mut key, &frame, frame.len(), lasthop_frame::Depth::Full);
                let tuple = crate::learning::tuple(&key, 0);
                let expected = model.packet(port, dst, &key, tuple, echo != Some(true));
                let (actions, _) = b.frame(port.into(), &frame);
                let passed = actions.contains(&Action::Output(PortId(dst.into())));
                assert_eq!(passed, expected, "{actions:?}: {key:?}, {:?}", model.connections);
                // Flows that overlap agree.
                for flow in b.lookup(&key) {
                    assert_eq!(flow.actions.contains(&Action::Output(PortId(dst.into()))), passed, "{flow:?}");
                }
            }
        }
        if model.connections.is_empty() != all(&b).is_empty() {
            assert_eq!(all(&b).len(), model.connections.len());
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn every_packet_is_treated_as_its_connection_says(
        first in prop::array::uniform3(0..LISTS.len()),
        events in prop::collection::vec(event(), 1..80),
        small: bool,
    ) {
        play(first, events, small);
    }

    /// TCP: a switch with flows does to each packet what one does that asks each time.
    #[test]
    fn flows_hide_nothing(
        segments in prop::collection::vec((1u8..4, 1u8..4, 0u16..2, 0..6usize), 1..100),
        first in prop::array::uniform3(0..LISTS.len()),
    ) {
        const FLAGS: [&str; 6] = ["S", "SA", "A", "A", "FA", "R"];
        let lists = first.map(|n| if n == 0 { PortLists::default() } else {
            super::lists(&LISTS[n].replace("udp", "tcp"))
        });
        let limits = Limits { connections: 256, ..Limits::default() };
        let mut benches = [Bench::new(limits.clone(), 3), Bench::new(limits, 3)];
        for b in &mut benches {
            (1..=3u8).for_each(|host| drop(b.frame(u32::from(host), &arp(host))));
            b.load((1..).map(PortId).zip(lists.clone()).collect());
        }
        for (from, to, port, flags) in segments {
            if from == to {
                continue;
            }
            // A client's port on one side, a server's on the other.
            let ports = if from < to { [1000 + port, 1] } else { [1, 1000 + port] };
            let frame = ends(from, to, ports).tcp(&seg(FLAGS[flags], 100, if flags == 0 { 0 } else { 100 }, 0));
            let [with, without] = &mut benches;
            without.table.clear();
            let passed = passes(without, from.into(), &frame);
            prop_assert_eq!(passes(with, from.into(), &frame), passed, "{} to {} {} {:?}", from, to, FLAGS[flags], ports);
        }
    }
}
