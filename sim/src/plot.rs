//! Drawings.

use crate::report::number;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

type Error = Box<dyn std::error::Error>;

/// Curves: name and points each.
pub(crate) struct Curves<'a> {
    pub title: &'a str,
    pub x: &'a str,
    pub y: &'a str,
    /// What was played, as lines.
    pub played: Vec<(&'a str, Vec<(usize, f64)>)>,
    /// The thesis' values, as rings in the colour of the line with the same number.
    pub theirs: Vec<(usize, usize, f64)>,
}

const COLORS: [RGBColor; 4] =
    [RGBColor(0x1f, 0x77, 0xb4), RGBColor(0xd6, 0x5f, 0x27), RGBColor(0x2c, 0x8f, 0x4e), RGBColor(0x80, 0x80, 0x80)];

fn style(size: i32, h: HPos) -> TextStyle<'static> {
    ("sans-serif", size).into_font().color(&BLACK).pos(Pos::new(h, VPos::Center))
}

/// Draws curves.
pub(crate) fn curves(curves: &Curves) -> String {
    let mut svg = String::new();
    // Into memory: nothing can go wrong that a caller could mend.
    let outcome = draw_curves(curves, &mut svg);
    debug_assert!(outcome.is_ok(), "{outcome:?}");
    svg
}

fn draw_curves(curves: &Curves, svg: &mut String) -> Result<(), Error> {
    let area = SVGBackend::with_string(svg, (900, 460)).into_drawing_area();
    area.fill(&WHITE)?;
    let points = || curves.played.iter().flat_map(|(_, points)| points.iter().copied());
    let most_x = points().map(|p| p.0).max().unwrap_or(1);
    let least_x = points().map(|p| p.0).min().unwrap_or(0);
    let all_y = points().map(|p| p.1).chain(curves.theirs.iter().map(|t| t.2));
    let most_y = all_y.fold(1.0, f64::max) * 1.08;
    let mut chart = ChartBuilder::on(&area)
        .margin(12)
        .caption(curves.title, ("sans-serif", 18))
        .x_label_area_size(44)
        .y_label_area_size(56)
        .build_cartesian_2d(least_x..most_x, 0.0..most_y)?;
    let mut mesh = chart.configure_mesh();
    mesh.x_desc(curves.x).y_desc(curves.y).x_labels(16).y_labels(8).light_line_style(WHITE);
    mesh.label_style(("sans-serif", 13)).axis_desc_style(("sans-serif", 14)).draw()?;
    for (n, (_, points)) in curves.played.iter().enumerate() {
        let color = COLORS[n % COLORS.len()];
        chart.draw_series([PathElement::new(points.clone(), color.stroke_width(2))])?;
        chart.draw_series(points.iter().map(|p| Circle::new(*p, 3, color.filled())))?;
    }
    for &(n, x, y) in &curves.theirs {
        chart.draw_series([Circle::new((x, y), 7, COLORS[n % COLORS.len()].stroke_width(2))])?;
    }
    for (n, (name, _)) in curves.played.iter().enumerate() {
        let y = 60 + 20 * n as i32;
        area.draw(&PathElement::new([(90, y), (116, y)], COLORS[n % COLORS.len()].stroke_width(3)))?;
        area.draw(&Text::new(*name, (124, y), style(14, HPos::Left)))?;
    }
    if !curves.theirs.is_empty() {
        let y = 60 + 20 * curves.played.len() as i32;
        area.draw(&Circle::new((103, y), 7, BLACK.stroke_width(2)))?;
        area.draw(&Text::new("the thesis' values", (124, y), style(14, HPos::Left)))?;
    }
    area.present()?;
    Ok(())
}

/// Bars in panels beside each other: each row has a value in each.
pub(crate) struct Bars<'a> {
    pub title: &'a str,
    pub panels: Vec<&'a str>,
    pub rows: Vec<(&'a str, Vec<f64>)>,
}

/// Draws bars.
pub(crate) fn bars(bars: &Bars) -> String {
    let mut svg = String::new();
    let outcome = draw_bars(bars, &mut svg);
    debug_assert!(outcome.is_ok(), "{outcome:?}");
    svg
}

fn draw_bars(bars: &Bars, svg: &mut String) -> Result<(), Error> {
    const LEFT: i32 = 190;
    const BAR: i32 = 24;
    const PANEL: i32 = 200;
    const TOP: i32 = 76;
    let size = (LEFT + PANEL * bars.panels.len() as i32, TOP + BAR * bars.rows.len() as i32 + 12);
    let area = SVGBackend::with_string(svg, (size.0 as u32, size.1 as u32)).into_drawing_area();
    area.fill(&WHITE)?;
    area.draw(&Text::new(bars.title, (16, 22), style(18, HPos::Left)))?;
    for (r, (name, _)) in bars.rows.iter().enumerate() {
        area.draw(&Text::new(*name, (LEFT - 8, TOP + BAR * r as i32 + BAR / 2), style(13, HPos::Right)))?;
    }
    for (p, panel) in bars.panels.iter().enumerate() {
        let left = LEFT + PANEL * p as i32;
        area.draw(&Text::new(*panel, (left, 54), style(13, HPos::Left)))?;
        let most = bars.rows.iter().map(|(_, values)| values[p]).fold(f64::MIN_POSITIVE, f64::max);
        for (r, (_, values)) in bars.rows.iter().enumerate() {
            let (y, value) = (TOP + BAR * r as i32, values[p]);
            let length = (f64::from(PANEL - 64) * value / most) as i32;
            let color = if r == 0 { COLORS[0] } else { RGBColor(0x9a, 0xa5, 0xb1) };
            area.draw(&Rectangle::new([(left, y + 3), (left + length.max(1), y + BAR - 3)], color.filled()))?;
            area.draw(&Text::new(number(value), (left + length + 6, y + BAR / 2), style(13, HPos::Left)))?;
        }
    }
    area.present()?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_point_and_every_bar_is_drawn() {
        let svg = curves(&Curves {
            title: "T",
            x: "x",
            y: "y",
            played: vec![("one", vec![(1, 1.0), (2, 3.0)]), ("two", vec![(1, 2.0), (2, 2.0)])],
            theirs: vec![(0, 2, 4.0)],
        });
        // Four points, a ring, and the ring of the legend.
        assert_eq!(svg.matches("<circle").count(), 6, "{svg}");
        assert!(svg.contains("one") && svg.contains("two"));
        let svg = bars(&Bars {
            title: "T",
            panels: vec!["a", "b"],
            rows: vec![("r", vec![1.0, 2.0]), ("s", vec![0.0, 1.0])],
        });
        assert_eq!(svg.matches("<rect").count(), 1 + 4, "{svg}");
    }
}
