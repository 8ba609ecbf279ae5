//! `lasthop-switch`: the data plane, started by `lasthop run`. What it does is in the library beside, for `lasthop-device` is the same.

fn main() -> std::process::ExitCode {
    lasthop_switch::start("lasthop-switch", || ())
}
