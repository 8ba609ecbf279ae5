//! Messages between the supervisor (`lasthop run`) and an uplink, and the page that an uplink counts in. The switch speaks none of it.

mod counters_page;
mod messages;

pub use counters_page::{CARRIED_ROWS, COUNTERS_NAME, COUNTERS_PAGE, COUNTERS_ROW};
pub use messages::*;
