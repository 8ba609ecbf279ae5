//! What policy would do with a packet, in words (`lasthop trace`).

use crate::Learning;
use crate::acl::{Decision, Direction, List};
use crate::flows::{Pair, Refusal, VID, Verdict};
use crate::learning::{CopyTo, Headers, Obstacle, Passage, Probe, Refused, Track, home, inside, refusal};
use crate::mactable::Learned;
use crate::membership::Tag;
use lasthop_frame::{FlowKey, FlowMask};
use lasthop_text::{MacAddr, counted};
use lasthop_types::{DropReason, PortId};
use std::net::IpAddr;

/// A decision and its reasons.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Explanation {
    /// The reasons, in the order they were found.
    pub lines: Vec<String>,
    /// Where the packet goes; empty, or the port it came from, drops it.
    pub outputs: Vec<PortId>,
    /// It goes to every port that is up, as far as learning is asked.
    pub floods: bool,
}

fn in_vlan(pair: &Pair) -> String {
    if pair.vlan == 0 { String::new() } else { format!(" in VLAN {}", pair.vlan) }
}

/// Why a packet is refused whatever has been learned.
fn refused(refusal: &Refusal, key: &FlowKey) -> String {
    match refusal {
        Refusal::GroupSource(_) => {
            format!("source {} is a group address: dropped, whatever the destination", MacAddr(key.eth_src))
        }
        Refusal::ZeroSource(_) => "source is all zeros: dropped, whatever the destination".to_owned(),
        Refusal::LinkLocal(_) => {
            format!(
                "destination {} is reserved for the link itself (IEEE 802.1D): never forwarded",
                MacAddr(key.eth_dst)
            )
        }
    }
}

impl Learning {
    /// What a packet with this key and these headers would meet if no flow matched it. Changes nothing. `name` gives a port's name.
    pub fn explain(
        &self,
        key: &FlowKey,
        headers: Headers<'_>,
        now_ms: u64,
        name: impl Fn(PortId) -> String,
    ) -> Explanation {
        let dropped = |lines| Explanation { lines, outputs: Vec::new(), floods: false };
        let (from, mut copied) = (key.port(), Vec::new());
        let mut lines = self.explain_copies(self.copies_from(from), &mut copied, "as it came", &name);
        let dropped_for = |lines: Vec<_>, why| dropped([lines, vec![why]].concat());
        if let Some(refusal) = refusal(key) {
            return dropped_for(lines, refused(&refusal, key));
        }
        let probe = Probe { headers: Some(headers), now_ms, peek: true };
        let admitted = self.admit(key, &mut FlowMask::default(), &probe);
        let vlan = match &admitted {
            Ok((vlan, _)) | Err(Refused::List(vlan, _)) => *vlan,
            Err(refused) => return dropped_for(lines, self.explain_refused(refused, key, &name)),
        };
        if vlan != key.vlan_tci & VID {
            lines.push(format!("frames without a tag belong to VLAN {vlan} at {}", name(from)));
        }
        let track = self.track(key, vlan, &probe);
        let decide = |list: &List, key: &FlowKey, direction, to| {
            let standing = self.standing(&track, key, vlan, to);
            list.check(&inside(key, vlan), standing, direction, &mut FlowMask::default())
        };
        let pair = Pair { dst: home(&track).unwrap_or(MacAddr(key.eth_dst)), ..Pair::of(key, vlan) };
        if self.tracks(from) || self.is_tracked_at(&pair) {
            lines.extend(self.explain_connection(&track, &name));
        }
        if let Some((scope, list)) = self.scoped_list(from, Direction::FromGuest) {
            let decision = decide(list, key, Direction::FromGuest, None);
            lines.push(format!("{scope} access list, from-guest at {}: {}", name(from), decided(list, decision)));
            if admitted.is_err() {
                return dropped(lines);
            }
        }
        lines.push(self.explain_source(&pair, now_ms, &name));
        let verdict = self.way(key, vlan, &track);
        let mut outputs = self.outputs(verdict, vlan, key, &mut FlowMask::default());
        let (mut delivered, mut unasked, mut obstacle) = (*key, false, None);
        if verdict != Verdict::Hairpin {
            match self.passage(key, vlan, &track, &probe, &mut outputs, &mut FlowMask::default()) {
                Ok(mut passage) => {
                    obstacle = self.obstacle(key, vlan, &track, &mut passage, (&outputs, now_ms));
                    lines.extend(self.explain_passage(key, &passage, &track, &name));
                    delivered = passage.delivered;
                    unasked = self.is_outside(key, &mut FlowMask::default()) && self.is_unasked(&track, &passage);
                }
                Err(reason) => return dropped_for(lines, explain_untranslatable(reason)),
            }
        }
        let ways = outputs.iter().filter(|(to, _)| verdict != Verdict::Sought(*to)).count();
        lines.push(self.explain_destination(key, &pair, verdict, ways, &name));
        if verdict != Verdict::Hairpin {
            outputs.retain(|(port, tag)| {
                lines.extend(explain_tag(*tag, || name(*port)));
                let Some((scope, list)) = self.scoped_list(*port, Direction::ToGuest) else { return true };
                let decision = decide(list, &delivered, Direction::ToGuest, Some(*port));
                let there = name(*port);
                lines.push(format!("{scope} access list, to-guest at {there}: {}", decided(list, decision)));
                decision.permits()
            });
        }
        lines.extend(self.explain_unasked(unasked, from, &mut outputs));
        lines.extend(self.explain_obstacle(obstacle, from, &mut outputs, &name));
        self.explain_end(lines, outputs, (from, verdict), copied, name)
    }

    /// What is said of a packet to a translated address that nobody asked for; where it does not go is taken out.
    fn explain_unasked(&self, unasked: bool, from: PortId, outputs: &mut Vec<(PortId, Tag)>) -> Option<String> {
        outputs.retain(|(port, _)| !unasked || self.takes_unasked(from, *port));
        unasked.then(|| UNASKED.to_owned())
    }

    /// What keeps it from opening the connection that it would open; then it goes nowhere.
    fn explain_obstacle(
        &self,
        obstacle: Option<Obstacle>,
        from: PortId,
        outputs: &mut Vec<(PortId, Tag)>,
        name: impl Fn(PortId) -> String,
    ) -> Option<String> {
        let obstacle = obstacle.filter(|_| !outputs.is_empty())?;
        let there = name(from);
        let why = match obstacle {
            Obstacle::Full(capacity) => {
                return Some(format!(
                    "there are {capacity} connections, as many as may be: another gives way to the one that it would open, or it is dropped (ct_limit)"
                ));
            }
            Obstacle::Owner(open, limit) => {
                let told = self.guest_settings(from).and_then(|settings| settings.connections);
                let whose = told.map_or("its part of the table".into(), |most| format!("connections={most}"));
                format!("{there} has {open} of {limit} ({whose})")
            }
            Obstacle::Share(held) => format!(
                "{there} holds {} of the translated address towards that server, its share (address_share)",
                counted(u64::from(held), "port")
            ),
            Obstacle::NoTranslation => "no address and port is free to translate it to (no_translation)".to_owned(),
        };
        outputs.clear();
        Some(format!("it would open a connection, but {why}: dropped (ct_limit)"))
    }

    /// Copies and rates where it goes.
    fn explain_end(
        &self,
        mut lines: Vec<String>,
        outputs: Vec<(PortId, Tag)>,
        (from, verdict): (PortId, Verdict),
        mut copied: Vec<PortId>,
        name: impl Fn(PortId) -> String,
    ) -> Explanation {
        for (port, _) in outputs.iter().filter(|_| verdict != Verdict::Hairpin) {
            let how = format!("as {} gets it", name(*port));
            lines.extend(self.explain_copies(self.copies_to(*port), &mut copied, &how, &name));
        }
        let outputs: Vec<_> = outputs.into_iter().map(|(port, _)| port).collect();
        lines.extend(self.explain_rates(from, verdict, &outputs, &name));
        Explanation { lines, outputs, floods: verdict.floods() }
    }

    /// Some list of the ports that learning would send it to asks about connections.
    fn is_tracked_at(&self, pair: &Pair) -> bool {
        match self.verdict(pair) {
            Verdict::To(to) => self.tracks(to),
            Verdict::Flood => self.flooded().any(|to| self.tracks(to)),
            Verdict::Sought(to) => self.flooded().chain([to]).any(|to| self.tracks(to)),
            Verdict::Hairpin => false,
        }
    }

    /// Why it may not enter, where that is no access list's word.
    fn explain_refused(&self, refused: &Refused, key: &FlowKey, name: impl Fn(PortId) -> String) -> String {
        let from = name(key.port());
        match refused {
            Refused::Pulled => format!("settings of {from}: link=down: nothing passes there: dropped"),
            Refused::MirrorPort => format!("{from} is a mirror's destination: what it sends is dropped"),
            Refused::Pretence(pretence) => format!("settings of {from}: {pretence}: dropped"),
            Refused::Vlan | Refused::List(..) => format!("{}: dropped", self.why_not_in(key.port(), key, &name)),
        }
    }

    /// What rates may do to it: they hold for packets of all kinds, and this one is judged without them.
    fn explain_rates(
        &self,
        from: PortId,
        verdict: Verdict,
        outputs: &[PortId],
        name: impl Fn(PortId) -> String,
    ) -> Vec<String> {
        let settings = |port| self.guest_settings(port);
        let rate_from = settings(from).and_then(|of| of.rate_from).map(|rate| {
            format!("rate-from={rate} of {}: while more than that is sent it waits in its guest", name(from))
        });
        let storm = settings(from).and_then(|of| of.storm).filter(|_| verdict.floods()).map(|rate| {
            format!("storm={rate} of {}: dropped (storm) while more than that is flooded from there", name(from))
        });
        let rate_to = outputs.iter().filter_map(|port| Some((port, settings(*port)?.rate_to?))).map(|(port, rate)| {
            format!(
                "rate-to={rate} of {}: it waits, or is dropped there (rate), while more than that is sent to it",
                name(*port)
            )
        });
        rate_from.into_iter().chain(storm).chain(rate_to).collect()
    }

    /// What it is to connections, if it is anything to them.
    fn explain_connection(&self, track: &Track, name: impl Fn(PortId) -> String) -> Option<String> {
        let number = track.known().map(|known| known.tuple());
        Some(match (track, number) {
            (Track::None, _) => return None,
            (Track::New(_), Some(tuple)) => format!("it is one of the connection {tuple}, which nobody has answered yet"),
            (Track::New(_), None) => "it would open a connection".to_owned(),
            (Track::Displaces(_), _) => {
                "there is a connection between its addresses, of other ports, that nobody has answered: if it passes, it takes its place".into()
            }
            (Track::Taken, _) => {
                "there is a connection between its addresses, but of other ports: it is judged as one that opens a connection".into()
            }
            (Track::Invalid(_), _) if self.lacks_connections() => {
                "there is no memory for the table of connections: stateful access lists drop it".into()
            }
            (Track::Invalid(refusal), _) => {
                format!("it is of no connection, and can open none ({}): stateful access lists drop it", refusal.name())
            }
            (track, tuple) => {
                let kind = if matches!(track, Track::Related(_)) { "is an ICMP error about" } else { "belongs to" };
                let tuple = tuple.unwrap_or_default();
                let from = track.known().map(|known| known.from()).unwrap_or_default();
                format!("it {kind} the established connection {tuple}, opened from {}", name(PortId(from)))
            }
        })
    }

    /// What its addresses are translated to, if they are.
    fn explain_passage(
        &self,
        key: &FlowKey,
        passage: &Passage,
        track: &Track,
        name: impl Fn(PortId) -> String,
    ) -> Option<String> {
        let by = |(direction, port, number): &(Direction, PortId, usize)| {
            let (scope, list) = self.scoped_list(*port, *direction)?;
            let text = list.translations().get(number - 1)?;
            let kind = if text.source { "snat" } else { "dnat" };
            Some(format!("{scope} access list, {kind} {number} at {} decides ({text})", name(*port)))
        };
        let by: Vec<_> = passage.by.iter().filter_map(by).collect();
        let why = if by.is_empty() { "its connection is translated".to_owned() } else { by.join("; ") };
        let to = |home: MacAddr| format!(", to the station {home}");
        let station = home(track).filter(|home| *home != MacAddr(key.eth_dst)).map_or_else(String::new, to);
        passage.is_translated().then(|| format!("{why}: it goes on as {}{station}", addresses(&passage.delivered)))
    }

    /// Whether its source is learned, or would be.
    fn explain_source(&self, pair: &Pair, now_ms: u64, name: impl Fn(PortId) -> String) -> String {
        let (source, here) = (format!("source {}{}", pair.src, in_vlan(pair)), name(pair.port));
        match self.macs.would_learn(pair.vlan, pair.src, pair.port, now_ms) {
            _ if !self.has_port(pair.port) => format!("{source}: port {here} does not exist, nothing is learned"),
            Learned::Known if self.static_mac(pair.vlan, pair.src).is_some() => format!("{source} is static at {here}"),
            Learned::Known => format!("{source} is known to live at {here}"),
            Learned::New => format!("{source} is new and would be learned at {here}"),
            Learned::Moved { from, to } if to == pair.port => {
                format!("{source} lives at {} and would move to {here}", name(from))
            }
            Learned::Moved { to, .. } => {
                format!("{source} moves too often: it would go back to {} and be held there", name(to))
            }
            Learned::Static(at) => format!("{source} is static at {}: not learned at {here}", name(at)),
            Learned::Held => format!("{source} moves too often: it is held at its present port, not learned at {here}"),
            Learned::OverLimit => format!(
                "{source} would not be learned: {here} has {} of {} addresses (a limit per port protects the others)",
                self.macs.count(pair.port),
                self.macs.port_limit(pair.port)
            ),
        }
    }

    /// Where learning would send it, which is to so many ports.
    fn explain_destination(
        &self,
        key: &FlowKey,
        pair: &Pair,
        verdict: Verdict,
        outputs: usize,
        name: impl Fn(PortId) -> String,
    ) -> String {
        let vlan = pair.vlan;
        let destination = format!("destination {}{}", pair.dst, in_vlan(pair));
        let lives = if self.static_mac(vlan, pair.dst).is_some() { "is static" } else { "lives" };
        match verdict {
            Verdict::To(port) if outputs == 0 => {
                let why = self.why_not_to(port, vlan, key, &name).unwrap_or_default();
                format!("{destination} {lives} at {}, but {why}: dropped", name(port))
            }
            Verdict::To(port) => format!("{destination} {lives} at {}", name(port)),
            Verdict::Hairpin => {
                let here = name(pair.port);
                format!("{destination} lives at {here} itself: dropped, it needs no switch to get there")
            }
            Verdict::Flood | Verdict::Sought(_) => {
                let is = match verdict {
                    Verdict::Sought(port) => format!("lives at {}, which is not up", name(port)),
                    _ if pair.dst.is_multicast() => "is a group address".to_owned(),
                    _ => "is unknown".to_owned(),
                };
                let left_out = self.flood_leaves_out(vlan, key, &name).join(", ");
                let to = match (outputs, left_out.is_empty()) {
                    (0, true) => "no other port is up: dropped".to_owned(),
                    (0, false) => format!("{left_out}, and no other port is up: dropped"),
                    (1, true) => "flooded to the one other port that is up".to_owned(),
                    (1, false) => format!("flooded to one other port that is up; {left_out}"),
                    (n, true) => format!("flooded to the {n} other ports that are up"),
                    (n, false) => format!("flooded to {n} other ports that are up; {left_out}"),
                };
                format!("{destination} {is}: {to}")
            }
        }
    }

    /// That the frame may not enter by its VLAN.
    fn why_not_in(&self, port: PortId, key: &FlowKey, name: impl Fn(PortId) -> String) -> String {
        let (vlans, untagged) = self.vlans_of(port);
        let what = match key.vlan_tci & VID {
            0 if vlans.is_none_or(|vlans| vlans.contains(untagged)) => HIDDEN.to_owned(),
            0 => "frames without a tag".to_owned(),
            vlan if untagged != 0 && vlans.is_some_and(|vlans| vlans.contains(vlan)) => {
                format!("frames with a tag: it is an access port of VLAN {untagged}")
            }
            vlan => format!("VLAN {vlan}"),
        };
        self.does_not_carry(port, &what, name)
    }

    /// Why a frame of this VLAN does not go to a port, if it does not.
    pub(crate) fn why_not_to(
        &self,
        port: PortId,
        vlan: u16,
        key: &FlowKey,
        name: impl Fn(PortId) -> String,
    ) -> Option<String> {
        match self.apart(key.port(), port) {
            Some(DropReason::BetweenUplinks) => return Some("nothing goes from one uplink to another".to_owned()),
            Some(DropReason::PortDown) => {
                let pulled = if self.is_pulled(port) { port } else { key.port() };
                return Some(format!("{} is told link=down: nothing passes there", name(pulled)));
            }
            Some(DropReason::MirrorPort) => {
                return Some("it is a mirror's destination and gets nothing but copies".to_owned());
            }
            Some(_) => {
                let is_isolated = |port| self.settings(port).is_some_and(|settings| settings.isolated);
                let which = if is_isolated(key.port()) { key.port() } else { port };
                return Some(format!("{} is isolated: it talks to uplinks only", name(which)));
            }
            None => {}
        }
        let member = self.member(port);
        if member.leaves(vlan, key, &mut FlowMask::default()).is_some() {
            let unwanted = !self.wants(port, vlan, key, &mut FlowMask::default());
            return unwanted.then(|| format!("{} has snooping=on and has not joined this group", name(port)));
        }
        let what = match vlan {
            _ if member.is_member(vlan) => HIDDEN.to_owned(),
            0 => "frames without a VLAN".to_owned(),
            vlan => format!("VLAN {vlan}"),
        };
        Some(self.does_not_carry(port, &what, name))
    }

    fn does_not_carry(&self, port: PortId, what: &str, name: impl Fn(PortId) -> String) -> String {
        let (kind, how) = match (self.uplinks().get(&port), self.settings(port)) {
            (Some(vlans), _) => ("uplink", vlans.iter().map(|vlans| format!(" (vlans={vlans})")).collect()),
            (None, settings) => {
                ("port", settings.map_or_else(String::new, |settings| format!(" ({})", settings.vlans())))
            }
        };
        format!("{kind} {} does not carry {what}{how}", name(port))
    }

    /// Which ports a flood would have reached if they took it.
    fn flood_leaves_out(&self, vlan: u16, key: &FlowKey, name: impl Fn(PortId) -> String) -> Vec<String> {
        let others = self.flooded().filter(|to| *to != key.port());
        let why = |to| match self.apart(key.port(), to) {
            Some(_) => self.why_not_to(to, vlan, key, &name).map(|why| format!("not to {}: {why}", name(to))),
            None => self.why_not_to(to, vlan, key, &name),
        };
        others.filter_map(why).collect()
    }

    /// How many flows are flooded from an uplink, and leave out other uplinks that are up.
    pub fn floods_left_out(&self) -> usize {
        let leaves_out = |from: PortId| {
            self.flooded().any(|to| to != from && self.apart(from, to) == Some(DropReason::BetweenUplinks))
        };
        self.flooded().filter(|from| leaves_out(*from)).map(|from| self.flows.floods_of(from)).sum()
    }
}

/// Addresses and ports of a packet.
fn addresses(key: &FlowKey) -> String {
    let end = |bytes: [u8; 16], port: u16| {
        let address = match bytes {
            [.., a, b, c, d] if key.eth_type == 0x0800 => IpAddr::from([a, b, c, d]),
            bytes => bytes.into(),
        };
        if matches!(key.ip_proto, 6 | 17 | 132) { format!("{address} port {port}") } else { address.to_string() }
    };
    format!("{} to {}", end(key.ip_src, key.l4_src), end(key.ip_dst, key.l4_dst))
}

/// Why it cannot be translated.
fn explain_untranslatable(reason: DropReason) -> String {
    let why = match reason {
        DropReason::CtLimit => "no address and port is free to translate it to, or no edit makes it that",
        _ => {
            "it is to be translated, but a connection of other ports has its addresses, or its headers are not all there"
        }
    };
    format!("{why}: dropped ({})", reason.name())
}

/// What is said of a packet to a translated address that nobody asked for.
const UNASKED: &str = "its destination is a translated address, it is of no connection, and no dnat publishes anything there: ports with stateful access \
                       lists neither send nor get it (ct_invalid)";

/// What keeps a frame without a tag, or whose tag is taken off, from being one of another VLAN.
const HIDDEN: &str = "a VLAN tag that is cut off or behind another one";

impl Learning {
    /// Who gets copies, each destination one.
    fn explain_copies(
        &self,
        copies: &[CopyTo],
        copied: &mut Vec<PortId>,
        how: &str,
        name: impl Fn(PortId) -> String,
    ) -> Vec<String> {
        let explain = |(to, mirror): &CopyTo| {
            let to_name = name(*to);
            if copied.contains(to) {
                return format!("mirror {mirror}: {to_name} has a copy already");
            }
            copied.push(*to);
            match self.sampled(*to) {
                1 => format!("mirror {mirror}: a copy goes to {to_name}, {how}"),
                sample => format!("mirror {mirror}: a copy of one packet in {sample} goes to {to_name}, {how}"),
            }
        };
        copies.iter().map(explain).collect()
    }
}

fn explain_tag(tag: Tag, port: impl Fn() -> String) -> Option<String> {
    match tag {
        Tag::Kept => None,
        Tag::Popped => Some(format!("to {} it goes without its VLAN tag", port())),
        Tag::Pushed { tci, .. } => Some(format!("to {} it goes with the tag of VLAN {}", port(), tci & VID)),
    }
}

/// What decided, in words. Rules are counted from 1, as `lasthop acl show` does.
fn decided(list: &List, decision: Decision) -> String {
    match decision {
        Decision::Rule(n, _) => match list.rules().get(n) {
            Some(rule) => format!("rule {} decides: {rule}", n + 1),
            None => format!("rule {} decides", n + 1),
        },
        Decision::Default(action) => match list.rules().len() {
            0 => format!("it has no rules, its default is {action}"),
            1 => format!("its one rule does not match, its default is {action}"),
            n => format!("none of {n} rules matches, its default is {action}"),
        },
        Decision::Connection => {
            "it is stateful, and the packet is one of an established connection: no rule is asked".into()
        }
        Decision::Invalid => "it is stateful, and the packet belongs to no connection and opens none: dropped".into(),
        Decision::Basic => "no rule matches; it is stateful, and permits what finds neighbours and addresses".into(),
        Decision::Malformed => "the packet's headers are malformed, so it is dropped".to_owned(),
    }
}
