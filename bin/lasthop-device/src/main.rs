//! `lasthop-device`: the data plane of a device, which is the switch's with a table of so many rules as `lasthop run --device` says.

use std::process::ExitCode;

fn main() -> ExitCode {
    lasthop_switch::start("lasthop-device")
}
