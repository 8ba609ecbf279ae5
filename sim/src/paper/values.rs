//! The thesis' values beside ours, and why they differ.

use super::{Results, Series, System};

/// Whether a value says anything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A cost was chosen so that it comes out.
    Calibrated,
    /// It came out.
    Outcome,
}

/// One value of the thesis, ours, and one sentence.
pub struct Value {
    /// What it is.
    pub name: &'static str,
    /// The thesis' value.
    pub theirs: f64,
    /// Its unit.
    pub unit: &'static str,
    /// What was played.
    pub ours: f64,
    /// Whether it was put in or came out.
    pub kind: Kind,
    /// Why it differs, or why not.
    pub why: &'static str,
}

/// Ratio of two series, less one, in per cent, on geometric average.
fn gain(series: &[Series], one: System, other: System, counts: impl Iterator<Item = usize>) -> f64 {
    let ratios: Vec<f64> = counts.map(|n| (Results::at(series, one, n) / Results::at(series, other, n)).ln()).collect();
    ((ratios.iter().sum::<f64>() / ratios.len() as f64).exp() - 1.0) * 100.0
}

impl Results {
    /// All values that the thesis' text gives.
    pub fn values(&self) -> Vec<Value> {
        use Kind::{Calibrated, Outcome};
        use System::*;
        let pairs = |system, n| Self::at(&self.pairs, system, n);
        let more = |one: f64, other: f64| (one / other - 1.0) * 100.0;
        let value = |name, theirs, unit, ours, kind, why| Value { name, theirs, unit, ours, kind, why };
        let apart = (2..=32).map(|n| gain(&self.all, HyperSwitch, NotPinned, std::iter::once(n)).abs());
        vec![
            value(
                "one pair, a core dedicated to the switch",
                17.2,
                "Gb/s",
                self.dedicated,
                Calibrated,
                "the cost of copying a byte was chosen for this",
            ),
            value(
                "16 pairs: as at the peak",
                81.0,
                "Gb/s",
                pairs(HyperSwitch, 16),
                Calibrated,
                "what sharing a module costs was chosen for this; it stands for caches, front end and memory together",
            ),
            value(
                "one pair",
                16.2,
                "Gb/s",
                pairs(HyperSwitch, 1),
                Outcome,
                "now and then the receiver blocks before the helper has the next packet, and copies one itself",
            ),
            value(
                "one pair: dynamic offload, of a dedicated core",
                94.0,
                "%",
                100.0 * pairs(HyperSwitch, 1) / self.dedicated,
                Outcome,
                "for that reason in both",
            ),
            value(
                "4 pairs",
                62.7,
                "Gb/s",
                pairs(HyperSwitch, 4),
                Outcome,
                "each pair has a node of its own, and our nodes share no memory and no links: a straight line",
            ),
            value(
                "7 pairs",
                81.0,
                "Gb/s",
                pairs(HyperSwitch, 7),
                Outcome,
                "a slower rise than before 4 pairs as in the thesis, because helpers are on other nodes; memory without a limit makes it steeper",
            ),
            value(
                "peak of 1 to 16 pairs",
                81.0,
                "Gb/s",
                Self::peak(&self.pairs, HyperSwitch).1,
                Outcome,
                "nothing limits 8 pairs on 16 modules here; there, memory did (fig. 4.12)",
            ),
            value(
                "8 pairs, if helpers stay when their module is wanted",
                81.0,
                "Gb/s",
                pairs(Stays, 8),
                Outcome,
                "a sender that waits for its window leaves its module idle for a moment; a helper goes there, and both are slow when the sender wakes up: the prototype cannot have done that",
            ),
            value(
                "peak of pairs, KVM",
                47.0,
                "Gb/s",
                Self::peak(&self.pairs, Kvm).1,
                Outcome,
                "what vhost-net does for a page is a guess, and locks are missing",
            ),
            value(
                "KVM, 16 pairs by 4: does not scale",
                1.0,
                "ratio",
                pairs(Kvm, 16) / pairs(Kvm, 4),
                Outcome,
                "beyond 4 pairs every module has two busy cores",
            ),
            value(
                "peak of pairs, Xen",
                31.0,
                "Gb/s",
                Self::peak(&self.pairs, Xen).1,
                Outcome,
                "granting a page has the price of an older Xen with one guest, where nobody contends for the grant table",
            ),
            value(
                "Xen, 16 pairs by 4: does not scale",
                1.0,
                "ratio",
                pairs(Xen, 16) / pairs(Xen, 4),
                Outcome,
                "guests move onto the modules of the driver domain's cores, which slows its eight threads",
            ),
            value(
                "1 to 16 pairs, more than KVM",
                55.0,
                "%",
                gain(&self.pairs, HyperSwitch, Kvm, 1..=16),
                Outcome,
                "KVM is too fast, above all with few pairs",
            ),
            value(
                "1 to 16 pairs, more than Xen",
                146.0,
                "%",
                gain(&self.pairs, HyperSwitch, Xen, 1..=16),
                Outcome,
                "Xen is too fast, above all with few pairs",
            ),
            value(
                "one pair, more than KVM (theirs: mean of 4 to 64 KB)",
                61.0,
                "%",
                more(pairs(HyperSwitch, 1), pairs(Kvm, 1)),
                Outcome,
                "vhost-net's two threads copy beside each other, and with our guesses neither is slower than the receiver",
            ),
            value(
                "one pair, more than Xen (theirs: mean of 4 to 64 KB)",
                56.0,
                "%",
                more(pairs(HyperSwitch, 1), pairs(Xen, 1)),
                Outcome,
                "grants make netback's threads the slowest part, but too little",
            ),
            value(
                "transactions a second, more than KVM (theirs: mean of all sizes)",
                212.0,
                "%",
                more(self.transactions[0], self.transactions[1]),
                Outcome,
                "two threads to wake on each way and the exits explain this much; KVM's longer path is missing",
            ),
            value(
                "transactions a second, more than Xen (theirs: mean of all sizes)",
                106.0,
                "%",
                more(self.transactions[0], self.transactions[2]),
                Outcome,
                "two threads to wake on each way explain it",
            ),
            value(
                "all to all, peak",
                65.0,
                "Gb/s",
                Self::peak(&self.all, HyperSwitch).1,
                Outcome,
                "most packets cross nodes, and memory and links without a limit are what the model lacks most (the thesis saw processors stall on memory, fig. 4.14)",
            ),
            value(
                "all to all, peak, KVM",
                55.0,
                "Gb/s",
                Self::peak(&self.all, Kvm).1,
                Outcome,
                "its threads are the limit before memory is",
            ),
            value(
                "all to all, peak, Xen",
                31.0,
                "Gb/s",
                Self::peak(&self.all, Xen).1,
                Outcome,
                "grants are too cheap, as with pairs",
            ),
            value(
                "all to all, 2 to 16 VMs: what offloading adds (theirs: much more)",
                f64::NAN,
                "%",
                gain(&self.all, HyperSwitch, NoOffload, 2..=16),
                Outcome,
                "the thesis draws it and gives no figure",
            ),
            value(
                "all to all, 17 to 32 VMs: what offloading adds",
                0.0,
                "%",
                gain(&self.all, HyperSwitch, NoOffload, 17..=32),
                Outcome,
                "gone, for the thesis' reason: no module is idle",
            ),
            value(
                "not pinned, 3 to 7 pairs",
                -20.0,
                "%",
                gain(&self.pairs, NotPinned, HyperSwitch, 3..=7),
                Outcome,
                "for the thesis' reason: helpers are on other nodes",
            ),
            value(
                "not pinned, all to all: difference on average",
                3.0,
                "%",
                apart.sum::<f64>() / 31.0,
                Outcome,
                "few guests fill one node first, where they leave helpers no module; with many there is no difference",
            ),
        ]
    }
}
