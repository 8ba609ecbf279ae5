//! The file of `lasthop port export`, which somebody else has written, as `lasthop port import` takes it: all that a file may hold, and files that
//! are nearly right. Input: a byte; if it is odd the file itself follows, else its port's limits and then its parts, one after another.

use crate::Input;
use lasthop_api::{Connection, Direction, Field, Station};
use lasthop_moved::{AT_ONCE, FORM, Moved, adopt, changes, shown};
use lasthop_policy::acl::{Book, Scope, read};
use lasthop_policy::{ConnectionCursor, ConnectionFilter, Effects, Learning, Limits, PortLists, PortSettings};
use lasthop_types::PortId;
use std::net::IpAddr;

const NOW_MS: u64 = 1_000_000;
const PORT: PortId = PortId(1);
const NAME: &str = "vm1";
/// A neighbour, and an uplink, that the file may name.
const OTHERS: [(PortId, &str); 2] = [(PortId(2), "web"), (PortId(3), "net")];

const WORDS: [&str; 16] = [
    NAME,
    "web",
    "net",
    "-",
    "",
    "tcp",
    "udp",
    "sctp",
    "icmp",
    "6",
    "ESTABLISHED",
    "SYN_SENT",
    "10.0.0.1",
    "10.0.0.2",
    "fd00::1",
    "10.0.0.999",
];
const LISTS: [&str; 8] = [
    "stateful\ndefault to-guest deny\npermit to-guest tcp to any port 22\n",
    "stateful\ndefault from-guest deny\n",
    "default deny\n",
    "permit to-guest everything, please\n",
    "stateful\nsnat 10.0.0.0/24 -> 192.0.2.1\n",
    "",
    "\u{0}",
    "permit from-guest ip from @nobody\n",
];
const SETTINGS: [(&str, &str); 16] = [
    ("connections", "3"),
    ("connections", "0"),
    ("vlan", "10"),
    ("vlan", "5000"),
    ("trunk", "1-5"),
    ("native", "2"),
    ("isolated", "on"),
    ("isolated", "off"),
    ("mac", "02:00:00:00:00:01"),
    ("addr", "10.0.0.1"),
    ("link", "down"),
    ("static-mac", "02:00:00:00:00:07"),
    ("rate-from", "-1"),
    ("weight", "3"),
    ("nobody", "knows"),
    ("storm", "1kpps"),
];

fn word(input: &mut Input<'_>) -> String {
    WORDS[input.below(16)].to_owned()
}

fn direction(input: &mut Input<'_>) -> Direction {
    let mut port = || (input.below(8) > 0).then(|| u16::from(input.u8() & 3));
    let (sport, dport) = (port(), port());
    let mut address = || if input.below(8) > 0 { WORDS[12 + input.below(3)].to_owned() } else { word(input) };
    Direction { src: address(), dst: address(), sport, dport }
}

/// A connection of the guest, or nearly one.
fn connection(input: &mut Input<'_>) -> Connection {
    let original = direction(input);
    let Direction { src, dst, sport, dport } = original.clone();
    let mut of = Connection {
        proto: "tcp".into(),
        proto_number: 6,
        state: Some("ESTABLISHED".into()),
        from: NAME.into(),
        to: Some("web".into()),
        reply: Direction { src: dst, dst: src, sport: dport, dport: sport },
        original,
        replied: true,
        ..Connection::default()
    };
    if input.flag() {
        (of.from, of.to) = ("net".into(), Some(NAME.into()));
    }
    if input.flag() {
        (of.proto, of.proto_number, of.state) = ("udp".into(), 17, None);
    }
    match input.below(16) {
        0 => of.proto = word(input),
        1 => of.proto_number = input.u8(),
        2 => of.state = Some(word(input)),
        3 => of.vlan = input.u16(),
        4 => of.from = word(input),
        5 => of.to = Some(word(input)),
        6 => of.to = None,
        7 => of.reply = direction(input),
        8 => of.replied = false,
        _ => {}
    }
    of
}

fn file(input: &mut Input<'_>) -> Moved {
    let mut list = || (input.below(4) > 0).then(|| LISTS[input.below(8)].to_owned());
    let lists = [list(), list()];
    let settings = (0..input.below(4)).map(|_| SETTINGS[input.below(16)]);
    let settings = settings.map(|(name, value)| Field { name: name.into(), value: value.into() }).collect();
    let (mut stations, mut connections) = (Vec::new(), Vec::new());
    while !input.is_empty() && connections.len() < 600 {
        if input.below(4) == 0 {
            let mac = if input.below(8) > 0 { format!("02:00:00:00:00:{:02x}", input.u8() & 15) } else { word(input) };
            stations.push(Station { mac, vlan: u16::from(input.u8() & 1) * u16::from(input.u8()) });
        } else {
            connections.push(connection(input));
        }
    }
    Moved { lasthop_port: FORM, name: NAME.into(), settings, lists, stations, connections }
}

/// A lasthop that a guest comes to, as far as its control decides.
struct Host {
    policy: Learning,
    settings: PortSettings,
}

impl Host {
    /// With stateful lists of the port's own, so that connections are known.
    fn new(limits: Limits) -> Self {
        let mut policy = Learning::new(limits);
        for (port, _) in OTHERS.into_iter().chain([(PORT, NAME)]) {
            policy.port(port, true, NOW_MS, &mut Effects::default());
        }
        Self { policy, settings: PortSettings::default() }
    }

    /// What `lasthop port import` does with a file; what it is told then, or `None` where a part that is refused ends it.
    fn import(&mut self, moved: &Moved, is_up: bool) -> Option<lasthop_api::PortAdopted> {
        self.policy.set_lists(PORT, lists(moved)?);
        let before: Vec<_> = fields(&self.settings);
        let told = changes(before, &moved.settings);
        self.settings = self.settings.change(told.iter().map(|f| (f.name.as_str(), f.value.as_str()))).ok()?;
        let mut out = Effects::default();
        self.policy.set_settings(PORT, self.settings.clone(), NOW_MS, &mut out);
        let mut all = lasthop_api::PortAdopted::default();
        let connections = moved.connections_at(NAME);
        let parts = moved.stations.chunks(AT_ONCE).map(|part| (part, &[][..]));
        for (stations, connections) in parts.chain(connections.chunks(AT_ONCE).map(|part| (&[][..], part))) {
            let before = self.counts();
            let some = adopt(&mut self.policy, (PORT, NAME, is_up), stations, connections, NOW_MS, &mut out);
            let refused: u64 = some.not_taken.iter().map(|not| not.number).sum();
            let taken = some.stations + some.connections + some.known;
            assert_eq!(
                taken + refused,
                (stations.len() + connections.len()) as u64,
                "each is taken or refused: {some:?}"
            );
            let [macs, number] = self.counts();
            assert_eq!(number - before[1], some.connections, "what is not taken changes nothing: {some:?}");
            assert!(macs - before[0] <= some.stations, "{some:?}");
            (all.stations, all.connections, all.known) =
                (all.stations + some.stations, all.connections + some.connections, all.known + some.known);
        }
        Some(all)
    }

    /// Addresses and connections.
    fn counts(&self) -> [u64; 2] {
        [self.policy.mac_count() as u64, self.connections().len() as u64]
    }

    fn connections(&self) -> Vec<Connection> {
        let (mut all, mut at) = (Vec::new(), Some(ConnectionCursor::default()));
        let name =
            |port| [(PORT, NAME)].iter().chain(&OTHERS).find(|(id, _)| *id == port).expect("a port").1.to_owned();
        let see = |view: lasthop_policy::ConnectionView| all.push(shown(&view, name));
        let mut see = see;
        while let Some(from) = at {
            at = self.policy.connections(from, 4096, &ConnectionFilter::default(), NOW_MS, &mut see);
        }
        all.sort_by_key(|of| format!("{of:?}"));
        all
    }

    /// What `lasthop port export` prints; of lists what was loaded.
    fn export(&self, lists: [Option<String>; 2]) -> Moved {
        let macs = self.policy.macs(NOW_MS).filter(|mac| mac.port == PORT && !mac.is_static);
        Moved {
            lasthop_port: FORM,
            name: NAME.into(),
            settings: fields(&self.settings),
            lists,
            stations: macs.map(|mac| Station { mac: mac.mac.to_string(), vlan: mac.vlan }).collect(),
            connections: self.connections(),
        }
    }
}

/// All but who the ends are, and how long it has.
fn is_same(said: &Connection, of: &Connection) -> bool {
    let ends = |of: &Direction| (of.src.parse::<IpAddr>(), of.dst.parse::<IpAddr>(), of.sport, of.dport);
    let plain =
        |of: &Connection| (of.proto_number, of.state.clone(), of.vlan, ends(&of.original), ends(&of.reply), of.replied);
    // A protocol may go by its number as well, and a state may be left out.
    let said = Connection {
        state: of.state.clone().filter(|state| said.state.as_ref().is_none_or(|said| said == state)),
        ..said.clone()
    };
    (said.proto == of.proto || said.proto == of.proto_number.to_string()) && plain(&said) == plain(of)
}

fn fields(settings: &PortSettings) -> Vec<Field> {
    settings.values().into_iter().map(|(name, value)| Field { name: name.into(), value }).collect()
}

/// The port's own lists, unless one is refused.
fn lists(moved: &Moved) -> Option<PortLists> {
    let (mut book, scope) = (Book::default(), Scope::Port(NAME.into()));
    let own = read(LISTS[0], None).expect("a list");
    book.replace(&scope, None, &own).expect("there is room");
    for (text, only) in
        moved.lists.iter().zip([lasthop_policy::acl::Direction::FromGuest, lasthop_policy::acl::Direction::ToGuest])
    {
        let Some(text) = text else { continue };
        book.replace(&scope, Some(only), &read(text, Some(only)).ok()?).ok()?;
    }
    Some(book.of_port(NAME, false))
}

pub(crate) fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let raw = input.flag();
    let limits = Limits { connections: 16 + 16 * input.below(8), macs: 12, macs_per_port: 4, ..Limits::default() };
    let is_up = input.below(8) > 0;
    let moved = if raw {
        let Ok(text) = std::str::from_utf8(input.rest()) else { return };
        let Ok(moved) = Moved::read(text) else { return };
        moved
    } else {
        file(&mut input)
    };
    // A file is read as it was written, or refused for its settings.
    let text = moved.to_text().expect("plain values");
    let pairs = || moved.settings.iter().map(|f| (f.name.as_str(), f.value.as_str()));
    match Moved::read(&text) {
        Ok(again) => assert_eq!(again, moved),
        Err(_) => return assert!(PortSettings::default().change(pairs()).is_err(), "{text}"),
    }
    let mut host = Host::new(limits.clone());
    let Some(adopted) = host.import(&moved, is_up) else { return };
    assert!(is_up || host.policy.mac_count() == host.settings.static_macs.len(), "an address without its guest");
    let quota = host.settings.connections.map_or(limits.connections / 4, |n| n as usize);
    let (all, exported) = (host.connections(), host.export(moved.lists.clone()));
    assert!(all.len() <= quota.min(limits.connections), "{} of {quota}", all.len());
    let opened_by_others = all.iter().filter(|of| of.from != NAME).count();
    assert!(opened_by_others <= quota / 2, "{opened_by_others} of {quota}");
    assert!(exported.stations.len() <= limits.macs_per_port, "{:?}", exported.stations);
    for of in &all {
        let ends = (of.from.as_str(), of.to.as_deref());
        assert!(
            matches!(ends, (NAME, None) | ("-", Some(NAME))),
            "no name of another host means somebody here: {of:?}"
        );
        assert!(of.replied && matches!(of.proto.as_str(), "tcp" | "udp" | "sctp"), "{of:?}");
    }
    for of in &all {
        assert!(moved.connections.iter().any(|said| is_same(said, of)), "nobody has said this: {of:?}");
    }
    // The same once more: all is known, and nothing changes.
    let again = host.import(&moved, is_up).expect("it was taken before");
    assert_eq!((again.connections, host.connections()), (0, all), "{adopted:?}, {again:?}");
    // What is exported is imported as the same, here and at a third lasthop.
    let mut third = Host::new(limits);
    let taken = third.import(&exported, true).expect("what was exported is taken");
    assert_eq!(taken.connections as usize, exported.connections.len(), "{exported:?}");
    assert_eq!(third.export(moved.lists), exported);
}
