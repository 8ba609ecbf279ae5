//! Results as a table, which is also valid Markdown.

use crate::results::{ContenderResults, ScenarioResults};

/// One scenario: a row for each contender; behind a peer's figure, in brackets, lasthop's divided by it.
pub fn render(scenario: &ScenarioResults) -> String {
    let ratios: Vec<Vec<Option<f64>>> = (0..scenario.figures.len()).map(|f| scenario.ratios(f)).collect();
    let mut rows = vec![vec![String::new()]];
    rows[0].extend(scenario.figures.iter().map(|f| format!("{}, {}", f.name, f.unit)));
    for (i, contender) in scenario.contenders.iter().enumerate().filter(|(_, c)| c.missing.is_none()) {
        let mut row = vec![contender.title.to_owned()];
        row.extend((0..scenario.figures.len()).map(|f| cell(contender, f, ratios[f][i])));
        rows.push(row);
    }
    let mut text = format!("{}: {}\n\n", scenario.name, scenario.title);
    if rows.len() > 1 {
        text += &align(&rows);
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

fn cell(contender: &ContenderResults, figure: usize, ratio: Option<f64>) -> String {
    let best = contender.best.get(figure).copied().flatten().map_or("—".into(), number);
    match ratio {
        Some(r) => format!("{best} ({}×)", number(r)),
        None => best,
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
    #[test]
    fn a_table_is_markdown_with_ratios() {
        let expected = "\
loop: a loop

|         | packets, Mpps | switch CPU, ns/packet |
|---------|--------------:|----------------------:|
| lasthop |          20.0 |                  50.0 |
| peer    |  10.0 (2.00×) |           200 (0.25×) |
| failing |             — |                     — |

skipped absent: no such program

failed failing: it
fell
";
        assert_eq!(super::render(&crate::results::tests::sample()), expected);
    }

    #[test]
    fn numbers_have_three_digits() {
        let shown = [0.004, 0.128, 9.99, 9.996, 22.84, 99.96, 12345.6].map(super::number);
        assert_eq!(shown, ["0.00", "0.13", "9.99", "10.0", "22.8", "100", "12346"]);
    }
}
