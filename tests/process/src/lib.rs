//! lasthop-tests-process
