//! What a session process asks over a real channel, and what the switch does for it: also for one that asks for what it must not.

use lasthop_connection::{Answer, Ask, Connection, End, Event, LONGEST, Region, RingAsk, Rings};
use lasthop_guestmem::{MapError, Mapped, MemoryLimits};
use lasthop_ipc::{Channel, ChannelError};
use lasthop_sys::{Aside, EventFd, Foreign, memfd};
use lasthop_virtqueue::{Queue, QueueSetup};
use proptest::prelude::*;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::time::Instant;

const GUEST: u64 = 0x10_0000;
const USER: u64 = 0x7f00_0000_0000;
const SIZE: u64 = 1 << 20;

/// The two ends.
struct Rig {
    session: Channel<Ask, Answer>,
    connection: Connection,
    queues: Arc<[Arc<Queue>]>,
    aside: Arc<Aside>,
    mapped: Arc<Mapped>,
    ram: OwnedFd,
    events: Vec<Event>,
}

impl Rig {
    fn new(bytes: u64) -> Self {
        lasthop_guestmem::install_fault_handler();
        let (ours, theirs) = Channel::<Ask, Answer>::pair().unwrap();
        let queues: Arc<[_]> = (0..4).map(|i| Arc::new(Queue::new(i))).collect();
        let (aside, mapped) = (Aside::new("test"), Arc::default());
        let limits = MemoryLimits { bytes, ..MemoryLimits::default() };
        let rings = Rings::new(queues.clone(), aside.clone(), limits, &mapped);
        let connection = Connection::new(Foreign::new(theirs, &aside), rings);
        let ram = memfd("questions", SIZE).unwrap();
        Self { session: Channel::within(ours, LONGEST), connection, queues, aside, mapped, ram, events: Vec::new() }
    }

    fn say(&mut self, ask: &Ask, fds: &[BorrowedFd<'_>]) -> Result<(), End> {
        self.session.send_with(ask, fds).unwrap();
        self.ready(Instant::now())
    }

    fn ready(&mut self, now: Instant) -> Result<(), End> {
        while self.connection.ready(now, &mut self.events)? {}
        Ok(())
    }

    fn ask(&mut self, ask: &Ask, fds: &[BorrowedFd<'_>]) -> Answer {
        self.say(ask, fds).unwrap();
        loop {
            match self.session.recv() {
                Err(ChannelError::WouldBlock) => self.ready(Instant::now()).unwrap(),
                answer => return answer.unwrap().0,
            }
        }
    }

    /// The guest's ring there stands at this index.
    fn stands(&self, at: u64, index: u8) {
        rustix::io::pwrite(&self.ram, &[index, 0], at + 0x2002).unwrap();
    }

    fn table(&mut self, keep: u64) -> Answer {
        let ram = self.ram.try_clone().unwrap();
        self.ask(&Ask::Table { regions: vec![region(0)], keep }, &[ram.as_fd()])
    }

    fn start(&mut self, ring: u16, setup: QueueSetup) -> Answer {
        self.ask(&Ask::Ring(ring, RingAsk::Start { setup, enabled: true }), &[])
    }
}

fn region(n: u64) -> Region {
    [GUEST + n * SIZE, SIZE, USER + n * SIZE, 0]
}

fn setup(at: u64) -> QueueSetup {
    let (desc, driver, device) = (GUEST + at, GUEST + at + 0x1000, GUEST + at + 0x2000);
    QueueSetup { size: 256, desc, driver, device, base: 0, features: 1 << 32 }
}

#[test]
fn rings_start_stop_and_go_over_to_other_memory() {
    let mut rig = Rig::new(SIZE);
    assert_eq!(rig.table(0), Answer::Memory { stopped: vec![], failed: vec![] });
    assert_eq!(rig.start(0, setup(0)), Answer::Done);
    rig.stands(0x8000, 7);
    assert_eq!(rig.start(1, QueueSetup { base: 7, ..setup(0x8000) }), Answer::Done);
    assert!(rig.queues[0].is_ready() && rig.queues[1].is_ready());
    assert_eq!(rig.ask(&Ask::Ring(1, RingAsk::IsStarted), &[]), Answer::Started(true));
    // The first stays where it is, the other is to be started anew.
    assert_eq!(rig.table(0b01), Answer::Memory { stopped: vec![(1, 7)], failed: vec![] });
    assert!(rig.queues[0].is_ready() && !rig.queues[1].is_ready());
    // No region has it any more.
    let gone = Ask::Remove { region: region(0), keep: 0b01 };
    assert_eq!(rig.ask(&gone, &[]), Answer::Memory { stopped: vec![], failed: vec![0] });
    assert!(matches!(&rig.events[..], [.., Event::Failed { queue: 0, why }] if why.starts_with("ring memory: ")));
    assert_eq!(rig.table(0), Answer::Memory { stopped: vec![], failed: vec![] });
    assert_eq!(rig.start(0, setup(0)), Answer::Done);
    assert_eq!(rig.ask(&Ask::Ring(0, RingAsk::Stop), &[]), Answer::Position(Some(0)));
    assert_eq!(rig.ask(&Ask::Ring(0, RingAsk::Stop), &[]), Answer::Position(None));
    assert!(
        matches!(rig.start(0, QueueSetup { size: 100, ..setup(0) }), Answer::Refused(why) if why.contains("ring size 100"))
    );
}

/// A ring that runs has been found by addresses of one kind.
#[test]
fn addresses_are_translated_otherwise_only_while_no_ring_runs() {
    let mut rig = Rig::new(SIZE);
    rig.table(0);
    assert_eq!(rig.ask(&Ask::Translate, &[]), Answer::Done);
    rig.start(1, setup(0));
    let end = rig.say(&Ask::Translate, &[]).unwrap_err().to_string();
    assert!(end.contains("a ring runs"), "{end}");
}

#[test]
fn at_the_end_it_hears_where_rings_stopped_and_nothing_is_left() {
    let mut rig = Rig::new(SIZE);
    rig.table(0);
    rig.stands(0, 9);
    rig.start(2, QueueSetup { base: 9, ..setup(0) });
    let said = rig.say(&Ask::End { why: "enough\n\x1b[31m".into(), closed: false, of_memory: false }, &[]).unwrap_err();
    assert_eq!(said.to_string(), "enough??[31m", "it is written to a log");
    let Rig { connection, mut session, queues, mapped, .. } = rig;
    drop(connection);
    assert_eq!(session.recv().unwrap().0, Answer::Ended { stopped: vec![(2, 9)] });
    assert!(matches!(session.recv(), Err(ChannelError::Closed)));
    assert!(!queues[2].status().started && !queues[2].status().enabled);
    while mapped.regions() > 0 {
        std::thread::yield_now();
    }
}

#[test]
fn one_that_does_not_keep_to_the_rules_loses_its_connection() {
    let asks = [
        (Ask::Ring(4, RingAsk::Stop), 0, "there is no ring 4"),
        (Ask::Ring(u16::MAX, RingAsk::Start { setup: setup(0), enabled: true }), 0, "there is no ring 65535"),
        (Ask::Table { regions: vec![region(0)], keep: 0 }, 0, "without their descriptors"),
        (Ask::Table { regions: vec![region(0); 9], keep: 0 }, 9, "without their descriptors"),
        (Ask::Add { region: region(0), keep: 0 }, 0, "without its descriptor"),
        (Ask::Remove { region: region(0), keep: 0 }, 0, "that is not there"),
        (Ask::Mtu(67), 0, "no MTU is so small"),
    ];
    for (ask, fds, why) in asks {
        let mut rig = Rig::new(SIZE);
        let ram = rig.ram.try_clone().unwrap();
        let end = rig.say(&ask, &vec![ram.as_fd(); fds]).unwrap_err().to_string();
        assert!(end.starts_with("the port's session process does not keep to the rules") && end.contains(why), "{end}");
    }
    // No message at all, and one that is too long.
    for bytes in [vec![0xff; 30], vec![0; LONGEST + 1]] {
        let mut rig = Rig::new(SIZE);
        let _ = rustix::net::send(&rig.session, &bytes, rustix::net::SendFlags::empty()).unwrap();
        let end = rig.ready(Instant::now());
        assert!(end.is_err() || bytes.len() > LONGEST, "{end:?}");
    }
    let mut rig = Rig::new(SIZE);
    drop(std::mem::replace(&mut rig.session, Channel::new(Channel::<Ask, Answer>::pair().unwrap().0)));
    assert_eq!(rig.ready(Instant::now()), Err(End::ProcessGone));
}

#[test]
fn what_is_refused_leaves_everything_as_it_was() {
    let mut rig = Rig::new(SIZE);
    rig.table(0);
    rig.start(0, setup(0));
    let ram = rig.ram.try_clone().unwrap();
    let (fd, add) = ([ram.as_fd()], |region| Ask::Add { region, keep: 1 });
    let too_large = MapError::TooLarge { wanted: 2 * SIZE, limit: SIZE };
    for (region, why) in [
        (region(0), too_large),
        ([u64::MAX, 4096, 0, 0], MapError::TooLarge { wanted: SIZE + 4096, limit: SIZE }),
        ([0, 0, 0, 0], MapError::Empty(0)),
    ] {
        assert_eq!(rig.ask(&add(region), &fd), Answer::Unmapped(why));
    }
    let two = Ask::Table { regions: vec![region(0), region(0)], keep: 1 };
    assert!(matches!(rig.ask(&two, &[ram.as_fd(), ram.as_fd()]), Answer::Unmapped(_)));
    assert!(
        matches!(rig.ask(&Ask::Ring(0, RingAsk::Kick), &fd), Answer::Refused(line) if line.contains("not an eventfd"))
    );
    assert!(rig.queues[0].is_ready() && rig.connection.memory().total_bytes() == SIZE);
}

/// Keeps the thread that lets go of things busy.
struct Slow(Receiver<()>);

impl Drop for Slow {
    fn drop(&mut self) {
        let _ = self.0.recv();
    }
}

/// F11: what was replaced is unmapped in its own time. Until it is, it counts, and what would be mapped besides waits.
#[test]
fn what_is_not_unmapped_yet_holds_up_what_would_be_mapped() {
    let mut rig = Rig::new(SIZE);
    let (end, ended) = channel();
    rig.table(0);
    rig.aside.drop_aside(Slow(ended));
    let (ram, again) = (rig.ram.try_clone().unwrap(), Ask::Table { regions: vec![region(0)], keep: 0 });
    rig.say(&again, &[ram.as_fd()]).unwrap();
    assert!(matches!(rig.session.recv(), Err(ChannelError::WouldBlock)), "not answered before it is unmapped");
    let waits = rig.connection.deadline().expect("it is looked at by and by");
    rig.ready(waits).unwrap();
    assert_eq!(rig.mapped.regions(), 2);
    drop(end);
    while rig.mapped.regions() > 1 {
        std::thread::yield_now();
    }
    rig.ready(Instant::now()).unwrap();
    assert!(matches!(rig.session.recv(), Ok((Answer::Memory { .. }, None))));
    assert_eq!(rig.connection.deadline(), None);
    // One that goes on before it is answered does not have a third table.
    let (_end, ended) = channel();
    rig.aside.drop_aside(Slow(ended));
    rig.say(&again, &[ram.as_fd()]).unwrap();
    let end = rig.say(&again, &[ram.as_fd()]).unwrap_err().to_string();
    assert!(end.contains("it asks before it is answered"), "{end}");
    assert_eq!(rig.mapped.regions(), 2);
}

/// A table whose second region lies in the first is refused, and the first was mapped by then.
#[test]
fn what_a_refused_table_has_mapped_counts_too() {
    let mut rig = Rig::new(SIZE);
    let (end, ended) = channel();
    rig.aside.drop_aside(Slow(ended));
    let ram = rig.ram.try_clone().unwrap();
    rig.table(0);
    let twice = Ask::Table { regions: vec![region(0), region(0)], keep: 0 };
    rig.say(&twice, &[ram.as_fd(), ram.as_fd()]).unwrap();
    assert!(matches!(rig.session.recv(), Err(ChannelError::WouldBlock)), "not answered before it is unmapped");
    drop(end);
    while rig.mapped.regions() > 1 {
        std::thread::yield_now();
    }
    rig.ready(Instant::now()).unwrap();
    assert!(matches!(rig.session.recv(), Ok((Answer::Unmapped(_), None))));
}

fn any_ask() -> impl Strategy<Value = Ask> {
    let region = prop_oneof![
        Just(region(0)),
        Just(region(1)),
        any::<[u64; 4]>(),
        (0..4u64).prop_map(|n| [n << 12, 4096, n << 20, n << 12])
    ];
    let address = || prop_oneof![Just(GUEST), Just(GUEST + 0x1000), Just(GUEST + SIZE - 8), any::<u64>()];
    let setup = (any::<u16>(), address(), address(), address(), any::<u32>(), any::<u64>());
    let setup = setup.prop_map(|(size, desc, driver, device, base, features)| {
        let size = if size % 3 == 0 { 1 << (size % 16) } else { size };
        QueueSetup { size, desc, driver, device, base, features }
    });
    let setup = prop_oneof![(0..4u64).prop_map(|n| self::setup(n << 14)), setup];
    let (ring, keep, yes) = (0..6u16, any::<u64>(), any::<bool>());
    (0..18u8, region, setup, ring, keep, yes).prop_map(|(kind, region, setup, ring, keep, yes)| match kind {
        0 | 1 => Ask::Table { regions: vec![region], keep },
        2 => Ask::Table { regions: vec![region; ring.into()], keep },
        3 => Ask::Add { region, keep },
        4 => Ask::Remove { region, keep },
        5..=7 => Ask::Ring(ring, RingAsk::Start { setup, enabled: yes }),
        8 => Ask::Ring(ring, RingAsk::Stop),
        9 => Ask::Ring(ring, RingAsk::Unmapped { address: keep, why: String::new() }),
        10 => Ask::Ring(ring, RingAsk::Enable(yes)),
        11 => Ask::Ring(ring, RingAsk::Kick),
        12 => Ask::Ring(ring, RingAsk::Call),
        13 => Ask::Ring(ring, RingAsk::Err),
        14 => Ask::Log { place: [0, SIZE >> 15 << (ring % 3), 0, keep & 8] },
        15 => Ask::Ring(ring, RingAsk::Rest),
        16 => Ask::Ring(ring, RingAsk::Move),
        _ => Ask::Ring(ring, RingAsk::IsStarted),
    })
}

proptest! {
    /// Whatever it asks, in whatever order: each question has one answer, or the connection ends; a ring is started only in memory that is there.
    #[test]
    fn any_questions(asks in prop::collection::vec((any_ask(), 0..3usize, any::<bool>()), 1..40)) {
        let mut rig = Rig::new(4 * SIZE);
        let event = EventFd::new().unwrap();
        let (ram, queues) = (rig.ram.try_clone().unwrap(), rig.queues.clone());
        for (ask, fds, memory) in asks {
            let fd = if memory { ram.as_fd() } else { event.as_fd() };
            if rig.say(&ask, &vec![fd; fds]).is_err() {
                break;
            }
            while rig.connection.deadline().is_some() {
                rig.ready(Instant::now()).unwrap();
            }
            prop_assert!(rig.session.recv().is_ok() && rig.session.recv().is_err(), "one answer to {ask:?}");
            let started = queues.iter().any(|queue| queue.status().started);
            prop_assert!(!started || rig.connection.memory().regions().next().is_some());
        }
        drop(rig);
        prop_assert!(queues.iter().all(|queue| !queue.status().started && !queue.is_ready()));
    }
}
