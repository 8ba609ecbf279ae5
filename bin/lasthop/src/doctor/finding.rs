//! A finding, and how it is written.

use super::facts::Facts;
use serde::Serialize;

/// Something that is wrong.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// The port or uplink that it is about; none: lasthop as a whole.
    pub port: Option<String>,
    /// What kind of thing it is, in a word that stays.
    pub kind: &'static str,
    /// What is wrong.
    pub what: String,
    /// What shows it.
    pub evidence: Vec<String>,
    /// What to do.
    pub remedy: String,
    /// A command of the shell that does it, if one does.
    pub command: Option<String>,
    /// Other ports that it is at the cost of.
    pub also: Vec<String>,
}

impl Finding {
    /// One about a port.
    pub fn at(port: &str, kind: &'static str, what: impl Into<String>) -> Self {
        Self { port: Some(port.into()), ..Self::of_all(kind, what) }
    }

    /// One about lasthop as a whole.
    pub fn of_all(kind: &'static str, what: impl Into<String>) -> Self {
        let (evidence, also) = (Vec::new(), Vec::new());
        Self { port: None, kind, what: what.into(), evidence, remedy: String::new(), command: None, also }
    }

    /// And what shows it.
    pub fn seen(mut self, evidence: impl Into<String>) -> Self {
        self.evidence.push(evidence.into());
        self
    }

    /// And what to do about it.
    pub fn remedy(mut self, remedy: impl Into<String>) -> Self {
        self.remedy = remedy.into();
        self
    }

    /// And the command that does it.
    pub fn command(mut self, command: impl Into<String>) -> Self {
        self.command = Some(command.into());
        self
    }

    /// And whom else it concerns.
    pub fn also(mut self, port: &str) -> Self {
        self.also.push(port.into());
        self
    }

    /// Whether somebody who asks for this port is to be told: what is wrong with an uplink may be why the port reaches nothing.
    pub fn concerns(&self, port: &str, facts: &Facts<'_>) -> bool {
        let is_uplink = |name: &String| facts.port(name).is_some_and(|port| port.uplink);
        self.port.as_ref().is_none_or(|name| name == port || is_uplink(name)) || self.also.iter().any(|a| a == port)
    }

    /// For people.
    pub fn render(&self) -> String {
        let whose = self.port.as_ref().map_or_else(String::new, |port| format!("{port}: "));
        let mut out = format!("{whose}{} ({})\n", self.what, self.kind);
        self.evidence.iter().for_each(|line| out.push_str(&format!("  seen: {line}\n")));
        if !self.remedy.is_empty() {
            out.push_str(&format!("  do:   {}\n", self.remedy));
        }
        if let Some(command) = &self.command {
            out.push_str(&format!("  run:  {command}\n"));
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::super::facts::testutil::*;
    use super::*;
    use lasthop_api::Port;

    #[test]
    fn written_for_people() {
        let finding = Finding::at("vm1", "link-down", "its cable is pulled").seen("link=down").remedy("plug it in");
        let text = "vm1: its cable is pulled (link-down)\n  seen: link=down\n  do:   plug it in\n  run:  it\n";
        assert_eq!(finding.command("it").render(), text);
    }

    #[test]
    fn an_uplinks_trouble_concerns_every_port_and_a_neighbours_does_not() {
        let now = seen(&[up("a"), up("b"), Port { uplink: true, ..up("net") }]);
        let facts = facts(&now, &now);
        assert!(Finding::at("net", "x", "").concerns("a", &facts) && Finding::of_all("x", "").concerns("a", &facts));
        assert!(!Finding::at("b", "x", "").concerns("a", &facts));
        assert!(Finding::at("b", "x", "").also("a").concerns("a", &facts));
    }
}
