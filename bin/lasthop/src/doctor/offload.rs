//! Flows in the kernel or a card: whether they get there.

use super::facts::Facts;
use super::finding::Finding;
use lasthop_text::counted;
use lasthop_uplink_ipc::UplinkDriver;

pub fn findings(facts: &Facts<'_>) -> Vec<Finding> {
    let tc = facts.ports().filter(|port| port.driver.as_deref() == Some(UplinkDriver::Tc.name()));
    let Some(offload) = &facts.now.switch.host.offload else {
        let what = "it is a representor, and none of its flows is in the kernel or a card: lasthop carries all";
        let remedy = "start `lasthop run` with --hw-offload; or use driver=af_packet, which costs less where lasthop carries all";
        return tc.map(|port| Finding::at(&port.name, "no-offload", what).remedy(remedy)).collect();
    };
    if !offload.running {
        let what = "no flow is put into the kernel or a card: the process lasthop-flower is not there";
        let remedy = "it is being started; if this stays so, the log of `lasthop run` says why";
        return vec![Finding::of_all("offload-away", what).seen("--hw-offload, and no lasthop-flower").remedy(remedy)];
    }
    let declined = offload.stayed.iter().find(|stayed| stayed.reason == "declined");
    let declined = declined.map(|stayed| {
        let what = "the kernel, or the card, did not take flows that lasthop gave it: lasthop carries them";
        let seen = format!("{} with tc-policy={}", counted(stayed.flows, "flow"), offload.policy);
        let remedy = if offload.policy == "skip_sw" {
            "a card takes flows in switchdev mode (`devlink dev eswitch set DEVICE mode switchdev`, `ethtool -K REPRESENTOR hw-tc-offload on`); what it does not take the kernel does with --tc-policy none"
        } else {
            "see whether the kernel has the modules cls_flower, act_mirred and act_vlan (`modprobe -a cls_flower act_mirred act_vlan`)"
        };
        Finding::of_all("offload-declined", what).seen(seen).remedy(remedy)
    });
    declined.into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::super::facts::testutil::*;
    use super::*;
    use lasthop_api::{Offload, Port, Stayed};

    #[test]
    fn flows_that_do_not_get_there_are_told() {
        let tc = Port { driver: Some("tc".into()), ..up("vm1") };
        let kinds = |offload: Option<Offload>| {
            let mut now = seen(&[tc.clone(), up("vm2")]);
            now.switch.host.offload = offload;
            findings(&facts(&now, &now)).iter().map(|f| (f.kind, f.port.clone())).collect::<Vec<_>>()
        };
        assert_eq!(kinds(None), [("no-offload", Some("vm1".to_owned()))]);
        assert_eq!(kinds(Some(Offload::default())), [("offload-away", None)]);
        let runs = Offload { running: true, policy: "skip_sw".into(), ..Offload::default() };
        assert_eq!(kinds(Some(runs.clone())), []);
        let stayed = |reason: &str| Stayed { reason: reason.into(), flows: 3, ..Stayed::default() };
        assert_eq!(kinds(Some(Offload { stayed: vec![stayed("floods")], ..runs.clone() })), []);
        assert_eq!(kinds(Some(Offload { stayed: vec![stayed("declined")], ..runs })), [("offload-declined", None)]);
    }
}
