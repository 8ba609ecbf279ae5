//! `lasthop ipfix`: flows, with what each has carried, sent to a collector as IPFIX (RFC 7011) over UDP.
//!
//! It is a client of the API with a process of its own: a user who may look only (`lasthop run --read-group`) is enough for it, and what a
//! collector does to it reaches nothing that matters to packets. It looks at all flows now and then, and asks for those that ended
//! meanwhile, which control keeps for it.

mod key;
mod message;
mod table;

use crate::client::{CliError, Instance, signalled_before};
use crate::list::all_ports;
use clap::Args;
use futures_util::StreamExt;
use lasthop_api::{Flow, SwitchProxy};
use lasthop_sys::SignalFd;
use lasthop_text::counted;
use message::{Writer, element, variable};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::{SocketAddr, ToSocketAddrs, UdpSocket};
use std::path::PathBuf;
use std::pin::pin;
use std::time::{Duration, Instant, SystemTime};
use table::{Limits, Missed, Record, Table};

/// Options templates: names of interfaces, and what could not be sent (RFC 7011 section 4.3).
const INTERFACES: u16 = key::END;
const RELIABILITY: u16 = key::END + 1;
/// What is missed is said so often in the log, at most.
const SAY: Duration = Duration::from_secs(60);

#[derive(Debug, Args)]
pub struct IpfixArgs {
    /// The collector: an address or a name, and its UDP port
    #[arg(value_name = "ADDRESS:PORT")]
    collector: String,
    /// Seconds after which a flow that goes on is told of
    #[arg(long, value_name = "SECONDS", default_value_t = 60, value_parser = crate::size::whole::<u64>(1..=3600))]
    active: u64,
    /// Seconds without a packet after which a flow is told of
    #[arg(long, value_name = "SECONDS", default_value_t = 15, value_parser = crate::size::whole::<u64>(1..=3600))]
    idle: u64,
    /// Seconds between two looks at the flows
    #[arg(long, value_name = "SECONDS", default_value_t = 5, value_parser = crate::size::whole::<u64>(1..=60))]
    interval: u64,
    /// Seconds after which templates and names of ports are sent once more
    #[arg(long, value_name = "SECONDS", default_value_t = 60, value_parser = crate::size::whole::<u64>(1..=3600))]
    templates: u64,
    /// Number of the observation domain: which switch this is
    #[arg(long, value_name = "NUMBER", default_value_t = 1)]
    domain: u32,
    /// Tell of one flow of N, and of nothing of the others
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = crate::size::whole::<u64>(1..=1_000_000))]
    sample: u64,
    /// Flows that are followed at a time, some 300 bytes each; others are counted
    #[arg(long, value_name = "N", default_value_t = 65_536, value_parser = crate::size::whole::<u64>(1..=1_048_576))]
    flows: u64,
    /// Longest message in bytes: what passes any path of IPv6 whole, if not given
    #[arg(long, value_name = "BYTES", default_value_t = 1232, value_parser = crate::size::whole::<u16>(512..=65_000))]
    message_size: u16,
    /// Directory of the running instance's API socket
    #[arg(long, value_name = "DIR", default_value = "/run/lasthop")]
    run_dir: PathBuf,
}

impl IpfixArgs {
    fn address(&self) -> Result<SocketAddr, CliError> {
        let wrong = |why: String| {
            CliError::usage(format!(
                "{:?}: {why}; write an address and a port, such as 10.0.0.9:4739 or [fd00::9]:4739",
                self.collector
            ))
        };
        let mut all = self.collector.to_socket_addrs().map_err(|e| wrong(e.to_string()))?;
        all.next().ok_or_else(|| wrong("there is no such address".into()))
    }
}

/// Sends messages, and knows what has gone.
struct Exporter {
    socket: UdpSocket,
    writer: Writer,
    /// Templates that have been used.
    used: BTreeSet<u16>,
    /// When templates are sent once more.
    templates_at: Instant,
    every: Duration,
    started: SystemTime,
    /// Records of flows that were sent, packets and octets in them.
    sent: (u64, u64, u64),
    /// Data records, of options as well, in messages that the system did not take.
    not_taken: u64,
}

fn ms(time: SystemTime) -> u64 {
    let since = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(0)
}

/// As a message has it: good until 2106.
fn seconds() -> u32 {
    (ms(SystemTime::now()) / 1000) as u32
}

impl Exporter {
    fn new(args: &IpfixArgs) -> Result<Self, CliError> {
        let to = args.address()?;
        let failed = |e: io::Error| CliError::new(format!("{to}: {e}; is there a way to the collector?"));
        let any: SocketAddr = if to.is_ipv4() { ([0; 4], 0).into() } else { ([0u16; 8], 0).into() };
        let socket = UdpSocket::bind(any).map_err(failed)?;
        socket.connect(to).map_err(failed)?;
        Ok(Self {
            socket,
            writer: Writer::new(args.domain, args.message_size.into()),
            used: BTreeSet::new(),
            templates_at: Instant::now(),
            every: Duration::from_secs(args.templates),
            started: SystemTime::now(),
            sent: (0, 0, 0),
            not_taken: 0,
        })
    }

    fn record(&mut self, record: &Record) {
        let (template, now) = (record.key.template, seconds());
        if self.used.insert(template) {
            self.writer.template(template, &key::fields(template), 0, now);
        }
        let mut values = record.key.values.to_vec();
        for number in [record.octets, record.packets, record.start_ms, record.end_ms] {
            values.extend(number.to_be_bytes());
        }
        values.push(record.reason as u8);
        self.writer.record(template, &values, now);
        let (records, packets, octets) = self.sent;
        self.sent = (records + 1, packets + record.packets, octets + record.octets);
        self.send();
    }

    /// Templates in use, names of ports and what was missed, if it is time: what goes by UDP may be lost, and a collector may have been
    /// started anew (RFC 7011 section 8.4).
    fn options(&mut self, ports: &BTreeMap<String, u32>, missed: &Missed) {
        if Instant::now() < self.templates_at {
            return;
        }
        self.templates_at = Instant::now() + self.every;
        let now = seconds();
        for template in &self.used {
            self.writer.template(*template, &key::fields(*template), 0, now);
        }
        self.writer.template(INTERFACES, &[element::INGRESS, element::INTERFACE_NAME], 1, now);
        let about = [
            element::EXPORTER,
            element::NOT_SENT_FLOWS,
            element::NOT_SENT_PACKETS,
            element::NOT_SENT_OCTETS,
            element::START,
            element::END,
        ];
        self.writer.template(RELIABILITY, &about, 1, now);
        for (name, id) in ports {
            self.writer.record(INTERFACES, &[&id.to_be_bytes()[..], &variable(name)].concat(), now);
            self.send();
        }
        let mut values = std::process::id().to_be_bytes().to_vec();
        let (start, end) = (ms(self.started), ms(SystemTime::now()));
        for number in [missed.flows, missed.packets, missed.octets, start, end] {
            values.extend(number.to_be_bytes());
        }
        self.writer.record(RELIABILITY, &values, now);
        self.flush();
    }

    fn flush(&mut self) {
        self.writer.end_message(seconds());
        self.send();
    }

    /// Sends what is whole. A collector that is not there is found out by what is sent next: then that is sent again, for it was not.
    fn send(&mut self) {
        for message in self.writer.take() {
            let sent = self.socket.send(&message.bytes).or_else(|_| self.socket.send(&message.bytes));
            if sent.is_err() {
                self.not_taken += u64::from(message.records);
            }
        }
    }
}

/// What is followed, and where it goes.
struct Watch<'a> {
    args: &'a IpfixArgs,
    instance: Option<Instance>,
    table: Table,
    exporter: Exporter,
    /// Numbers of ports by name, of those that have gone as well as long as flows may name them.
    ports: BTreeMap<String, u32>,
    /// What to ask control with.
    after: Option<u64>,
    said: Option<(Instant, Missed)>,
}

impl<'a> Watch<'a> {
    fn new(args: &'a IpfixArgs) -> Result<Self, CliError> {
        let exporter = Exporter::new(args)?;
        let limits = Limits {
            active_ms: args.active * 1000,
            idle_ms: args.idle * 1000,
            flows: usize::try_from(args.flows).unwrap_or(usize::MAX),
            sample: args.sample,
        };
        let table = Table::new(limits, ms(SystemTime::now()));
        let mut watch = Self { args, instance: None, table, exporter, ports: BTreeMap::new(), after: None, said: None };
        // That none runs, or that another decides there, is said at once.
        watch.look()?;
        Ok(watch)
    }

    /// Flows that ended, then all there are.
    fn look(&mut self) -> Result<(), CliError> {
        let mut instance = match self.instance.take() {
            Some(instance) => instance,
            None => Instance::connect(&self.args.run_dir)?,
        };
        let ports = all_ports(&mut instance)?.into_iter().map(|port| (port.name, port.id)).collect();
        if ports != self.ports {
            self.ports = ports;
            self.exporter.templates_at = Instant::now();
        }
        let Self { table, exporter, ports, after, .. } = self;
        let port = |name: &str| ports.get(name).copied().unwrap_or(0);
        exporter.options(ports, &table.missed);
        table.begin(ms(SystemTime::now()));
        loop {
            let cursor = *after;
            let ended = instance.ask(async |c| c.flows_ended(cursor).await)?;
            *after = Some(ended.next);
            table.missed.add(ended.missed, 0, 0);
            ended.flows.iter().filter_map(|flow| table.ended(flow, port)).for_each(|record| exporter.record(&record));
            if !ended.more {
                break;
            }
        }
        let mut see = |flow: &Flow| {
            if let Some(record) = table.see(flow, port) {
                exporter.record(&record);
            }
        };
        // Page by page: there may be 200 000.
        instance.ask(async |c| {
            let mut pages = pin!(c.flow_list().await?);
            while let Some(page) = pages.next().await {
                match page? {
                    Ok(page) => page.flows.iter().for_each(&mut see),
                    Err(e) => return Ok(Err(e)),
                }
            }
            Ok(Ok(()))
        })?;
        table.end().iter().for_each(|record| exporter.record(record));
        exporter.flush();
        self.instance = Some(instance);
        Ok(())
    }

    /// What is missed, now and then, if it has become more.
    fn say(&mut self) {
        let missed = self.table.missed;
        let is_due = self.said.is_none_or(|(at, before)| at.elapsed() >= SAY && before != missed);
        if is_due && missed != Missed::default() {
            self.said = Some((Instant::now(), missed));
            eprintln!("{}", told_of(&missed));
        }
    }

    /// The last look, and all that has not been told.
    fn end(mut self) -> String {
        // If nobody answers any more, what was heard last is what there is.
        let _ = self.look();
        let records = self.table.close();
        records.iter().for_each(|record| self.exporter.record(record));
        self.exporter.flush();
        let ((records, packets, octets), missed) = (self.exporter.sent, self.table.missed);
        let mut text = format!(
            "{} of {} and {} sent to {}\n",
            counted(records, "record"),
            counted(packets, "packet"),
            counted(octets, "byte"),
            self.args.collector
        );
        if missed != Missed::default() {
            text += &format!("{}\n", told_of(&missed));
        }
        if self.exporter.not_taken > 0 {
            text += &format!("{} could not be sent\n", counted(self.exporter.not_taken, "record"));
        }
        text
    }
}

fn told_of(missed: &Missed) -> String {
    format!(
        "not told of, or not to the end: {}, with {} that are known",
        counted(missed.flows, "flow"),
        counted(missed.packets, "packet")
    )
}

/// Until SIGINT or SIGTERM.
pub fn ipfix(args: &IpfixArgs) -> Result<String, CliError> {
    // Before any thread is started.
    let signals = SignalFd::new().map_err(|e| CliError::new(format!("signals: {e}")))?;
    let mut watch = Watch::new(args)?;
    eprintln!("ready: flows of {} go to {}", args.run_dir.display(), args.collector);
    let every = Duration::from_secs(args.interval);
    let mut next = Instant::now() + every;
    let mut away = false;
    loop {
        if signalled_before(&signals, next)? {
            return Ok(watch.end());
        }
        if Instant::now() < next {
            continue;
        }
        match watch.look() {
            Ok(()) => away = false,
            Err(e) if !std::mem::replace(&mut away, true) => eprintln!("lasthop: {e}; trying again"),
            Err(_) => {}
        }
        watch.say();
        // From the end of a look: one that takes long does not follow another at once.
        next = Instant::now() + every;
    }
}
