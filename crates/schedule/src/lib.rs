//! lasthop-schedule
