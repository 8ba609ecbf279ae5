//! The command people type: `lasthop run` starts the switch, everything else asks a running one over its local API.

mod acl;
mod attach;
mod capture;
mod client;
mod complaint;
mod completions;
mod conntrack;
mod declared;
mod device;
mod doctor;
mod engine;
mod history;
mod ipfix;
mod list;
mod log;
mod mac;
mod metrics;
mod mirror;
mod moved;
mod no_effect;
mod ovs;
mod report;
mod run;
mod set;
mod settings;
mod shares;
mod show;
mod size;
mod stats;
mod table;
mod top;
mod trace;
mod upgrade;
mod uplink;

use clap::error::ErrorKind;
use clap::{Args, CommandFactory, Parser, Subcommand};
use clap_complete::Shell;
use client::{CliError, Instance};
use lasthop_api::{Field, SwitchProxy};
use serde::Serialize;
use std::io::{self, StdoutLock, Write};
use std::path::PathBuf;
use std::process::ExitCode;

/// The last-hop switch for virtual machines.
#[derive(Debug, Parser)]
#[command(name = "lasthop", version, max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    #[command(
        after_help = "Examples:\n  lasthop run --port vm1=/run/lasthop/vm1.sock --port vm2=/run/vm2.sock,client\n  \
        lasthop run --port vm1=/run/lasthop/vm1.sock --uplink net=eth1\n  \
        lasthop run --port vm1=/run/lasthop/vm1.sock --uplink host=lasthop0,driver=tap,queues=2\n  \
        lasthop run --port vm1=/run/lasthop/vm1.sock --uplink net=eth1 --uplink standby=eth2\n  \
         lasthop run --cpus 2-3 --helpers 3 --no-bpf --port vm1=/run/lasthop/vm1.sock"
    )]
    Run(Box<run::RunArgs>),
    /// Add, remove and show ports
    #[command(subcommand)]
    Port(PortCommand),
    /// Connect the switch to the network, and show how
    #[command(subcommand)]
    Uplink(uplink::UplinkCommand),
    /// Show the devices of `lasthop run --device`
    #[command(subcommand)]
    Device(device::DeviceCommand),
    /// Say which CPUs do ports' work, by polling, by helpers or in ports' own threads; packets go on
    #[command(subcommand)]
    Engine(engine::EngineCommand),
    /// Show what the switch does with which packets
    #[command(subcommand)]
    Flow(FlowCommand),
    /// Show which station lives at which port
    #[command(subcommand)]
    Mac(mac::MacCommand),
    /// Add, remove and show mirrors: ports that get copies of other ports' packets
    #[command(subcommand)]
    Mirror(mirror::MirrorCommand),
    /// Write packets of ports to a file, or for tcpdump and wireshark, until Ctrl-C
    ///
    /// As pcapng, with the port, the direction, and why a packet was dropped if policy did. What cannot be written in time is lost, and
    /// counted; the packets themselves do not wait. It says at the end how many were captured and lost.
    #[command(after_help = "Examples:\n  \
        lasthop capture vm1 | tcpdump -n -r -\n  \
        lasthop capture vm1 tcp port 80 | wireshark -k -i -\n  \
        lasthop capture any -c 100 -s 128 'arp or icmp' -w /tmp/all.pcapng\n  \
        lasthop capture vm1,vm2 -w /tmp/vms.pcapng -C 100M -W 5")]
    Capture(capture::CaptureArgs),
    /// Show and end the connections that stateful access lists know
    #[command(subcommand)]
    Conntrack(conntrack::ConntrackCommand),
    /// Load, show and clear access lists: which packets may pass
    #[command(subcommand)]
    Acl(AclCommand),
    /// Name sets of addresses that access lists ask for, and change them
    #[command(subcommand)]
    Set(set::SetCommand),
    /// Make a running lasthop what a file says: ports, uplinks, mirrors, access lists, sets of addresses
    ///
    /// Prints what it changes: `+` made, `-` removed, `~` changed. Applied once more it changes nothing. A file with a mistake changes nothing.
    #[command(after_help = "Example file:\n  \
        [uplink.net]\n  \
        device = \"eth1\"\n\n  \
        [port.vm1]\n  \
        socket = \"/run/lasthop/vm1.sock\"\n  \
        vlan = 10\n  \
        mac = \"52:54:00:12:34:56\"\n  \
        acl = \"vm1.rules\"\n\n\
        Examples:\n  \
        lasthop apply /etc/lasthop.toml --dry-run\n  \
        lasthop apply /etc/lasthop.toml --prune")]
    Apply(declared::ApplyArgs),
    /// Show counters of every port, drops by reason, and whether they add up
    #[command(after_help = "Example:\n  lasthop stats --verbose")]
    Stats(stats::StatsArgs),
    /// Tell Prometheus what `stats`, `port list`, `uplink list` and `conntrack stats` show
    ///
    /// Once, to standard output, or with --listen to whoever asks over HTTP. It needs no more rights than to look.
    #[command(after_help = "Examples:\n  lasthop metrics\n  lasthop metrics --listen 127.0.0.1:9477\n  \
        lasthop metrics --listen unix:/run/lasthop-metrics.sock")]
    Metrics(metrics::MetricsArgs),
    /// Tell a collector of IPFIX what each flow carries
    ///
    /// As RFC 7011 has it, over UDP, until Ctrl-C. It needs no more rights than to look. What could not be told is counted, and said at the end.
    #[command(
        after_help = "Examples:\n  lasthop ipfix 10.0.0.9:4739\n  lasthop ipfix [fd00::9]:4739 --active 300 --idle 30 --domain 7"
    )]
    Ipfix(ipfix::IpfixArgs),
    /// Record what every port does, minute by minute, and show it
    #[command(subcommand)]
    History(history::HistoryCommand),
    /// Show which lines of the log are written, and change it while lasthop runs
    #[command(after_help = "Examples:\n  lasthop log\n  lasthop log level debug")]
    Log(log::LogArgs),
    /// Show live what every port and uplink carries and drops, and processor time
    ///
    /// Without a terminal, or with --plain, a table each interval.
    #[command(after_help = "Examples:\n  lasthop top\n  lasthop top --plain -n 3 -d 1\n\n\
        Keys:\n  n p b d c  sort by name, packets, bytes, drops, processor time\n  \
        up, down   choose a port\n  Enter      open it; again, or Esc, closes it\n  q          end")]
    Top(top::TopArgs),
    /// Show what would happen to a packet, and why
    #[command(after_help = "Examples:\n  \
        lasthop trace --in-port vm1 --eth-src 52:54:00:00:00:01 --eth-dst 52:54:00:00:00:02\n  \
        lasthop trace --in-port vm1 --eth-src 52:54:00:00:00:01 --eth-dst ff:ff:ff:ff:ff:ff --vlan 5 \\\n    \
        --ip-src 10.0.0.1 --ip-dst 10.0.0.2 --proto udp --sport 68 --dport 67\n  \
        lasthop trace --in-port vm1 arp --eth-src 52:54:00:00:00:01 --arp-spa 10.0.0.1 --arp-tpa 10.0.0.2\n  \
        lasthop trace --in-port vm1 nd --eth-src 52:54:00:00:00:01 --ip-src fd00::1 --nd-target fd00::2\n  \
        lasthop trace --in-port vm1 --frame ffffffffffff5254000000010806")]
    Trace(trace::TraceArgs),
    /// Show everything of one port or uplink
    #[command(after_help = "Examples:\n  lasthop show vm1\n  lasthop show net --json")]
    Show(show::ShowArgs),
    /// Find what is wrong: what shows it, and what to do about it
    ///
    /// It looks for some seconds. The exit status is 0 if nothing was found, and 1 if something was, or nobody could be asked.
    #[command(after_help = "Examples:\n  lasthop doctor\n  lasthop doctor vm1 --for 10\n  lasthop doctor --json")]
    Doctor(doctor::DoctorArgs),
    /// Write an archive for somebody who is to find out what is wrong here: versions, doctor, all ports, counters, flows, lists, the log
    ///
    /// MAC and IP addresses are replaced, the same by the same word, unless --with-addresses says otherwise.
    #[command(after_help = "Examples:\n  lasthop report\n  lasthop report /tmp/lasthop.tar.gz --with-addresses")]
    Report(report::ReportArgs),
    /// Have newly installed programs take the place of those that run; VMs stay connected
    ///
    /// One process after the other, those whose program has changed. Prints how long each took, and for how long each port's packets did not move. If a
    /// new one does not come, the one before goes on, and nothing further is replaced.
    #[command(
        after_help = "Examples:\n  lasthop upgrade\n  lasthop upgrade --programs /opt/lasthop-new\n  lasthop upgrade --only switch,control --all"
    )]
    Upgrade(upgrade::UpgradeArgs),
    /// What the programs of this build say to each other: for `lasthop upgrade`
    #[command(hide = true)]
    Messages,
    /// Run programs of Open vSwitch that take lasthop for the kernel's datapath
    #[command(subcommand)]
    Ovs(ovs::OvsCommand),
    /// Print the lines that plug a virtual machine into a port
    #[command(
        after_help = "Examples:\n  lasthop attach vm1 --vmm qemu\n  lasthop attach vm1-net vm1-storage --vmm libvirt"
    )]
    Attach(attach::AttachArgs),
    /// Print what a shell completes lasthop's command lines with
    #[command(after_help = "Example:\n  lasthop completions bash > /etc/bash_completion.d/lasthop")]
    Completions {
        /// The shell
        shell: Shell,
    },
    /// Write manual pages
    #[command(hide = true)]
    Man {
        /// Directory to write them to
        dir: PathBuf,
    },
}

#[derive(Debug, Subcommand)]
enum PortCommand {
    /// Make a port
    #[command(after_help = "Examples:\n  lasthop port add vm1 /run/lasthop/vm1.sock\n  \
        lasthop port add vm2 /run/lasthop/vm2.sock --tx-batch 250,32\n  \
        lasthop port add vm3 /run/lasthop/vm3.sock --owner libvirt-qemu:kvm\n  \
        lasthop port add vm4 /run/lasthop/vm4.sock --vlan 10 --mac 52:54:00:12:34:56 --addr 10.0.0.4\n  \
        lasthop port add c1 --device veth1")]
    Add {
        /// Its name: 1 to 63 letters, digits, '.', '_' or '-'
        #[arg(value_parser = run::new_name)]
        name: String,
        /// Path of its vhost-user socket; lasthop listens there
        #[arg(required_unless_present = "device")]
        path: Option<PathBuf>,
        /// The front-end listens, and lasthop connects
        #[arg(long)]
        client: bool,
        /// The user, and perhaps the group, that alone may use it, besides root [default: whoever may open its socket]
        #[arg(long, value_name = "USER[:GROUP]", conflicts_with = "device")]
        owner: Option<run::FileOwner>,
        #[command(flatten)]
        device: uplink::DeviceArgs,
        #[command(flatten)]
        settings: Box<settings::SettingsArgs>,
        #[command(flatten)]
        shared: SharedArgs,
    },
    /// Tell a port something: its VLANs, whose addresses it may use, whom it talks to
    ///
    /// What is not named stays as it is; `none` takes a setting back. It is remembered for a port of this name. When the command returns,
    /// the switch goes by it.
    #[command(after_help = "Examples:\n  \
        lasthop port set vm1 --vlan 10\n  \
        lasthop port set firewall --trunk 10,20-30 --native 1\n  \
        lasthop port set vm1 --mac 52:54:00:12:34:56 --addr 10.0.0.1,fd00::1 --no-dhcp-server --no-ra\n  \
        lasthop port set vm1 --isolated\n  \
        lasthop port set vm1 --vlan none --isolated off")]
    Set {
        /// Its name
        #[arg(add = completions::ports())]
        name: String,
        #[command(flatten)]
        settings: Box<settings::SettingsArgs>,
        #[command(flatten)]
        shared: SharedArgs,
    },
    /// Print what goes along with a VM that moves to another host: settings, access lists, addresses, connections
    ///
    /// As JSON, for `lasthop port import` there. Nothing is changed here.
    #[command(after_help = "Example:\n  lasthop port export vm1 >vm1.json")]
    Export(moved::ExportArgs),
    /// Have a port be what another was: the settings, access lists, addresses and connections of a VM that comes from another host
    ///
    /// Settings that the file does not have are taken back. Connections are judged by the access lists in force here. Addresses are
    /// taken when the VM is there; without that they are learned when it says something.
    #[command(after_help = "Examples:\n  lasthop port import vm1 vm1.json\n  \
        ssh source lasthop port export vm1 | lasthop port import vm1 -")]
    Import(moved::ImportArgs),
    /// Give a port another name; its guest stays connected
    ///
    /// What goes by the name goes along: settings, access lists, mirrors, static addresses, counters. Flows and connections go on. A port that
    /// the command line of `lasthop run` or its file names is renamed there.
    #[command(after_help = "Example:\n  lasthop port rename vm1 web1")]
    Rename {
        /// Its name
        #[arg(add = completions::guests())]
        name: String,
        /// What it is to be called: 1 to 63 letters, digits, '.', '_' or '-'
        #[arg(value_parser = run::new_name)]
        to: String,
        #[command(flatten)]
        shared: SharedArgs,
    },
    /// Remove a port and end its connection
    #[command(after_help = "Example:\n  lasthop port del vm1")]
    Del {
        /// Its name
        #[arg(add = completions::guests())]
        name: String,
        #[command(flatten)]
        shared: SharedArgs,
    },
    /// Show all ports
    #[command(after_help = "Example:\n  lasthop port list --json")]
    List(SharedArgs),
}

#[derive(Debug, Subcommand)]
enum FlowCommand {
    /// Show all flows in the switch
    #[command(after_help = "Example:\n  lasthop flow list")]
    List(SharedArgs),
}

#[derive(Debug, Subcommand)]
enum AclCommand {
    /// Load a file of rules instead of the rules there are
    ///
    /// One rule a line; the first that matches a packet decides, and where none does the packet passes, unless a line says
    /// `default deny`. The lists are those of all guests, unless a line `for uplinks`, `for all` or `for port NAME` at the top of the
    /// file, or --for, says otherwise; a port's own list replaces the general one there. When the command returns, no packet is judged by older rules, and the new ones are kept over
    /// restarts. A file with a mistake changes nothing.
    #[command(after_help = "Example file:\n  \
        # what vm1 may be asked for\n  \
        default to-guest deny\n  \
        permit to-guest arp\n  \
        permit to-guest icmp\n  \
        permit to-guest tcp from 10.0.0.0/8 to any port 22,80-90\n  \
        deny from-guest udp to any port 53\n\n\
        Examples:\n  \
        lasthop acl load general.rules\n  \
        lasthop acl load vm1.rules --port vm1\n  \
        lasthop acl load network.rules --for uplinks\n  \
        lasthop acl load acl1_1k --format classbench --action deny")]
    Load(acl::LoadArgs),
    /// Show the rules
    #[command(after_help = "Examples:\n  lasthop acl show\n  lasthop acl show --port vm1 --packets")]
    Show(acl::ShowArgs),
    /// Remove lists: those of guests or uplinks, or a port's own, which brings back the general ones there
    #[command(
        after_help = "Examples:\n  lasthop acl clear\n  lasthop acl clear --for all\n  lasthop acl clear --port vm1 --direction to-guest"
    )]
    Clear(acl::ClearArgs),
}

/// Which instance to ask and how to print what it says.
#[derive(Debug, Args)]
pub struct SharedArgs {
    /// Directory of the running instance's API socket
    #[arg(long, value_name = "DIR", default_value = "/run/lasthop")]
    pub run_dir: PathBuf,
    /// Print JSON; its fields are those of the Varlink interface org.lasthop.Switch
    #[arg(long)]
    pub json: bool,
}

impl SharedArgs {
    fn instance(&self) -> Result<Instance, CliError> {
        Instance::connect(&self.run_dir)
    }

    /// The answer as JSON, or as `human` makes it.
    fn show<T: Serialize>(&self, answer: &T, human: impl FnOnce(&T) -> String) -> Result<String, CliError> {
        if !self.json {
            return Ok(human(answer));
        }
        let text = serde_json::to_string_pretty(answer);
        text.map(|t| t + "\n").map_err(|e| CliError::new(format!("cannot write JSON: {e}")))
    }
}

fn main() -> ExitCode {
    completions::answer(Cli::command);
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(e) => return usage(&e),
    };
    if let Command::Port(PortCommand::Add { device, .. }) = &cli.command
        && let Some(option) = device.alone()
    {
        let wrong = format!("{option} goes with --device, and there is none");
        return usage(&Cli::command().error(ErrorKind::MissingRequiredArgument, wrong));
    }
    let result = match cli.command {
        Command::Run(args) => return run::run(*args),
        Command::Port(PortCommand::Add { name, path, client, owner, device, settings, shared }) => {
            settings.of_new_port().and_then(|settings| match &device.device {
                Some(interface) => uplink::port_add_device(&name, interface, &device, &settings, &shared),
                None => port_add(&name, path.unwrap_or_default(), client, owner, &settings, &shared),
            })
        }
        Command::Port(PortCommand::Set { name, settings, shared }) => settings::set(&name, &settings, &shared),
        Command::Port(PortCommand::Export(args)) => moved::export(&args),
        Command::Port(PortCommand::Import(args)) => moved::import(&args),
        Command::Port(PortCommand::Rename { name, to, shared }) => port_rename(&name, &to, &shared),
        Command::Port(PortCommand::Del { name, shared }) => port_del(&name, &shared),
        Command::Port(PortCommand::List(shared)) => list::ports(&shared),
        Command::Uplink(command) => uplink::uplink(&command),
        Command::Device(command) => device::device(&command),
        Command::Engine(command) => engine::engine(&command),
        Command::Flow(FlowCommand::List(shared)) => list::flows(&shared),
        Command::Mac(command) => mac::mac(&command),
        Command::Mirror(command) => mirror::mirror(&command),
        Command::Capture(args) => capture::capture(&args),
        Command::Conntrack(command) => conntrack::conntrack(&command),
        Command::Acl(AclCommand::Load(args)) => acl::load(&args),
        Command::Acl(AclCommand::Show(args)) => acl::show(&args),
        Command::Acl(AclCommand::Clear(args)) => acl::clear(&args),
        Command::Set(command) => set::set(&command),
        Command::Apply(args) => declared::apply(&args),
        Command::Stats(args) => stats::stats(&args),
        Command::Metrics(args) => metrics::metrics(&args),
        Command::Ipfix(args) => ipfix::ipfix(&args),
        Command::History(command) => history::history(&command),
        Command::Log(args) => log::log(&args),
        Command::Top(args) => top::top(&args).map(|()| String::new()),
        Command::Trace(args) => trace::trace(&args),
        Command::Show(args) => show::show(&args),
        Command::Doctor(args) => match doctor::doctor(&args) {
            Ok((text, found)) => {
                let printed = print(|stdout| stdout.write_all(text.as_bytes()));
                return if found { ExitCode::FAILURE } else { printed };
            }
            Err(e) => Err(e),
        },
        Command::Report(args) => report::report(&args),
        Command::Upgrade(args) => upgrade::upgrade(&args),
        Command::Messages => Ok(format!("{}\n", run::MESSAGES)),
        Command::Ovs(command) => ovs::run(command),
        Command::Attach(args) => attach::attach(&args),
        Command::Completions { shell } => Ok(completions::function(shell)),
        Command::Man { dir } => man(&dir),
    };
    match result {
        Ok(text) => print(|stdout| stdout.write_all(text.as_bytes())),
        Err(e) => {
            complaint::complain(&e);
            ExitCode::from(e.status)
        }
    }
}

/// Writes to standard output. An answer that could not be written was not given, and that is an error; but a reader that has
/// seen enough (`| head`) is none.
fn print(write: impl FnOnce(&mut StdoutLock<'_>) -> io::Result<()>) -> ExitCode {
    let mut stdout = io::stdout().lock();
    match write(&mut stdout).and_then(|()| stdout.flush()) {
        Err(e) if e.kind() != io::ErrorKind::BrokenPipe => {
            let _ = writeln!(io::stderr(), "lasthop: cannot write to standard output: {e}; is the disk full?");
            ExitCode::FAILURE
        }
        _ => ExitCode::SUCCESS,
    }
}

/// The commands named by these arguments, as one types them, `lasthop port add`, and where to read more. A word that other
/// programs have for a command gets ours.
fn help_of(arguments: impl Iterator<Item = String>) -> String {
    let (mut command, mut name) = (Cli::command(), "lasthop".to_owned());
    for word in arguments {
        let Some(sub) = command.find_subcommand(&word).cloned() else {
            let look = matches!(word.as_str(), "list" | "ls" | "show" | "get" | "status");
            let ours = ["list", "show"].into_iter().find(|sub| command.find_subcommand(sub).is_some());
            match ours {
                Some(ours) if look && name != "lasthop" => return format!("there is `{name} {ours}`"),
                _ if look && name == "lasthop" => return "there are `lasthop port list` and `lasthop stats`".into(),
                _ => break,
            }
        };
        name = format!("{name} {}", sub.get_name());
        command = sub;
    }
    format!("see `{name} --help`")
}

/// Help on stdout; what is wrong with the arguments in one line on stderr.
fn usage(e: &clap::Error) -> ExitCode {
    match e.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => print(|stdout| write!(stdout, "{}", e.render())),
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            let _ = e.print();
            ExitCode::from(2)
        }
        _ => {
            let text = e.to_string();
            let words = |paragraph: &str| paragraph.split_whitespace().collect::<Vec<_>>().join(" ");
            let paragraphs = text.split("\n\n");
            let wrong = words(paragraphs.clone().next().unwrap_or_default().trim_start_matches("error:"));
            let help = help_of(std::env::args().skip(1));
            // How to pass an option as a value is not what somebody wants to know who has misspelt one.
            let tip = paragraphs.clone().find_map(|p| p.trim().strip_prefix("tip:").map(words));
            let tip = tip.filter(|tip| !tip.starts_with("to pass")).map_or_else(String::new, |tip| format!("; {tip}"));
            complaint::complain(format_args!("{wrong}{tip}; {help}"));
            ExitCode::from(2)
        }
    }
}

fn port_add(
    name: &str,
    path: PathBuf,
    client: bool,
    owner: Option<run::FileOwner>,
    settings: &[Field],
    shared: &SharedArgs,
) -> Result<String, CliError> {
    if let Some(device) = path.to_str().and_then(run::meant_device) {
        let path = path.display();
        return Err(CliError::usage(format!(
            "{path} looks like an interface; write --device {device}, or ./{path} for a socket of that name"
        )));
    }
    let path = std::path::absolute(&path)
        .map_err(|e| CliError::new(format!("{}: {e}; give an absolute path", path.display())))?;
    let shown = path.display().to_string();
    let Some(path) = path.to_str() else {
        return Err(CliError::usage(format!("{shown}: the path is not UTF-8; choose another")));
    };
    let owner = owner.map(|owner| owner.to_string());
    let mut instance = shared.instance()?;
    let port = instance.ask(async |c| c.port_add(name, path, client, None, owner.as_deref(), settings).await)?;
    shared.show(&port, |p| {
        let how = if p.client { "connects to" } else { "listens on" };
        format!("port {}: lasthop {how} {}\n", p.name, p.path)
    })
}

fn port_rename(name: &str, to: &str, shared: &SharedArgs) -> Result<String, CliError> {
    let mut instance = shared.instance()?;
    let port = instance.ask(async |c| c.port_rename(name, to).await)?;
    shared.show(&port, |p| format!("port {name}: renamed to {}\n", p.name))
}

fn port_del(name: &str, shared: &SharedArgs) -> Result<String, CliError> {
    let mut instance = shared.instance()?;
    let port = instance.ask(async |c| c.port_del(name).await);
    let port = port.map_err(|e| device::ports::hint(e, &shared.run_dir, name))?;
    let left = left_behind(&mut instance, name);
    shared.show(&port, |p| match &p.settings[..] {
        [] => format!("port {}: removed\n{left}", p.name),
        told => format!("port {}: removed; what it was told ({}) is forgotten\n{left}", p.name, list::fields(told)),
    })
}

/// What names a port that has gone and stays for the next of its name. It has gone: that what stays cannot be asked is no error.
fn left_behind(instance: &mut client::Instance, name: &str) -> String {
    let mut text = String::new();
    if list::ovs_decides(instance).unwrap_or_default() {
        text += &format!("a bridge of Open vSwitch's that has {name} still names it: `ovs-vsctl del-port {name}`\n");
    }
    let rules = instance.ask(async |c| client::collect(c.acl_show(&[name], false).await, |page| page.rules).await);
    if rules.unwrap_or_default().iter().any(|rule| rule.port.as_deref() == Some(name)) {
        text += &format!(
            "its own access lists stay, and hold for the next port {name}; `lasthop acl clear --port {name}` removes them\n"
        );
    }
    let mirrors = instance.ask(async |c| c.mirror_list().await).map(|list| list.mirrors).unwrap_or_default();
    for mirror in mirrors.iter().filter(|mirror| mirror.to_come.iter().any(|missing| missing == name)) {
        let what = mirror.note.as_deref().unwrap_or("one of its ports is missing");
        text += &format!("mirror {}: {what}\n", mirror.name);
    }
    text
}

fn man(dir: &std::path::Path) -> Result<String, CliError> {
    clap_mangen::generate_to(Cli::command(), dir)
        .map_err(|e| CliError::new(format!("{}: {e}; name a directory that can be written to", dir.display())))?;
    Ok(String::new())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_help_of_the_command_at_hand() {
        let help = |line: &str| help_of(line.split_whitespace().map(str::to_owned));
        assert_eq!(help("port add vm1 --frob"), "see `lasthop port add --help`");
        assert_eq!(help("run --congestion 2,10"), "see `lasthop run --help`");
        assert_eq!(help("--frob"), "see `lasthop --help`");
        assert_eq!(help("frob port"), "see `lasthop --help`");
        assert_eq!(help("acl list"), "there is `lasthop acl show`");
        assert_eq!(help("port add show --frob"), "see `lasthop port add --help`");
        assert_eq!(help("status"), "there are `lasthop port list` and `lasthop stats`");
    }

    #[test]
    fn command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn every_command_has_help_and_an_example() {
        fn check(command: &clap::Command) {
            for sub in command.get_subcommands().filter(|c| !c.is_hide_set() && c.get_name() != "help") {
                assert!(sub.get_about().is_some(), "{}", sub.get_name());
                let group = sub.has_subcommands();
                assert!(group || sub.get_after_help().is_some(), "{} has no example", sub.get_name());
                check(sub);
            }
        }
        check(&Cli::command());
    }
}
