//! Settings that do nothing where a port is now, or that keep its guest away when it sets its rings up again. Plain code over what the API says: `lasthop port set`
//! answers with it, `lasthop port list`, `lasthop show` and `lasthop doctor` show it.

use crate::client::{CliError, Instance};
use crate::settings::value_of;
use lasthop_api::{EngineList, Host, Port, SwitchProxy};
use lasthop_management_ipc::EngineKind;
use lasthop_policy::ENGINE;
use serde::Serialize;

const MAX_RING: &str = "max-ring";
const RX_BATCH: &str = "rx-batch";
pub const TX_BATCH: &str = "tx-batch";
const SHARING: [&str; 2] = ["weight", "priority"];
/// QEMU has no shorter rings.
const LEAST_OF_QEMU: u16 = 256;

/// Settings of which there may be something to be known.
pub const WATCHED: [&str; 6] = [TX_BATCH, RX_BATCH, MAX_RING, SHARING[0], SHARING[1], ENGINE];

/// A setting of a port, and what is to be known of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Note {
    pub port: String,
    pub setting: &'static str,
    pub what: String,
}

impl Note {
    /// In a line.
    pub fn told(&self) -> String {
        format!("{}: {}", self.port, self.what)
    }

    /// It belongs to an answer to who has set this.
    pub fn concerns(&self, set: &str) -> bool {
        self.setting == set || set == ENGINE && self.setting != MAX_RING
    }

    /// The guest is refused when it sets its rings up again.
    pub fn locks_out(&self) -> bool {
        self.setting == MAX_RING
    }

    /// It holds only where something is scarce, and may be meant for that.
    pub fn is_of_sharing(&self) -> bool {
        SHARING.contains(&self.setting)
    }
}

/// What settings depend on, beside the port.
#[derive(Clone, Copy, Debug)]
pub struct Place<'a> {
    pub engines: &'a EngineList,
    /// Why it is not known when VMs run, if somebody wanted to know.
    pub vms_unknown: Option<&'a str>,
}

/// What is to be known of what these ports are told, on this host.
pub fn notes(instance: &mut Instance, host: &Host, ports: &[Port]) -> Result<Vec<Note>, CliError> {
    let engines = instance.ask(async |c| c.engine_list().await)?;
    let place = Place { engines: &engines, vms_unknown: host.vms_unknown.as_deref() };
    Ok(ports.iter().flat_map(|port| place.notes(port)).collect())
}

impl Place<'_> {
    /// All that is to be known of what this port is told.
    pub fn notes(&self, port: &Port) -> Vec<Note> {
        let told = |setting| value_of(&port.settings, setting).filter(|value| *value != "off");
        let note = |setting: &'static str, what: String| Note { port: port.name.clone(), setting, what };
        let mut notes = Vec::new();
        if told(TX_BATCH).is_some()
            && let Some(by) = self.polled_by(port)
        {
            notes.push(note(
                TX_BATCH,
                format!("{TX_BATCH} does nothing now: {by} polls its rings, and its guest need not kick"),
            ));
        }
        if told(RX_BATCH).is_some()
            && let Some(why) = self.not_held_back(port)
        {
            notes.push(note(RX_BATCH, format!("{RX_BATCH} does nothing now: {why}")));
        }
        notes.extend(longer_rings(port).map(|what| note(MAX_RING, what)));
        let shares = SHARING.into_iter().find(|setting| told(setting).is_some());
        if let (Some(setting), Some(why)) = (shares, self.alone(port)) {
            notes.push(note(setting, why));
        }
        notes
    }

    /// Who polls the port's rings; none if it has a thread of its own, or is an interface's that nobody is behind.
    pub fn polled_by(&self, port: &Port) -> Option<String> {
        let polls = || self.engines.engines.iter().filter(|engine| engine.kind == EngineKind::Poll.name());
        // One without a thread gets no ring.
        if value_of(&port.settings, ENGINE) == Some(EngineKind::Ports.name())
            || polls().all(|engine| engine.cpu_ns.is_none())
        {
            return None;
        }
        let names: Vec<_> =
            polls().filter(|engine| engine.ports.contains(&port.name)).map(|e| e.name.as_str()).collect();
        Some(if names.is_empty() { "a core".to_owned() } else { names.join(" and ") })
    }

    /// Why interrupts of this port's guest are not held back, whatever it is told and whoever looks after its rings.
    pub fn not_held_back(&self, port: &Port) -> Option<String> {
        let unknown = "it is not known when its VM runs, and its guest is interrupted whenever it wants";
        match self.vms_unknown {
            Some(why) => Some(format!("{unknown} ({why})")),
            // As where nobody wanted to know: `--no-bpf`, and devices.
            None if port.state == "up" && port.vm.is_none() => Some(unknown.to_owned()),
            None => None,
        }
    }

    /// Why the port shares no thread with others.
    fn alone(&self, port: &Port) -> Option<String> {
        let slow = "only where a receiver or an uplink takes less than several send";
        if self.polled_by(port).is_none() {
            let helps = self.engines.engines.iter().any(|engine| engine.kind == EngineKind::Helper.name());
            let helpers = if helps { ", or one helper has several ports' rings" } else { "" };
            return Some(format!("its share counts {slow}{helpers}: it has a thread of its own"));
        }
        let serving = |engine: &&lasthop_api::Engine| engine.ports.contains(&port.name);
        let mut mine =
            self.engines.engines.iter().filter(|e| e.kind == EngineKind::Poll.name()).filter(serving).peekable();
        let alone = mine.peek().is_some() && mine.all(|engine| engine.ports.len() == 1);
        alone.then(|| format!("its share counts {slow}: nobody else is on the core that polls its rings"))
    }
}

/// Rings that are there and longer than a new one may be.
fn longer_rings(port: &Port) -> Option<String> {
    let most: u16 = value_of(&port.settings, MAX_RING)?.parse().ok()?;
    let there = port.queues.iter().filter(|queue| queue.enabled && port.state != "waiting");
    let longest = there.map(|queue| queue.size).max().filter(|size| *size > most)?;
    let shorter = if most < LEAST_OF_QEMU {
        format!(
            "its rings can be made no shorter than {LEAST_OF_QEMU} by QEMU: raise {MAX_RING}, if that is what it is"
        )
    } else {
        // It takes powers of two, 1024 at most.
        let size = (1_u16 << most.ilog2()).min(1024);
        format!("start its VM with shorter ones (QEMU: rx_queue_size={size},tx_queue_size={size}), or raise {MAX_RING}")
    };
    Some(format!(
        "its guest has rings of {longest} entries, more than {MAX_RING}={most}, keeps them, and is refused when it sets them up again (it reboots, loads its driver, or connects again): {shorter}"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use lasthop_api::{Engine, Field, Queue};

    fn port(settings: &[(&str, &str)]) -> Port {
        let field = |(name, value): &(&str, &str)| Field { name: (*name).into(), value: (*value).into() };
        let settings = settings.iter().map(field).collect();
        let (vm, queues) = (Some("running".into()), vec![Queue { size: 1024, enabled: true, ..Queue::default() }]);
        Port { name: "a".into(), state: "up".into(), settings, vm, queues, ..Port::default() }
    }

    fn engine(kind: EngineKind, ports: &[&str]) -> Engine {
        let name = if kind == EngineKind::Ports { "ports".into() } else { format!("{}-3", kind.name()) };
        let ports = ports.iter().map(|name| (*name).into()).collect();
        Engine { name, kind: kind.name().into(), cpu_ns: Some(1), ports, ..Engine::default() }
    }

    fn notes(engines: Vec<Engine>, vms_unknown: Option<&str>, port: &Port) -> Vec<(&'static str, String)> {
        let engines = EngineList { engines, ..EngineList::default() };
        let notes = Place { engines: &engines, vms_unknown }.notes(port);
        notes.into_iter().map(|note| (note.setting, note.what)).collect()
    }

    #[test]
    fn transmit_batching_of_a_port_that_is_polled_does_nothing() {
        let told = port(&[(RX_BATCH, "250,32"), (TX_BATCH, "250,32")]);
        let polled = || vec![engine(EngineKind::Poll, &["a", "b"]), engine(EngineKind::Ports, &[])];
        let said = notes(polled(), None, &told);
        assert_eq!(
            said.iter().map(|(setting, _)| *setting).collect::<Vec<_>>(),
            [TX_BATCH],
            "interrupts are held back"
        );
        assert!(said.iter().all(|(_, what)| what.contains("does nothing now: poll-3 polls its rings")), "{said:?}");
        assert_eq!(notes(vec![engine(EngineKind::Ports, &["a"])], None, &told), []);
        assert_eq!(notes(polled(), None, &port(&[(RX_BATCH, "off"), (TX_BATCH, "off")])), [], "that is how it is");
        let mut aside = told.clone();
        aside.settings.push(Field { name: ENGINE.into(), value: "ports".into() });
        assert_eq!(notes(polled(), None, &aside), []);
        // One whose core could not be had has no ring.
        let stuck = Engine { cpu_ns: None, ports: Vec::new(), ..engine(EngineKind::Poll, &[]) };
        assert_eq!(notes(vec![stuck], None, &told), []);
        // Nobody is connected yet.
        let (_, what) = &notes(vec![engine(EngineKind::Poll, &["b"])], None, &told)[0];
        assert!(what.contains("a core polls its rings"), "{what}");
    }

    #[test]
    fn interrupts_wait_for_no_vm_of_which_nothing_is_known() {
        let told = port(&[(RX_BATCH, "250,32")]);
        let unseen = Port { vm: None, ..told.clone() };
        for engines in [Vec::new(), vec![engine(EngineKind::Poll, &["a"])]] {
            let said = notes(engines, None, &unseen);
            assert!(said[0].1.starts_with("rx-batch does nothing now: it is not known when its VM runs"), "{said:?}");
        }
        assert_eq!(notes(Vec::new(), None, &Port { state: "waiting".into(), ..unseen.clone() }), []);
        let said = notes(Vec::new(), Some("EPERM"), &Port { state: "waiting".into(), ..unseen });
        assert!(said[0].1.ends_with("(EPERM)"), "{said:?}");
        assert_eq!(notes(Vec::new(), None, &told), []);
    }

    #[test]
    fn a_guest_that_max_ring_would_refuse_is_told_of() {
        let what = |most| notes(Vec::new(), None, &port(&[(MAX_RING, most)])).pop().map(|(_, what)| what);
        assert!(
            what("256")
                .is_some_and(|what| what.contains("rings of 1024 entries") && what.contains("rx_queue_size=256"))
        );
        assert!(what("64").is_some_and(|what| what.contains("no shorter than 256")));
        assert_eq!(what("1024"), None);
    }

    #[test]
    fn shares_of_who_shares_nothing_are_told_of() {
        let told = port(&[("priority", "1")]);
        let said = |engines| notes(engines, None, &told).pop().map(|(_, what)| what).unwrap_or_default();
        let [own, polled] = [EngineKind::Ports, EngineKind::Poll].map(|kind| move |ports: &[&str]| engine(kind, ports));
        assert!(said(vec![own(&["a"])]).ends_with("takes less than several send: it has a thread of its own"));
        assert!(
            said(vec![engine(EngineKind::Helper, &[]), own(&["a"])]).contains("or one helper has several ports' rings")
        );
        assert!(said(vec![polled(&["a"])]).contains("nobody else is on the core"));
        assert_eq!(said(vec![polled(&["a", "b"])]), "");
        assert_eq!(notes(vec![own(&["a"])], None, &port(&[])), [], "it is told nothing");
    }
}
