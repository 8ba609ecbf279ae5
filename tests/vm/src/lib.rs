//! What a demonstration and a test have in common.

pub mod ovn_story;
pub mod stage;
