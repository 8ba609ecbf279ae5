//! Sets of VLANs, as people write them.

use crate::flows::VID;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// Frames without a VLAN: no tag, or a priority tag (id 0).
const UNTAGGED: u16 = 0;
/// Greatest VLAN id; 4095 is reserved (IEEE 802.1Q, table 9-2).
const LAST: u16 = 4094;
const BYTES: usize = (VID as usize + 1) / 8;

/// A set of VLANs, and perhaps frames without one. As text, `untagged:10:20-30`: ids, ranges and the word `untagged`.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Vlans(Box<[u8; BYTES]>);

/// What is wrong with a list, and what to write instead.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParseVlansError {
    wrong: String,
    instead: &'static str,
}

impl ParseVlansError {
    fn new(wrong: impl Into<String>, instead: &'static str) -> Self {
        Self { wrong: wrong.into(), instead }
    }

    /// Where something else may be written instead than in a list.
    pub(crate) fn but(&self, instead: &str) -> String {
        if self.instead.is_empty() { self.to_string() } else { format!("{}; {instead}", self.wrong) }
    }
}

impl Default for Vlans {
    /// None.
    fn default() -> Self {
        Self(Box::new([0; BYTES]))
    }
}

impl Vlans {
    /// From [`Vlans::as_bytes`]. What is not said is not carried.
    pub fn from_bytes(bytes: &[u8]) -> Self {
        let mut all = Box::new([0; BYTES]);
        all.iter_mut().zip(bytes).for_each(|(to, from)| *to = *from);
        Self(all)
    }

    /// A bit for each VLAN id, the lowest of a byte first; that of id 0 is for frames without a VLAN.
    pub fn as_bytes(&self) -> &[u8] {
        &*self.0
    }

    /// Whether it is in the set; 0: frames without a VLAN.
    pub fn contains(&self, vlan: u16) -> bool {
        self.0.get(usize::from(vlan / 8)).is_some_and(|byte| byte & bit(vlan) != 0)
    }

    /// Whether one VLAN or more is in both.
    pub fn overlaps(&self, other: &Self) -> bool {
        self.0.iter().zip(&*other.0).any(|(a, b)| a & b != 0)
    }

    /// Every VLAN; not frames without one.
    pub(crate) fn all() -> Self {
        (1..=LAST).fold(Self::default(), |vlans, vlan| vlans.with(Some(vlan)))
    }

    /// And this one.
    pub(crate) fn with(mut self, vlan: Option<u16>) -> Self {
        vlan.into_iter().for_each(|vlan| self.insert(vlan));
        self
    }

    fn insert(&mut self, vlan: u16) {
        if let Some(byte) = self.0.get_mut(usize::from(vlan / 8)) {
            *byte |= bit(vlan);
        }
    }
}

fn bit(vlan: u16) -> u8 {
    1 << (vlan % 8)
}

impl FromStr for Vlans {
    type Err = ParseVlansError;

    fn from_str(text: &str) -> Result<Self, ParseVlansError> {
        let error = |wrong: String, instead| Err(ParseVlansError::new(wrong, instead));
        if text.is_empty() {
            return error(
                "no VLANs".into(),
                "; write ids and ranges like 10:20-30, and `untagged` for frames without a tag",
            );
        }
        let mut vlans = Self::default();
        for word in text.split(':') {
            let (first, last) = match word.split_once('-') {
                _ if word == "untagged" => (UNTAGGED, UNTAGGED),
                Some((first, last)) => (vlan_id(first)?, vlan_id(last)?),
                None => (vlan_id(word)?, vlan_id(word)?),
            };
            if last < first {
                return error(format!("the range {word} ends before it begins; write {last}-{first}"), "");
            }
            for vlan in first..=last {
                if vlans.contains(vlan) {
                    return match vlan {
                        UNTAGGED => error("`untagged` is there twice; leave one out".into(), ""),
                        _ => error(format!("VLAN {vlan} is there twice; leave one out"), ""),
                    };
                }
                vlans.insert(vlan);
            }
        }
        Ok(vlans)
    }
}

/// A VLAN's number.
pub(crate) fn vlan_id(word: &str) -> Result<u16, ParseVlansError> {
    let digits = word.bytes().all(|b| b.is_ascii_digit());
    match word.parse() {
        Ok(id @ 1..=LAST) if digits => Ok(id),
        Ok(0) if digits => Err(ParseVlansError::new("0 is no VLAN", "; `untagged` is for frames without a tag")),
        _ => Err(ParseVlansError::new(
            format!("{word:?} is not a VLAN id"),
            "; use 1 to 4094, ranges like 20-30, and `untagged`, with ':' between them",
        )),
    }
}

/// In order, with as few ranges as there can be.
impl fmt::Display for Vlans {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut colon = "";
        if self.contains(UNTAGGED) {
            f.write_str("untagged")?;
            colon = ":";
        }
        let mut next = 1;
        while let Some(first) = (next..=LAST).find(|vlan| self.contains(*vlan)) {
            next = (first..=LAST).find(|vlan| !self.contains(*vlan)).unwrap_or(LAST + 1);
            write!(f, "{colon}{first}")?;
            if next - 1 > first {
                write!(f, "-{}", next - 1)?;
            }
            colon = ":";
        }
        Ok(())
    }
}

impl fmt::Debug for Vlans {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Vlans({self})")
    }
}

impl fmt::Display for ParseVlansError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.wrong, self.instead)
    }
}

impl std::error::Error for ParseVlansError {}

impl TryFrom<String> for Vlans {
    type Error = ParseVlansError;

    fn try_from(text: String) -> Result<Self, ParseVlansError> {
        text.parse()
    }
}

impl From<Vlans> for String {
    fn from(vlans: Vlans) -> Self {
        vlans.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    fn vlans(text: &str) -> Vlans {
        text.parse().unwrap()
    }

    #[test]
    fn lists_say_what_is_carried() {
        let list = vlans("20-30:untagged:10");
        let carried: Vec<u16> = (0..=4095).filter(|vlan| list.contains(*vlan)).collect();
        assert_eq!(carried, [0, 10].into_iter().chain(20..=30).collect::<Vec<_>>());
        assert_eq!(list.to_string(), "untagged:10:20-30");
        for text in ["untagged", "1", "4094", "1-4094", "untagged:1-4094", "7:9"] {
            assert_eq!(vlans(text).to_string(), text);
        }
        assert_eq!(vlans("5-5:7:6").to_string(), "5-7");
        assert!(vlans("1-10").overlaps(&vlans("10:20")) && !vlans("1-9:untagged").overlaps(&vlans("10:20")));
        assert!(vlans("untagged").overlaps(&vlans("untagged:1")));
    }

    #[test]
    fn bad_lists_are_refused_with_what_is_wrong() {
        for (text, wrong) in [
            ("", "no VLANs"),
            ("5000", "\"5000\" is not a VLAN id; use 1 to 4094"),
            ("4095", "1 to 4094"),
            ("99999999", "1 to 4094"),
            ("0", "`untagged`"),
            ("0-5", "`untagged`"),
            ("20-10", "write 10-20"),
            ("10:10", "VLAN 10 is there twice"),
            ("10-20:15", "VLAN 15 is there twice"),
            ("untagged:3:untagged", "`untagged` is there twice"),
            ("10:", "\"\" is not"),
            (":10", "\"\" is not"),
            ("10,20", "':' between them"),
            ("10-", "\"\" is not"),
            ("1-2-3", "\"2-3\" is not"),
            ("+10", "\"+10\" is not"),
            ("10 ", "\"10 \" is not"),
            ("native", "\"native\" is not"),
            ("1-untagged", "\"untagged\" is not"),
        ] {
            let error = text.parse::<Vlans>().unwrap_err().to_string();
            assert!(error.contains(wrong), "{text:?}: {error}");
        }
    }

    proptest! {
        #[test]
        fn text_and_bytes_say_the_same(set in prop::collection::btree_set(prop_oneof![0u16..40, 0..=LAST], 1..60)) {
            let word = |vlan: &u16| if *vlan == 0 { "untagged".into() } else { vlan.to_string() };
            let one_by_one: Vec<String> = set.iter().rev().map(word).collect();
            let list = vlans(&one_by_one.join(":"));
            prop_assert_eq!(&(0..=u16::MAX).filter(|vlan| list.contains(*vlan)).collect::<BTreeSet<_>>(), &set);
            prop_assert_eq!(&vlans(&list.to_string()), &list);
            prop_assert_eq!(&Vlans::from_bytes(list.as_bytes()), &list);
        }

        #[test]
        fn no_text_does_harm(text in "[0-9:,a-z-]{0,12}") {
            if let Ok(list) = text.parse::<Vlans>() {
                prop_assert_eq!(vlans(&list.to_string()), list);
            }
        }
    }
}
