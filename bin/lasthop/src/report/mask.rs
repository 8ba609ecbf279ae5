//! Addresses in a text, replaced by words: the same address by the same word, so that who spoke with whom can still be told.
//!
//! What looks like an address and is none, a version of four numbers, is replaced too: better so than an address that is left.

use regex::{Captures, Regex};
use std::collections::HashMap;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::sync::LazyLock;

/// Digits with two colons or more, perhaps with the dots of IPv4 behind: of IPv6, if they can be read as that.
const V6: &str = r"[0-9A-Fa-f]*:[0-9A-Fa-f]*:[0-9A-Fa-f:]*(?:[0-9.]*[0-9])?";
/// Six bytes: with colons, perhaps without leading zeros, as the kernel writes bridges' identities; with hyphens, before which may be the
/// kind of network, as boot loaders write them; in three groups; or without anything, alone or behind the kind of interface in a name that
/// systemd gives.
const MAC: &str = concat!(
    r"(?<colons>[0-9A-Fa-f]{1,2}(?::[0-9A-Fa-f]{1,2}){5})|(?:\b01-)?(?<hyphens>[0-9A-Fa-f]{2}(?:-[0-9A-Fa-f]{2}){5})",
    r"|\b(?<groups>[0-9A-Fa-f]{4}(?:\.[0-9A-Fa-f]{4}){2})\b",
    r"|\b(?<kind>[a-z]{2}x|0000)?(?<plain>[0-9A-Fa-f]{12})\b",
);
/// Four numbers with dots.
const V4: &str = r"[0-9]{1,3}(?:\.[0-9]{1,3}){3}";
/// Those of all and of nobody tell nothing.
const NOBODY: [&str; 2] = ["ff:ff:ff:ff:ff:ff", "00:00:00:00:00:00"];

static PATTERNS: LazyLock<Result<[Regex; 3], regex::Error>> =
    LazyLock::new(|| Ok([Regex::new(V6)?, Regex::new(MAC)?, Regex::new(V4)?]));

/// Words for addresses.
#[derive(Debug, Default)]
pub struct Mask(HashMap<String, String>);

impl Mask {
    /// The text, without addresses.
    pub fn apply(&mut self, text: &str) -> String {
        // They are constants, and a test reads them; without them there is no text rather than addresses.
        let Ok([v6, mac, v4]) = &*PATTERNS else { return String::new() };
        let mut after = String::new();
        let mut at = 0;
        for found in v6.find_iter(text) {
            after.push_str(&text[at..found.start()]);
            at = found.end();
            // `std::io` has no address in the middle, and `10.0.0.2::10.0.0.1` two of another kind.
            let joins = |c: Option<char>| c.is_some_and(|c| c.is_alphanumeric() || c == '_');
            let before = text[..found.start()].chars().next_back();
            let part = joins(before) || before == Some('.') || joins(text[found.end()..].chars().next());
            after.push_str(&if part { found.as_str().to_owned() } else { self.v6(found.as_str()) });
        }
        after.push_str(&text[at..]);
        let after = mac.replace_all(&after, |found: &Captures<'_>| self.mac(found));
        let v4 = v4.replace_all(&after, |found: &Captures<'_>| match found[0].parse::<Ipv4Addr>() {
            Ok(address) if !address.is_unspecified() && !address.is_loopback() => {
                self.word("ipv4", address.to_string())
            }
            _ => found[0].to_owned(),
        });
        v4.into_owned()
    }

    /// How many addresses there were.
    pub fn count(&self) -> usize {
        self.0.len()
    }

    /// All forms of an address are one. A number of twelve decimal digits is a count.
    fn mac(&mut self, found: &Captures<'_>) -> String {
        let part = |name| found.name(name).map(|part| part.as_str());
        let bytes: Vec<u8> = match (part("colons").or(part("hyphens")), part("groups").or(part("plain"))) {
            (Some(parted), _) => {
                parted.split([':', '-']).filter_map(|byte| u8::from_str_radix(byte, 16).ok()).collect()
            }
            (_, digits) => {
                let digits: String = digits.unwrap_or_default().chars().filter(|c| *c != '.').collect();
                if part("kind").is_none() && digits.bytes().all(|b| b.is_ascii_digit()) {
                    return found[0].to_owned();
                }
                (0..digits.len()).step_by(2).filter_map(|n| u8::from_str_radix(&digits[n..n + 2], 16).ok()).collect()
            }
        };
        let mac = bytes.iter().map(|byte| format!("{byte:02x}")).collect::<Vec<_>>().join(":");
        if NOBODY.contains(&mac.as_str()) {
            return found[0].to_owned();
        }
        part("kind").unwrap_or_default().to_owned() + &self.word("mac", mac)
    }

    /// The colon of a sentence behind an address, or a port without brackets, is none of it.
    fn v6(&mut self, found: &str) -> String {
        let shorter = found.rsplit_once(':').unwrap_or((found, ""));
        for (address, behind) in [(found, ""), (shorter.0, &found[shorter.0.len()..])] {
            match address.parse::<Ipv6Addr>() {
                Ok(address) if address.is_unspecified() || address.is_loopback() => return found.to_owned(),
                Ok(address) => return self.word("ipv6", address.to_string()) + behind,
                Err(_) => {}
            }
        }
        found.to_owned()
    }

    fn word(&mut self, kind: &str, address: String) -> String {
        let next = self.0.len() + 1;
        self.0.entry(address).or_insert_with(|| format!("{kind}-{next}")).clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_address_one_word() {
        let mut mask = Mask::default();
        let text = "52:54:00:00:00:01 has 10.0.0.1, and 10.0.0.1/24 is at 52-54-00-00-00-01. 52:54:00:AB:00:01 52:54:00:ab:00:01:";
        assert_eq!(mask.apply(text), "mac-1 has ipv4-3, and ipv4-3/24 is at mac-1. mac-2 mac-2:");
        assert_eq!(
            mask.apply("fe80::1%eth0 addr=FE80::1,10.0.0.1:80 10.0.0.1-10.0.0.9:1."),
            "ipv6-4%eth0 addr=ipv6-4,ipv4-3:80 ipv4-3-ipv4-5:1."
        );
        assert_eq!(
            mask.apply("\"10.0.0.9\",fd00::9;[fd00::9]:80 fd00::9: fd00::9."),
            "\"ipv4-5\",ipv6-6;[ipv6-6]:80 ipv6-6: ipv6-6."
        );
        assert_eq!(mask.apply("::ffff:10.0.0.9 fd00:0:0:0:0:0:0:9"), "ipv6-7 ipv6-6");
        assert_eq!(mask.count(), 7);
    }

    #[test]
    fn one_address_in_all_the_forms_that_a_host_writes() {
        let mut mask = Mask::default();
        for (text, masked) in [
            ("bridge_id 8000.52:54:0:a:b:c ", "bridge_id 8000.mac-1 "),
            ("designated_root 8000.52:54:0:A:B:C", "designated_root 8000.mac-1"),
            ("3: enx5254000a0b0c: <UP>", "3: enxmac-1: <UP>"),
            ("altname wlx5254000a0b0c", "altname wlxmac-1"),
            ("BOOTIF=01-52-54-00-0a-0b-0c quiet", "BOOTIF=mac-1 quiet"),
            ("5254.000a.0b0c 5254000A0B0C", "mac-1 mac-1"),
            ("datapath_id=00005254000a0b0c", "datapath_id=0000mac-1"),
            ("ip=10.0.0.2::10.0.0.1:255.255.255.0:h:eth0:off", "ip=ipv4-2::ipv4-3:ipv4-4:h:eth0:off"),
        ] {
            assert_eq!(mask.apply(text), masked);
        }
    }

    #[test]
    fn what_is_no_address_stays() {
        let mut mask = Mask::default();
        let text = "02:14:39 2026-11-27T02:14:39.123456Z 0.1.0 6.1.0-18-amd64 1.5 a: b.c --since ff:ff:ff:ff:ff:ff 0.0.0.0 :: 127.0.0.1 \
                    std::io 300.1.1.1 123456789012 0000:00:1f.2 6.1.0-18-23-42 ffffffffffff";
        assert_eq!(mask.apply(text), text);
        assert_eq!(mask.count(), 0);
    }
}
