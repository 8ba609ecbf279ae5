//! What both programs of this package share: the load generator.

pub mod load;
pub mod stop;
