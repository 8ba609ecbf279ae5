//! lasthop-control
fn main() {}
