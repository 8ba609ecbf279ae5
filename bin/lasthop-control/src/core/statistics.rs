//! `lasthop stats`: figures of the switch as a whole, and what was dropped by which rule. The latter is as fresh as the last look
//! at the flows, so whoever asks has the flows looked at first, if there are any that drop packets.

use super::{Answer, Core, FLOWS, MAX_QUESTIONS, Question, busy, give, refuse};
use crate::view;
use lasthop_api::{CpuTimes, Denied, Host, LeftOut, Replaced, SwitchStats};
use lasthop_policy::acl::{Direction, Scope};
use lasthop_policy::{DeniedBy, Why};

/// Entries of what floods leave out, and ports that each names.
const MAX_LEFT_OUT: usize = 64;
const MAX_NAMED: usize = 4;

/// What the supervisor knows of the processes.
type OfProcesses = (CpuTimes, Vec<Replaced>, Host);
type Wanted = (OfProcesses, Answer<SwitchStats>);

/// Those who want statistics.
#[derive(Debug, Default)]
pub(super) struct StatsWanted {
    /// They get them when the flows have been looked at that are being looked at.
    soon: Vec<Wanted>,
    /// They came when that had begun: when they have been looked at once more.
    later: Vec<Wanted>,
}

impl Core {
    /// Somebody wants statistics; `of_processes` goes with them.
    pub(super) fn stats_asked(&mut self, of_processes: OfProcesses, answer: Answer<SwitchStats>, now_ms: u64) {
        if !self.attached || !self.reconciled || !self.policy.has_drops() {
            return give(answer, self.stats(of_processes, now_ms));
        }
        let wanted = &mut self.stats_wanted;
        wanted.later.retain(|(_, answer)| !answer.is_closed());
        if wanted.later.iter().filter(|(_, other)| other.asker == answer.asker).count() >= MAX_QUESTIONS {
            return refuse(answer, busy());
        }
        wanted.later.push((of_processes, answer));
        self.look_again();
    }

    /// The flows have been looked at.
    pub(super) fn stats_ready(&mut self, now_ms: u64) {
        for (of_processes, answer) in std::mem::take(&mut self.stats_wanted.soon) {
            give(answer, self.stats(of_processes, now_ms));
        }
        self.look_again();
    }

    fn look_again(&mut self) {
        let under_way = self.questions.values().any(|q| matches!(q, Question::Statistics { .. }));
        if !under_way && !self.stats_wanted.later.is_empty() {
            self.stats_wanted.soon = std::mem::take(&mut self.stats_wanted.later);
            let asked = self.policy.asked();
            self.ask(FLOWS, Question::Statistics { asked, reconcile: false, flows: Vec::new() });
        }
    }

    /// There is no switch to ask any more: what is known has to do.
    pub(super) fn stats_without_switch(&mut self, now_ms: u64) {
        let later = std::mem::take(&mut self.stats_wanted.later);
        self.stats_wanted.soon.extend(later);
        for (of_processes, answer) in std::mem::take(&mut self.stats_wanted.soon) {
            give(answer, self.stats(of_processes, now_ms));
        }
    }

    fn stats(&self, (cpu, replaced, host): OfProcesses, now_ms: u64) -> SwitchStats {
        SwitchStats {
            switch_connected: self.attached,
            ports: self.configs.len() as u64,
            macs: self.policy.mac_count() as u64,
            flows: self.policy.flow_count() as u64,
            masks: self.policy.mask_count() as u64,
            floods_left_out: self.policy.floods_left_out() as u64,
            epoch: self.policy.epoch(),
            misses: self.counts.misses,
            flows_put: self.counts.flows_put,
            flows_deleted: self.counts.flows_deleted,
            malformed: self.counts.malformed,
            uptime_ms: now_ms.saturating_sub(self.started_ms),
            cpu,
            removed_from_guest: view::totals(&self.removed.0),
            removed_to_guest: view::totals(&self.removed.1),
            caches: view::caches(&self.caches),
            denied: self.denied(now_ms),
            left_out: self.left_out(),
            replaced,
            open_vswitch: self.interfaces_of_others(),
            deciders: self.others.clone(),
            host,
            device: self.device_table(),
        }
    }

    fn denied(&self, now_ms: u64) -> Vec<Denied> {
        let denied = self.policy.denied().map(|(port, (reason, rule, setting), denied): (_, &Why, _)| Denied {
            port: self.name(port),
            packets: denied.packets,
            reason: reason.name().into(),
            list: rule.as_ref().and_then(|rule| match &rule.scope {
                Scope::Guests => None,
                Scope::Uplinks => Some("uplinks".to_owned()),
                Scope::Port(name) => Some(name.clone()),
            }),
            direction: rule.as_ref().map(|rule| rule.direction.to_string()),
            rule: rule.as_ref().and_then(|rule| rule.rule),
            text: rule.as_ref().and_then(|rule| self.rule_text(rule)),
            setting: setting.map(str::to_owned),
            age_ms: now_ms.saturating_sub(denied.last_ms),
            packet: denied.packet.map(|packet| match *setting {
                Some("mac") => view::sentence_with_mac(&packet),
                _ => view::sentence(&packet),
            }),
        });
        denied.collect()
    }

    fn left_out(&self) -> Vec<LeftOut> {
        let left_out = self.policy.left_out_of_floods(|id| self.name(id)).into_iter().take(MAX_LEFT_OUT);
        let shown = left_out.map(|l| LeftOut {
            port: self.name(l.from),
            vlan: l.vlan,
            reason: l.reason.name().into(),
            to: l.to.iter().take(MAX_NAMED).map(|to| self.name(*to)).collect(),
            ports: l.to.len() as u64,
            why: l.why,
        });
        shown.collect()
    }

    /// The rule as `acl show` has it.
    fn rule_text(&self, by: &DeniedBy) -> Option<String> {
        let same = |(scope, direction): (&Scope, Direction)| *scope == by.scope && direction == by.direction;
        let (.., list) = self.book.iter().find(|(scope, direction, _)| same((scope, *direction)))?;
        match by.rule? {
            0 => Some(format!("default {}", list.default())),
            n => list.rules().get(n as usize - 1).map(ToString::to_string),
        }
    }
}
