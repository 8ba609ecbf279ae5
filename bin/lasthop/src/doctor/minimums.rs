//! Minimum rates: those that cannot be kept, and those of which nobody here can know.

use super::facts::{Facts, Way, setting};
use super::finding::Finding;
use crate::settings::bits;
use crate::shares::{Minimums, of_ports};
use lasthop_api::Port;
use lasthop_policy::{MIN_RATE, RATE_TO, Rate};

/// An uplink that is to be full sends this part, in hundredths, of what it is said to take; and a port this part of what it is to get.
const NEARLY: u64 = 90;
/// Of the packets for an uplink so many in a hundred are lost, if it does not take them for long, and not for a moment.
const LOST: u64 = 1;

pub fn findings(facts: &Facts<'_>) -> Vec<Finding> {
    let minimums = minimums(facts);
    let Some(first) = guests(facts).next().map(|(port, _)| port) else { return Vec::new() };
    let mut found = Vec::from_iter(too_much(first, &minimums));
    if let (Some((_, uplink)), true) = (&minimums.takes, found.is_empty()) {
        found.extend(minimums.unsaid.iter().map(|unsaid| says_nothing(facts, unsaid, uplink, first)));
    }
    found.extend(facts.ports().filter(|port| port.uplink).filter_map(|uplink| takes_less(facts, uplink, first)));
    found
}

/// What ports are to get of each uplink at least, in bits a second; `None` if no port is to.
pub fn promised(facts: &Facts<'_>) -> Option<u64> {
    Some(minimums(facts).wanted).filter(|wanted| *wanted > 0)
}

/// Whether a guest that got less than its minimum of a full uplink had more for it: what waits in its rings the switch does not count.
pub fn not_known(facts: &Facts<'_>) -> Vec<String> {
    let full: Vec<_> = facts.ports().filter(|port| port.uplink && is_full(facts, port)).collect();
    let Some(net) = full.first() else { return Vec::new() };
    let less = guests(facts).filter(|(port, _)| facts.named.is_none_or(|name| port.name == name || net.name == name));
    let line = |(port, least): (&Port, u64)| {
        let sent = sent(facts, port, |p| p.from_guest.bytes)?;
        (sent > 0 && sent < least / 100 * NEARLY).then(|| {
            format!(
                "whether {} had more to send than {}, and it is to get {} at least ({MIN_RATE}) of {}, which was full: see what its guest drops or has waiting (`tc -s qdisc` there)",
                port.name,
                rounded(sent),
                Rate::of_bits(least),
                net.name
            )
        })
    };
    less.filter_map(line).collect()
}

fn minimums(facts: &Facts<'_>) -> Minimums {
    of_ports(&facts.now.ports, Minimums::of)
}

/// Those that are to get something at least, and how many bits a second.
fn guests<'a>(facts: &Facts<'a>) -> impl Iterator<Item = (&'a Port, u64)> + use<'a> {
    facts.ports().filter(|port| !port.uplink).filter_map(|port| Some((port, bits_of(port, MIN_RATE)?)))
}

fn bits_of(port: &Port, name: &str) -> Option<u64> {
    setting(port, name).and_then(bits)
}

/// Nobody could set it so: the uplink, or its rate, has gone since, or the command line or the file of `--config` says so.
fn too_much(first: &Port, minimums: &Minimums) -> Option<Finding> {
    let finding = |what: &str| {
        Finding::at(&first.name, MIN_RATE, what).seen(format!("told {} in all", Rate::of_bits(minimums.wanted)))
    };
    match &minimums.takes {
        None => {
            let uplink = minimums.unsaid.first().map_or("UPLINK", String::as_str);
            Some(
                finding("ports are to get so much at least of what an uplink takes, and no uplink says how many bits that is")
                    .remedy(format!("`lasthop port set {uplink} --{RATE_TO} RATE`, a little less than its network takes")),
            )
        }
        Some((takes, uplink)) if *takes < minimums.wanted => Some(
            finding("ports are to get more at least than an uplink takes, and get less by the same part each")
                .seen(format!("{uplink} takes {}", Rate::of_bits(*takes)))
                .remedy(format!(
                    "lower what ports get (`lasthop port set {} --{MIN_RATE} RATE`), or raise what {uplink} takes, if its network takes that",
                    first.name
                ))
                .also(uplink),
        ),
        Some(_) => None,
    }
}

/// Shares are the same there, whatever it takes.
fn says_nothing(facts: &Facts<'_>, unsaid: &str, uplink: &str, first: &Port) -> Finding {
    let what = format!(
        "it does not say how many bits it takes, and ports are to get so much of each uplink at least: they have the shares that they have at {uplink}, so less than that if it is slower"
    );
    let told = facts.port(unsaid).and_then(|port| setting(port, RATE_TO)).unwrap_or("none");
    Finding::at(unsaid, MIN_RATE, what)
        .seen(format!("told {RATE_TO}={told}"))
        .remedy(format!("`lasthop port set {unsaid} --{RATE_TO} RATE`, a little less than its network takes"))
        .also(&first.name)
}

/// It could not send what it is said to take.
fn takes_less(facts: &Facts<'_>, uplink: &Port, first: &Port) -> Option<Finding> {
    let takes = bits_of(uplink, RATE_TO)?;
    let sent = sent(facts, uplink, |p| p.to_guest.bytes)?;
    let (lost, taken) = (facts.drops(uplink, Way::To, "no_buffers"), facts.counter(uplink, |p| p.to_guest.packets).now);
    if uplink.state != "up" || taken == 0 || lost.now * 100 < (lost.now + taken) * LOST || sent >= takes / 100 * NEARLY
    {
        return None;
    }
    Some(
        Finding::at(
            &uplink.name,
            MIN_RATE,
            "it takes less than it says, so ports that have enough to send get less than their minimum rates of it",
        )
        .seen(format!("told {RATE_TO}={}, sent {} a second", Rate::of_bits(takes), rounded(sent)))
        .seen(lost.said("dropped as no_buffers"))
        .remedy(format!(
            "look whether its network, or the process of the uplink, is what is slow; if it is the network, say a little less than that: `lasthop port set {} --{RATE_TO} RATE`",
            uplink.name
        ))
        .also(&first.name),
    )
}

/// It has sent nearly all that it takes.
fn is_full(facts: &Facts<'_>, uplink: &Port) -> bool {
    let (takes, sent) = (bits_of(uplink, RATE_TO), sent(facts, uplink, |p| p.to_guest.bytes));
    takes.zip(sent).is_some_and(|(takes, sent)| sent >= takes / 100 * NEARLY)
}

/// Bits a second between the looks; `None` if there was one alone.
fn sent(facts: &Facts<'_>, port: &Port, bytes: impl Fn(&Port) -> u64) -> Option<u64> {
    let bits = facts.counter(port, bytes).now as f64 * 8.0 / facts.seconds?.max(0.001);
    Some(bits as u64)
}

/// In hundreds of kbit/s: figures are not more exact.
fn rounded(bits: u64) -> Rate {
    Rate::of_bits(bits.div_ceil(100_000) * 100_000)
}

#[cfg(test)]
mod tests {
    use super::super::facts::Seen;
    use super::super::facts::testutil::*;
    use super::*;

    fn uplink(name: &str, settings: &[(&str, &str)]) -> Port {
        Port { uplink: true, ..told(up(name), settings) }
    }

    fn with(uplinks: &[Port]) -> Vec<Finding> {
        let mut ports = ["a", "b"].map(|name| told(up(name), &[(MIN_RATE, "60M")])).to_vec();
        ports.extend_from_slice(uplinks);
        let now = seen(&ports);
        findings(&facts(&now, &now))
    }

    #[test]
    fn a_minimum_of_nothing_is_a_finding() {
        let site = |takes: &[(&str, &str)]| {
            with(&[uplink("net", takes)]).into_iter().map(|f| (f.kind, f.what)).collect::<Vec<_>>()
        };
        assert_eq!(site(&[(RATE_TO, "120M")]), []);
        let [(kind, what)] = &site(&[(RATE_TO, "119M")])[..] else { panic!("one finding") };
        assert!(*kind == MIN_RATE && what.contains("more at least than an uplink takes"), "{what}");
        for nothing in [&[][..], &[(RATE_TO, "20kpps")]] {
            let [(_, what)] = &site(nothing)[..] else { panic!("one finding") };
            assert!(what.contains("no uplink says how many bits"), "{what}");
        }
        assert!(with(&[])[0].remedy.contains("port set UPLINK --rate-to"));
    }

    /// It was overlooked beside one that has a rate.
    #[test]
    fn an_uplink_that_does_not_say_what_it_takes_is_a_finding() {
        for (other, shown) in [(&[][..], "told rate-to=none"), (&[(RATE_TO, "9kpps")], "told rate-to=9kpps")] {
            let [finding] = &with(&[uplink("net", &[(RATE_TO, "120M")]), uplink("other", other)])[..] else {
                panic!("one finding")
            };
            assert_eq!(
                (finding.kind, finding.port.as_deref(), &*finding.evidence[0]),
                (MIN_RATE, Some("other"), shown)
            );
            assert!(finding.remedy.contains("lasthop port set other --rate-to RATE"), "{}", finding.remedy);
        }
    }

    /// 2 s: `a` has sent so many bytes, and the uplink, which has dropped so many of 1000 packets for this reason.
    fn looks(sent: u64, taken: u64, lost: u64, reason: &str) -> [Seen; 2] {
        [(0, 0, 0, 10), (sent, taken, lost, 1010)].map(|(sent, taken, lost, packets)| {
            let (mut a, mut net) = (told(up("a"), &[(MIN_RATE, "60M")]), uplink("net", &[(RATE_TO, "100M")]));
            a.from_guest.bytes = sent;
            (net.to_guest.bytes, net.to_guest.packets) = (taken, packets);
            net.to_guest.drops = dropped(reason, lost);
            seen(&[a, net])
        })
    }

    #[test]
    fn an_uplink_that_takes_less_than_it_says_is_a_finding() {
        let found = |taken, lost, reason| {
            let [before, now] = looks(0, taken, lost, reason);
            findings(&Facts { seconds: Some(2.0), ..facts(&before, &now) })
        };
        let [finding] = &found(15_000_000, 100, "no_buffers")[..] else { panic!("one finding") };
        assert_eq!((finding.kind, finding.port.as_deref()), (MIN_RATE, Some("net")));
        assert_eq!(finding.evidence[0], "told rate-to=100M, sent 60M a second");
        assert_eq!(found(24_000_000, 100, "no_buffers"), [], "it has sent nearly all that it takes");
        assert_eq!(found(15_000_000, 5, "no_buffers"), [], "for a moment");
        assert_eq!(found(15_000_000, 100, "rate"), [], "it could have sent more");
        let [before, now] = looks(0, 15_000_000, 100, "no_buffers");
        assert_eq!(findings(&facts(&before, &now)), [], "nobody knows in which time");
    }

    #[test]
    fn whether_a_guest_had_more_to_send_is_not_known() {
        let lines = |sent, taken| {
            let [before, now] = looks(sent, taken, 0, "rate");
            not_known(&Facts { seconds: Some(2.0), ..facts(&before, &now) })
        };
        let [line] = &lines(10_000_000, 25_000_000)[..] else { panic!("one line") };
        assert!(line.contains("whether a had more to send than 40M, and it is to get 60M at least"), "{line}");
        for (sent, taken, why) in [
            (15_000_000, 25_000_000, "it got it"),
            (10_000_000, 20_000_000, "there was more"),
            (0, 25_000_000, "it rests"),
        ] {
            assert_eq!(lines(sent, taken), [""; 0], "{why}");
        }
    }
}
