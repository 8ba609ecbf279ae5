//! Both looks, and what rose between them.

use crate::device::Found;
use crate::settings::value_of;
use lasthop_api::{ConntrackStats, Drops, EngineList, Mirror, Port, SwitchStats, Uplink};
use lasthop_policy::RATE_TO;
use lasthop_text::counted;

/// What is this old, in ms, is not told as something that goes on: a guest asks for an address about so often.
pub const RECENT_MS: u64 = 60_000;

/// All that the API said at one time.
#[derive(Debug, Default)]
pub struct Seen {
    pub ports: Vec<Port>,
    pub interfaces: Vec<Uplink>,
    pub switch: SwitchStats,
    pub mirrors: Vec<Mirror>,
    pub connections: ConntrackStats,
    /// What is wrong with the socket of Open vSwitch's programs, if it is to be there.
    pub ovs_socket: Option<String>,
    /// Devices of this host.
    pub devices: Vec<Found>,
    /// CPUs that do ports' work.
    pub engines: EngineList,
}

/// Where a packet was dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// At the port that it came from.
    From,
    /// At the port that it was for.
    To,
    /// By the interface that a port is, or its process.
    Outside,
}

/// The first look (an empty one: everything counts), the second, and what was asked for.
#[derive(Debug)]
pub struct Facts<'a> {
    pub before: &'a Seen,
    pub now: &'a Seen,
    /// How long they are apart; `None` if there was one look.
    pub seconds: Option<f64>,
    pub run_dir: &'a str,
    /// The port that is asked for.
    pub named: Option<&'a str>,
}

/// How many packets were dropped between the looks, and since the switch or the process counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rise {
    pub now: u64,
    pub ever: u64,
}

impl Rise {
    /// As evidence.
    pub fn said(self, what: &str) -> String {
        if self.now == self.ever {
            format!("{} {what}", counted(self.ever, "packet"))
        } else {
            format!("{} {what} while this command looked, {} in all", counted(self.now, "packet"), self.ever)
        }
    }
}

impl<'a> Facts<'a> {
    /// Ports as they are now.
    pub fn ports(&self) -> impl Iterator<Item = &'a Port> + use<'a> {
        self.now.ports.iter()
    }

    /// Ports of VMs: not interfaces.
    pub fn guests(&self) -> impl Iterator<Item = &'a Port> + use<'a> {
        self.ports().filter(|port| !port.uplink && port.device.is_none())
    }

    /// Whether a port is a cable's, and no VM is to be there.
    pub fn is_cable(&self, port: &Port) -> bool {
        crate::device::is_cable(port, std::path::Path::new(self.run_dir))
    }

    pub fn port(&self, name: &str) -> Option<&'a Port> {
        self.ports().find(|port| port.name == name)
    }

    /// What the process of the interface says that a port is.
    pub fn interface(&self, name: &str) -> Option<&'a Uplink> {
        self.now.interfaces.iter().find(|interface| interface.name == name)
    }

    /// What this port had at the first look.
    pub fn earlier(&self, port: &Port) -> Option<&'a Port> {
        self.before.ports.iter().find(|before| before.id == port.id)
    }

    /// Packets dropped at a port for this reason.
    pub fn drops(&self, port: &Port, way: Way, reason: &str) -> Rise {
        let (now, before): (&[Drops], &[Drops]) = match way {
            Way::From => (&port.from_guest.drops, self.earlier(port).map_or(&[], |b| &b.from_guest.drops)),
            Way::To => (&port.to_guest.drops, self.earlier(port).map_or(&[], |b| &b.to_guest.drops)),
            Way::Outside => {
                let of = |seen: &'a Seen| {
                    let interface = seen.interfaces.iter().find(|i| i.id == port.id);
                    interface.map_or(&[][..], |interface| &interface.drops)
                };
                (of(self.now), of(self.before))
            }
        };
        let count = |drops: &[Drops]| drops.iter().find(|d| d.reason == reason).map_or(0, |d| d.packets);
        rise(count(before), count(now))
    }

    /// A counter of a port.
    pub fn counter(&self, port: &Port, of: impl Fn(&Port) -> u64) -> Rise {
        rise(self.earlier(port).map_or(0, &of), of(port))
    }

    /// What Open vSwitch has set in place of a port's `rate-from` or `rate-to`.
    pub fn rate_of_ovs(&self, port: &Port, setting: &str) -> Option<&'a str> {
        let of = self.now.switch.deciders.as_ref()?.rates.iter().find(|of| of.port == port.name)?;
        match setting {
            "rate-from" => of.from.as_deref(),
            RATE_TO => of.to.as_deref(),
            _ => None,
        }
    }

    /// Something this old still counts.
    pub fn is_recent(&self, age_ms: u64) -> bool {
        age_ms < RECENT_MS || self.before.ports.is_empty()
    }

    /// Whether Open vSwitch decides.
    pub fn is_open_vswitchs(&self) -> bool {
        self.now.switch.open_vswitch.is_some()
    }

    /// The process that decides what becomes of packets.
    pub fn decider(&self) -> &'static str {
        if self.is_open_vswitchs() { "lasthop-ovs" } else { "lasthop-control" }
    }

    /// A command to this instance, as one types it.
    pub fn lasthop(&self, words: &str) -> String {
        if self.run_dir == "/run/lasthop" {
            format!("lasthop {words}")
        } else {
            format!("lasthop {words} --run-dir {}", quoted(self.run_dir))
        }
    }
}

fn rise(before: u64, now: u64) -> Rise {
    // A process that was replaced counts anew.
    Rise { now: if before <= now { now - before } else { now }, ever: now }
}

/// As one word of a shell.
pub fn quoted(word: &str) -> String {
    let plain = |b: u8| b.is_ascii_alphanumeric() || b"/._-:,@%+=".contains(&b);
    if !word.is_empty() && word.bytes().all(plain) { word.into() } else { format!("'{}'", word.replace('\'', r"'\''")) }
}

/// What a port is told, by the setting's name.
pub fn setting<'a>(port: &'a Port, name: &str) -> Option<&'a str> {
    value_of(&port.settings, name)
}

#[cfg(test)]
pub mod testutil {
    use super::{Facts, Seen};
    use lasthop_api::{Drops, Field, Port};

    /// A port of a VM that is well.
    pub fn up(name: &str) -> Port {
        let mut port = Port { name: name.into(), id: name.bytes().map(u32::from).sum(), ..Port::default() };
        port.state = "up".into();
        (port.from_guest.packets, port.to_guest.packets) = (10, 10);
        port
    }

    pub fn told(mut port: Port, settings: &[(&str, &str)]) -> Port {
        let field = |(name, value): &(&str, &str)| Field { name: (*name).into(), value: (*value).into() };
        port.settings = settings.iter().map(field).collect();
        port
    }

    pub fn dropped(reason: &str, packets: u64) -> Vec<Drops> {
        vec![Drops { reason: reason.into(), packets }]
    }

    pub fn facts<'a>(before: &'a Seen, now: &'a Seen) -> Facts<'a> {
        Facts { before, now, seconds: None, run_dir: "/run/lasthop", named: None }
    }

    pub fn seen(ports: &[Port]) -> Seen {
        let mut seen = Seen { ports: ports.to_vec(), ..Seen::default() };
        seen.switch.switch_connected = true;
        seen
    }
}

#[cfg(test)]
mod tests {
    use super::testutil::*;
    use super::*;

    #[test]
    fn what_is_over_does_not_rise_and_a_new_switch_counts_anew() {
        let with = |n| {
            let mut port = up("a");
            port.to_guest.drops = dropped("no_buffers", n);
            seen(&[port])
        };
        let rise_of = |before: &Seen, now: &Seen| facts(before, now).drops(&now.ports[0], Way::To, "no_buffers");
        assert_eq!(rise_of(&with(7), &with(7)), Rise { now: 0, ever: 7 });
        assert_eq!(rise_of(&with(7), &with(9)), Rise { now: 2, ever: 9 });
        assert_eq!(rise_of(&with(7), &with(3)), Rise { now: 3, ever: 3 }, "the switch was replaced");
        assert_eq!(rise_of(&Seen::default(), &with(3)), Rise { now: 3, ever: 3 }, "--since-start");
        assert_eq!(Rise { now: 1, ever: 9 }.said("dropped"), "1 packet dropped while this command looked, 9 in all");
    }

    #[test]
    fn a_command_names_the_instance_that_was_asked() {
        let (before, now) = (Seen::default(), Seen::default());
        assert_eq!(facts(&before, &now).lasthop("port list"), "lasthop port list");
        let other = Facts { run_dir: "/tmp/it's", ..facts(&before, &now) };
        assert_eq!(other.lasthop("port list"), r"lasthop port list --run-dir '/tmp/it'\''s'");
    }
}
