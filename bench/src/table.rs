//! Results as a table, which is also valid Markdown.

use crate::distance;
use crate::figure::Shown;
use crate::results::ScenarioResults;

/// One scenario: a row for each contender; behind a peer's figure, in brackets, lasthop's divided by it.
pub fn render(scenario: &ScenarioResults) -> String {
    let ratios: Vec<Vec<Option<f64>>> = (0..scenario.figures.len()).map(|f| scenario.ratios(f)).collect();
    let mut rows = vec![vec![String::new()]];
    rows[0].extend(scenario.figures.iter().map(|f| format!("{}, {}", f.name, f.unit)));
    for (i, contender) in scenario.contenders.iter().enumerate().filter(|(_, c)| c.missing.is_none()) {
        let mut row = vec![contender.title.to_owned()];
        row.extend((0..scenario.figures.len()).map(|f| cell(scenario.shown(contender, f), ratios[f][i])));
        rows.push(row);
    }
    let mut text = format!("{}: {}\n\n", scenario.name, scenario.title);
    if rows.len() > 1 {
        text += &align(&rows);
    }
    if let Some(line) = distance(scenario) {
        text += &format!("\n{line}\n");
    }
    let mut skipped: Vec<&str> = scenario.contenders.iter().filter_map(|c| c.missing.as_deref()).collect();
    skipped.dedup();
    for contender in &scenario.contenders {
        match &contender.missing {
            Some(_) if rows.len() == 1 && skipped.len() == 1 => {}
            Some(why) => text += &format!("\nskipped {}: {why}\n", contender.title),
            None => {}
        }
        for why in &contender.failures {
            text += &format!("\nfailed {}: {why}\n", contender.title);
        }
    }
    if let ([why], 1) = (&skipped[..], rows.len()) {
        text += &format!("skipped: {why}\n");
    }
    text
}

/// How many rounds of each contender the figures come from, and at which distance of the CPUs they were taken if that was
/// probed.
fn distance(scenario: &ScenarioResults) -> Option<String> {
    let rounds = || scenario.measured().map(|c| c.valid_rounds(scenario.distance));
    let (fewest, most) = (rounds().min()?, rounds().max()?);
    let number = if fewest < most { format!("{fewest} to {most}") } else { fewest.to_string() };
    let median = if scenario.shows == Shown::Median { "the median of " } else { "" };
    let rounds = format!("{median}{number} {} each", if most == 1 { "round" } else { "rounds" });
    let Some(trips) = distance::range(&scenario.round_trips_ns()) else { return Some(rounds) };
    let Some(distance) = scenario.distance else {
        return Some(format!(
            "at no distance of the CPUs (round trip {trips}) was everybody measured: the figures are of all rounds and may \
             not compare"
        ));
    };
    Some(format!("{} (round trip {trips}): {rounds}", distance.name()))
}

/// Rows, the first a heading, as a table.
pub fn align(rows: &[Vec<String>]) -> String {
    let columns = rows.first().map_or(0, Vec::len);
    let width = |c: usize| rows.iter().map(|r| r[c].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let mut text = String::new();
    for (r, row) in rows.iter().enumerate() {
        let cells = row.iter().zip(&widths).enumerate().map(|(c, (cell, w))| match c {
            0 => format!(" {cell:w$} |"),
            _ => format!(" {cell:>w$} |"),
        });
        text += &format!("|{}\n", cells.collect::<String>());
        if r == 0 {
            let rule = widths.iter().enumerate().map(|(c, w)| match c {
                0 => format!("-{}-|", "-".repeat(*w)),
                _ => format!("-{}:|", "-".repeat(*w)),
            });
            text += &format!("|{}\n", rule.collect::<String>());
        }
    }
    text
}

fn cell(shown: Option<f64>, ratio: Option<f64>) -> String {
    let shown = shown.map_or("—".into(), number);
    match ratio {
        Some(r) => format!("{shown} ({}×)", number(r)),
        None => shown,
    }
}

/// Three digits that count, and no more than two behind the point.
pub fn number(value: f64) -> String {
    match value.abs() {
        v if v >= 99.95 => format!("{value:.0}"),
        v if v >= 9.995 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}

#[cfg(test)]
mod tests {
    use crate::results::tests::{moved, sample, scenario};

    #[test]
    fn a_table_is_markdown_with_ratios() {
        let expected = "\
loop: a loop

|         | packets, Mpps | switch CPU, ns/packet |
|---------|--------------:|----------------------:|
| lasthop |          20.0 |                  50.0 |
| peer    |  10.0 (2.00×) |           200 (0.25×) |
| failing |             — |                     — |

3 rounds each

skipped absent: no such program

failed failing: it
fell
";
        assert_eq!(super::render(&sample()), expected);
    }

    #[test]
    fn a_line_says_at_which_distance_the_figures_were_taken() {
        let line = |s| super::distance(&s);
        let text = super::render(&moved());
        assert!(text.contains("|\n\nat one cache (round trip 100 ns): 1 to 3 rounds each\n\nfailed failing"), "{text}");
        let one = |ns| ([1.0, 1.0], Some(ns));
        let near = scenario(&[("lasthop", &[one(96.2), one(118.0)]), ("peer", &[one(99.0), one(107.0)])]);
        assert_eq!(line(near).unwrap(), "at one cache (round trip 96–118 ns): 2 rounds each");
        let far = scenario(&[("lasthop", &[one(500.0)]), ("peer", &[one(480.0)])]);
        assert_eq!(line(far).unwrap(), "far apart (round trip 480–500 ns): 1 round each");
        let split = scenario(&[("lasthop", &[one(500.0)]), ("peer", &[one(47.0)])]);
        assert!(line(split).unwrap().starts_with("at no distance of the CPUs (round trip 47–500 ns) was everybody"));
        assert_eq!(line(sample()).unwrap(), "3 rounds each", "nothing was probed");
        assert_eq!(line(scenario(&[("lasthop", &[])])), None, "nothing was measured");
    }

    #[test]
    fn numbers_have_three_digits() {
        let shown = [0.004, 0.128, 9.99, 9.996, 22.84, 99.96, 12345.6].map(super::number);
        assert_eq!(shown, ["0.00", "0.13", "9.99", "10.0", "22.8", "100", "12346"]);
    }
}
