//! `lasthop port set`, and the same options of `lasthop port add`: what a port is told to do.

use crate::SharedArgs;
use crate::client::{CliError, Instance};
use crate::declared::overruled;
use crate::list::all_ports;
use crate::no_effect::{Note, WATCHED, notes};
use clap::Args;
use lasthop_api::{Field, PortChanged, SwitchProxy};
use lasthop_policy::{ENGINE, MAX_CPU, MAX_CPU_TO, MIN_RATE, PortSettings, RATE_TO, Rate, STATIC_MAC, StaticMac};

/// What a port is told to do. A value `none` takes a setting back.
#[derive(Debug, Default, Args)]
#[command(next_help_heading = "Settings")]
pub struct SettingsArgs {
    /// Access port: of this VLAN alone, whose frames have no tag there
    #[arg(long, value_name = "ID", allow_negative_numbers = true)]
    vlan: Option<String>,
    /// Trunk: of these VLANs, whose frames have a tag there, such as 10,20-30
    #[arg(long, value_name = "LIST")]
    trunk: Option<String>,
    /// Of a trunk, the VLAN whose frames have no tag; without --trunk all other VLANs have one
    #[arg(long, value_name = "ID", allow_negative_numbers = true)]
    native: Option<String>,
    /// It exchanges frames with uplinks only, and not with other guests
    #[arg(long, value_name = "on|off", num_args = 0..=1, default_missing_value = "on")]
    isolated: Option<String>,
    /// Ethernet addresses that it may send from; frames from others are dropped as `spoofed`
    #[arg(long, value_name = "MAC,...")]
    mac: Option<String>,
    /// IP addresses or prefixes that it may send from, and say in ARP and neighbour discovery to have; with --mac
    #[arg(long, value_name = "IP,...")]
    addr: Option<String>,
    /// It may not answer as a DHCP server (IPv4 and IPv6)
    #[arg(long, value_name = "on|off", num_args = 0..=1, default_missing_value = "on")]
    no_dhcp_server: Option<String>,
    /// It may not send IPv6 router advertisements
    #[arg(long, value_name = "on|off", num_args = 0..=1, default_missing_value = "on")]
    no_ra: Option<String>,
    /// What its guest may send, in bits or packets a second, such as 100M, 1.5G:256K or 20kpps; the rest waits in the guest
    #[arg(long, value_name = "RATE[:BURST]", allow_negative_numbers = true)]
    rate_from: Option<String>,
    /// What its guest may get; the rest waits for it for a moment, or is dropped as `rate`
    #[arg(long, value_name = "RATE[:BURST]", allow_negative_numbers = true)]
    rate_to: Option<String>,
    /// What it gets of each uplink at least, while it has packets for that, in bits a second such as 100M: a share of the --rate-to of
    /// the uplink; refused when all such shares are more than that
    #[arg(long, value_name = "RATE", allow_negative_numbers = true)]
    min_rate: Option<String>,
    /// What its guest may have flooded: broadcast, multicast and unknown destinations; the rest is dropped as `storm`
    #[arg(long, value_name = "RATE[:BURST]", allow_negative_numbers = true)]
    storm: Option<String>,
    /// How many connections it may open that stateful access lists know; the packet that would open another is dropped as `ct_limit`
    #[arg(long, value_name = "N")]
    connections: Option<String>,
    /// How many ports of an address that `snat` shares among ports it may hold towards one server (a quarter); more is dropped as `ct_limit`
    #[arg(long, value_name = "N")]
    nat_ports: Option<String>,
    /// Of a guest behind an IOMMU of its own: how many ranges of its addresses are remembered at a time (8192), one for each page that it
    /// has mapped; the one that was not used for longest goes first, and is asked for again
    #[arg(long, value_name = "N")]
    grants: Option<String>,
    /// Most entries of a ring of its guest that is set up from now on (32768): how much waits at the port
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    max_ring: Option<String>,
    /// Its share of a thread that moves packets of several ports, and of a receiver that takes less than several send, in bytes: 1 to 1000 (100)
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    weight: Option<String>,
    /// Above all ports with a lower one, where shares go by weight: at least 15 times as many bytes as all below it together, while it has packets (4 times where all three are in use); 0 to 2 (0)
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    priority: Option<String>,
    /// How much of one processor its packets may take, in hundredths, such as 20: its guest is held to fewer packets while they take more; 0 or
    /// "none": as much as they take
    #[arg(long, value_name = "PERCENT", allow_negative_numbers = true)]
    max_cpu: Option<String>,
    /// How much of one processor it may take to copy packets to its guest, in hundredths: its guest gets fewer packets while that takes more, as with
    /// --rate-to; 0 or "none": as much as it takes
    #[arg(long, value_name = "PERCENT", allow_negative_numbers = true)]
    max_cpu_to: Option<String>,
    /// The engine that polls its rings, such as poll-3 (`lasthop engine list`): as `lasthop engine move`; "ports": a thread of its own, although cores
    /// poll; "none": any of those that poll
    #[arg(long, value_name = "ENGINE")]
    engine: Option<String>,
    /// Microseconds and packets for which its guest need not kick while it sends a stream; "off": it kicks for each; "none": as
    /// `lasthop run --tx-batch`
    #[arg(long, value_name = "US[,PACKETS]|off", allow_negative_numbers = true)]
    tx_batch: Option<String>,
    /// Microseconds and packets for which its guest, while it runs, is not interrupted again; "off": it is whenever it wants; "none": as
    /// `lasthop run --rx-batch`
    #[arg(long, value_name = "US[,PACKETS]|off", allow_negative_numbers = true)]
    rx_batch: Option<String>,
    /// Down: as if its cable was pulled, nothing comes from its guest and nothing goes there; what would have is dropped as `port_down`
    #[arg(long, value_name = "up|down")]
    link: Option<String>,
    /// Of multicasts its guest gets only those of groups that it has joined (IGMP, MLD), where a multicast router asks who wants which
    #[arg(long, value_name = "on|off", num_args = 0..=1, default_missing_value = "on")]
    snooping: Option<String>,
    /// Addresses that live at this port for good, whether or not they say anything, and nowhere else; see `lasthop mac add`
    #[arg(long, value_name = "MAC[@VLAN],...")]
    static_mac: Option<String>,
    /// The af_xdp uplink with several queues at which it has one of its own, whatever the load, and how many frames may wait there
    #[arg(long, value_name = "UPLINK[:FRAMES]", add = crate::completions::uplinks())]
    queue_of: Option<String>,
}

impl SettingsArgs {
    /// Names and values of those given to a new port. What makes no sense is an error, whatever is running.
    pub fn of_new_port(&self) -> Result<Vec<Field>, CliError> {
        self.checked(|_| true)
    }

    /// The same, to a port that is there: whether `addr` has its `mac`, and what it may have static, depends on what that is told already.
    pub fn changes(&self) -> Result<Vec<Field>, CliError> {
        if let Some(addr) = &self.addr {
            let mac = ("mac", "02:00:00:00:00:01");
            PortSettings::default().change([mac, ("addr", addr)]).map_err(CliError::usage)?;
        }
        let listed = self.static_mac.as_deref().filter(|list| !matches!(*list, "none" | "off"));
        let entries = listed.into_iter().flat_map(|list| list.split(','));
        for entry in entries {
            let wrong = |e| CliError::usage(format!("static-mac={entry}: {e}, or none to take it back"));
            entry.parse::<StaticMac>().map_err(wrong)?;
        }
        self.checked(|field| !matches!(field.name.as_str(), "addr" | STATIC_MAC))
    }

    fn checked(&self, judged: impl Fn(&&Field) -> bool) -> Result<Vec<Field>, CliError> {
        let fields = self.fields();
        let changes = fields.iter().filter(judged).map(|f| (f.name.as_str(), f.value.as_str()));
        PortSettings::default().change(changes).map_err(CliError::usage)?;
        Ok(fields)
    }

    fn fields(&self) -> Vec<Field> {
        let all = [
            ("vlan", &self.vlan),
            ("trunk", &self.trunk),
            ("native", &self.native),
            ("isolated", &self.isolated),
            ("mac", &self.mac),
            ("addr", &self.addr),
            ("no-dhcp-server", &self.no_dhcp_server),
            ("no-ra", &self.no_ra),
            ("rate-from", &self.rate_from),
            (RATE_TO, &self.rate_to),
            (MIN_RATE, &self.min_rate),
            ("storm", &self.storm),
            ("connections", &self.connections),
            ("nat-ports", &self.nat_ports),
            ("grants", &self.grants),
            ("max-ring", &self.max_ring),
            ("weight", &self.weight),
            ("priority", &self.priority),
            (MAX_CPU, &self.max_cpu),
            (MAX_CPU_TO, &self.max_cpu_to),
            (ENGINE, &self.engine),
            ("tx-batch", &self.tx_batch),
            ("rx-batch", &self.rx_batch),
            ("link", &self.link),
            ("snooping", &self.snooping),
            ("static-mac", &self.static_mac),
            ("queue-of", &self.queue_of),
        ];
        let given = all.into_iter().filter_map(|(name, value)| Some((name, value.as_ref()?)));
        given.map(|(name, value)| Field { name: name.into(), value: value.clone() }).collect()
    }
}

/// What a setting is; `None` if nothing is set.
pub fn value_of<'a>(settings: &'a [Field], name: &str) -> Option<&'a str> {
    settings.iter().find(|setting| setting.name == name).map(|setting| setting.value.as_str())
}

/// Bits a second; `None` for a rate of packets, and for what is none.
pub fn bits(rate: &str) -> Option<u64> {
    rate.parse::<Rate>().ok()?.bits()
}

/// What a port is told, in a line.
pub fn told(settings: &[Field]) -> String {
    if settings.is_empty() { "told nothing".into() } else { crate::list::fields(settings) }
}

/// `lasthop port set`
pub fn set(name: &str, settings: &SettingsArgs, shared: &SharedArgs) -> Result<String, CliError> {
    let fields = settings.changes()?;
    if fields.is_empty() {
        return Err(CliError::usage(format!(
            "nothing to set; see `lasthop port set --help`, and `lasthop port list` for what {name} is told"
        )));
    }
    let (mut instance, device) = crate::device::ports::at(&shared.run_dir, name)?;
    let port = change(&mut instance, name, &fields)?;
    let of_device = device.as_ref().map_or_else(String::new, |device| format!(" of device {device}"));
    // What devices' ports are told no file says.
    let of_file = if device.is_some() { Vec::new() } else { overruled(&shared.run_dir, name, &port.settings, &fields) };
    for line in of_file {
        eprintln!("lasthop: {line}");
    }
    // The port is told all the same.
    for note in effects(&mut instance, name, &fields).unwrap_or_default() {
        eprintln!("lasthop: {note}");
    }
    // What the port is told has no effect then.
    let mut of_ovs = None;
    if fields.iter().any(|field| matches!(field.name.as_str(), "rate-from" | RATE_TO)) {
        let rates = instance.ask(async |c| c.stats().await)?.deciders.unwrap_or_default().rates;
        of_ovs = rates.into_iter().find(|of| of.port == name);
    }
    let note = of_ovs.map_or_else(String::new, |of| format!("{name}: {}\n", crate::list::rates_of(&of)));
    shared.show(&port, |p| format!("port {}{of_device}: {}\n{note}", p.name, told(&p.settings)))
}

/// What is to be known of these settings where the port is now.
fn effects(instance: &mut Instance, name: &str, set: &[Field]) -> Result<Vec<String>, CliError> {
    if !set.iter().any(|field| WATCHED.contains(&field.name.as_str())) {
        return Ok(Vec::new());
    }
    let ports: Vec<_> = all_ports(instance)?.into_iter().filter(|port| port.name == name).collect();
    let concerns = |note: &Note| set.iter().any(|field| note.concerns(&field.name));
    let host = instance.ask(async |c| c.stats().await)?.host;
    Ok(notes(instance, &host, &ports)?.iter().filter(|note| concerns(note)).map(Note::told).collect())
}

/// Tells a port all that: its engine last, for which another switch takes over, so that nothing has changed where the others are refused.
pub fn change(instance: &mut Instance, name: &str, fields: &[Field]) -> Result<PortChanged, CliError> {
    let (engine, others): (Vec<_>, Vec<_>) = fields.iter().cloned().partition(|field| field.name == ENGINE);
    let Some(engine) = engine.last() else { return instance.ask(async |c| c.port_set(name, &others).await) };
    if !others.is_empty() {
        instance.ask(async |c| c.port_set(name, &others).await)?;
    }
    let moved = instance.ask_until_answered(async |c, attempt| c.engine_move(name, &engine.value, attempt).await);
    moved.map_err(|e| if others.is_empty() { e } else { half_done(name, &others, &e) })?;
    instance.ask_until_answered(async |c, _| c.port_set(name, &[]).await)
}

/// What is set, and why the engine is not.
fn half_done(name: &str, set: &[Field], e: &CliError) -> CliError {
    let why = e.to_string();
    let why = why.strip_suffix("; nothing has changed").unwrap_or(&why);
    CliError::new(format!("port {name}: set is {}, but its engine stays as it was: {why}", told(set)))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every setting has an option, and no other.
    #[test]
    fn options_are_settings() {
        let command = SettingsArgs::augment_args(clap::Command::new("set"));
        let mut options: Vec<_> = command.get_arguments().filter_map(|a| a.get_long()).collect();
        let mut settings = lasthop_policy::SETTINGS.to_vec();
        options.sort_unstable();
        settings.sort_unstable();
        assert_eq!(options, settings);
    }
}
