//! `lasthop-ovs`: takes `lasthop-control`'s place where Open vSwitch decides. Started by `lasthop run --control ovs`.

mod answers;
mod client;
mod presence;
mod record;
mod server;
mod upcalls;

use lasthop_control::Descriptors;
use lasthop_sys::sandbox::Program;
use std::process::ExitCode;

const USAGE: &str = "lasthop-ovs is started by `lasthop run --control ovs`; arguments: --supervisor-fd N --api-fd N --ovs-fd N --frames-fd N --record-fd N \
                     --other-record-fd N --outline-fd N --other-outline-fd N [--host-view-fd N] [--read-api-fd N] [--pulse-fd N], open descriptors, and [--connections N]";

fn main() -> ExitCode {
    let (mut ovs, mut frames, mut record, mut outline) = (None, None, [None, None], [None, None]);
    let descriptors = Descriptors::take(std::env::args().skip(1), |name, fd| {
        match name {
            "--ovs-fd" => ovs = Some(fd),
            "--frames-fd" => frames = Some(fd),
            "--record-fd" => record[0] = Some(fd),
            "--other-record-fd" => record[1] = Some(fd),
            "--outline-fd" => outline[0] = Some(fd),
            "--other-outline-fd" => outline[1] = Some(fd),
            _ => return false,
        }
        true
    });
    let own = (descriptors, ovs, frames, record, outline);
    let (Some(descriptors), Some(ovs), Some(frames), [Some(a), Some(b)], [Some(c), Some(d)]) = own else {
        eprintln!("lasthop-ovs: {USAGE}");
        return ExitCode::from(2);
    };
    let connections = descriptors.connections;
    let server = || server::Server::new(ovs, frames, [[a, b], [c, d]], connections).map(Some);
    let serve = || lasthop_control::run_with(descriptors, server);
    lasthop_control::run_program(Program::OVS, serve)
}
