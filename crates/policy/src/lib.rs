//! lasthop-policy
