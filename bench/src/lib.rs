//! What both programs of this package share, and tests: the load generator, and networks outside.

pub mod load;
pub mod stop;
pub mod xdp;
