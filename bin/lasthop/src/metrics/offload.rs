//! Figures of flows in the kernel or a card, where there are to be some.

use super::text::{Family, Number, family, level};
use lasthop_api::{Offload, SwitchStats};

pub fn families(switch: &SwitchStats) -> Vec<Family> {
    let Some(offload) = &switch.host.offload else { return Vec::new() };
    let Offload { running, ports, flows, in_hardware, packets, bytes, stayed, .. } = offload;
    let one = |name, help, number| family(name, help, vec![(Vec::new(), number)]);
    let stayed = stayed.iter().map(|stayed| (vec![("reason", stayed.reason.clone())], Number::Count(stayed.flows)));
    vec![
        one(
            "offload_up",
            "Whether the process is there that gives flows to the kernel or a card",
            level((*running).into()),
        ),
        one("offload_ports", "Ports whose flows may be there", level(*ports)),
        one("offload_flows", "Flows that are there", level(*flows)),
        one("offload_hardware_flows", "Those of them that a card carries out", level(*in_hardware)),
        one("offload_packets", "Packets that passed lasthop by, as the kernel counts them", Number::Count(*packets)),
        one("offload_bytes", "Their bytes", Number::Count(*bytes)),
        family("offload_stayed_flows", "Flows that stayed in lasthop, by reason", stayed.collect()),
    ]
}
