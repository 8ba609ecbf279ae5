//! Static addresses (`lasthop mac add`): stations that live at a port because somebody says so.

use crate::vlans::vlan_id;
use lasthop_text::MacAddr;
use lasthop_text::parse_mac;
use std::fmt;
use std::str::FromStr;

/// Most static addresses of one port: all of them are told in one message.
pub const MAX_STATIC: usize = 256;

/// An address that lives at a port for good. As text `MAC` or `MAC@VLAN`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct StaticMac {
    /// The station's.
    pub mac: MacAddr,
    /// Its VLAN; `None`: the one that frames without a tag belong to at its port.
    pub vlan: Option<u16>,
}

impl fmt::Display for StaticMac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.vlan {
            Some(vlan) => write!(f, "{}@{vlan}", self.mac),
            None => write!(f, "{}", self.mac),
        }
    }
}

impl FromStr for StaticMac {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (mac, vlan) = text.split_once('@').map_or((text, None), |(mac, vlan)| (mac, Some(vlan)));
        let wrong =
            |_| format!("{text:?} is no static address; write one such as 52:54:00:12:34:56, or 52:54:00:12:34:56@10");
        let mac = parse_mac(mac).map_err(wrong)?;
        if !mac.is_unicast_source() {
            return Err(format!("{mac} is no station's address; write that of a card"));
        }
        let id =
            |vlan| vlan_id(vlan).map_err(|e| e.but("write one, 1 to 4094, or leave it out for frames without a tag"));
        Ok(Self { mac, vlan: vlan.map(id).transpose()? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_shown_and_what_is_wrong_is_said() {
        for text in ["52:54:00:00:00:01", "52:54:00:00:00:01@4094"] {
            assert_eq!(text.parse::<StaticMac>().unwrap().to_string(), text);
        }
        for (text, wrong) in [
            ("", "is no static address; write"),
            ("52:54:00:00:00", "is no static address; write"),
            ("ff:ff:ff:ff:ff:ff", "is no station's address"),
            ("52:54:00:00:00:01@", "write one, 1 to 4094"),
            ("52:54:00:00:00:01@4095", "write one, 1 to 4094"),
            ("52:54:00:00:00:01@0", "write one, 1 to 4094"),
            ("52:54:00:00:00:01@1@2", "write one, 1 to 4094"),
        ] {
            let error = text.parse::<StaticMac>().unwrap_err();
            assert!(error.contains(wrong), "{text}: {error}");
        }
    }
}
