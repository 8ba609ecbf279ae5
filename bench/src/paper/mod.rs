//! The papers' figures that take several scenarios: curves of what was measured, costs split by what they grow with, and quotients, each
//! beside what the paper says of it.

mod draw;
mod figures;
mod split;

use crate::results::{ContenderResults, Results, ScenarioResults};
use crate::table::{align, number};
use figures::{CURVES, QUOTIENTS, SPLITS};

/// One place of a curve: its number, and the figure of a scenario that is there.
#[derive(Clone, Copy, Debug)]
struct Point {
    x: u32,
    scenario: &'static str,
    figure: usize,
}

/// A curve for each contender.
struct Curve {
    /// Of the file.
    name: &'static str,
    /// For people: the paper's figure, and what is shown here.
    title: &'static str,
    x: &'static str,
    y: &'static str,
    /// Whether each step of `x` is a doubling, and is drawn as long as any other.
    doubling: bool,
    points: &'static [Point],
    /// What the paper found.
    paper: &'static str,
}

/// A measured figure of a contender.
#[derive(Clone, Copy, Debug)]
struct Measured {
    scenario: &'static str,
    contender: &'static str,
    figure: usize,
}

/// One figure divided by another, and the paper's word on it.
struct Quotient {
    figure: &'static str,
    what: &'static str,
    paper: &'static str,
    over: Measured,
    under: Measured,
}

fn scenario<'a>(results: &'a Results, name: &str) -> Option<&'a ScenarioResults> {
    results.scenarios.iter().find(|s| s.name == name)
}

fn contender<'a>(scenario: &'a ScenarioResults, name: &str) -> Option<&'a ContenderResults> {
    scenario.contenders.iter().find(|c| c.name == name)
}

/// What stands for a contender's rounds.
fn value(results: &Results, of: Measured) -> Option<f64> {
    let scenario = scenario(results, of.scenario)?;
    scenario.shown(contender(scenario, of.contender)?, of.figure)
}

/// Contenders of which something was measured in these scenarios, in the order in which they come: names and titles.
fn present(results: &Results, scenarios: impl Iterator<Item = &'static str>) -> Vec<(&'static str, &'static str)> {
    let mut found: Vec<(&'static str, &'static str)> = Vec::new();
    for scenario in scenarios.filter_map(|name| scenario(results, name)) {
        for c in scenario.measured() {
            if !found.contains(&(c.name, c.title)) {
                found.push((c.name, c.title));
            }
        }
    }
    found
}

/// A curve's values, for each contender that has any.
struct Row {
    title: &'static str,
    values: Vec<Option<f64>>,
}

impl Curve {
    fn rows(&self, results: &Results) -> Vec<Row> {
        let row = |(name, title): (&'static str, &'static str)| {
            let at = |p: &Point| value(results, Measured { scenario: p.scenario, contender: name, figure: p.figure });
            Row { title, values: self.points.iter().map(at).collect() }
        };
        let rows = present(results, self.points.iter().map(|p| p.scenario)).into_iter().map(row);
        rows.filter(|r| r.values.iter().any(Option::is_some)).collect()
    }

    fn render(&self, results: &Results) -> Option<String> {
        let rows = self.rows(results);
        if rows.is_empty() {
            return None;
        }
        let heading = [format!("{}, by {}", self.y, self.x)];
        let mut table = vec![heading.into_iter().chain(self.points.iter().map(|p| p.x.to_string())).collect()];
        for row in &rows {
            let cells = row.values.iter().map(|v| v.map_or("—".into(), number));
            table.push([row.title.to_owned()].into_iter().chain(cells).collect());
        }
        Some(format!("{}: {}\n\n{}\nthe paper: {}\n", self.name, self.title, align(&table), self.paper))
    }
}

impl Quotient {
    fn row(&self, results: &Results) -> Option<Vec<String>> {
        let (over, under) = (value(results, self.over)?, value(results, self.under)?);
        (under > 0.0).then(|| {
            let here = number(over / under);
            vec![self.figure.into(), self.what.into(), self.paper.into(), here]
        })
    }
}

/// Tables of everything that was measured; nothing where nothing was.
pub fn render(results: &Results) -> Option<String> {
    let curves = CURVES.iter().filter_map(|c| c.render(results));
    let mut parts: Vec<String> = curves.chain(SPLITS.iter().filter_map(|s| s.render(results))).collect();
    let mut rows = vec![["figure", "what", "the paper", "here"].map(str::to_owned).to_vec()];
    rows.extend(QUOTIENTS.iter().filter_map(|q| q.row(results)));
    if rows.len() > 1 {
        parts.push(align(&rows));
    }
    (!parts.is_empty()).then(|| parts.join("\n"))
}

/// Name and content of a drawing of each curve.
pub fn drawings(results: &Results) -> Result<Vec<(String, String)>, Box<dyn std::error::Error>> {
    let mut files = Vec::new();
    for curve in &CURVES {
        let rows = curve.rows(results);
        if !rows.is_empty() {
            files.push((format!("{}.svg", curve.name), draw::curves(curve, &rows)?));
        }
    }
    Ok(files)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpus::Cpus;
    use crate::guests::outside::Place;
    use crate::machine::Machine;
    use crate::round::Round;
    use crate::scenario::all;
    use crate::work::Work;

    /// Scenarios in which contenders had these figures.
    fn results(measured: &[(&'static str, &'static str, &[f64])]) -> Results {
        let mut scenarios: Vec<ScenarioResults> = Vec::new();
        for (name, contender, figures) in measured {
            let of = all().find(|s| s.name == *name).unwrap();
            let at = scenarios.iter().position(|s| s.name == *name).unwrap_or_else(|| {
                let each = of.contenders.iter().map(|c| ContenderResults::new(c.name(), c.title(), None)).collect();
                scenarios.push(ScenarioResults::new(of, each));
                scenarios.len() - 1
            });
            let who = scenarios[at].contenders.iter().position(|c| c.name == *contender).unwrap();
            scenarios[at].add(who, Round::new(figures.iter().copied().map(Some).collect(), vec![]));
        }
        let cpus = Cpus { guests: 0, switch: 1 };
        Results { version: "0", machine: Machine::look(), cpus, rounds: 1, seconds: 1, scenarios }
    }

    #[test]
    fn every_figure_is_one_that_is_measured() {
        let has = |scenario: &str, figure: usize| {
            let found = all().find(|s| s.name == scenario).unwrap_or_else(|| panic!("no scenario {scenario}"));
            assert!(figure < found.figures().len(), "{scenario}");
            found
        };
        for curve in &CURVES {
            for p in curve.points {
                let figure = has(p.scenario, p.figure).figures()[p.figure];
                assert!(curve.y.contains(figure.unit), "{}: {} is in {}", curve.name, p.scenario, figure.unit);
            }
            assert_eq!(CURVES.iter().filter(|c| c.name == curve.name).count(), 1, "{}", curve.name);
        }
        for q in &QUOTIENTS {
            for m in [q.over, q.under] {
                assert!(has(m.scenario, m.figure).contenders.iter().any(|c| c.name() == m.contender), "{}", q.what);
            }
        }
        for s in &SPLITS {
            for name in s.scenarios() {
                for contender in ["lasthop", "bridge-tap"] {
                    has(name, split::cost(contender));
                }
            }
        }
    }

    #[test]
    fn a_curve_has_a_line_for_everyone_measured() {
        let r = results(&[
            ("snich-250", "lasthop", &[4.0, 1.0, 50.0, 50.0]),
            ("snich-1050", "lasthop", &[2.0, 1.0, 90.0, 50.0]),
            ("snich-1050", "bridge-tap", &[0.2, 1.0, 5000.0, 50.0]),
        ]);
        let text = render(&r).unwrap();
        let of =
            |start: &str| text.lines().find(|l| l.starts_with(start)).unwrap_or_else(|| panic!("{text}")).to_owned();
        assert!(of("| lasthop").contains(" 4.00 |   — |   — |   — | 2.00 |"), "{text}");
        assert!(of("| Linux bridge + TAP behind DPDK vhost").contains("0.20 |"), "{text}");
        assert!(!text.contains("OVS-DPDK") && text.contains("the paper: "), "{text}");
        let files = drawings(&r).unwrap();
        assert_eq!(files.len(), 1, "{:?}", files.iter().map(|f| &f.0).collect::<Vec<_>>());
        assert!(files[0].0.starts_with("snich-5.3") && files[0].1.contains("lasthop"), "{}", files[0].1);
        assert_eq!(render(&results(&[])), None);
    }

    #[test]
    fn what_a_sleeping_switch_costs_is_its_processor_time() {
        // lasthop's time by the clock is anything; its processor time is 104.2 ns and 0.1 for each byte.
        let r = results(&[
            ("snich-250", "lasthop", &[4.0, 1.0, 1000.0, 133.4]),
            ("snich-650", "lasthop", &[3.0, 1.0, 5000.0, 173.4]),
            ("snich-1050", "lasthop", &[2.0, 1.0, 2000.0, 213.4]),
            ("snich-250", "bridge-tap", &[0.2, 1.0, 4000.0, 9000.0]),
            ("snich-650", "bridge-tap", &[0.2, 1.0, 4000.0, 9000.0]),
            ("snich-1050", "bridge-tap", &[0.2, 1.0, 4000.0, 9000.0]),
            ("snich-rules-650", "lasthop", &[3.0, 1.0, 1.0, 346.8]),
            ("snich-rules-650", "bridge-tap", &[0.1, 1.0, 16_000.0, 1.0]),
        ]);
        let text = render(&r).unwrap();
        let (_, split) = text.split_once("snich-5.4: ").unwrap();
        let of = |text: &str, what| text.lines().find(|l| l.contains(what)).unwrap().to_owned();
        assert!(of(split, "| lasthop ").ends_with("173 |"), "{split}");
        assert!(of(split, "Linux bridge").ends_with("4000 |"), "{split}");
        assert!(of(&text, " lasthop: 971 rules against none, cost").ends_with(" 2.00 |"), "{text}");
        assert!(of(&text, "Linux bridge: 971 rules against none, cost").ends_with(" 4.00 |"), "{text}");
    }

    /// Where the figure is one of VMs and the network outside.
    fn place(m: Measured) -> Option<Place> {
        let Work::Outside(place) = all().find(|s| s.name == m.scenario)?.work else { return None };
        Some(place)
    }

    #[test]
    fn one_thing_differs_between_cards_that_are_compared() {
        for q in &QUOTIENTS {
            let Some((over, under)) = place(q.over).zip(place(q.under)) else { continue };
            let like_a_wire = |p: Place| !p.device.offloads().is_empty();
            assert_eq!(like_a_wire(over), like_a_wire(under), "{}: the other end differs", q.what);
            assert_eq!(over.sendfile, under.sendfile, "{}", q.what);
        }
    }

    #[test]
    fn a_papers_value_stands_beside_the_papers_mechanism_alone() {
        let expects = |q: &Quotient| q.paper != "—" && !q.paper.starts_with("— (");
        for q in &QUOTIENTS {
            let cards = place(q.over).zip(place(q.under));
            let received = q.over.figure == 1;
            assert!(!(received && cards.is_some() && expects(q)), "{}: no paper has offloads for what comes", q.what);
            // Pages of the host are not those of a guest's own table.
            let huge = cards.is_some_and(|(over, under)| over.huge != under.huge && over.interface == under.interface);
            assert!(!(huge && expects(q)), "{}", q.what);
            // A sender's rate is fixed here.
            assert!(q.figure != "PhD 5.7" || !expects(q), "{}", q.what);
            let bridge = [q.over, q.under].iter().any(|m| m.contender == "bridge-tap");
            assert_eq!(bridge, q.what.contains("testpmd, TAP and Linux bridge"), "{}", q.what);
            let costs = [q.over, q.under].map(|m| m.figure == split::cost(m.contender));
            assert!(q.figure != "PhD 5.6" || costs == [true; 2], "{}", q.what);
        }
    }

    #[test]
    fn a_queue_of_one_s_own_is_held_against_a_shared_one() {
        let r = results(&[
            ("vmdq-guests-1", "lasthop", &[0.4, 4.0, 900.0, 500.0, 99.0]),
            ("vmdq-guests-1", "lasthop-shared-queue", &[0.5, 5.0, 600.0, 400.0]),
            ("vmdq-guests-1", "bridge-tap", &[0.1, 1.0, 4500.0, 4500.0]),
            ("vmdq-guests-8", "lasthop", &[0.4, 4.0, 800.0, 450.0, 99.0]),
        ]);
        let text = render(&r).unwrap();
        let of = |what: &str| text.lines().find(|l| l.contains(what)).unwrap_or_else(|| panic!("{text}")).to_owned();
        assert!(of("an own queue against a shared one, cost").ends_with(" 1.50 |"), "{text}");
        assert!(of("an own queue against a shared one, lasthop-uplink alone").ends_with(" 1.25 |"), "{text}");
        assert!(of("an own queue against testpmd, TAP and Linux bridge, cost").ends_with(" 0.20 |"), "{text}");
        let (_, curve) = text.split_once("queues-3.5: ").unwrap();
        let line = curve.lines().find(|l| l.starts_with("| lasthop  ")).unwrap();
        assert!(line.contains(" 500 |") && line.ends_with(" 450 |"), "{curve}");
    }

    #[test]
    fn two_senders_are_drawn_beside_one() {
        let points = |name: &str| CURVES.iter().find(|c| c.name == name).map(|c| c.points.iter().map(|p| p.x));
        let (two, one) = (points("snich-5.7").unwrap(), points("snich-5.7-one").unwrap());
        assert!(two.eq(one));
    }

    #[test]
    fn quotients_stand_beside_what_the_paper_says() {
        let r = results(&[
            ("snich-650", "bridge-tap", &[0.2, 1.0, 4000.0, 50.0]),
            ("snich-rules-650", "bridge-tap", &[0.1, 1.0, 8000.0, 50.0]),
        ]);
        let text = render(&r).unwrap();
        let row = text.lines().find(|l| l.contains("Linux bridge: 971 rules against none")).unwrap();
        assert!(row.contains("PhD 5.5") && row.ends_with(" 0.50 |"), "{row}");
    }
}
