//! Values of settings that are numbers, as people write them. Errors say what to write.

/// Fewest ranges of I/O addresses: the rings of all queues lie in fewer pages.
const MIN_GRANTS: u32 = 512;
/// Most of them: some 50 MB in the port's session process.
const MAX_GRANTS: u32 = 1 << 18;

/// Most hundredths of a processor: several queues may be looked after by several threads.
const MOST_CPU: u16 = 6400;

pub(super) fn connections(value: &str) -> Result<u32, String> {
    let most = *crate::CONNECTIONS_RANGE.end() as u32;
    let number = value.parse().ok().filter(|n| (1..=most).contains(n));
    number.ok_or_else(|| format!("write a number of connections from 1 to {most}, or none for the default"))
}

pub(super) fn nat_ports(value: &str) -> Result<u32, String> {
    let number = value.parse().ok().filter(|n| (1..=65_535).contains(n));
    number.ok_or_else(|| "write a number of ports from 1 to 65535, or none for the default".to_owned())
}

pub(super) fn grants(value: &str) -> Result<u32, String> {
    let number = value.parse().ok().filter(|n| (MIN_GRANTS..=MAX_GRANTS).contains(n));
    number.ok_or_else(|| format!("write a number of ranges from {MIN_GRANTS} to {MAX_GRANTS}, or none for the default"))
}

pub(super) fn max_ring(value: &str) -> Result<u16, String> {
    let number = value.parse().ok().filter(|n| (64..=32_768).contains(n));
    number.ok_or_else(|| "write a number of entries from 64 to 32768, or none for no bound".to_owned())
}

pub(super) fn weight(value: &str) -> Result<u16, String> {
    let number = value.parse().ok().filter(|n| (1..=1000).contains(n));
    number.ok_or_else(|| {
        format!("write a share from 1 to 1000, or none for the default, {}", lasthop_types::DEFAULT_WEIGHT)
    })
}

pub(super) fn priority(value: &str) -> Result<u8, String> {
    let number = value.parse().ok().filter(|n| (0..=2).contains(n));
    number.ok_or_else(|| "write 0, 1 or 2 (above all others), or none for the default, 0".to_owned())
}

/// Nothing for 0, which takes the bound away.
pub(super) fn max_cpu(value: &str) -> Result<Option<u16>, String> {
    let number = value.strip_suffix('%').unwrap_or(value).parse::<u16>().ok().filter(|n| *n <= MOST_CPU);
    number.map(|n| Some(n).filter(|n| *n > 0)).ok_or_else(|| {
        format!("write hundredths of one processor from 1 to {MOST_CPU}, such as 20, or none (or 0) for no bound")
    })
}
