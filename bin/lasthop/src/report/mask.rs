//! Addresses in a text, replaced by words: the same address by the same word, so that who spoke with whom can still be told.
//!
//! What looks like an address and is none, a version of four numbers, is replaced too: better so than an address that is left.

use regex::{Captures, Regex};
use std::collections::HashMap;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::sync::LazyLock;

/// Digits with two colons or more, perhaps with the dots of IPv4 behind: of IPv6, if they can be read as that.
const V6: &str = r"[0-9A-Fa-f]*:[0-9A-Fa-f]*:[0-9A-Fa-f:]*(?:[0-9.]*[0-9])?";
/// Six bytes with colons or hyphens.
const MAC: &str = r"[0-9A-Fa-f]{2}(?::[0-9A-Fa-f]{2}){5}|[0-9A-Fa-f]{2}(?:-[0-9A-Fa-f]{2}){5}";
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
            // `std::io` has no address in the middle.
            let joins = |c: Option<char>| c.is_some_and(|c| c.is_alphanumeric() || c == '_');
            let part = joins(text[..found.start()].chars().next_back()) || joins(text[found.end()..].chars().next());
            after.push_str(&if part { found.as_str().to_owned() } else { self.v6(found.as_str()) });
        }
        after.push_str(&text[at..]);
        let after = mac.replace_all(&after, |found: &Captures<'_>| {
            let mac = found[0].to_ascii_lowercase().replace('-', ":");
            if NOBODY.contains(&mac.as_str()) { found[0].to_owned() } else { self.word("mac", mac) }
        });
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
    fn what_is_no_address_stays() {
        let mut mask = Mask::default();
        let text = "02:14:39 2026-11-27T02:14:39.123456Z 0.1.0 6.1.0-18-amd64 1.5 a: b.c --since ff:ff:ff:ff:ff:ff 0.0.0.0 :: 127.0.0.1 \
                    std::io 300.1.1.1";
        assert_eq!(mask.apply(text), text);
        assert_eq!(mask.count(), 0);
    }
}
