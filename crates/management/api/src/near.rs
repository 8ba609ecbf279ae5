//! Where VMs run, and their ports' threads, as it travels.

use serde::{Deserialize, Serialize};
use zlink::introspect::CustomType;

/// Where the VM behind a port runs, and where the port's own thread may.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, CustomType)]
pub struct Place {
    /// `near`: the thread runs where the VM does. Else it may run on all CPUs of ports' threads: `unknown`: the VM has hardly run so far, or its process is not seen;
    /// `spread`: it runs on several nodes; `no-cpu`: ports' threads have no CPU there; `crowded`: others keep those busy, for now; `refused`: the kernel does not let it.
    pub state: String,
    /// The NUMA node on which the VM runs; null if it is on none, or not known.
    pub node: Option<u32>,
    /// CPUs of that node, or those that share a cache with the VM; empty if it is on none.
    pub vm_cpus: String,
    /// CPUs on which the port's own thread may run; null while it has none, as where cores poll.
    pub thread_cpus: Option<String>,
    /// Why it is refused; of `near`, what stops the thread there.
    pub why: Option<String>,
}

impl Place {
    /// In words.
    pub fn said(&self) -> String {
        let node = self.node.map_or_else(String::new, |node| format!("node {node}, "));
        let vm = match self.vm_cpus.as_str() {
            "" if self.state == "spread" => "its VM runs all over the host".to_owned(),
            "" => "where its VM runs is not known".to_owned(),
            cpus => format!("its VM runs on {node}CPUs {cpus}"),
        };
        let Some(cpus) = &self.thread_cpus else { return vm };
        let why = match self.state.as_str() {
            "no-cpu" => "; ports' threads have none there (`lasthop engine list`)".to_owned(),
            "near" => {
                self.why.as_ref().map_or_else(String::new, |why| format!(": it has to stand still at times, as {why}"))
            }
            "crowded" => ": it had to wait for those, as others keep them busy".to_owned(),
            "refused" => {
                format!(": it cannot be bound there ({})", self.why.as_deref().unwrap_or("no reason is known"))
            }
            _ => String::new(),
        };
        format!("{vm}, and its thread on CPUs {cpus}{why}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_in_words() {
        let place = |state: &str, vm_cpus: &str, thread_cpus: Option<&str>| Place {
            state: state.into(),
            node: (!vm_cpus.is_empty()).then_some(1),
            vm_cpus: vm_cpus.into(),
            thread_cpus: thread_cpus.map(Into::into),
            why: (state == "refused").then(|| "EPERM".into()),
        };
        for (place, words) in [
            (place("near", "4-7", Some("4-5")), "its VM runs on node 1, CPUs 4-7, and its thread on CPUs 4-5"),
            (place("near", "4-7", None), "its VM runs on node 1, CPUs 4-7"),
            (place("unknown", "", Some("0-7")), "where its VM runs is not known, and its thread on CPUs 0-7"),
            (place("spread", "", Some("0-7")), "its VM runs all over the host, and its thread on CPUs 0-7"),
        ] {
            assert_eq!(place.said(), words);
        }
        let stopped = Place { why: Some("it is so".into()), ..place("near", "4-7", Some("4-5")) };
        assert!(stopped.said().ends_with("and its thread on CPUs 4-5: it has to stand still at times, as it is so"));
        assert!(place("no-cpu", "4-7", Some("0-3")).said().contains("have none there"));
        assert!(place("refused", "4-7", Some("0-3")).said().ends_with("(EPERM)"));
    }
}
