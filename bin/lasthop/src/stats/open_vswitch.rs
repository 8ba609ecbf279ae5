//! What Open vSwitch did not take.

use super::age;
use lasthop_api::SwitchStats;
use lasthop_text::counted;

/// Whether Open vSwitch is there, if it is to decide, and what it did not take.
pub fn untaken(stats: &SwitchStats) -> String {
    let Some(deciders) = &stats.deciders else { return String::new() };
    let mut out = String::new();
    if let (true, Some(ms)) = (deciders.processes.is_empty(), deciders.away_ms) {
        out.push_str(&format!("Open vSwitch is not there, for {}: packets that meet no flow are dropped\n", age(ms)));
    }
    if deciders.lost > 0 {
        let packets = counted(deciders.lost, "packet");
        out.push_str(&format!("Open vSwitch: {packets} found nobody of it to decide about them (lost)\n"));
    }
    out
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
        assert_eq!(of(Some(5000), 0), "Open vSwitch is not there, for 5 s: packets that meet no flow are dropped\n");
    }
}
