//! Numbers as people write them: whole ones, and sizes of memory, which are a number, perhaps with K, M, G or T, which are multiples of 1024.

use std::fmt;
use std::ops::RangeInclusive;
use std::str::FromStr;

/// Reads a whole number of this range, for a command line. The error says which numbers there are.
pub fn whole<T: TryFrom<u64>>(range: RangeInclusive<u64>) -> impl Fn(&str) -> Result<T, String> + Clone {
    move |text| {
        let number = text.parse().ok().filter(|number| range.contains(number));
        let number = number.and_then(|number| T::try_from(number).ok());
        number.ok_or_else(|| match range.clone().into_inner() {
            (least, u64::MAX) => format!("{text:?} is no whole number; write {least} or more"),
            (least, most) => format!("{text:?} is no whole number from {least} to {most}"),
        })
    }
}

/// A size as it was written. What a bare number counts is for whoever asked for it to say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Size {
    number: u64,
    unit: Option<char>,
}

impl Size {
    /// The same, a bare number being of MiB.
    pub fn or_mib(self) -> Self {
        Self { unit: self.unit.or(Some('M')), ..self }
    }

    /// In bytes, which a bare number is too.
    pub fn bytes(self) -> Option<u64> {
        let shift = match self.unit {
            None => 0,
            Some('K') => 10,
            Some('M') => 20,
            Some('G') => 30,
            Some(_) => 40,
        };
        self.number.checked_mul(1 << shift)
    }
}

impl FromStr for Size {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("{text:?} is not a size; write a whole number with K, M, G or T, such as 512M or 64G");
        let unit = text.chars().last().map(|c| c.to_ascii_uppercase()).filter(|c| "KMGT".contains(*c));
        let digits = if unit.is_some() { text.get(..text.len() - 1) } else { Some(text) }.unwrap_or_default();
        let digits = Some(digits).filter(|digits| digits.bytes().all(|b| b.is_ascii_digit()));
        let number = digits.and_then(|digits| digits.parse().ok()).ok_or_else(wrong)?;
        if number == 0 {
            return Err(format!("{text:?} is too little; the least is 1; write a size such as 512M or 64G"));
        }
        let size = Self { number, unit };
        size.bytes().map(|_| size).ok_or_else(wrong)
    }
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.number, self.unit.map_or(String::new(), String::from))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_that_is_none_is_told_with_the_range() {
        assert_eq!((whole::<u32>(2..=1000)("1000"), whole::<u64>(1..=u64::MAX)("7")), (Ok(1000), Ok(7)));
        for wrong in ["", "1", "1001", "-3", "1.5", "ten", "99999999999999999999"] {
            assert_eq!(whole::<u32>(2..=1000)(wrong), Err(format!("{wrong:?} is no whole number from 2 to 1000")));
        }
        assert_eq!(whole::<u64>(1..=u64::MAX)("0"), Err("\"0\" is no whole number; write 1 or more".into()));
    }

    #[test]
    fn sizes_mean_the_same_everywhere() {
        for (text, bytes, of_memory) in [
            ("1", 1, "1M"),
            ("4096", 4096, "4096M"),
            ("3K", 3 << 10, "3K"),
            ("512m", 512 << 20, "512M"),
            ("2G", 2 << 30, "2G"),
            ("2T", 2 << 40, "2T"),
        ] {
            let size: Size = text.parse().unwrap();
            assert_eq!((size.bytes(), size.or_mib().to_string().as_str()), (Some(bytes), of_memory));
        }
        for none in ["0", "0G"] {
            assert!(none.parse::<Size>().unwrap_err().contains("is too little; the least is 1"), "{none}");
        }
        for bad in
            ["lots", "", "G", "-1", "-1G", "+1G", "1.5G", "2GB", "2 G", "99999999999999999999G", "99999999999T", "ä"]
        {
            assert!(bad.parse::<Size>().unwrap_err().contains("such as 512M or 64G"), "{bad}");
        }
    }
}
