//! `lasthop-uplink`: a driver domain. Started by `lasthop run` for each uplink; sees its device and its own memory, nothing
//! else. The switch is told of that memory like of a guest's.

mod arguments;
mod confine;
mod server;

use lasthop_ipc::Channel;
use lasthop_log::{Lines, Log};
use lasthop_uplink_core::counters::{CounterPage, Counters};
use lasthop_uplink_core::device::{Device, Kept, Wanted};
use lasthop_uplink_core::memory::SharedMemory;
use lasthop_uplink_core::survival::probe::{Heard, Prober};
use lasthop_uplink_ipc::UplinkToSupervisor;
use std::os::fd::OwnedFd;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

fn main() -> ExitCode {
    let log = Log::new();
    log.end_with_panics();
    let lines = log.clone();
    tracing_subscriber::fmt().with_ansi(false).event_format(Lines::new()).with_writer(move || lines.clone()).init();
    let result = run(&log);
    // What was said last is what matters, if anybody reads it.
    log.finish(Duration::from_millis(100));
    result
}

fn run(log: &Log) -> ExitCode {
    let arguments = match arguments::Arguments::take(std::env::args().skip(1)) {
        Ok(arguments) => arguments,
        Err(error) => {
            eprintln!("lasthop-uplink: {error}; this program is started by `lasthop run`");
            return ExitCode::from(2);
        }
    };
    // Threads made later inherit it. Without the right to, it stays what it is.
    if let Err(e) = rustix::process::setpriority_process(None, arguments.nice) {
        tracing::warn!("priority {}: {e}", arguments.nice);
    }
    let mut channel = Channel::new(arguments.supervisor);
    match start(&arguments.wanted, arguments.kept, arguments.counters, &mut channel, log)
        .and_then(|server| server.serve(&mut channel))
    {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // The supervisor writes it to the log, with the uplink's name.
            let _ = channel.send(&UplinkToSupervisor::Failed(error.to_string()), None);
            ExitCode::FAILURE
        }
    }
}

fn start(
    wanted: &Wanted,
    mut kept: Option<Kept>,
    counters: OwnedFd,
    supervisor: &mut server::Supervisor,
    log: &Log,
) -> Result<server::Server, Box<dyn std::error::Error>> {
    let counters = Counters::new(CounterPage::map(counters)?);
    let inherited = kept.is_some();
    let probes = kept.as_mut().and_then(|kept| Prober::take_kept(kept, wanted.driver));
    let mut device = Device::open(wanted, kept)?;
    let prober = Prober::open(&wanted.device, &device, probes)?;
    let heard = Arc::new(Heard::new()?);
    if device.kept.is_some() {
        confine::confine(&wanted.device, inherited)?;
        log.start(std::io::stderr())?;
        return Ok(server::Server::waiting(device, counters, (prober, heard))?);
    }
    let (memory, mut pairs) = SharedMemory::new(device.memory, &heard, None)?;
    device.bind(&mut pairs, &memory)?;
    if !inherited {
        // The next process is to find the device open, with what waits in it, if it can be handed down.
        let device = device.to_keep(&memory);
        let probes = prober.to_keep().filter(|_| !device.is_empty());
        for descriptor in device.into_iter().chain(probes) {
            supervisor.send(&UplinkToSupervisor::Keep, Some(descriptor))?;
        }
    }
    confine::confine(&wanted.device, inherited)?;
    // Threads made from here on are born inside the sandbox.
    log.start(std::io::stderr())?;
    server::Server::carrying(device, counters, (prober, heard), memory, pairs)
}
