//! The table of counts at the top of `docs/coverage.md` says how many rows of each section have which state. It is held against the rows.

use std::collections::BTreeMap;

/// Order of the table's columns.
const STATES: [&str; 6] = ["VMs", "played", "partly", "simulated", "no", "–"];

/// The cells of a table's line, or nothing if it is none.
fn cells(line: &str) -> Vec<&str> {
    line.strip_prefix("| ").into_iter().flat_map(|rest| rest.trim_end_matches('|').split('|')).map(str::trim).collect()
}

/// Whether a row's first cell is a mechanism's number, such as `H12` or `E5`, or several.
fn is_number(cell: &str) -> bool {
    let (letter, digits) = cell.split_at(cell.len().min(1));
    letter.chars().all(|c| c.is_ascii_uppercase()) && digits.starts_with(|c: char| c.is_ascii_digit())
}

/// The lines that the table should have, by section in the document's order, and last `all`.
fn counted(text: &str) -> Result<Vec<(String, [usize; 6])>, String> {
    let mut sections: Vec<(String, [usize; 6])> = Vec::new();
    for line in text.lines() {
        if let Some(title) = line.strip_prefix("## ") {
            sections.push((title.to_owned(), [0; 6]));
        }
        let (row, Some((_, counts))) = (cells(line), sections.last_mut()) else { continue };
        if row.first().is_some_and(|cell| is_number(cell)) {
            let state = row.iter().find_map(|cell| STATES.iter().position(|state| state == cell));
            counts[state.ok_or_else(|| format!("docs/coverage.md: row {} has no state", row[0]))?] += 1;
        }
    }
    sections.retain(|(_, counts)| counts.iter().any(|n| *n > 0));
    let sum = sections.iter().fold([0; 6], |sum, (_, counts)| std::array::from_fn(|i| sum[i] + counts[i]));
    sections.push(("all".to_owned(), sum));
    Ok(sections)
}

/// One sentence for each line of the table that says other numbers than the rows below it.
pub fn wrong(text: &str) -> Vec<String> {
    let sections = match counted(text) {
        Ok(sections) => sections,
        Err(why) => return vec![why],
    };
    let said: BTreeMap<&str, Vec<&str>> =
        text.lines().map(cells).filter(|row| row.len() == 7).map(|row| (row[0], row[1..].to_vec())).collect();
    let differs = |(title, counts): &(String, [usize; 6])| {
        let right = counts.map(|n| n.to_string());
        let said = said.get(title.as_str());
        (said.is_none_or(|said| said != &right))
            .then(|| format!("docs/coverage.md: its count should have the line | {title} | {} |", right.join(" | ")))
    };
    sections.iter().filter_map(differs).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: &str = "\
        | | VMs | played | partly | simulated | no | – |\n|---|---:|---:|---:|---:|---:|---:|\n\
        | Cards | 1 | 0 | 1 | 0 | 0 | 0 |\n| all | 1 | 0 | 1 | 0 | 0 | 0 |\n\n\
        ## Cards\n\n| | where | what | here | by what |\n|---|---|---|---|---|\n\
        | H1 | PhD 4 | a | VMs | x |\n| H2, H3 | PhD 5 | b, not played | partly | y |\n\n## Words\n\n| a | b |\n";

    #[test]
    fn what_is_counted_is_what_is_there() {
        assert_eq!(wrong(PAGE), [""; 0]);
        let one_more = PAGE.replace("## Words", "| H4 | PhD 6 | c | no | z |\n\n## Words");
        let lines = ["Cards", "all"].map(|title| {
            format!("docs/coverage.md: its count should have the line | {title} | 1 | 0 | 1 | 0 | 1 | 0 |")
        });
        assert_eq!(wrong(&one_more), lines);
        let stateless = PAGE.replace("| VMs | x |", "| yes | x |");
        assert_eq!(wrong(&stateless), ["docs/coverage.md: row H1 has no state"]);
    }
}
