//! Bounds of processor time.

use lasthop_management_ipc::CpuBound;
use lasthop_policy::{MAX_CPU, MAX_CPU_TO};

pub(crate) fn cpu_bound(bound: &CpuBound) -> lasthop_api::CpuBound {
    lasthop_api::CpuBound {
        most_ns: bound.most_ns,
        spent_ns: bound.spent_ns,
        packets_per_second: bound.held_to.map(|[packets, _]| packets).filter(|n| *n > 0),
        bytes_per_second: bound.held_to.map(|[_, bytes]| bytes).filter(|n| *n > 0),
        presses: bound.presses,
        missed_ms: bound.missed_ms,
        missed: bound.missed,
    }
}

/// One line for people, of a bound that is not kept: of what a guest sends, or of what is copied to it. People do not ask a device without more words.
pub(crate) fn missed_bound(bounds: [Option<&CpuBound>; 2], of_device: bool) -> Option<String> {
    let named = bounds.into_iter().zip([("its packets", MAX_CPU), ("copies to it", MAX_CPU_TO)]);
    let mut there = named.filter_map(|(bound, named)| Some((bound?, named)));
    let (bound, (what, setting)) = there.find(|(bound, _)| bound.missed_ms.is_some())?;
    let [spent, most] = [bound.spent_ns, bound.most_ns].map(|ns| ns / 10_000_000);
    let with = if of_device { " with this device's --run-dir" } else { "" };
    Some(format!(
        "{what} take {spent} % of a processor, and are to take {most} ({setting}); `lasthop doctor`{with} says what to do"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use lasthop_types::PortId;

    #[test]
    fn the_line_says_which_bound_is_not_kept() {
        let kept = CpuBound {
            port: PortId(1),
            most_ns: 50_000_000,
            spent_ns: 90_000_000,
            held_to: None,
            presses: false,
            missed_ms: None,
            missed: 1,
        };
        let missed = CpuBound { missed_ms: Some(1), ..kept };
        assert_eq!(missed_bound([None, None], false).or(missed_bound([Some(&kept); 2], false)), None);
        let line = |bounds| missed_bound(bounds, false).expect("a line");
        assert!(
            line([Some(&missed), Some(&kept)])
                .starts_with("its packets take 9 % of a processor, and are to take 5 (max-cpu); ")
        );
        for from in [None, Some(&kept)] {
            assert!(
                line([from, Some(&missed)])
                    .starts_with("copies to it take 9 % of a processor, and are to take 5 (max-cpu-to); ")
            );
        }
        assert!(missed_bound([None, Some(&missed)], true).is_some_and(|line| line.contains("this device's --run-dir")));
    }
}
