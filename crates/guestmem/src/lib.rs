//! lasthop-guestmem
