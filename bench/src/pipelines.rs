//! Tables of flows as those who use Open vSwitch lay them out, for two guests: what a packet has to go through is theirs, the words are ours.
//!
//! Neutron's firewall (its driver `openvswitch`) tracks a packet once, in the zone of its network. OVN's logical switch tracks it in the sender's zone and in the
//! receiver's, each time with a lookup, hints, a list, and a commit of what is new. Both know who may send what (port security), and send on by address.
//!
//! **The lists are simpler than theirs.** A rule here looks at packets that open a connection alone, and denies, in front of a default that permits. Rules of security groups and of
//! `allow-related` permit, in front of a default that denies, and those of Neutron and OVN look at further packets of the side that has opened the connection, too. So here no rule's fields
//! are in the masks of the flows that packets of known connections meet, and there they are.

use lasthop_loadgen::frame::{ip, mac};
use std::fmt::Write;

/// Who lays the tables out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pipeline {
    /// OpenStack's Neutron.
    Neutron,
    /// OVN.
    Ovn,
}

/// A port, by the numbers of Open vSwitch and of `lasthop_loadgen`, and the other one.
fn ports() -> [(u16, u16); 2] {
    [(1, 2), (2, 1)]
}

fn address(port: u16) -> String {
    mac(port - 1).to_string()
}

fn network(port: u16) -> String {
    let [a, b, ..] = ip(port - 1);
    format!("{a}.{b}.0.0/16")
}

impl Pipeline {
    /// What stands in front of each rule of the list, and where a packet goes on that none denies. A rule is about what opens a connection.
    pub fn list(self) -> (&'static str, u16) {
        match self {
            Self::Neutron => ("table=72,ct_state=+trk+new-est,", 73),
            Self::Ovn => ("table=13,ct_state=+trk+new-est,", 14),
        }
    }

    /// All other flows; packets leave for the table `to`. Rules of the list have priorities from 10 on.
    pub fn flows(self, to: u16) -> String {
        match self {
            Self::Neutron => neutron(to),
            Self::Ovn => ovn(to),
        }
    }
}

/// Registers: 5 the port, 6 the network, whose zone it is.
fn neutron(to: u16) -> String {
    let mut text = String::from(
        "priority=2,actions=drop\n\
         table=71,priority=10,actions=drop\n\
         table=72,priority=60003,ct_state=+trk+inv,actions=drop\n\
         table=72,priority=60002,ip,ct_mark=1,actions=drop\n\
         table=72,priority=60001,ip,ct_state=+trk+est-rel+rpl,ct_mark=0,actions=resubmit(,73)\n\
         table=72,priority=60001,ip,ct_state=+trk+rel-new-est-inv,ct_mark=0,actions=resubmit(,73)\n\
         table=72,priority=5,ip,ct_state=+trk+est-rel-rpl,actions=resubmit(,73)\n\
         table=72,priority=5,ip,ct_state=+trk+new-est,actions=resubmit(,73)\n\
         table=81,priority=90,ip,ct_state=-trk,actions=ct(table=82,zone=NXM_NX_REG6[0..15])\n\
         table=81,priority=80,ip,ct_state=+trk,actions=resubmit(,82)\n\
         table=82,priority=60003,ct_state=+trk+inv,actions=drop\n\
         table=82,priority=60002,ip,ct_mark=1,actions=drop\n",
    );
    for (port, other) in ports() {
        let (own, theirs, net) = (address(port), address(other), network(port));
        let _ = write!(
            text,
            "priority=10,in_port={port},actions=load:{port}->NXM_NX_REG5[],load:1->NXM_NX_REG6[],resubmit(,71)\n\
             table=71,priority=95,arp,reg5={port},in_port={port},dl_src={own},actions=resubmit(,{to})\n\
             table=71,priority=65,ip,reg5={port},in_port={port},dl_src={own},nw_src={net},actions=ct(table=72,zone=NXM_NX_REG6[0..15])\n"
        );
        for to_other in [theirs.as_str(), "ff:ff:ff:ff:ff:ff"] {
            let _ = writeln!(
                text,
                "table=73,priority=100,reg5={port},reg6=1,dl_dst={to_other},actions=load:{other}->NXM_NX_REG5[],resubmit(,81)"
            );
        }
        let _ = write!(
            text,
            "table=82,priority=60001,ip,reg5={port},ct_state=+trk+est-rel,ct_mark=0,actions=resubmit(,{to})\n\
             table=82,priority=60001,ip,reg5={port},ct_state=+trk+rel-new-est-inv,ct_mark=0,actions=resubmit(,{to})\n\
             table=82,priority=60000,ip,reg5={port},ct_state=+trk+new-est,actions=ct(commit,zone=NXM_NX_REG6[0..15]),resubmit(,{to})\n"
        );
    }
    text
}

/// Registers: 0 what is to be done (1 track, 2 commit), 13 the zone, 14 and 15 the ports that it came from and is for.
fn ovn(to: u16) -> String {
    let mut text = String::from("priority=2,actions=drop\n");
    // A logical switch's two halves are alike: the sender's from table 10 on, the receiver's from table 42 on.
    for (first, onwards) in [(10, 15), (42, 47)] {
        let [track, hint, list, commit] = [1, 2, 3, 4].map(|n| first + n);
        let _ = write!(
            text,
            "table={first},priority=100,ip,actions=load:1->NXM_NX_REG0[0],resubmit(,{track})\n\
             table={first},priority=0,actions=resubmit(,{track})\n\
             table={track},priority=100,ip,reg0=0x1/0x1,actions=ct(table={hint},zone=NXM_NX_REG13[0..15])\n\
             table={track},priority=0,actions=resubmit(,{hint})\n\
             table={hint},priority=7,ct_state=+trk+new-est,actions=load:1->NXM_NX_REG0[7],load:1->NXM_NX_REG0[9],resubmit(,{list})\n\
             table={hint},priority=4,ct_state=+trk-new+est-rpl,ct_mark=0/0x1,actions=load:1->NXM_NX_REG0[8],load:1->NXM_NX_REG0[10],resubmit(,{list})\n\
             table={hint},priority=0,actions=resubmit(,{list})\n\
             table={list},priority=65532,ct_state=+trk+inv,actions=drop\n\
             table={list},priority=65532,ct_state=+trk+est+rpl,ct_mark=0x1/0x1,actions=drop\n\
             table={list},priority=65532,ct_state=+trk-new+est-rel+rpl-inv,ct_mark=0/0x1,actions=resubmit(,{commit})\n\
             table={list},priority=65532,ct_state=+trk-new-est+rel-inv,ct_mark=0/0x1,actions=resubmit(,{commit})\n\
             table={list},priority=5,ip,reg0=0x80/0x80,actions=load:1->NXM_NX_REG0[1],resubmit(,{commit})\n\
             table={list},priority=5,ip,reg0=0x100/0x100,actions=resubmit(,{commit})\n\
             table={list},priority=0,actions=resubmit(,{commit})\n\
             table={commit},priority=100,ip,reg0=0x2/0x2,actions=ct(commit,zone=NXM_NX_REG13[0..15],exec(load:0->NXM_NX_CT_MARK[0])),resubmit(,{onwards})\n\
             table={commit},priority=0,actions=resubmit(,{onwards})\n"
        );
    }
    for (port, other) in ports() {
        let (own, theirs, net) = (address(port), address(other), network(port));
        let _ = write!(
            text,
            "priority=100,in_port={port},actions=load:{port}->NXM_NX_REG13[],load:{port}->NXM_NX_REG14[],load:1->OXM_OF_METADATA[],resubmit(,8)\n\
             table=8,priority=50,reg14={port},metadata=1,dl_src={own},actions=resubmit(,9)\n\
             table=9,priority=90,ip,reg14={port},metadata=1,dl_src={own},nw_src={net},actions=resubmit(,10)\n\
             table=9,priority=90,arp,reg14={port},metadata=1,dl_src={own},actions=resubmit(,10)\n\
             table=38,priority=100,reg15={port},metadata=1,actions=load:{port}->NXM_NX_REG13[],resubmit(,40)\n\
             table=40,priority=100,reg14={port},reg15={port},actions=drop\n\
             table=48,priority=50,reg15={port},metadata=1,dl_dst={own},actions=resubmit(,{to})\n\
             table=48,priority=100,reg15={port},metadata=1,dl_dst=ff:ff:ff:ff:ff:ff,actions=resubmit(,{to})\n"
        );
        for to_other in [theirs.as_str(), "ff:ff:ff:ff:ff:ff"] {
            let _ = writeln!(
                text,
                "table=15,priority=50,reg14={port},metadata=1,dl_dst={to_other},actions=load:{other}->NXM_NX_REG15[],resubmit(,38)"
            );
        }
    }
    text += "table=40,priority=0,actions=load:0->NXM_NX_REG0[],resubmit(,42)\n\
             table=47,priority=0,actions=resubmit(,48)\n";
    text
}
