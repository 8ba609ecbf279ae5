//! Curves as an SVG document.

use super::{Curve, Row};
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

const COLORS: [RGBColor; 6] = [
    RGBColor(0x1f, 0x77, 0xb4),
    RGBColor(0xd6, 0x5f, 0x27),
    RGBColor(0x2c, 0x8f, 0x4e),
    RGBColor(0x80, 0x80, 0x80),
    RGBColor(0x8e, 0x4b, 0xa8),
    RGBColor(0xb0, 0x8d, 0x1e),
];

type Error = Box<dyn std::error::Error>;

/// A line for each row; below them what the paper says.
pub fn curves(curve: &Curve, rows: &[Row]) -> Result<String, Error> {
    let mut svg = String::new();
    let legend = 20 * rows.len() as i32;
    let area = SVGBackend::with_string(&mut svg, (900, (500 + legend) as u32)).into_drawing_area();
    area.fill(&WHITE)?;
    let (above, below) = area.split_vertically(440);
    let place = |x: u32| if curve.doubling { f64::from(x.max(1)).log2() } else { f64::from(x) };
    let x = || curve.points.iter().map(|p| place(p.x));
    let (least, last) = (x().fold(f64::INFINITY, f64::min), x().fold(f64::MIN_POSITIVE, f64::max));
    let most = rows.iter().flat_map(|r| r.values.iter().flatten()).copied().fold(f64::MIN_POSITIVE, f64::max);
    let mut chart = ChartBuilder::on(&above)
        .margin(12)
        .caption(curve.title, ("sans-serif", 18))
        .x_label_area_size(44)
        .y_label_area_size(64)
        .build_cartesian_2d(least..last, 0.0..most * 1.08)?;
    let mut mesh = chart.configure_mesh();
    let label = |x: &f64| if curve.doubling { x.exp2() } else { *x }.round().to_string();
    mesh.x_label_formatter(&label)
        .x_desc(curve.x)
        .y_desc(curve.y)
        .x_labels(if curve.doubling { curve.points.len() } else { 12 })
        .y_labels(8)
        .light_line_style(WHITE);
    mesh.label_style(("sans-serif", 13)).axis_desc_style(("sans-serif", 14)).draw()?;
    let style = || ("sans-serif", 14).into_font().color(&BLACK).pos(Pos::new(HPos::Left, VPos::Center));
    for (n, row) in rows.iter().enumerate() {
        let color = COLORS[n % COLORS.len()];
        let points: Vec<(f64, f64)> = x().zip(&row.values).filter_map(|(x, v)| Some((x, (*v)?))).collect();
        chart.draw_series([PathElement::new(points.clone(), color.stroke_width(2))])?;
        chart.draw_series(points.iter().map(|p| Circle::new(*p, 3, color.filled())))?;
        let y = 12 + 20 * n as i32;
        below.draw(&PathElement::new([(90, y), (116, y)], color.stroke_width(3)))?;
        below.draw(&Text::new(row.title, (124, y), style()))?;
    }
    below.draw(&Text::new(format!("The paper: {}", curve.paper), (90, legend + 24), style()))?;
    area.present()?;
    drop((above, below, chart, area));
    Ok(svg)
}
