//! What Open vSwitch did not take.

use super::age;
use lasthop_api::{LostOf, SwitchStats};
use lasthop_text::counted;

/// Most ports that are named.
const SHOWN: usize = 8;

/// Whether Open vSwitch is there, if it is to decide, and what it did not take.
pub fn untaken(stats: &SwitchStats) -> String {
    let Some(deciders) = &stats.deciders else { return String::new() };
    let mut out = String::new();
    if let Some(ms) = deciders.away_ms {
        out.push_str(&format!("Open vSwitch is not there, for {}: packets that meet no flow are dropped\n", age(ms)));
    }
    let dropped: u64 = deciders.dropped_of.iter().map(|of| of.packets).sum();
    if dropped > 0 {
        let by = by_port(&deciders.dropped_of);
        out.push_str(&format!(
            "Open vSwitch: {} dropped by its rules or meters in lasthop-ovs{by}\n",
            counted(dropped, "packet")
        ));
    }
    if deciders.lost > 0 {
        let packets = counted(deciders.lost, "packet");
        out.push_str(&format!(
            "Open vSwitch: {packets} found nobody of it to decide about them (lost){}\n",
            by_port(&deciders.lost_of)
        ));
    }
    out
}

/// `; of vm1 2, of vm2 1`: the port with most first.
fn by_port(of: &[LostOf]) -> String {
    let mut all: Vec<_> = of.iter().collect();
    all.sort_by_key(|of| std::cmp::Reverse(of.packets));
    let of: Vec<_> = all.iter().take(SHOWN).map(|of| format!("of {} {}", of.port, of.packets)).collect();
    match all.len() {
        0 => String::new(),
        n if n > SHOWN => format!("; {}, and of {}", of.join(", "), counted((n - SHOWN) as u64, "other port")),
        _ => format!("; {}", of.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_open_vswitch_did_not_take_is_said() {
        let of = |away_ms: Option<u64>, lost| {
            let processes = if away_ms.is_some() { Vec::new() } else { vec![7] };
            let deciders = Some(lasthop_api::OpenVswitch { processes, away_ms, lost, ..Default::default() });
            untaken(&SwitchStats { deciders, ..SwitchStats::default() })
        };
        assert_eq!(of(None, 0), "");
        assert_eq!(of(None, 2), "Open vSwitch: 2 packets found nobody of it to decide about them (lost)\n");
        let lost_of: Vec<_> = (0..10).map(|n| LostOf { port: format!("vm{n}"), packets: n }).collect();
        let all =
            "; of vm9 9, of vm8 8, of vm7 7, of vm6 6, of vm5 5, of vm4 4, of vm3 3, of vm2 2, and of 2 other ports";
        assert_eq!(by_port(&lost_of), all);
        assert_eq!(of(Some(5000), 0), "Open vSwitch is not there, for 5 s: packets that meet no flow are dropped\n");
    }
}
