//! `lasthop-control`: learns addresses, answers the switch's misses, serves the local API. Started by `lasthop run`.

use lasthop_control::Descriptors;
use lasthop_sys::sandbox::Program;
use std::process::ExitCode;

const USAGE: &str = "lasthop-control is started by `lasthop run`; \
                     arguments: --supervisor-fd N --api-fd N [--host-view-fd N] [--read-api-fd N] [--pulse-fd N], open descriptors, and [--connections N] [--rules N] [--bus BUS]";

fn main() -> ExitCode {
    let Some(descriptors) = Descriptors::take(std::env::args().skip(1), |_, _| false) else {
        eprintln!("lasthop-control: {USAGE}");
        return ExitCode::from(2);
    };
    lasthop_control::run_program(Program::CONTROL, || lasthop_control::run(descriptors))
}
