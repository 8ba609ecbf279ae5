//! Flows that change while a burst is under way.

use lasthop_flow::{Flow, FlowSpec};
use lasthop_forward::{Coalesce, Datapath, Port};
use lasthop_virtqueue::Queue;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, Weak};

/// What changes flows in the middle of a burst: each time that a guest is about to be interrupted it makes one change.
#[derive(Debug)]
pub(super) struct Middle {
    pub(super) datapath: Weak<Datapath>,
    /// A flow to put, or all those of a port to remove.
    pub(super) changes: Mutex<VecDeque<Result<FlowSpec, u32>>>,
    pub(super) put: Mutex<Vec<Arc<Flow>>>,
}

impl Coalesce for Middle {
    fn interrupts_now(&self, _: &Arc<Port>, _: &Queue, _: u32, wanted: bool) -> bool {
        if let (Some(datapath), Some(change)) =
            (self.datapath.upgrade(), self.changes.lock().expect("one thread").pop_front())
        {
            match change {
                Ok(spec) => {
                    let flow = datapath.flows().insert(spec, 0).expect("few masks");
                    self.put.lock().expect("one thread").push(flow);
                }
                Err(port) => drop(datapath.flows().remove_if(|f| f.key.in_port == port)),
            }
        }
        wanted
    }

    fn look(&self, _: &Port, _: bool) -> bool {
        false
    }
}
