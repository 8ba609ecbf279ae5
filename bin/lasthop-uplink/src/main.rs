//! `lasthop-uplink`: a driver domain. Started by `lasthop run` for each uplink; sees its device and its own memory, nothing
//! else. The switch is told of that memory like of a guest's.

mod arguments;
mod confine;
mod server;

use lasthop_ipc::{Channel, UplinkToSupervisor};
use lasthop_uplink_core::counters::Counters;
use lasthop_uplink_core::device::Device;
use lasthop_uplink_core::engine::Engine;
use lasthop_uplink_core::memory::SharedMemory;
use lasthop_uplink_core::probe::{Heard, Prober};
use lasthop_uplink_core::vmq::manager::Manager;
use std::process::ExitCode;
use std::sync::Arc;

fn main() -> ExitCode {
    tracing_subscriber::fmt().with_writer(std::io::stderr).with_ansi(false).with_target(false).init();
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
    match start(&arguments.wanted).and_then(|server| server.serve(&mut channel)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // The supervisor writes it to the log, with the uplink's name.
            let _ = channel.send(&UplinkToSupervisor::Failed(error.to_string()), None);
            ExitCode::FAILURE
        }
    }
}

fn start(wanted: &lasthop_uplink_core::device::Wanted) -> Result<server::Server, Box<dyn std::error::Error>> {
    let mut device = Device::open(wanted)?;
    let prober = Prober::open(&wanted.device, &device)?;
    let heard = Arc::new(Heard::new()?);
    let (memory, mut pairs) = SharedMemory::new(device.memory, &heard)?;
    device.bind(&mut pairs)?;
    confine::confine()?;
    let (counters, answered) = (Arc::new(Counters::default()), lasthop_sys::EventFd::new()?);
    let mut engines = Vec::new();
    // Threads made from here on are born inside the sandbox.
    for (i, (pair, queue)) in pairs.into_iter().zip(device.queues).enumerate() {
        let (engine, handle) = Engine::new(pair, queue, counters.clone(), answered.try_clone()?)?;
        std::thread::Builder::new().name(format!("queue-{i}")).spawn(move || engine.run())?;
        engines.push(handle);
    }
    let queues = device.steering.map(Manager::new);
    let server = server::Server::new(
        memory,
        engines,
        answered,
        counters,
        queues,
        (device.about, device.features),
        (prober, heard),
    )?;
    Ok(server)
}
