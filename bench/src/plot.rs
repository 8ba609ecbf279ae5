//! Results as bars: one SVG file for each scenario, one panel for each figure.

use crate::results::ScenarioResults;
use crate::table::number;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

const WIDTH: i32 = 900;
const LEFT: i32 = 240;
const RIGHT: i32 = 130;
const BAR: i32 = 24;
const HEADING: i32 = 44;
const OURS: RGBColor = RGBColor(0x1f, 0x77, 0xb4);
const THEIRS: RGBColor = RGBColor(0x9a, 0xa5, 0xb1);

type Error = Box<dyn std::error::Error>;

/// Draws what stands for the rounds of each contender that has one: an SVG document.
pub fn draw(scenario: &ScenarioResults) -> Result<String, Error> {
    let mut text = String::new();
    let present: Vec<usize> =
        (0..scenario.contenders.len()).filter(|i| !scenario.contenders[*i].rounds.is_empty()).collect();
    let panel = HEADING + BAR * present.len() as i32;
    let height = HEADING + panel * scenario.figures.len() as i32 + BAR / 2;
    let area = SVGBackend::with_string(&mut text, (WIDTH as u32, height as u32)).into_drawing_area();
    area.fill(&WHITE)?;
    let style = |size: i32, h: HPos| ("sans-serif", size).into_font().color(&BLACK).pos(Pos::new(h, VPos::Center));
    area.draw(&Text::new(scenario.title, (16, HEADING / 2), style(18, HPos::Left)))?;
    for (f, figure) in scenario.figures.iter().enumerate() {
        let top = HEADING + panel * f as i32;
        let better = if figure.more_is_better { "more" } else { "less" };
        let heading = format!("{}, {} ({better} is better)", figure.name, figure.unit);
        area.draw(&Text::new(heading, (LEFT, top + HEADING / 2 + 6), style(14, HPos::Left)))?;
        let shown = |c: usize| scenario.shown(&scenario.contenders[c], f);
        let most = present.iter().filter_map(|c| shown(*c)).fold(f64::MIN_POSITIVE, f64::max);
        let ratios = scenario.ratios(f);
        for (row, &c) in present.iter().enumerate() {
            let (contender, y) = (&scenario.contenders[c], top + HEADING + BAR * row as i32);
            area.draw(&Text::new(contender.title, (LEFT - 8, y + BAR / 2), style(13, HPos::Right)))?;
            let Some(value) = shown(c) else { continue };
            let length = (f64::from(WIDTH - LEFT - RIGHT) * value / most) as i32;
            let color = if contender.name == "lasthop" { OURS } else { THEIRS };
            area.draw(&Rectangle::new([(LEFT, y + 3), (LEFT + length.max(1), y + BAR - 3)], color.filled()))?;
            let label = match ratios[c] {
                Some(r) => format!("{} ({}×)", number(value), number(r)),
                None => number(value),
            };
            area.draw(&Text::new(label, (LEFT + length + 6, y + BAR / 2), style(13, HPos::Left)))?;
        }
    }
    area.present()?;
    drop(area);
    Ok(text)
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_drawing_has_a_bar_for_everyone_measured() {
        let svg = super::draw(&crate::results::tests::sample()).unwrap();
        // The background, and two figures of two contenders.
        assert_eq!(svg.matches("<rect").count(), 1 + 2 * 2, "{svg}");
        assert!(svg.contains("lasthop") && svg.contains("200 (0.25×)") && !svg.contains("absent"), "{svg}");
    }
}
