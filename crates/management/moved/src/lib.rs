//! What goes along with a guest that moves to another lasthop: the file of `lasthop port export`, and what `lasthop port import` takes of it.
//!
//! The file is somebody else's bytes. All that reads it is here, pure, so that tests and the fuzz target `moved` see all of it: [`Moved`] is its
//! form, [`adopt`] is what control does with a part of it, [`shown`] is a connection as it is exported.

mod adopt;
mod connection;
mod file;

pub use adopt::{AT_ONCE, adopt};
pub use connection::{PROTOCOLS, shown};
pub use file::{DIRECTIONS, FORM, Moved, changes};
