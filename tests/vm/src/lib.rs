//! lasthop-tests-vm
