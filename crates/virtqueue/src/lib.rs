//! lasthop-virtqueue
