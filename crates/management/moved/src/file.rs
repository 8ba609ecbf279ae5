//! The file.

use lasthop_api::{Connection, Field, Station};
use lasthop_policy::PortSettings;
use serde::{Deserialize, Serialize};

/// The form of these files; there is one.
pub const FORM: u32 = 1;
/// Directions of access lists, by the names that the API has for them.
pub const DIRECTIONS: [&str; 2] = ["from-guest", "to-guest"];

/// The file.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Moved {
    /// [`FORM`].
    pub lasthop_port: u32,
    /// The port's name where the VM comes from.
    pub name: String,
    /// What the port is told.
    pub settings: Vec<Field>,
    /// The port's own access lists, by [`DIRECTIONS`]; null: it has none.
    pub lists: [Option<String>; 2],
    /// Addresses that it has learned.
    pub stations: Vec<Station>,
    /// Its connections, with the names that ports have there.
    pub connections: Vec<Connection>,
}

impl Moved {
    /// Reads a file. The error says what is wrong with it.
    pub fn read(text: &str) -> Result<Self, String> {
        let moved: Self = serde_json::from_str(text).map_err(|e| e.to_string())?;
        if moved.lasthop_port != FORM {
            return Err(format!("form {}, and this lasthop reads form {FORM}", moved.lasthop_port));
        }
        let pairs = moved.settings.iter().map(|field| (field.name.as_str(), field.value.as_str()));
        PortSettings::default().change(pairs)?;
        Ok(moved)
    }

    /// The file's text.
    pub fn to_text(&self) -> Result<String, String> {
        serde_json::to_string_pretty(self).map(|text| text + "\n").map_err(|e| e.to_string())
    }

    /// Its connections, of a port that has this name here. Those that others have opened come first: of them no more are taken than leave half of
    /// the port's to its guest, and what the guest has opened counts as well.
    pub fn connections_at(&self, name: &str) -> Vec<Connection> {
        let here = self.connections.iter().cloned().map(|connection| renamed(connection, &self.name, name));
        let (own, mut all): (Vec<_>, Vec<_>) = here.partition(|connection| connection.from == name);
        all.extend(own);
        all
    }
}

/// What is to be told a port that is told `now`, so that it is told what `wanted` says and nothing else.
pub fn changes(now: Vec<Field>, wanted: &[Field]) -> Vec<Field> {
    let gone = now.iter().filter(|field| wanted.iter().all(|of| of.name != field.name));
    let gone: Vec<_> = gone.map(|field| Field { name: field.name.clone(), value: "none".into() }).collect();
    let new = wanted.iter().filter(|field| !now.contains(field)).cloned();
    gone.into_iter().chain(new).collect()
}

/// A connection of a port that has another name here.
fn renamed(mut of: Connection, was: &str, is: &str) -> Connection {
    // A neighbour there that has the port's name here is not this port.
    let other = format!("{is}@{was}");
    for end in [Some(&mut of.from), of.to.as_mut()].into_iter().flatten() {
        *end = if end == was {
            is.to_owned()
        } else if end == is {
            other.clone()
        } else {
            std::mem::take(end)
        };
    }
    of
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn field(name: &str, value: &str) -> Field {
        Field { name: name.into(), value: value.into() }
    }

    #[test]
    fn a_port_is_told_what_is_new_and_what_is_over() {
        let now = vec![field("vlan", "10"), field("isolated", "on")];
        let wanted = [field("vlan", "20"), field("storm", "1kpps")];
        assert_eq!(changes(now, &wanted), [field("isolated", "none"), field("vlan", "20"), field("storm", "1kpps")]);
    }

    #[test]
    fn ends_are_named_as_they_are_here() {
        let of = |from: &str, to: Option<&str>| Connection {
            from: from.into(),
            to: to.map(Into::into),
            ..Connection::default()
        };
        assert_eq!(renamed(of("vm1", Some("net")), "vm1", "a"), of("a", Some("net")));
        assert_eq!(renamed(of("a", Some("vm1")), "vm1", "a"), of("a@vm1", Some("a")), "another VM had that name there");
        assert_eq!(renamed(of("vm1", None), "vm1", "vm1"), of("vm1", None));
    }

    #[test]
    fn what_is_no_export_says_so() {
        let wrong = |text: &str| Moved::read(text).unwrap_err();
        assert!(wrong("").contains("EOF"));
        let of = |form: u32, settings: &str| {
            format!(
                r#"{{"lasthop_port":{form},"name":"a","settings":[{settings}],"lists":[null,null],"stations":[],"connections":[]}}"#
            )
        };
        assert!(Moved::read(&of(1, "")).is_ok());
        assert!(wrong(&of(2, "")).contains("form 2"));
        assert!(wrong(&of(1, r#"{"name":"vlan","value":"5000"}"#)).contains("5000"));
        assert!(wrong(&of(1, "").replace("stations", "station")).contains("station"));
    }

    fn any_connection() -> impl Strategy<Value = Connection> {
        let word = || prop_oneof![Just("vm1".to_owned()), Just("web".to_owned()), ".{0,6}"];
        let end = || (word(), word(), any::<Option<u16>>(), any::<Option<u16>>());
        let direction = |(src, dst, sport, dport)| lasthop_api::Direction { src, dst, sport, dport };
        let numbers = (any::<u8>(), any::<u16>(), any::<u32>(), any::<u64>());
        (word(), numbers, proptest::option::of(word()), word(), end(), end(), any::<[bool; 2]>()).prop_map(
            move |(
                proto,
                (proto_number, vlan, seconds_left, flows),
                state,
                from,
                original,
                reply,
                [replied, assured],
            )| {
                let (original, reply, to) = (direction(original), direction(reply), state.clone());
                Connection {
                    proto,
                    proto_number,
                    state,
                    vlan,
                    from,
                    to,
                    original,
                    reply,
                    replied,
                    assured,
                    seconds_left,
                    flows,
                }
            },
        )
    }

    proptest! {
        #[test]
        fn whatever_a_file_holds_it_is_read_or_refused(text in ".{0,400}") {
            let _ = Moved::read(&text);
        }

        #[test]
        fn what_is_written_is_read_as_the_same(
            name in ".{0,9}",
            lists in any::<[Option<String>; 2]>(),
            stations in proptest::collection::vec((".{0,20}", any::<u16>()), 0..9),
            connections in proptest::collection::vec(any_connection(), 0..9),
        ) {
            let stations = stations.into_iter().map(|(mac, vlan)| Station { mac, vlan }).collect();
            let settings = vec![field("vlan", "7")];
            let moved = Moved { lasthop_port: FORM, name, settings, lists, stations, connections };
            prop_assert_eq!(Moved::read(&moved.to_text().unwrap()), Ok(moved));
        }

        #[test]
        fn a_file_that_is_cut_is_refused(to in 0..600usize) {
            let connections = vec![Connection { from: "vm1".into(), ..Connection::default() }];
            let settings = vec![field("vlan", "7")];
            let (lists, stations) = ([Some("default deny".into()), None], Vec::new());
            let whole = Moved { lasthop_port: FORM, name: "vm1".into(), settings, lists, stations, connections };
            let whole = whole.to_text().unwrap();
            if let Some(cut) = whole.get(..to).filter(|cut| cut.len() < whole.len() - 1) {
                prop_assert!(Moved::read(cut).is_err(), "{}", cut);
            }
        }
    }
}
