//! One screen for people: a paragraph for each thing that there is something to say of.

use super::Shown;
use crate::list::{fields, protects, trouble};
use crate::shares::Share;
use crate::table::{Align, Table, duration};
use lasthop_api::{Flow, GuestQueue, Mirror, Port, Totals, Uplink};
use lasthop_policy::{MAX_CPU, MAX_CPU_TO};
use lasthop_text::counted;

/// So many of a long list fit on a screen.
const FEW: usize = 8;
/// Columns of the words in front.
const MARGIN: usize = 12;

/// Lines, each group with a word in front of its first.
#[derive(Debug, Default)]
struct Screen(String);

impl Screen {
    fn part(&mut self, word: &str, lines: impl IntoIterator<Item = String>) {
        let mut word = word;
        for line in lines {
            self.0.push_str(format!("{word:<MARGIN$}{line}").trim_end());
            self.0.push('\n');
            word = "";
        }
    }
}

pub fn render(shown: &Shown) -> String {
    let (port, mut screen) = (&shown.port, Screen::default());
    screen.part(&port.name, [place(port)]);
    screen.part("state", state(shown));
    let of_ovs = shown.rates.as_ref().map(crate::list::rates_of);
    let no_effect = shown.no_effect.iter().map(|note| note.what.clone());
    screen.part("settings", [crate::settings::told(&port.settings)].into_iter().chain(of_ovs).chain(no_effect));
    screen.part("share", shown.share.as_ref().map(share));
    if port.device.is_none() && !port.uplink {
        screen.part("front-end", front_end(shown));
    }
    screen.part("interface", shown.interface.iter().flat_map(interface));
    screen.part("queues", queues(shown));
    screen.part("addresses", addresses(shown));
    screen.part("lists", lists(shown));
    screen.part("mirrors", shown.mirrors.iter().map(|mirror| mirrored(mirror, &port.name)));
    if let Some(of) = &shown.connections {
        screen.part("connections", [format!("{} of {} opened from there", of.connections, of.limit)]);
    }
    screen.part("flows", flows(shown));
    screen.part("counters", counters(port));
    screen.part("dropped", dropped(shown));
    screen.part("time", time(port));
    screen.part("restarts", restarts(shown));
    screen.0
}

fn place(port: &Port) -> String {
    let owner = port.owner.as_ref().map_or_else(String::new, |owner| format!(", of {owner}"));
    let what = match (&port.device, &port.driver) {
        (Some(device), Some(driver)) => format!("{device} ({driver})"),
        (Some(device), None) => device.clone(),
        (None, _) if port.client => format!("lasthop connects to {}", port.path),
        (None, _) => format!("lasthop listens on {}", port.path),
    };
    let kind = if port.uplink { "uplink" } else { "port" };
    format!("{kind} {}, {what}{owner}", port.id)
}

fn share(of: &Share) -> String {
    let own = if of.weight == of.own { String::new() } else { format!("; its own is {}", of.own) };
    of.told() + &own
}

fn state(shown: &Shown) -> Vec<String> {
    let port = &shown.port;
    let vm = match (port.vm.as_deref(), port.vm_cpu) {
        (Some(vm), Some(cpu)) => format!("; its VM is {vm} on CPU {cpu}"),
        (Some(vm), None) => format!("; its VM is {vm}"),
        (None, _) => String::new(),
    };
    let mut lines = vec![format!("{}{vm}", port.state)];
    lines.extend(port.error.iter().map(|why| format!("broken: {why}")));
    lines.extend(port.note.clone());
    lines.extend(trouble(port, "last trouble"));
    lines
}

fn front_end(shown: &Shown) -> Vec<String> {
    let port = &shown.port;
    if matches!(port.state.as_str(), "waiting" | "starting") {
        return vec!["none".into()];
    }
    let mtu = if port.mtu == 0 { "no MTU announced".to_owned() } else { format!("MTU {}", port.mtu) };
    let regions = counted(port.memory_regions.into(), "region");
    let mut lines = vec![
        format!("{mtu}; {} MiB of memory in {regions}", port.memory_bytes >> 20),
        format!("features {}: {}", port.features, shown.feature_names.join(" ")),
        format!("protocol {}: {}", port.protocol_features, shown.protocol_feature_names.join(" ")),
    ];
    if let Some(t) = &port.translation {
        lines.push(format!(
            "IOMMU: {} ranges known, {} pages asked for, {} unanswered, {} refused, {} invalidations{}",
            t.ranges,
            t.misses,
            t.unanswered,
            t.refused,
            t.invalidations,
            protects(t)
        ));
    }
    lines
}

fn interface(of: &Uplink) -> Vec<String> {
    let or_dash = |text: &Option<String>| text.clone().unwrap_or_else(|| "-".into());
    let mtu = of.mtu.map_or_else(|| "-".into(), |mtu| mtu.to_string());
    let mut lines = vec![
        format!("{}, {} ({}), link {}", of.device, or_dash(&of.driver), or_dash(&of.mode), of.link),
        format!(
            "MTU {mtu}, address {}, {}, nice {}, spare {}",
            or_dash(&of.mac),
            counted(of.queues.into(), "queue pair"),
            of.nice,
            or_dash(&of.spare)
        ),
        format!("VLANs {}", of.vlans.as_deref().unwrap_or("all")),
        format!("process {}", of.pid.map_or_else(|| "-".into(), |pid| pid.to_string())),
        format!(
            "{} to the network, {} from it, {} merged",
            counted(of.to_network.packets, "packet"),
            of.from_network.packets,
            of.merged
        ),
    ];
    lines
        .extend(of.blocked_by.iter().map(|other| format!("blocked: uplink {other} carries the frames of its segment")));
    lines.extend(of.guest_queues.iter().map(|queue| {
        let nobody = if queue.queue == 0 { "shared" } else { "free" };
        let whose = crate::uplink::whose(queue).unwrap_or_else(|| nobody.into());
        let keeps = crate::uplink::keeps(queue, &of.guest_queues);
        let GuestQueue { queue: number, dropped, sent, .. } = queue;
        format!("queue {number} ({whose}): {}, {dropped} dropped, {sent} sent{keeps}", counted(queue.packets, "packet"))
    }));
    lines
}

fn queues(shown: &Shown) -> Vec<String> {
    let port = &shown.port;
    let line = |queue: &lasthop_api::Queue| {
        let way = if queue.index.is_multiple_of(2) { "to guest" } else { "from guest" };
        let layout = if queue.packed { "packed" } else { "split" };
        let on = if queue.enabled { "enabled" } else { "not enabled" };
        let error = queue.error.as_ref().map_or_else(String::new, |why| format!(", stopped: {why}"));
        format!("{} {way}: {} entries, {layout}, {on}{error}", queue.index, queue.size)
    };
    let mut lines: Vec<_> = port.queues.iter().map(line).collect();
    let batch =
        |batch: lasthop_api::Batching| format!("{} us or {}", batch.us, counted(batch.packets.into(), "packet"));
    let kicks = match &shown.polled_by {
        Some(by) => format!("{by} polls them"),
        None => format!("kicks gathered for {}", batch(port.tx_batch)),
    };
    let interrupts = match &shown.not_held_back {
        Some(why) => format!("interrupts are not held back: {why}"),
        None => format!("interrupts for {}", batch(port.rx_batch)),
    };
    if !port.uplink {
        lines.push(format!("{kicks}, {interrupts}"));
    }
    lines
}

fn addresses(shown: &Shown) -> Vec<String> {
    let port = &shown.port;
    if shown.open_vswitch {
        return vec!["Open vSwitch learns them: `ovs-appctl fdb/show BRIDGE` shows them".into()];
    }
    let mut lines = vec![format!("{} of {} learned", port.macs, port.mac_limit)];
    lines.extend(shown.macs.iter().take(FEW).map(|mac| {
        let vlan = if mac.vlan == 0 { String::new() } else { format!(" in VLAN {}", mac.vlan) };
        let how = if mac.is_static { "static".into() } else { format!("seen {} ago", duration(mac.age_ms)) };
        let held = if mac.held { ", held here: it moved too often" } else { "" };
        format!("{}{vlan}: {how}{held}", mac.mac)
    }));
    lines.extend(more(shown.macs.len(), "lasthop mac list"));
    if let Some(of) = &port.refused_mac {
        let other = of.lives_at.as_deref().unwrap_or("nowhere now");
        lines.push(format!(
            "{} packets from addresses of other ports, the last from {} (lives at {other})",
            port.moves_refused, of.mac
        ));
    }
    lines
}

/// A line for each list, and its rules if these are few.
fn lists(shown: &Shown) -> Vec<String> {
    let (rules, mut lines) = (&shown.rules, Vec::new());
    if shown.open_vswitch {
        return vec!["Open vSwitch decides: `ovs-ofctl dump-flows BRIDGE` shows its rules".into()];
    }
    for direction in ["from-guest", "to-guest"] {
        let of: Vec<_> = rules.iter().filter(|rule| rule.direction == direction).collect();
        let Some(first) = of.first() else { continue };
        let numbered = of.iter().filter(|rule| rule.number > 0).count() as u64;
        lines.push(format!("{direction}, of {}: {}", first.applies_to, counted(numbered, "rule")));
        lines.extend(of.iter().take(FEW).map(|rule| match rule.number {
            0 => format!("  -  {}", rule.text),
            n => format!("{n:>3}  {}", rule.text),
        }));
        lines.extend(more(of.len(), "lasthop acl show --port"));
    }
    if lines.is_empty() { vec!["none: every packet passes".into()] } else { lines }
}

fn mirrored(mirror: &Mirror, port: &str) -> String {
    let note = mirror.note.as_ref().map_or_else(String::new, |note| format!("; {note}"));
    let sample = if mirror.sample > 1 { format!(", one packet of {}", mirror.sample) } else { String::new() };
    let Mirror { name, direction, to, .. } = mirror;
    if mirror.to == port {
        format!("{name}: it gets copies of {}, {direction}{sample}{note}", mirror.from.join(", "))
    } else {
        format!("{name}: {to} gets copies of its packets, {direction}{sample}{note}")
    }
}

fn flows(shown: &Shown) -> Vec<String> {
    let mut lines = vec![format!(
        "{} from there{}; with those to it:",
        counted(shown.port.flows, "flow"),
        if shown.open_vswitch { ", without those of Open vSwitch's, which are listed" } else { "" }
    )];
    let line = |flow: &Flow| {
        let to = if flow.actions.is_empty() { crate::list::outputs(&flow.outputs) } else { flow.actions.join(",") };
        format!(
            "{}, idle {}, to {to}: {}",
            counted(flow.packets, "packet"),
            duration(flow.idle_ms),
            fields(&flow.fields)
        )
    };
    lines.extend(shown.flows.iter().take(FEW).map(line));
    lines.extend(more(shown.flows.len(), "lasthop flow list"));
    lines
}

fn counters(port: &Port) -> Vec<String> {
    let mut table = Table::new(&[
        ("", Align::Left),
        ("PACKETS", Align::Right),
        ("BYTES", Align::Right),
        ("DROPPED", Align::Right),
        ("KICKS, INTERRUPTS", Align::Right),
        ("REPLICATED", Align::Right),
        ("MISSED", Align::Right),
        ("SEGMENTS", Align::Right),
        ("CHECKSUMS", Align::Right),
        ("HELD", Align::Right),
    ]);
    let mut row = |way: &str, t: &Totals| {
        let drops = t.drops.iter().map(|d| d.packets).sum();
        let cells =
            [t.packets, t.bytes, drops, t.notifications, t.replicated, t.missed, t.segments, t.checksums, t.held];
        table.row(std::iter::once(way.to_owned()).chain(cells.map(|n| n.to_string())).collect());
    };
    row("from guest", &port.from_guest);
    row("to guest", &port.to_guest);
    let mut lines: Vec<_> = table.render().lines().map(str::to_owned).collect();
    if port.waiting > 0 {
        lines.push(format!("waiting for control: {}", counted(port.waiting, "packet")));
    }
    lines
}

fn dropped(shown: &Shown) -> Vec<String> {
    let port = &shown.port;
    let interface = shown.interface.as_ref().map_or(&[][..], |interface| &interface.drops);
    let all = [("from it", &port.from_guest.drops[..]), ("to it", &port.to_guest.drops), ("outside", interface)];
    let line = |(way, drops): (&str, &[lasthop_api::Drops])| {
        drops.iter().map(|d| format!("{} {way}: {}", counted(d.packets, "packet"), d.reason)).collect::<Vec<_>>()
    };
    let mut lines: Vec<_> = all.into_iter().flat_map(line).collect();
    lines.extend(shown.denied.iter().take(FEW).map(|denied| crate::stats::denial(denied, crate::stats::CONTROL)));
    lines.extend(more(shown.denied.len(), "lasthop stats"));
    if lines.is_empty() { vec!["nothing".into()] } else { lines }
}

fn time(port: &Port) -> Vec<String> {
    let own = port
        .cpu_ns
        .map_or_else(|| "no thread of its own".into(), |ns| format!("{} ms of its own thread", ns / 1_000_000));
    let [busy, copied] = [port.from_guest.busy_ns, port.copied_ns].map(|ns| ns / 1_000_000);
    let mut lines = vec![format!("{own}; {busy} ms busy with its packets; {copied} ms to copy others' to it")];
    let bounds =
        [(&port.cpu_bound, "", "its guest is", MAX_CPU), (&port.copy_bound, " to copy to it", "it is", MAX_CPU_TO)];
    lines.extend(bounds.into_iter().filter_map(|(bound, what, who, setting)| {
        let bound = bound.as_ref()?;
        let [spent, most] = [bound.spent_ns, bound.most_ns].map(|ns| ns / 10_000_000);
        let held = bound.held_to().unwrap_or_else(|| "nothing".into());
        let missed = bound.missed_ms.map_or_else(String::new, |ms| format!("; not kept for {}", duration(ms)));
        Some(format!("{spent} % of a processor{what} in the last second, of {most} that it may take ({setting}): {who} held to {held}{missed}"))
    }));
    lines.extend(port.place.as_ref().map(lasthop_api::Place::said));
    lines
}

fn restarts(shown: &Shown) -> Vec<String> {
    let line = |of: &lasthop_api::Replaced| {
        let last = of.age_ms.map_or_else(String::new, |ms| format!(", last {} ago", duration(ms)));
        let why = of.why.as_ref().map_or_else(String::new, |why| format!(" ({why})"));
        format!("{}: {}{last}{why}", of.process, counted(of.times, "time"))
    };
    let lines: Vec<_> = shown.replaced.iter().filter(|of| of.times > 0).map(line).collect();
    if lines.is_empty() { vec!["none of its processes".into()] } else { lines }
}

/// That a list is longer, and which command shows all of it.
fn more(len: usize, command: &str) -> Option<String> {
    len.checked_sub(FEW).filter(|more| *more > 0).map(|more| format!("and {more} more; `{command}` shows them"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use lasthop_api::{AclRule, Batching, Denied, Drops, Mac, PortConnections, Queue, RefusedMac, Replaced};

    #[test]
    fn a_vm_on_one_screen() {
        let mut port = Port {
            name: "vm1".into(),
            id: 3,
            path: "/run/vm1.sock".into(),
            owner: Some("vm".into()),
            ..Port::default()
        };
        (port.state, port.vm, port.vm_cpu) = ("up".into(), Some("running".into()), Some(5));
        (port.memory_bytes, port.memory_regions, port.mtu) = (512 << 20, 2, 1500);
        (port.tx_batch, port.macs, port.mac_limit, port.flows) = (Batching { us: 125, packets: 64 }, 1, 4096, 1);
        port.queues = vec![
            Queue { index: 0, size: 256, enabled: true, ..Queue::default() },
            Queue { index: 1, size: 256, packed: true, ..Queue::default() },
        ];
        port.to_guest.drops = vec![Drops { reason: "no_buffers".into(), packets: 2 }];
        port.refused_mac =
            Some(RefusedMac { mac: "52:54:00:00:00:02".into(), lives_at: Some("vm2".into()), ..RefusedMac::default() });
        let rule = |number, text: &str| AclRule {
            applies_to: "guests".into(),
            direction: "from-guest".into(),
            number,
            text: text.into(),
            ..AclRule::default()
        };
        let shown = Shown {
            share: Some(Share { port: "vm1".into(), weight: 220, of: 300, own: 100, least: Some(70_000_000) }),
            macs: vec![Mac { mac: "52:54:00:00:00:01".into(), vlan: 10, age_ms: 1500, ..Mac::default() }],
            rules: vec![rule(1, "deny icmp"), rule(0, "default permit")],
            mirrors: vec![Mirror {
                name: "m".into(),
                to: "ids".into(),
                from: vec!["vm1".into()],
                direction: "both".into(),
                sample: 8,
                ..Mirror::default()
            }],
            flows: (0..10).map(|n| Flow { packets: 10 - n, outputs: vec!["net".into()], ..Flow::default() }).collect(),
            connections: Some(PortConnections { port: "vm1".into(), connections: 3, limit: 100 }),
            denied: vec![Denied { port: "vm1".into(), packets: 4, reason: "vlan".into(), ..Denied::default() }],
            replaced: vec![Replaced {
                process: "session vm1".into(),
                times: 2,
                age_ms: Some(90_000),
                why: Some("hung".into()),
            }],
            feature_names: vec!["CSUM".into()],
            port,
            ..Shown::default()
        };
        let text = render(&shown);
        for line in [
            "vm1         port 3, lasthop listens on /run/vm1.sock, of vm\n",
            "state       up; its VM is running on CPU 5\n",
            "settings    told nothing\n",
            "share       weight 220 of 300 of all guests, where they share, at least 70M of an uplink; its own is 100\n",
            "front-end   MTU 1500; 512 MiB of memory in 2 regions\n",
            "queues      0 to guest: 256 entries, split, enabled\n            1 from guest: 256 entries, packed, not enabled\n",
            "addresses   1 of 4096 learned\n            52:54:00:00:00:01 in VLAN 10: seen 1.5s ago\n",
            "the last from 52:54:00:00:00:02 (lives at vm2)\n",
            "lists       from-guest, of guests: 1 rule\n              1  deny icmp\n              -  default permit\n",
            "mirrors     m: ids gets copies of its packets, both, one packet of 8\n",
            "connections 3 of 100 opened from there\n",
            "            and 2 more; `lasthop flow list` shows them\n",
            "dropped     2 packets to it: no_buffers\n            vm1: 4 dropped as vlan, 0 s ago",
            "restarts    session vm1: 2 times, last 90.0s ago (hung)\n",
        ] {
            assert!(text.contains(line), "{line:?} is not in\n{text}");
        }
        assert!(!text.contains("interface"), "{text}");
    }

    #[test]
    fn an_uplink_has_no_front_end() {
        let port = Port {
            name: "net".into(),
            uplink: true,
            device: Some("eth1".into()),
            driver: Some("af_packet".into()),
            state: "up".into(),
            ..Port::default()
        };
        let interface = Uplink {
            device: "eth1".into(),
            link: "up".into(),
            mtu: Some(1500),
            pid: Some(7),
            blocked_by: Some("other".into()),
            ..Uplink::default()
        };
        let text = render(&Shown { port, interface: Some(interface), ..Shown::default() });
        assert!(text.starts_with("net         uplink 0, eth1 (af_packet)\n"), "{text}");
        assert!(
            text.contains(
                "interface   eth1, - (-), link up\n            MTU 1500, address -, 0 queue pairs, nice 0, spare -\n"
            ),
            "{text}"
        );
        assert!(
            text.contains("blocked: uplink other") && !text.contains("front-end") && !text.contains("kicks gathered"),
            "{text}"
        );
        assert!(
            text.contains("lists       none: every packet passes\n") && text.contains("dropped     nothing\n"),
            "{text}"
        );
    }
}
