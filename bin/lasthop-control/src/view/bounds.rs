//! Bounds of processor time.

use lasthop_management_ipc::CpuBound;
use lasthop_policy::MAX_CPU;

pub(crate) fn cpu_bound(bound: &CpuBound) -> lasthop_api::CpuBound {
    lasthop_api::CpuBound {
        most_ns: bound.most_ns,
        spent_ns: bound.spent_ns,
        packets_per_second: bound.held_to.map(|[packets, _]| packets).filter(|n| *n > 0),
        bytes_per_second: bound.held_to.map(|[_, bytes]| bytes).filter(|n| *n > 0),
        missed_ms: bound.missed_ms,
        missed: bound.missed,
    }
}

/// One line for people, of a bound that is not kept. People do not ask a device without more words.
pub(crate) fn missed_bound(bound: &CpuBound, of_device: bool) -> Option<String> {
    let [spent, most] = [bound.spent_ns, bound.most_ns].map(|ns| ns / 10_000_000);
    let with = if of_device { " with this device's --run-dir" } else { "" };
    bound.missed_ms.map(|_| {
        format!("its packets take {spent} % of a processor, and are to take {most} ({MAX_CPU}); `lasthop doctor`{with} says what to do")
    })
}
