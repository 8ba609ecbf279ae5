//! `lasthop uplink add`, `set`, `del`, `list`.

use crate::SharedArgs;
use crate::client::CliError;
use crate::run;
use crate::table::{Align, Table};
use clap::{Args, Subcommand};
use lasthop_api::{Field, GuestQueue, SwitchProxy, Uplink, UplinkList};
use lasthop_text::counted;

#[derive(Debug, Subcommand)]
pub enum UplinkCommand {
    /// Make an uplink: a port that is a network interface of this host
    ///
    /// With `--driver tap`, an interface that does not exist is made as a TAP device and removed with the uplink. Give it an
    /// address (`ip addr add 10.0.0.1/24 dev DEVICE`) or add it to a bridge. The uplink is remembered over restarts.
    #[command(
        after_help = "Examples:\n  lasthop uplink add net eth1\n  lasthop uplink add host lasthop0 --driver tap --queues 2\n  lasthop uplink add storage eth2 --nice -5 --spare\n  lasthop uplink add fast eth3 --driver af_xdp --queues 4 --gro off\n  lasthop uplink add trunk eth4 --vlans untagged:10:20-30"
    )]
    Add {
        /// Its name and that of its port: 1 to 63 letters, digits, '.', '_' or '-'
        #[arg(value_parser = run::new_name)]
        name: String,
        /// The interface
        device: String,
        /// How to use it: tap, af_packet, af_xdp or tc (a representor) [default: tap if it is a TAP device, else af_packet]
        #[arg(long, value_parser = run::driver)]
        driver: Option<String>,
        /// Queue pairs, each with a thread of its own; with af_xdp the busiest guests get one each
        #[arg(long, default_value_t = 1, value_parser = run::queues)]
        queues: u16,
        /// Priority of its processes: -20 (first) to 19 (last)
        #[arg(long, default_value_t = 0, allow_negative_numbers = true, value_parser = run::nice)]
        nice: i32,
        /// Whether af_xdp makes one packet of a burst's TCP segments or UDP datagrams
        #[arg(long, value_name = "on|off", default_value = "on", value_parser = ["on", "off"])]
        gro: String,
        /// Keep a second process that takes over when the first ends or hangs; not with af_xdp and several queues
        #[arg(long)]
        spare: bool,
        /// VLANs that it carries, like 10:20-30; "untagged" among them: frames without a tag too [default: all frames]
        #[arg(long, value_name = "LIST", value_parser = run::vlan_list)]
        vlans: Option<String>,
        #[command(flatten)]
        shared: SharedArgs,
    },
    /// Change the VLANs that an uplink carries, without interrupting the others
    ///
    /// In force when the command returns. What was learned at the uplink is learned anew. Remembered over restarts like the
    /// uplink itself; for one of the command line of `lasthop run` it holds until that ends.
    #[command(
        after_help = "Examples:\n  lasthop uplink set trunk --vlans untagged:10:20-40\n  lasthop uplink set trunk --vlans all"
    )]
    Set {
        /// Its name
        #[arg(add = crate::completions::uplinks())]
        name: String,
        /// VLANs that it carries from now on, like 10:20-30; "untagged" among them: frames without a tag too; "all": all frames
        #[arg(long, value_name = "LIST", value_parser = vlans_or_all)]
        vlans: String,
        #[command(flatten)]
        shared: SharedArgs,
    },
    /// Remove an uplink and its port; an interface that it made goes with it
    #[command(after_help = "Example:\n  lasthop uplink del net")]
    Del {
        /// Its name
        #[arg(add = crate::completions::uplinks())]
        name: String,
        #[command(flatten)]
        shared: SharedArgs,
    },
    /// Show all uplinks
    #[command(after_help = "Example:\n  lasthop uplink list --json")]
    List(SharedArgs),
}

pub fn uplink(command: &UplinkCommand) -> Result<String, CliError> {
    match command {
        UplinkCommand::Add { name, device, driver, queues, nice, gro, spare, vlans, shared } => {
            let (driver, vlans) = (driver.as_deref(), vlans.as_deref());
            let list = shared
                .instance()?
                .ask(async |c| c.uplink_add(name, device, driver, *queues, *nice, gro == "on", *spare, vlans).await)?;
            let uplink = list.uplinks.into_iter().next().unwrap_or_default();
            shared.show(&uplink, |u| format!("uplink {}: {}{}, {}\n", u.name, u.device, made(u), how(u)))
        }
        UplinkCommand::Set { name, vlans, shared } => {
            let vlans = Some(vlans.as_str()).filter(|list| *list != "all");
            let list = shared.instance()?.ask(async |c| c.uplink_set(name, vlans).await)?;
            let uplink = list.uplinks.into_iter().next().unwrap_or_default();
            shared.show(&uplink, |u| format!("uplink {}: carries {}\n", u.name, carried(u)))
        }
        UplinkCommand::Del { name, shared } => {
            let list = shared.instance()?.ask(async |c| c.uplink_del(name).await)?;
            let uplink = list.uplinks.into_iter().next().unwrap_or_default();
            shared.show(&uplink, |u| format!("uplink {}: removed\n", u.name))
        }
        UplinkCommand::List(shared) => {
            let mut list = shared.instance()?.ask(async |c| c.uplink_list().await)?;
            list.uplinks.retain(|uplink| !uplink.guest);
            shared.show(&list, table)
        }
    }
}

/// A port that is an interface of this host.
#[derive(Debug, Args)]
pub struct DeviceArgs {
    /// An interface of this host that is a guest, instead of a socket: a container's veth, a TAP device of the host itself
    #[arg(long, conflicts_with_all = ["path", "client"])]
    pub device: Option<String>,
    /// With --device: how to use it: tap, af_packet, af_xdp or tc (a representor) [default: tap if it is a TAP device, else af_packet]
    #[arg(long, value_parser = run::driver)]
    driver: Option<String>,
    /// With --device: queue pairs [default: 1]
    #[arg(long, value_parser = run::queues)]
    queues: Option<u16>,
    /// With --device: priority of its processes: -20 (first) to 19 (last) [default: 0]
    #[arg(long, allow_negative_numbers = true, value_parser = run::nice)]
    nice: Option<i32>,
    /// With --device: keep a second process that takes over when the first ends or hangs
    #[arg(long)]
    spare: bool,
}

impl DeviceArgs {
    /// An option that says something of the device while there is none. clap's `requires` is of no use for this: it asks for
    /// nothing that conflicts with what is there, as `--device` does with a path.
    pub fn alone(&self) -> Option<&'static str> {
        let given = [
            ("--driver", self.driver.is_some()),
            ("--queues", self.queues.is_some()),
            ("--nice", self.nice.is_some()),
            ("--spare", self.spare),
        ];
        given.into_iter().find(|(_, given)| *given && self.device.is_none()).map(|(option, _)| option)
    }
}

/// `lasthop port add --device`.
pub fn port_add_device(
    name: &str,
    device: &str,
    args: &DeviceArgs,
    settings: &[Field],
    shared: &SharedArgs,
) -> Result<String, CliError> {
    let DeviceArgs { driver, queues, nice, spare, .. } = args;
    let (driver, queues, nice) = (driver.as_deref(), queues.unwrap_or(1), nice.unwrap_or(0));
    let mut instance = shared.instance()?;
    if crate::device::found(&shared.run_dir).iter().any(|found| found.name == device) {
        let run_dir = shared.run_dir.join(run::DEVICES_DIR).join(device);
        return Err(CliError::new(format!(
            "{device} is a device of this lasthop, a switch of its own, and no interface; make a port there: `lasthop port add {name} PATH --run-dir {}`",
            run_dir.display()
        )));
    }
    let list = instance.ask(async |c| c.port_add_device(name, device, driver, queues, nice, *spare, settings).await)?;
    let port = list.uplinks.into_iter().next().unwrap_or_default();
    shared.show(&port, |p| format!("port {}: {}{}, {}\n", p.name, p.device, made(p), how(p)))
}

fn vlans_or_all(text: &str) -> Result<String, String> {
    match text {
        "all" => Ok(text.to_owned()),
        "none" => Err("an uplink carries some VLANs or all frames; write \"all\" for all".into()),
        list => run::vlan_list(list),
    }
}

fn made(u: &Uplink) -> &'static str {
    if u.created { ", which it made" } else { "" }
}

/// The driver and its mode.
fn how(u: &Uplink) -> String {
    match (&u.driver, &u.mode) {
        (Some(driver), Some(mode)) => format!("{driver} ({mode})"),
        _ => "-".into(),
    }
}

fn carried(u: &Uplink) -> String {
    match &u.vlans {
        Some(vlans) => format!("VLANs {vlans}"),
        None => "all frames".into(),
    }
}

fn table(list: &UplinkList) -> String {
    if list.uplinks.is_empty() {
        return "no uplinks; make one with `lasthop uplink add NAME DEVICE`\n".into();
    }
    let mut table = Table::new(&[
        ("NAME", Align::Left),
        ("STATE", Align::Left),
        ("DEVICE", Align::Left),
        ("DRIVER", Align::Left),
        ("MTU", Align::Right),
        ("MAC", Align::Left),
        ("TO NETWORK", Align::Right),
        ("FROM NETWORK", Align::Right),
        ("MERGED", Align::Right),
        ("DROPPED", Align::Right),
        ("RESTARTS", Align::Right),
        ("SPARE", Align::Left),
        ("VLANS", Align::Left),
    ]);
    let mut notes = String::new();
    for u in &list.uplinks {
        table.row(vec![
            u.name.clone(),
            u.state.clone(),
            u.device.clone(),
            how(u),
            u.mtu.map_or("-".into(), |mtu| mtu.to_string()),
            u.mac.clone().unwrap_or_else(|| "-".into()),
            u.to_network.packets.to_string(),
            u.from_network.packets.to_string(),
            u.merged.to_string(),
            u.drops.iter().map(|d| d.packets).sum::<u64>().to_string(),
            u.restarts.to_string(),
            u.spare.clone().unwrap_or_else(|| "-".into()),
            u.vlans.clone().unwrap_or_else(|| "all".into()),
        ]);
        for d in &u.drops {
            notes.push_str(&format!("{}: {} dropped: {}\n", u.name, counted(d.packets, "packet"), d.reason));
        }
        for q in &u.guest_queues {
            let whose = match whose(q) {
                Some(guest) => format!("of {guest}"),
                None if q.queue == 0 => "shared".into(),
                None => "free".to_owned(),
            };
            let lost = if q.dropped > 0 { format!(", {} dropped", q.dropped) } else { String::new() };
            notes.push_str(&format!(
                "{}: queue {} ({whose}): {}{lost}, {} sent{}\n",
                u.name,
                q.queue,
                counted(q.packets, "packet"),
                q.sent,
                keeps(q, &u.guest_queues)
            ));
        }
        if let Some(what) = &u.waits_for {
            notes.push_str(&format!("{}: {}: {what}\n", u.name, u.state));
        }
        if let Some(why) = &u.last_error {
            notes.push_str(&format!("{}: last trouble: {why}\n", u.name));
        }
    }
    table.render() + &notes
}

/// The guest that has a queue: the port that it is kept for, or its address.
pub fn whose(queue: &GuestQueue) -> Option<String> {
    let vlan = queue.vlan.map_or_else(String::new, |vlan| format!("@{vlan}"));
    let address = queue.mac.as_ref().map(|mac| format!("{mac}{vlan}"));
    match (&queue.port, address) {
        (Some(port), Some(address)) => Some(format!("{port}, {address}, kept for it")),
        (Some(port), None) => Some(format!("{port}, kept for it")),
        (None, address) => address,
    }
}

/// How many frames it keeps, if that is fewer than the default queue, which keeps what rings have room for.
pub fn keeps(queue: &GuestQueue, all: &[GuestQueue]) -> String {
    let fewer = all.first().is_some_and(|default| queue.size < default.size);
    if fewer { format!(", keeps {}", queue.size) } else { String::new() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_has_which_queue() {
        let queue = |queue, mac: Option<&str>, dropped| GuestQueue {
            queue,
            mac: mac.map(str::to_owned),
            vlan: (queue == 3).then_some(7),
            port: (queue > 2).then(|| "vm1".to_owned()),
            size: if queue == 4 { 64 } else { 1024 },
            packets: 7,
            dropped,
            sent: 5,
        };
        let guest_queues = vec![
            queue(0, None, 0),
            queue(1, Some("02:00:00:00:00:01"), 3),
            queue(2, None, 0),
            queue(3, Some("02:00:00:00:00:01"), 0),
            queue(4, None, 0),
        ];
        let text =
            table(&UplinkList { uplinks: vec![Uplink { name: "net".into(), guest_queues, ..Uplink::default() }] });
        let expected = "net: queue 0 (shared): 7 packets, 5 sent\nnet: queue 1 (of 02:00:00:00:00:01): 7 packets, 3 dropped, 5 sent\n\
                        net: queue 2 (free): 7 packets, 5 sent\n\
                        net: queue 3 (of vm1, 02:00:00:00:00:01@7, kept for it): 7 packets, 5 sent\n\
                        net: queue 4 (of vm1, kept for it): 7 packets, 5 sent, keeps 64\n";
        assert!(text.ends_with(expected), "{text}");
    }

    #[test]
    fn an_uplink_that_does_not_run_says_why() {
        let uplink = Uplink {
            name: "net".into(),
            device: "eth1".into(),
            state: "starting".into(),
            last_error: Some("there is no interface eth1".into()),
            ..Uplink::default()
        };
        let text = table(&UplinkList { uplinks: vec![uplink] });
        assert!(text.contains("net   starting  eth1"), "{text}");
        assert!(text.ends_with("net: last trouble: there is no interface eth1\n"), "{text}");
    }
}
