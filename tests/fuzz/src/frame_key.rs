//! `extract` against the slow reference at every depth.
//!
//! Input: 1 byte that says how much longer the frame is than its known part, then the frame.

use crate::Input;
use lasthop_frame::testutil::reference;
use lasthop_frame::{Depth, FlowKey, SNAPSHOT_LEN, extract};

pub(crate) fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let more = usize::from(input.u8()) * 256;
    let frame = input.rest();
    // Only behind a full snapshot can there be bytes that nobody looks at.
    let frame_len = if frame.len() >= SNAPSHOT_LEN { frame.len() + more } else { frame.len() };
    let key = reference::check(frame, frame_len);
    assert_eq!(key, reference::check(&frame[..frame.len().min(SNAPSHOT_LEN)], frame_len), "payload is not looked at");
    // Lengths that lie, as `lasthop trace` may: nothing to compare with, but no panic either.
    extract(&mut FlowKey::default(), frame, more, Depth::Full);
}
