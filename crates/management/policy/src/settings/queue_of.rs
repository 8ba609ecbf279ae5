//! A queue of an uplink that is kept for a port.

use super::OR_NONE;
use std::fmt;
use std::str::FromStr;

/// Fewest frames of a queue: as many as are carried at once.
const MIN_SIZE: u16 = 64;

/// At which uplink, and how many frames it keeps. As text `UPLINK` or `UPLINK:FRAMES`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueueOf {
    /// The uplink's name.
    pub uplink: String,
    /// Frames that may wait in it; as many as it has room for if nothing is said.
    pub size: Option<u16>,
}

impl FromStr for QueueOf {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (uplink, size) = text.split_once(':').map_or((text, None), |(uplink, size)| (uplink, Some(size)));
        crate::check_name(uplink).map_err(|e| format!("{e}; write the name of an uplink, {OR_NONE}"))?;
        let size = size.map(|size| size.parse().ok().filter(|size| *size >= MIN_SIZE).ok_or(size)).transpose();
        let wrong = |size| {
            format!(
                "{size:?} is not a number of frames, {MIN_SIZE} or more; write {uplink}:256, or {uplink} for all it has"
            )
        };
        Ok(Self { size: size.map_err(wrong)?, uplink: uplink.to_owned() })
    }
}

impl fmt::Display for QueueOf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.uplink)?;
        self.size.map_or(Ok(()), |size| write!(f, ":{size}"))
    }
}
