//! Samples that the switch draws, for sFlow and IPFIX: it has control told of the headers of some packets, and what Open vSwitch is told of each is made here.

use crate::Datapath;
use crate::packets::Upcall;
use crate::table::FlowId;
use crate::walk::{Rest, Tracking, Walk};
use lasthop_flow::Action;
use lasthop_ipc::UpcallPacket;
use lasthop_ovs_abi::{Act, Key, family::packet_command};
use lasthop_tunnel::Tunnel;
use lasthop_types::PortId;

/// What is to be told of packets that one action of the switch's has drawn.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Sampler {
    /// All that they do not show themselves: where they are from, their tunnel, and what actions have given them before.
    pub key: Key,
    pub pid: u32,
    pub userdata: Option<Vec<u8>>,
    pub acts_of: Option<FlowId>,
    /// The outer header that they leave with.
    pub egress: Option<Box<Tunnel>>,
}

impl<F: Fn(u32) -> Option<PortId>> Walk<'_, F> {
    /// Some packets, drawn by chance, are to be done this with.
    pub(crate) fn sample(&mut self, probability: u32, acts: &[Act]) {
        let hit = self.next_random() <= probability && probability > 0;
        let is_simple = self.is_simple && self.let_switch_draw(probability, acts);
        self.with_copy(|walk| {
            if hit {
                let _ = walk.run(acts);
            }
        });
        self.is_simple = is_simple;
    }

    /// Has the switch do it, if it can: false if not. It can if Open vSwitch wants to see such packets, and no more. What it wants is their headers: sFlow and IPFIX look at nothing else.
    fn let_switch_draw(&mut self, probability: u32, acts: &[Act]) -> bool {
        let sampler = |act: &Act| match act {
            Act::Userspace { pid, userdata, actions, egress } => Some(Sampler {
                key: self.key,
                pid: *pid,
                userdata: userdata.clone(),
                acts_of: self.current.filter(|_| *actions),
                egress: self.egress(*egress),
            }),
            _ => None,
        };
        let Some(samplers) = acts.iter().map(sampler).collect::<Option<Vec<_>>>() else { return false };
        let Ok(len) = u16::try_from(samplers.len()) else { return false };
        self.actions.push(Action::Sample(probability, len));
        for sampler in samplers {
            let number = self.first_sampler.wrapping_add(self.samplers.len() as u32);
            self.actions.push(Action::ToControl(number));
            self.samplers.push(sampler);
        }
        true
    }
}

impl Datapath {
    /// The switch has drawn a packet, which goes on there. Bytes behind those that it tells of are zeros.
    pub(crate) fn sampled(&mut self, upcall: &UpcallPacket, number: u32) {
        // Without one its flow is gone, and so is perhaps what it was to be told for.
        let Some(Sampler { key, pid, userdata, acts_of, egress }) = self.registry.sampler(number).cloned() else {
            return;
        };
        let start = upcall.header.as_slice();
        let tracking = Tracking {
            tracker: None,
            fragments: None,
            policies: &self.policies,
            now_ms: self.now_ms,
            only_looks: true,
        };
        let frame = (start, upcall.frame_len as usize);
        let key = Walk::new((&self.table, tracking), |_| None, &mut self.random, key, frame).key;
        let rest = Rest { bytes: vec![0; frame.1.saturating_sub(start.len())].into(), fragments: None };
        let pid = self.pid_for(key.packet.in_port, Some(pid));
        let acts = acts_of.and_then(|id| self.table.get(id)).map(|flow| flow.act_bytes.clone());
        self.upcall(&Upcall { command: packet_command::ACTION, pid, key, start, rest, userdata, acts, egress });
    }
}
