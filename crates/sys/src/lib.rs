//! lasthop-sys
