//! The tables of those who use Open vSwitch: Neutron's firewall and OVN's logical switch.

use super::{DRIVEN_LIST, ESTABLISHED, LIST, NEW_CONNECTIONS, OURS, Scenario, scenario};
use crate::acl::Kind;
use crate::guests::load::{Act, Setup};
use crate::pipelines::Pipeline;
use crate::work::Work;

/// The same through the tables of somebody who uses Open vSwitch; lasthop alone has the list of rules that is in them.
const fn tables(name: &'static str, title: &'static str, whose: Pipeline, act: Act) -> Scenario {
    let setup = Setup { rules: 100, kind: Kind::Tables(whose), ..Setup::PLAIN };
    scenario(name, title, &[OURS, DRIVEN_LIST, LIST], Work::Load(setup, act))
}

const ONE_NEW_CONNECTION: Act = Act { window: Some(1), flows: 4000, ..NEW_CONNECTIONS };

/// Established connections, new ones, and first packets.
pub(super) static ALL: [Scenario; 6] = [
    tables(
        "driven-neutron",
        "64-byte frames there and back, 10 000 connections, the tables of Neutron's firewall with 100 rules",
        Pipeline::Neutron,
        ESTABLISHED,
    ),
    tables(
        "driven-neutron-new",
        "10 000 packets, each opens a connection, 64 on their way, the tables of Neutron's firewall with 100 rules",
        Pipeline::Neutron,
        NEW_CONNECTIONS,
    ),
    tables(
        "driven-neutron-one",
        "4000 packets, each opens a connection, one at a time, the tables of Neutron's firewall with 100 rules",
        Pipeline::Neutron,
        ONE_NEW_CONNECTION,
    ),
    tables(
        "driven-ovn",
        "64-byte frames there and back, 10 000 connections, the tables of OVN's logical switch with 100 rules",
        Pipeline::Ovn,
        ESTABLISHED,
    ),
    tables(
        "driven-ovn-new",
        "10 000 packets, each opens a connection, 64 on their way, the tables of OVN's logical switch with 100 rules",
        Pipeline::Ovn,
        NEW_CONNECTIONS,
    ),
    tables(
        "driven-ovn-one",
        "4000 packets, each opens a connection, one at a time, the tables of OVN's logical switch with 100 rules",
        Pipeline::Ovn,
        ONE_NEW_CONNECTION,
    ),
];
