//! What threads of this crate talk to each other by. `tests/models` compiles the files that use it with loom's instead.

pub(crate) use lasthop_lock::Lock;
pub(crate) use lasthop_sys::{Epoll, EventFd, Trigger};
pub(crate) use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
