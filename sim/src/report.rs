//! What a run comes to: Markdown, and drawings that it shows.

use std::fs;
use std::path::Path;

/// A run's text and drawings. The same inputs and the same seed make the same bytes.
#[derive(Debug, PartialEq, Eq)]
pub struct Report {
    /// Which marks it belongs between, such as `paper`.
    pub name: &'static str,
    /// Markdown; drawings stand in it as `![title](DRAWINGS/name.svg)`.
    pub text: String,
    /// Names without `.svg`, and drawings.
    pub drawings: Vec<(String, String)>,
}

impl Report {
    /// Adds a drawing and shows it.
    pub(crate) fn show(&mut self, name: &str, title: &str, svg: String) {
        self.text += &format!("\n![{title}](DRAWINGS/{name}.svg)\n");
        self.drawings.push((name.to_owned(), svg));
    }

    fn draw(&self, dir: &Path) -> Result<(), String> {
        if self.drawings.is_empty() {
            return Ok(());
        }
        let failed = |e| format!("cannot write to {}: {e}", dir.display());
        fs::create_dir_all(dir).map_err(failed)?;
        self.drawings.iter().try_for_each(|(name, svg)| fs::write(dir.join(format!("{name}.svg")), svg).map_err(failed))
    }

    /// Writes the drawings and `NAME.md` into a directory.
    pub fn write(&self, dir: &Path) -> Result<(), String> {
        let failed = |e| format!("cannot write to {}: {e}", dir.display());
        fs::create_dir_all(dir).map_err(failed)?;
        self.draw(dir)?;
        let file = dir.join(format!("{}.md", self.name));
        let text = self.text.replace("DRAWINGS/", "");
        fs::write(&file, text).map_err(|e| format!("cannot write {}: {e}", file.display()))
    }

    /// Puts the text between the marks of a Markdown file, and the drawings into the directory beside it of its name.
    pub fn record(&self, file: &Path) -> Result<(), String> {
        let name = file.display();
        let old = fs::read_to_string(file).map_err(|e| format!("cannot read {name}: {e}"))?;
        let dir = file.with_extension("");
        let text = self.text.replace("DRAWINGS", &dir.file_name().unwrap_or_default().to_string_lossy());
        let new = self.replace(&old, &text).ok_or_else(|| {
            let (begin, end) = self.marks();
            format!("{name} has no lines {begin} and {end}, between which the tables would go")
        })?;
        self.draw(&dir)?;
        fs::write(file, new).map_err(|e| format!("cannot write {name}: {e}"))
    }

    fn marks(&self) -> (String, String) {
        let mark = |what| format!("<!-- lasthop-sim {}: {what} -->", self.name);
        (mark("begin"), mark("end"))
    }

    fn replace(&self, old: &str, text: &str) -> Option<String> {
        let (begin, end) = self.marks();
        let (before, rest) = old.split_once(&begin)?;
        let (_, after) = rest.split_once(&end)?;
        Some(format!("{before}{begin}\n{text}\n{end}{after}"))
    }
}

/// Rows, the first a heading, as a Markdown table; the first `left` columns are words, the others figures.
pub(crate) fn table(rows: &[Vec<String>], words: &[usize]) -> String {
    let columns = rows.first().map_or(0, Vec::len);
    let rule = (0..columns).map(|c| if words.contains(&c) { "---|" } else { "---:|" }).collect::<String>();
    let line = |row: &Vec<String>| format!("| {} |\n", row.join(" | "));
    let mut text = String::from("\n");
    for (n, row) in rows.iter().enumerate() {
        text += &line(row);
        if n == 0 {
            text += &format!("|{rule}\n");
        }
    }
    text
}

/// Three digits.
pub(crate) fn number(value: f64) -> String {
    match value.abs() {
        v if !v.is_finite() => "–".to_owned(),
        v if v >= 99.95 || v == 0.0 => format!("{value:.0}"),
        v if v >= 9.995 => format!("{value:.1}"),
        v if v >= 0.9995 => format!("{value:.2}"),
        _ => format!("{value:.3}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_takes_the_place_of_the_last() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("page.md");
        fs::write(&file, "a\n<!-- lasthop-sim today: begin -->\nold\n<!-- lasthop-sim today: end -->\nb\n").unwrap();
        let mut report = Report { name: "today", text: "new\n".into(), drawings: Vec::new() };
        report.show("bars", "Bars", "<svg/>".into());
        report.record(&file).unwrap();
        let text = fs::read_to_string(&file).unwrap();
        assert!(text.contains("new") && !text.contains("old") && text.ends_with("b\n"), "{text}");
        assert!(text.contains("(page/bars.svg)"), "{text}");
        assert_eq!(fs::read_to_string(dir.path().join("page/bars.svg")).unwrap(), "<svg/>");
        let error = Report { name: "paper", ..report }.record(&file).unwrap_err();
        assert!(error.contains("lasthop-sim paper: begin"), "{error}");
    }

    #[test]
    fn numbers_have_three_digits() {
        for (value, text) in [(123.4, "123"), (12.34, "12.3"), (1.234, "1.23"), (0.1234, "0.123"), (0.0, "0")] {
            assert_eq!(number(value), text);
        }
    }
}
