//! What a mirror is: ports whose packets another port gets copies of. By name, so that it outlives its ports.

use crate::name::check_name;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;

/// Most ports that all mirrors together may name: they are told to control in one message.
pub const MAX_MIRRORED: usize = 512;
/// Of most packets one is copied.
pub const MAX_SAMPLE: u32 = 1_000_000;

/// Which packets of a port are copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Mirrored {
    /// What its guest sends, as it was sent.
    FromGuest,
    /// What is sent to its guest, as it gets it.
    ToGuest,
    /// Both; a packet from one such port to another is copied once, as it was sent.
    Both,
}

impl Mirrored {
    /// All, as people write them.
    const ALL: [(Self, &str); 3] = [(Self::FromGuest, "from-guest"), (Self::ToGuest, "to-guest"), (Self::Both, "both")];

    pub(crate) fn of_sent(self) -> bool {
        self != Self::ToGuest
    }

    pub(crate) fn of_received(self) -> bool {
        self != Self::FromGuest
    }
}

impl fmt::Display for Mirrored {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(Self::ALL.iter().find(|(one, _)| one == self).map_or("", |(_, text)| text))
    }
}

impl FromStr for Mirrored {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = Self::ALL.iter().find(|(_, name)| *name == text);
        found.map(|(one, _)| *one).ok_or_else(|| format!("{text:?} is no direction; use from-guest, to-guest or both"))
    }
}

/// A mirror as somebody wants it. Its ports need not be there (yet).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Mirror {
    /// Its name.
    pub name: String,
    /// The ports whose packets are copied.
    pub from: Vec<String>,
    /// The port that gets the copies.
    pub to: String,
    /// Which packets of those ports.
    pub direction: Mirrored,
    /// One of so many of these packets, by chance; 1 is all.
    #[serde(default = "all", skip_serializing_if = "is_all")]
    pub sample: u32,
    /// Each copy has a tag in front that says whose packet it is: [`Label`](crate::Label).
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub labelled: bool,
}

/// What a mirror copies that was not told to sample.
fn all() -> u32 {
    1
}

// As serde wants it.
#[expect(clippy::trivially_copy_pass_by_ref)]
fn is_all(sample: &u32) -> bool {
    *sample == all()
}

impl Mirror {
    /// A port that it may name has another name.
    pub fn rename_port(&mut self, from: &str, to: &str) {
        for port in self.from.iter_mut().chain([&mut self.to]).filter(|port| *port == from) {
            to.clone_into(port);
        }
    }

    /// Whether it makes sense beside those there are. The error says what is wrong and what to do.
    pub fn check(&self, others: &[Self]) -> Result<(), String> {
        check_name(&self.name).map_err(|e| format!("mirror {:?}: {}", self.name, e.replace("port name", "name")))?;
        if self.from.is_empty() {
            return Err("a mirror copies packets of ports; name them with --from PORT,PORT".into());
        }
        for port in self.from.iter().chain([&self.to]) {
            check_name(port).map_err(|e| format!("port {port:?}: {e}"))?;
        }
        let mut named = BTreeSet::new();
        if let Some(twice) = self.from.iter().find(|port| !named.insert(*port)) {
            return Err(format!("{twice} is named twice in --from; once is enough"));
        }
        if !(1..=MAX_SAMPLE).contains(&self.sample) {
            return Err(format!(
                "one packet of {} cannot be copied; use --sample 1/N with N from 1 to {MAX_SAMPLE}",
                self.sample
            ));
        }
        if self.labelled && self.sample != 1 {
            return Err("copies with labels are all copied; leave the sample out".into());
        }
        let to = &self.to;
        if self.from.contains(to) {
            return Err(format!(
                "{to} is the destination, and gets nothing but copies; leave it out of --from, or name another one with --to"
            ));
        }
        for other in others {
            self.check_beside(other)?;
        }
        let all = others.iter().chain([self]).map(|mirror| mirror.from.len() + 1).sum::<usize>();
        if all > MAX_MIRRORED {
            return Err(format!("all mirrors together would name {all} ports, and {MAX_MIRRORED} is the most"));
        }
        Ok(())
    }

    fn check_beside(&self, other: &Self) -> Result<(), String> {
        let Self { name, from, to, .. } = self;
        let there = &other.name;
        if there == name {
            return Err(format!(
                "there is a mirror {name} already; `lasthop mirror del {name}` removes it, or choose another name"
            ));
        }
        if let Some(port) = from.iter().find(|port| **port == other.to) {
            return Err(format!(
                "{port} is the destination of mirror {there}: its guest sends and gets nothing that could be copied; leave it out of --from"
            ));
        }
        if other.to == *to && (other.labelled || self.labelled) {
            return Err(format!(
                "{to} gets copies with labels, which are of one mirror; `lasthop mirror del {there}` first, or name another one with --to"
            ));
        }
        if other.to == *to && other.sample != self.sample {
            return Err(format!(
                "{to} gets one packet of {} by mirror {there}, and a destination has one rate; use --sample 1/{}, or name another one with --to",
                other.sample, other.sample
            ));
        }
        if other.from.contains(to) {
            return Err(format!(
                "{to} is mirrored by {there}, and a destination gets nothing but copies; choose another port, or \
                 `lasthop mirror del {there}` first"
            ));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mirror(name: &str, from: &[&str], to: &str) -> Mirror {
        let from = from.iter().map(|port| (*port).to_owned()).collect();
        Mirror { name: name.into(), from, to: to.into(), direction: Mirrored::Both, sample: 1, labelled: false }
    }

    #[test]
    fn what_makes_no_sense_is_refused_with_what_to_do() {
        let there = [mirror("tap", &["vm1", "vm2"], "ids")];
        let many: Vec<_> = (0..512).map(|n| format!("p{n}")).collect();
        let many: Vec<_> = many.iter().map(String::as_str).collect();
        for (new, wrong) in [
            (mirror("tap", &["vm3"], "log"), "`lasthop mirror del tap`"),
            (mirror("a b", &["vm3"], "log"), "' ' cannot be in a name"),
            (mirror("m", &[], "log"), "name them with --from"),
            (mirror("m", &["vm3", "vm3"], "log"), "vm3 is named twice"),
            (mirror("m", &["vm3", "log"], "log"), "leave it out of --from"),
            (mirror("m", &["v/m"], "log"), "port \"v/m\": '/' cannot be"),
            (mirror("m", &["vm3"], ""), "has 0 characters"),
            (mirror("m", &["ids"], "log"), "ids is the destination of mirror tap"),
            (mirror("m", &["vm3"], "vm1"), "vm1 is mirrored by tap"),
            (mirror("m", &many, "log"), "name 516 ports, and 512 is the most"),
            (Mirror { sample: 0, ..mirror("m", &["vm3"], "log") }, "N from 1 to 1000000"),
            (Mirror { sample: 1_000_001, ..mirror("m", &["vm3"], "log") }, "N from 1 to 1000000"),
            (Mirror { sample: 9, ..mirror("m", &["vm3"], "ids") }, "use --sample 1/1, or name another"),
            (Mirror { labelled: true, ..mirror("m", &["vm3"], "ids") }, "copies with labels, which are of one mirror"),
            (Mirror { labelled: true, sample: 2, ..mirror("m", &["vm3"], "log") }, "leave the sample out"),
        ] {
            let error = new.check(&there).unwrap_err();
            assert!(error.contains(wrong), "{new:?}: {error}");
        }
        for fine in
            [mirror("m", &["vm1"], "log"), mirror("m", &["vm3"], "ids"), mirror("m", &["not.there"], "nor-this")]
        {
            fine.check(&there).unwrap();
        }
    }

    #[test]
    fn directions_are_read_as_they_are_shown() {
        for (one, text) in Mirrored::ALL {
            assert_eq!((text.parse(), one.to_string()), (Ok(one), text.to_owned()));
            assert_eq!(serde_json::to_string(&one).unwrap(), format!("\"{text}\""));
        }
        assert!("in".parse::<Mirrored>().unwrap_err().contains("use from-guest, to-guest or both"));
    }
}
