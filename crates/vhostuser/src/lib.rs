//! lasthop-vhostuser
