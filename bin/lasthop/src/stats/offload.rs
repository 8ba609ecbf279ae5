//! What passes lasthop by.

use lasthop_api::{Offload, SwitchStats};
use lasthop_text::counted;

/// How many flows are in the kernel or a card, what they have carried, and why others are not there.
pub fn passing(stats: &SwitchStats) -> String {
    let Some(Offload { policy, running, ports, flows, in_hardware, packets, bytes, stayed }) = &stats.host.offload
    else {
        return String::new();
    };
    if !running {
        return "--hw-offload: lasthop-flower is not there: no flow is put into the kernel or a card\n".into();
    }
    let mut out = format!(
        "in the kernel or a card (tc-policy={policy}): {} of {}, {in_hardware} of them in a card; {} ({bytes} bytes) passed lasthop by\n",
        counted(*flows, "flow"),
        counted(*ports, "port"),
        counted(*packets, "packet")
    );
    for stayed in stayed {
        out.push_str(&format!("stayed in lasthop: {}: {}\n", counted(stayed.flows, "flow"), stayed.why));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use lasthop_api::{Host, Stayed};

    #[test]
    fn what_passes_by_is_told_and_why_the_rest_does_not() {
        let stayed = Stayed { reason: "floods".into(), why: "they flood".into(), flows: 2 };
        let (packets, bytes) = (900, 88_000);
        let offload = Offload {
            policy: "skip_hw".into(),
            running: true,
            ports: 2,
            flows: 1,
            in_hardware: 0,
            packets,
            bytes,
            stayed: vec![stayed],
        };
        let with = |offload| SwitchStats { host: Host { offload, ..Host::default() }, ..SwitchStats::default() };
        assert_eq!(
            passing(&with(Some(offload.clone()))),
            "in the kernel or a card (tc-policy=skip_hw): 1 flow of 2 ports, 0 of them in a card; 900 packets (88000 bytes) passed lasthop by\n\
             stayed in lasthop: 2 flows: they flood\n"
        );
        assert!(passing(&with(Some(Offload { running: false, ..offload }))).contains("lasthop-flower is not there"));
        assert_eq!(passing(&with(None)), "");
    }
}
