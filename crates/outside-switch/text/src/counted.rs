/// A number and what is counted, for people: `1 packet`, `2 packets`. `one` is a noun whose plural has an `s`, or several words
/// that end in one.
pub fn counted(n: u64, one: &str) -> String {
    let ending = match n {
        1 => "",
        _ if one.ends_with("ss") => "es",
        _ => "s",
    };
    format!("{n} {one}{ending}")
}

#[cfg(test)]
mod tests {
    use super::counted;

    #[test]
    fn one_is_not_many() {
        assert_eq!([0, 1, 2].map(|n| counted(n, "packet")), ["0 packets", "1 packet", "2 packets"]);
        assert_eq!([1, 3].map(|n| counted(n, "address")), ["1 address", "3 addresses"]);
    }
}
