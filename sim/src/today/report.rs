//! Today's hosts as tables and drawings.

use super::{Row, Scene};
use crate::plot::{Bars, bars};
use crate::report::{Report, number, table};

/// Text and drawings of scenes with their rows.
pub fn report(scenes: &[(Scene, Vec<Row>)], seed: u64) -> Report {
    let mut report = Report { name: "today", text: format!("Seed {seed}.\n"), drawings: Vec::new() };
    for (scene, rows) in scenes {
        report.text += &format!("\n### {}: {}\n", scene.name, scene.title);
        let heads = [
            "",
            "Mpps",
            "Gb/s",
            "p50, µs",
            "p99, µs",
            "switch, normal priority, ns/packet",
            "helpers at work, ns/packet",
            "helpers looking in vain, ns/packet",
            "kicks/packet",
            "interrupts/packet",
            "wake-ups/packet",
            "copied by helpers",
            "cores taken back, 1000/s",
            "dropped",
        ];
        let mut lines = vec![heads.map(String::from).to_vec()];
        for row in rows {
            let figures = [
                row.mpps,
                row.gbps,
                row.p50_us,
                row.p99_us,
                row.normal_ns,
                row.idle_ns,
                row.polling_ns,
                row.kicks,
                row.interrupts,
                row.wakes,
                row.by_helpers,
                row.taken_away,
                row.dropped,
            ];
            let name = std::iter::once(row.name.to_owned());
            lines.push(name.chain(figures.iter().map(|f| number(*f))).collect());
        }
        report.text += &table(&lines, &[0]);
        if let Some(all) = rows.first() {
            report.text += &format!("\nGuests' own work takes {:.0} % of the cores.\n", all.guests * 100.0);
        }
        let bar = |row: &Row| vec![row.normal_ns, row.idle_ns + row.polling_ns, row.p50_us, row.p99_us];
        let svg = bars(&Bars {
            title: scene.title,
            panels: vec!["normal priority, ns/packet", "idle cycles, ns/packet", "p50, µs", "p99, µs"],
            rows: rows.iter().map(|row| (row.name, bar(row))).collect(),
        });
        report.show(scene.name, scene.title, svg);
    }
    report
}
