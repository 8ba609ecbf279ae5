//! Aligned columns.

/// How a column is aligned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Align {
    Left,
    Right,
}

/// Rows under headings, columns two spaces apart, no space at the end of a line.
#[derive(Debug)]
pub struct Table {
    columns: Vec<(String, Align)>,
    rows: Vec<Vec<String>>,
}

impl Table {
    pub fn new(columns: &[(&str, Align)]) -> Self {
        Self { columns: columns.iter().map(|(name, align)| ((*name).to_owned(), *align)).collect(), rows: Vec::new() }
    }

    pub fn row(&mut self, cells: Vec<String>) {
        self.rows.push(cells);
    }

    pub fn render(&self) -> String {
        let heads: Vec<_> = self.columns.iter().map(|(name, _)| name.clone()).collect();
        let lines = || std::iter::once(&heads).chain(&self.rows);
        let width = |i: usize| lines().filter_map(|l| l.get(i)).map(|c| c.chars().count()).max().unwrap_or(0);
        let widths: Vec<_> = (0..heads.len()).map(width).collect();
        let mut out = String::new();
        for line in lines() {
            let mut text = String::new();
            for ((cell, width), (_, align)) in line.iter().zip(&widths).zip(&self.columns) {
                if !text.is_empty() {
                    text.push_str("  ");
                }
                match align {
                    Align::Left => text.push_str(&format!("{cell:<width$}")),
                    Align::Right => text.push_str(&format!("{cell:>width$}")),
                }
            }
            out.push_str(text.trim_end());
            out.push('\n');
        }
        out
    }
}

/// Milliseconds for people.
pub fn duration(ms: u64) -> String {
    match ms {
        0..1000 => format!("{ms}ms"),
        1000..120_000 => format!("{}.{}s", ms / 1000, ms % 1000 / 100),
        _ => format!("{}m", ms / 60_000),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up() {
        let mut t = Table::new(&[("NAME", Align::Left), ("N", Align::Right), ("X", Align::Left)]);
        t.row(vec!["a".into(), "100".into(), String::new()]);
        t.row(vec!["bbbbb".into(), "1".into(), "x".into()]);
        assert_eq!(t.render(), "NAME     N  X\na      100\nbbbbb    1  x\n");
    }

    #[test]
    fn durations() {
        let shown = [0, 999, 1000, 119_999, 120_000].map(duration);
        assert_eq!(shown, ["0ms", "999ms", "1.0s", "119.9s", "2m"]);
    }
}
