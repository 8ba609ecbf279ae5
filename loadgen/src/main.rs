//! `lasthop-loadgen`: guests for any vhost-user switch.

use clap::{CommandFactory, Parser};
use lasthop_harness::proc;
use lasthop_harness::stop::{self, Failure, Outcome, failed};
use lasthop_loadgen::frame::Vary;
use lasthop_loadgen::{
    self, Attack, Check, FlowOrder, Grants, Guest, Listening, Notify, Observer, Pattern, Policy, Report, Settings,
    Sizes, Socket,
};
use lasthop_sys::CpuList;
use serde::Serialize;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

/// Plays guests over any vhost-user back-end: sends, receives, checks and measures
///
/// Each socket is a port with a virtio network card. By default the generator listens on it and the switch connects; with
/// `,client` it connects to the switch. Before the traffic every port says to everybody where it is, so that a learning
/// switch knows. Lengths of frames are without checksum.
///
/// Exit codes: 0 when everything was measured, 1 when something was lost, reordered, doubled or damaged and
/// --strict was given, 2 when it could not be measured, 130 when it was stopped.
#[derive(Parser)]
#[command(name = "lasthop-loadgen", version, after_help = EXAMPLES)]
struct Arguments {
    /// Sockets of the ports, two at least (one with the pattern `reflect`): PATH, or PATH,client to connect to it
    #[arg(value_name = "PATH[,client]", required_unless_present = "man", value_parser = socket)]
    sockets: Vec<Socket>,
    /// Who sends to whom
    #[arg(long, value_enum, default_value_t = Pattern::BothWays)]
    pattern: Pattern,
    /// Lengths of frames in bytes, in turn with commas between; `imix` for 64, 594 and 1514 (7:4:1); `gso` for 64 KiB TCP
    /// packets that the receiver's card would cut
    #[arg(long, default_value = "64", value_name = "BYTES")]
    size: Sizes,
    /// Packets a second, all senders together, evenly spaced [default: as many as go]
    #[arg(long, value_name = "N")]
    rate: Option<f64>,
    /// Packets of each sender on their way at most; with the pattern `loop`, how many go round each way
    #[arg(long, value_name = "N")]
    window: Option<u32>,
    /// Packets of each sender, then it stops; the measurement ends when nothing comes any more
    #[arg(long, value_name = "N")]
    packets: Option<u64>,
    /// Flows of each sender to each receiver
    #[arg(long, default_value_t = 1, value_name = "N")]
    flows: u32,
    /// What tells flows apart
    #[arg(long, value_enum, default_value_t)]
    vary: Vary,
    /// Which flow comes next
    #[arg(long, value_enum, default_value_t)]
    flow_order: FlowOrder,
    /// How much of what is received is checked [default: order; with the pattern `loop`: count]
    #[arg(long, value_enum)]
    check: Option<Check>,
    /// Measure times from when a packet was due to when it was received; always on with a rate and where packets come back
    #[arg(long)]
    latency: bool,
    /// Packed rings instead of split ones
    #[arg(long)]
    packed: bool,
    /// Entries of each ring
    #[arg(long, default_value_t = 1024, value_name = "N")]
    ring: u16,
    /// Queue pairs of each port; flows are spread over them
    #[arg(long, default_value_t = 1, value_name = "N")]
    queues: u16,
    /// Bytes of a receive buffer; longer frames take several
    #[arg(long, default_value_t = 2048, value_name = "BYTES")]
    rx_buffer: usize,
    /// Do not accept VIRTIO_F_IN_ORDER
    #[arg(long)]
    no_in_order: bool,
    /// What guests with nothing to do do
    #[arg(long, value_enum, default_value_t)]
    notify: Notify,
    /// CPUs to run on, one thread on each [default: one thread, anywhere]
    #[arg(long, value_name = "LIST")]
    cpus: Option<CpuList>,
    /// Guest memory in huge pages: auto, yes, no
    #[arg(long, default_value = "auto", value_name = "WHEN", value_parser = ["auto", "yes", "no"])]
    huge: String,
    /// Seconds of traffic before the measurement
    #[arg(long, default_value_t = 0.5, value_name = "N")]
    warmup: f64,
    /// Seconds to measure
    #[arg(long, default_value_t = 5.0, value_name = "N")]
    seconds: f64,
    /// A port with a load of its own, and its times apart: PORT:WORD,… of `size=BYTES+BYTES…`, `rate=N` (packets a second of this port;
    /// 0: none), `window=N`, `flows=N`, and `kicks` (it kicks the switch whenever it is looked at); once for each
    ///
    /// Ports are numbered from 0, in the order of the sockets. What is not said is as for all; a rate of its own is no part of --rate. Times are
    /// measured where one has a rate
    #[arg(long = "guest", value_name = "PORT:WORD,…")]
    guests: Vec<Guest>,
    /// Microseconds of a turn: guests named with --guest that have no rate, or kick, are looked at in turns, one in each round over all other
    /// ports, for so long even if they have nothing to do
    #[arg(long, value_name = "N", requires = "guests")]
    turn: Option<f64>,
    /// Guests that do their worst as long as there is traffic, and what they do
    ///
    /// They are played beside the others, whose packets are measured, in slots of processor time that are the same
    /// whatever they do. It takes `both-ways`, --rate and two --attacker (`all`: twelve)
    #[arg(long, value_enum, requires = "attackers")]
    attack: Option<Attack>,
    /// Socket of an attacker's port; once for each
    #[arg(long = "attacker", value_name = "PATH[,client]", value_parser = socket, requires = "attack")]
    attackers: Vec<Socket>,
    /// The attackers behave well in the same slots, or guests that have turns send nothing in turns as long: what to compare with
    #[arg(long)]
    tame: bool,
    /// Microseconds of each slot
    #[arg(long, default_value_t = 10.0, value_name = "N", requires = "attack")]
    slot: f64,
    /// Packets a second from port 1 to port 0 beside all else, each from another MAC address, and their times
    #[arg(long, value_name = "N")]
    firsts: Option<f64>,
    /// Guests are behind IOMMUs of their own and grant their pages to the switch: `all` of them for good, each buffer `once`, or at
    /// most so many pages for reading and for writing each, which are reused
    #[arg(long, value_name = "all|once|PAGES")]
    grants: Option<Policy>,
    /// Buffers lie anywhere in so many pages of each port, elsewhere each time, instead of where they were before
    #[arg(long, value_name = "PAGES")]
    heap: Option<usize>,
    /// Revoke what is granted and not in use this often
    #[arg(long, value_name = "MILLISECONDS", requires = "grants")]
    drain: Option<u64>,
    /// Seconds to wait for the switch
    #[arg(long, default_value_t = 30.0, value_name = "N")]
    patience: f64,
    /// Processes of the switch, with their children: their processor time is shown
    #[arg(long, value_name = "PID", value_delimiter = ',')]
    pid: Vec<u32>,
    /// Fail when anything was lost, reordered, doubled or damaged
    #[arg(long)]
    strict: bool,
    /// JSON instead of text
    #[arg(long)]
    json: bool,
    /// Write the manual page to this directory and do nothing else
    #[arg(long, value_name = "DIR", hide = true)]
    man: Option<PathBuf>,
}

const EXAMPLES: &str = "Examples:
  lasthop run --port a=/tmp/a,client --port b=/tmp/b,client &
  lasthop-loadgen /tmp/a /tmp/b --pattern loop --cpus 0
      as many 64-byte packets as go, both ways
  lasthop-loadgen /tmp/a /tmp/b --pattern echo --rate 100000 --pid $(pgrep -x lasthop)
      times there and back, and processor time of the switch, at 100 000 packets a second
  lasthop-loadgen /tmp/a /tmp/b --size imix --flows 100000 --check content --rate 50000 --strict
      fails if a byte is wrong or a packet is lost
  lasthop-loadgen /tmp/a /tmp/b /tmp/c /tmp/d --pattern incast --window 256 --json
      three guests send to the fourth
  lasthop run --port a=/tmp/a --port b=/tmp/b &
  lasthop-loadgen /tmp/a,client /tmp/b,client --size gso --ring 256 --rx-buffer 4096 --window 64
      64 KiB packets, over sockets on which the switch listens
  lasthop-loadgen /tmp/a /tmp/b --rate 1e6 --firsts 1000 --attack trickle --attacker /tmp/c --attacker /tmp/d
      what a receiver that hardly takes anything costs two others; the same with --tame to compare with
  lasthop-loadgen /tmp/a /tmp/b --size 1472 --ring 256 --grants 4096 --heap 1114
      guests that grant their pages one by one and reuse what they have granted
  lasthop-loadgen /tmp/a /tmp/b /tmp/c /tmp/d --pattern one-way --guest 0:size=1514 --guest 2:rate=10000 --turn 20
      a guest that sends as fast as it can beside one that is paced, and the times of each; with --tame the paced one alone";

fn socket(text: &str) -> Result<Socket, String> {
    let (path, listen) = match text.strip_suffix(",client") {
        Some(path) => (path, false),
        None => (text, true),
    };
    if path.is_empty() || path.contains(',') {
        return Err("PATH or PATH,client".into());
    }
    Ok(Socket { path: path.into(), listen })
}

fn settings(a: &Arguments) -> Outcome<Settings> {
    let time = |name: &str, seconds: f64| {
        Duration::try_from_secs_f64(seconds).map_err(|e| failed(format!("--{name} {seconds}: {e}")))
    };
    let circulates = a.pattern.circulates();
    let paced = a.rate.is_some() || a.guests.iter().any(|g| g.rate.is_some_and(|r| r > 0.0));
    let settings = Settings {
        sizes: a.size.clone(),
        rate: a.rate,
        window: a.window,
        packets: a.packets,
        flows: a.flows,
        vary: a.vary,
        flow_order: a.flow_order,
        check: a.check.unwrap_or(if circulates { Check::Count } else { Check::Order }),
        latency: a.latency || a.pattern.returns() || (paced && a.check != Some(Check::Count)),
        packed: a.packed,
        ring_size: a.ring,
        queues: a.queues,
        rx_buffer: a.rx_buffer,
        in_order: !a.no_in_order,
        notify: a.notify,
        cpus: a.cpus.as_ref().map(|c| c.iter().collect()).unwrap_or_default(),
        huge: match a.huge.as_str() {
            "yes" => Some(true),
            "no" => Some(false),
            _ => None,
        },
        warmup: time("warmup", a.warmup)?,
        length: time("seconds", a.seconds)?,
        patience: time("patience", a.patience)?,
        attack: a.attack,
        attackers: a.attackers.clone(),
        guests: a.guests.clone(),
        turn: a.turn.map(|us| time("turn", us / 1e6)).transpose()?,
        tame: a.tame,
        slot: time("slot", a.slot / 1e6)?,
        firsts: a.firsts,
        heap: a.heap,
        grants: a.grants.map(|policy| Grants { policy, drain: a.drain.map(Duration::from_millis) }),
        ..Settings::new(a.sockets.clone(), a.pattern)
    };
    settings.validate()?;
    Ok(settings)
}

/// Processor time of the switch.
struct Cpu {
    roots: Vec<u32>,
    before: u64,
    /// Nanoseconds, and packets meanwhile.
    spent: Option<(u64, f64)>,
}

impl Cpu {
    fn now(&self) -> u64 {
        self.roots.iter().flat_map(|p| proc::tree(*p)).map(proc::cpu_ns).sum()
    }
}

impl Observer for Cpu {
    fn begin(&mut self) -> Outcome<()> {
        self.before = self.now();
        Ok(())
    }

    fn end(&mut self, packets: f64) -> Outcome<()> {
        self.spent = Some((self.now().saturating_sub(self.before), packets));
        Ok(())
    }
}

/// The JSON document.
#[derive(Serialize)]
struct Document {
    #[serde(flatten)]
    report: Report,
    /// Of the switch's processes, per received packet; without --pid unknown.
    switch_ns_per_packet: Option<f64>,
    /// Of one CPU.
    switch_cpu_percent: Option<f64>,
}

fn play(a: &Arguments) -> Outcome<bool> {
    let settings = settings(a)?;
    if let Some(gone) = a.pid.iter().find(|p| !proc::alive(**p)) {
        return Err(failed(format!("there is no process {gone}")));
    }
    stop::watch()?;
    lasthop_guestmem::install_fault_handler();
    let listening: Listening = lasthop_loadgen::listen(&settings)?;
    let mut cpu = Cpu { roots: a.pid.clone(), before: 0, spent: None };
    let report = lasthop_loadgen::run(&settings, &listening, &stop::check, &mut cpu)?;
    let spent = cpu.spent.filter(|(_, packets)| !a.pid.is_empty() && *packets > 0.0);
    let document = Document {
        switch_ns_per_packet: spent.map(|(ns, packets)| ns as f64 / packets),
        switch_cpu_percent: spent.map(|(ns, _)| ns as f64 / report.seconds / 1e7),
        report,
    };
    if a.json {
        println!("{}", serde_json::to_string_pretty(&document).map_err(failed)?);
    } else {
        print!("{}", document.report.text());
        if let (Some(ns), Some(percent)) = (document.switch_ns_per_packet, document.switch_cpu_percent) {
            println!("switch     {ns:.1} ns of processor time a packet, {percent:.1} % of a CPU");
        }
    }
    let r = &document.report;
    Ok(!a.strict || r.lost + r.reordered + r.doubled + r.damaged == 0)
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    if let Some(dir) = &arguments.man {
        return match clap_mangen::generate_to(Arguments::command(), dir) {
            Ok(()) => ExitCode::SUCCESS,
            Err(e) => {
                eprintln!("lasthop-loadgen: {}: {e}; name a directory that can be written to", dir.display());
                ExitCode::from(2)
            }
        };
    }
    match play(&arguments) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(Failure::Stopped) => {
            eprintln!("lasthop-loadgen: stopped");
            ExitCode::from(130)
        }
        Err(Failure::Failed(why)) => {
            eprintln!("lasthop-loadgen: {why}");
            ExitCode::from(2)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent_and_its_examples_hold() {
        Arguments::command().debug_assert();
        let examples = EXAMPLES.lines().map(str::trim).filter(|l| l.starts_with("lasthop-loadgen"));
        let mut count = 0;
        for line in examples {
            let words = line.replace("$(pgrep -x lasthop)", "1");
            let parsed = Arguments::try_parse_from(words.split(' ')).unwrap_or_else(|e| panic!("{line}: {e}"));
            settings(&parsed).unwrap_or_else(|e| panic!("{line}: {e:?}"));
            count += 1;
        }
        assert!(count >= 4);
    }

    #[test]
    fn sockets_are_understood() {
        assert_eq!(socket("/a,client").unwrap(), Socket { path: "/a".into(), listen: false });
        assert_eq!(socket("/a").unwrap(), Socket { path: "/a".into(), listen: true });
        assert!(socket("/a,server").is_err() && socket(",client").is_err());
    }
}
