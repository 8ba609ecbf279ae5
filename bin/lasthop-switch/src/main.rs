//! lasthop-switch
fn main() {}
