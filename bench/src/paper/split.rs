//! What a packet's cost is made of, by what it grows with.
//!
//! Nobody takes times within a packet. But copying grows with its bytes, and nothing else does; a list costs what a packet costs more with
//! it than without; what is left is switching together with rings, system calls and notifications, which are not told apart.

use super::{Measured, Results, present, value};
use crate::contender::Contender;
use crate::table::{align, number};

/// Of `figure::LOOP`: time of the switch while it had packets, and all its processor time; nanoseconds a packet.
pub const BUSY: usize = 2;
pub const CPU: usize = 3;

/// Which figure is what a packet costs a contender. A switch that polls takes its CPU's time whether there are packets or not, so what counts is
/// the time in which there were some. Of one that sleeps all processor time counts, the little in which it waits too: the time in which lasthop
/// says that it was busy is by a clock that goes on while others have the CPU.
pub fn cost(contender: &str) -> usize {
    if contender == Contender::Lasthop.name() { CPU } else { BUSY }
}

/// Scenarios that differ in the length of packets alone, in bytes of the frame.
type Lengths = &'static [(f64, &'static str)];

/// A split for each contender.
pub struct Split {
    pub name: &'static str,
    pub title: &'static str,
    pub plain: Lengths,
    /// The same with a list of rules.
    pub listed: Option<Lengths>,
    /// The length at which it is split.
    pub at: f64,
    pub paper: &'static str,
}

impl Split {
    pub fn scenarios(&self) -> impl Iterator<Item = &'static str> {
        self.plain.iter().chain(self.listed.into_iter().flatten()).map(|(_, name)| *name)
    }

    /// Copying, filtering, the rest and all, of a contender; nothing unless at least three lengths were measured.
    fn of(&self, results: &Results, contender: &'static str) -> Option<[f64; 4]> {
        let line = |lengths: Lengths| {
            let figure = cost(contender);
            let taken = |scenario| value(results, Measured { scenario, contender, figure });
            line(&lengths.iter().filter_map(|(len, name)| Some((*len, taken(name)?))).collect::<Vec<_>>())
        };
        let (base, slope) = line(self.plain)?;
        let without = base + slope * self.at;
        let all = match self.listed {
            Some(lengths) => line(lengths).map(|(base, slope)| base + slope * self.at)?,
            None => without,
        };
        let copying = slope * self.at;
        Some([copying, all - without, without - copying, all])
    }

    pub fn render(&self, results: &Results) -> Option<String> {
        let mut rows = vec![vec![String::new()]];
        let parts = ["copying, %", "filtering, %", "switching and the rest, %", "all, ns/packet"];
        let shown = |i: usize| i != 1 || self.listed.is_some();
        rows[0].extend(parts.iter().enumerate().filter(|(i, _)| shown(*i)).map(|(_, p)| (*p).to_owned()));
        for (name, title) in present(results, self.scenarios()) {
            let Some([copying, filtering, rest, all]) = self.of(results, name).filter(|s| s[3] > 0.0) else { continue };
            let cells =
                [copying, filtering, rest].map(|part| number(100.0 * part / all)).into_iter().chain([number(all)]);
            let cells = cells.enumerate().filter(|(i, _)| shown(*i)).map(|(_, cell)| cell);
            rows.push([title.to_owned()].into_iter().chain(cells).collect());
        }
        let text = || format!("{}: {}\n\n{}\nthe paper: {}\n", self.name, self.title, align(&rows), self.paper);
        (rows.len() > 1).then(text)
    }
}

/// The straight line through at least three points that misses them by the least squares: where it begins, and how steep it is.
fn line(points: &[(f64, f64)]) -> Option<(f64, f64)> {
    let n = points.len() as f64;
    let (x, y) = points.iter().fold((0.0, 0.0), |(x, y), p| (x + p.0 / n, y + p.1 / n));
    let spread: f64 = points.iter().map(|p| (p.0 - x).powi(2)).sum();
    let together: f64 = points.iter().map(|p| (p.0 - x) * (p.1 - y)).sum();
    (points.len() >= 3 && spread > 0.0).then(|| (y - together / spread * x, together / spread))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_found_through_points_that_miss_it() {
        let (base, slope) = line(&[(100.0, 61.0), (200.0, 69.0), (300.0, 81.0), (400.0, 89.0)]).unwrap();
        assert!((slope - 0.096).abs() < 1e-9 && (base - 51.0).abs() < 1e-9, "{base} {slope}");
        assert_eq!(line(&[(1.0, 1.0), (2.0, 2.0)]), None, "two points are on any line");
        assert_eq!(line(&[(1.0, 1.0); 3]), None);
    }
}
