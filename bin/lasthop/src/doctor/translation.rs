//! Guests whose own IOMMU translates addresses: pages that are not answered, not granted, or not what they were any more.

use super::facts::{Facts, Rise, Way};
use super::finding::Finding;
use lasthop_api::{Port, Translation};
use lasthop_text::counted;

/// What is wrong with packets that are read from a page which is another by now: no driver that is sound sends them.
const NONSENSE: [&str; 4] = ["bad_offload", "bad_source", "too_short", "too_long"];
/// Of what the guest has sent, more than one packet in so many was nonsense: it need not be so while this command looks, for such a guest's connections
/// stand still.
const OFTEN: u64 = 20;

pub fn findings(facts: &Facts<'_>) -> Vec<Finding> {
    let of = |port: &'_ Port| [unanswered(facts, port), not_granted(facts, port), stale(facts, port)];
    facts.guests().flat_map(of).flatten().collect()
}

/// A front-end that is asked for translations and does not answer holds its guest's packets up.
fn unanswered(facts: &Facts<'_>, port: &Port) -> Option<Finding> {
    let now = port.translation.as_ref().filter(|t| t.unanswered > 0)?;
    let before = facts.earlier(port)?.translation.as_ref().filter(|t| t.unanswered > 0)?;
    let what = "its front-end does not answer where pages of its guest's IOMMU are, and packets wait";
    let pages = counted(now.unanswered, "page");
    (now.updates == before.updates).then(|| {
        Finding::at(&port.name, "front-end-slow", what)
            .seen(format!("{pages} asked for and not answered, at both looks; no update between them"))
            .remedy("look at the front-end's log: it hangs, or its iothread has no processor time")
    })
}

/// The guest's driver names what its kernel has not mapped.
fn not_granted(facts: &Facts<'_>, port: &Port) -> Option<Finding> {
    let of = |port: &Port| port.translation.as_ref().map_or(0, |t| t.refused);
    let refused = facts.counter(port, of);
    (refused.now > 0).then(|| {
        let Rise { now, ever } = refused;
        let seen = format!("{} refused by its front-end while this command looked, {ever} since it connected", counted(now, "page"));
        Finding::at(&port.name, "not-granted", "its guest names pages that its own IOMMU does not grant the card, or not for this use")
            .seen(seen)
            .remedy(
                "look into the guest's kernel log for DMAR or IOMMU faults, and at the front-end's: a bug of the guest's driver, memory that was taken back too \
                 early, or a hostile guest; the ring that named such a page is broken until the device is reset",
            )
    })
}

/// Pages are taken back without a word, and used for something else.
fn stale(facts: &Facts<'_>, port: &Port) -> Option<Finding> {
    let translation = port.translation.as_ref()?;
    let all = NONSENSE.map(|reason| (reason, facts.drops(port, Way::From, reason)));
    let (now, ever) = all.iter().fold((0, 0), |(now, ever), (_, rise)| (now + rise.now, ever + rise.ever));
    if now == 0 && ever * OFTEN <= port.from_guest.packets {
        return None;
    }
    let what = "its guest sends nonsense: pages that it has taken back and uses for something else may still be known to the switch, which would also write \
                packets into them";
    let remedy = "give the card ATS, by which the guest's kernel takes pages back one by one: QEMU: intel-iommu with device-iotlb=on, the card behind a pcie-root-port with \
                  ats=on (in the guest, `lspci -vv` shows ATSCtl: Enable+ for it); or iommu.strict=1 on the guest's kernel command line; else its driver is broken";
    let finding = Finding::at(&port.name, "stale-pages", what).remedy(remedy);
    let mut finding = all
        .iter()
        .filter(|(_, rise)| rise.ever > 0)
        .fold(finding, |finding, (reason, rise)| finding.seen(rise.said(&format!("dropped as {reason}"))));
    let Translation { invalidations, updates, .. } = translation;
    finding.evidence.push(format!(
        "{} since it connected, {updates} ranges told, {} taken from it in all",
        counted(*invalidations, "invalidation"),
        counted(port.from_guest.packets, "packet")
    ));
    Some(finding)
}

#[cfg(test)]
mod tests {
    use super::super::facts::Seen;
    use super::super::facts::testutil::*;
    use super::*;

    fn kinds(before: &Seen, now: &Seen) -> Vec<&'static str> {
        findings(&facts(before, now)).iter().map(|f| f.kind).collect()
    }

    #[test]
    fn a_front_end_that_does_not_translate() {
        let with = |unanswered, updates| {
            let translation = Some(Translation { unanswered, updates, ..Translation::default() });
            seen(&[Port { translation, ..up("a") }])
        };
        assert_eq!(kinds(&with(1, 5), &with(2, 5)), ["front-end-slow"]);
        assert_eq!(kinds(&with(1, 5), &with(2, 6)), [""; 0], "it answers");
        assert_eq!(kinds(&with(0, 5), &with(2, 5)), [""; 0], "it was asked just now");
    }

    #[test]
    fn pages_that_are_not_granted() {
        let with =
            |refused| seen(&[Port { translation: Some(Translation { refused, ..Translation::default() }), ..up("a") }]);
        assert_eq!(kinds(&with(3), &with(3)), [""; 0], "it is over");
        assert_eq!(kinds(&with(3), &with(5)), ["not-granted"]);
        let finding = &findings(&facts(&with(3), &with(5)))[0];
        assert_eq!(
            finding.evidence,
            ["2 pages refused by its front-end while this command looked, 5 since it connected"]
        );
        assert!(finding.remedy.contains("DMAR"), "{finding:?}");
    }

    /// What QEMU's guests with lazy mappings show whose cards have no ATS: some packets pass, and nothing of a connection.
    #[test]
    fn nonsense_from_a_guest_with_an_iommu() {
        let with = |translates: bool, lost, packets| {
            let mut port = Port { translation: translates.then(Translation::default), ..up("a") };
            (port.from_guest.drops, port.from_guest.packets) = (dropped("bad_offload", lost), packets);
            seen(&[port])
        };
        assert_eq!(kinds(&with(true, 0, 9), &with(true, 1, 99)), ["stale-pages"]);
        assert_eq!(kinds(&with(true, 25, 45), &with(true, 25, 45)), ["stale-pages"], "it tries once in some seconds");
        assert_eq!(kinds(&with(true, 1, 1000), &with(true, 1, 1000)), [""; 0], "once, long ago");
        assert_eq!(kinds(&with(true, 0, 0), &with(true, 0, 0)), [""; 0]);
        assert_eq!(kinds(&with(false, 0, 9), &with(false, 1, 99)), [""; 0], "no IOMMU: its driver is broken");
    }
}
