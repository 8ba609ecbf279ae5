//! lasthop-forward
