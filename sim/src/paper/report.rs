//! The paper's set as a table and drawings.

use super::{Kind, Results, Series, System};
use crate::plot::{Bars, Curves, bars, curves};
use crate::report::{Report, number, table};

/// Text and drawings.
pub fn report(results: &Results, seed: u64) -> Report {
    let mut report = Report { name: "paper", text: format!("Seed {seed}.\n"), drawings: Vec::new() };
    let mut rows = vec![["value", "thesis", "played", "difference", "", "why"].map(String::from).to_vec()];
    for value in results.values() {
        let difference = match value.unit {
            _ if value.theirs.is_nan() => "–".to_owned(),
            "%" => format!("{:+.0} points", value.ours - value.theirs),
            _ => format!("{:+.0} %", (value.ours / value.theirs - 1.0) * 100.0),
        };
        let kind = if value.kind == Kind::Calibrated { "calibrated" } else { "outcome" };
        let unit = if value.unit == "ratio" { String::new() } else { format!(" {}", value.unit) };
        rows.push(vec![
            value.name.to_owned(),
            format!("{}{unit}", number(value.theirs)),
            format!("{}{unit}", number(value.ours)),
            difference,
            kind.to_owned(),
            value.why.to_owned(),
        ]);
    }
    report.text += &table(&rows, &[0, 4, 5]);
    report.text += "\nAll points of the curves, Gb/s:\n";
    report.text += &points("pairs", &results.pairs);
    report.text += &points("VMs, all to all", &results.all);

    let draw = |series: &[Series], systems: &[(System, &'static str)], theirs: &[(usize, usize, f64)], title, x| {
        let played = systems.iter().filter_map(|(system, name)| {
            series.iter().find(|s| s.system == *system).map(|s| (*name, s.points.clone()))
        });
        curves(&Curves { title, x, y: "Gb/s", played: played.collect(), theirs: theirs.to_vec() })
    };
    use System::*;
    let three = [(HyperSwitch, "Hyper-Switch"), (Kvm, "KVM, vhost-net"), (Xen, "Xen, driver domain")];
    let figures = [
        (
            "pairs",
            "Pairs, one way (figure 4.11)",
            draw(
                &results.pairs,
                &three,
                &[(0, 1, 16.2), (0, 4, 62.7), (0, 7, 81.0), (0, 16, 81.0), (1, 4, 47.0), (2, 4, 31.0)],
                "Pairs of VMs, TCP of 64 KB one way",
                "pairs",
            ),
        ),
        (
            "all",
            "All to all (figure 4.13)",
            draw(
                &results.all,
                &three,
                &[(0, 11, 65.0), (1, 16, 55.0), (2, 16, 31.0)],
                "VMs, TCP of 64 KB from each to all others",
                "VMs",
            ),
        ),
        (
            "pinning-pairs",
            "Pinned and not, pairs (figure 4.15)",
            draw(
                &results.pairs,
                &[(HyperSwitch, "pinned"), (NotPinned, "not pinned")],
                &[],
                "Pinned and not: pairs",
                "pairs",
            ),
        ),
        (
            "pinning-all",
            "Pinned and not, all to all (figure 4.16)",
            draw(
                &results.all,
                &[(HyperSwitch, "pinned"), (NotPinned, "not pinned")],
                &[],
                "Pinned and not: all to all",
                "VMs",
            ),
        ),
        (
            "offload-all",
            "With and without offloading, all to all (figure 4.20)",
            draw(
                &results.all,
                &[(HyperSwitch, "offloading to idle cores"), (NoOffload, "no offloading")],
                &[],
                "Offloading: all to all",
                "VMs",
            ),
        ),
        (
            "offload-pairs",
            "With and without offloading, pairs",
            draw(
                &results.pairs,
                &[
                    (HyperSwitch, "offloading to idle cores"),
                    (NoOffload, "no offloading"),
                    (Stays, "helpers stay when their module is wanted"),
                ],
                &[],
                "Offloading: pairs (not in the thesis)",
                "pairs",
            ),
        ),
    ];
    for (name, title, svg) in figures {
        report.show(name, title, svg);
    }
    let rows = |names: &[&'static str], values: &[f64]| {
        names.iter().copied().zip(values.iter().map(|v| vec![*v])).collect::<Vec<_>>()
    };
    let node = ["no offloading", "sender's, receiver's node", "receiver's node", "sender's node", "another node"];
    report.show(
        "offload-node",
        "A core dedicated to the switch, by node (figure 4.18)",
        bars(&Bars {
            title: "One pair; the dedicated core is on …",
            panels: vec!["Gb/s"],
            rows: rows(&node, &results.node),
        }),
    );
    let module = ["no offloading", "receiver's module", "sender's module", "another module"];
    report.show(
        "offload-module",
        "A core dedicated to the switch, by module (figure 4.19)",
        bars(&Bars {
            title: "One pair; the dedicated core is on …",
            panels: vec!["Gb/s"],
            rows: rows(&module, &results.module),
        }),
    );
    report
}

/// A row for each system, a column for each number of guests.
fn points(what: &str, series: &[Series]) -> String {
    let counts = series.first().map_or(&[][..], |s| &s.points);
    let mut rows = vec![std::iter::once(what.to_owned()).chain(counts.iter().map(|p| p.0.to_string())).collect()];
    for one in series {
        let name = match one.system {
            System::HyperSwitch => "Hyper-Switch",
            System::NoOffload => "nothing offloaded",
            System::NotPinned => "not pinned",
            System::Stays => "helpers stay",
            System::Drawn => "timer as drawn",
            System::Kvm => "KVM",
            System::Xen => "Xen",
        };
        let figures = one.points.iter().map(|p| format!("{:.0}", p.1));
        rows.push(std::iter::once(name.to_owned()).chain(figures).collect::<Vec<_>>());
    }
    table(&rows, &[0])
}
