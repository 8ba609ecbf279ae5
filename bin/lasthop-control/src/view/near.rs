//! Where VMs run, and their ports' threads.

use lasthop_api::Place;
use lasthop_management_ipc::{Nearness, PortPlace};

pub(crate) fn place(of: &PortPlace) -> Place {
    Place {
        state: of.state.name().into(),
        node: of.node,
        vm_cpus: of.vm_cpus.clone(),
        thread_cpus: of.thread_cpus.clone(),
        why: match &of.state {
            Nearness::Refused(why) => Some(why.clone()),
            Nearness::Throttled => {
                Some("its control group has a quota of processor time, which is used up now and then".into())
            }
            _ => None,
        },
    }
}
