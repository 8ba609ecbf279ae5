//! The same on a terminal: a table with sparklines, and one port opened.

use super::TopArgs;
use super::rates::{HISTORY, Rates, Sort};
use crate::client::{CliError, Instance};
use crate::list::figures;
use lasthop_sys::SignalFd;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use ratatui::layout::{Constraint, Layout};
use ratatui::style::{Modifier, Style};
use ratatui::text::Line;
use ratatui::widgets::{Paragraph, Row, Table, TableState};
use ratatui::{DefaultTerminal, Frame};
use std::io;
use std::time::{Duration, Instant};

/// How long a key or a signal may wait.
const TICK: Duration = Duration::from_millis(100);
/// Heights of a sparkline.
const BARS: [char; 9] = [' ', '▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

struct Screen {
    sort: Sort,
    table: TableState,
    /// What is opened: a port's name, and what is known of it.
    open: Option<(String, String)>,
}

/// What a key asks for.
#[derive(PartialEq, Eq)]
enum Asked {
    End,
    /// Another port, or none, is open.
    Other,
    Nothing,
}

/// Until it was looked so often, or a key or a signal ends it. The terminal is as it was then.
pub fn run(args: &TopArgs, instance: &mut Instance, rates: &mut Rates, signals: &SignalFd) -> Result<(), CliError> {
    let mut terminal = ratatui::try_init().map_err(|e| CliError::new(format!("the terminal: {e}; try --plain")))?;
    let ended = follow(&mut terminal, args, instance, rates, signals);
    ratatui::restore();
    ended
}

fn follow(
    terminal: &mut DefaultTerminal,
    args: &TopArgs,
    instance: &mut Instance,
    rates: &mut Rates,
    signals: &SignalFd,
) -> Result<(), CliError> {
    let failed = |e: io::Error| CliError::new(format!("the terminal: {e}"));
    let mut screen = Screen { sort: args.sort, table: TableState::new().with_selected(Some(0)), open: None };
    let mut left = args.count.unwrap_or(u64::MAX);
    // The first rates after a moment, so that the screen is not empty for long.
    let mut next = Instant::now() + Duration::from_millis(500);
    while left > 0 && signals.read().is_none() {
        let mut look = false;
        if Instant::now() >= next {
            rates.update(figures(instance)?, Instant::now());
            next = Instant::now() + Duration::from_secs(args.delay);
            (left, look) = (left - 1, true);
        }
        if event::poll(TICK).map_err(failed)?
            && let Event::Key(key) = event::read().map_err(failed)?
        {
            match screen.key(key, rates) {
                Asked::End => return Ok(()),
                asked => look |= asked == Asked::Other,
            }
        }
        if look && let Some((name, text)) = &mut screen.open {
            // A port that has gone is said to be gone.
            *text = crate::show::text(instance, name).unwrap_or_else(|e| e.to_string());
        }
        terminal.draw(|frame| screen.draw(frame, rates)).map_err(failed)?;
    }
    Ok(())
}

impl Screen {
    fn key(&mut self, key: KeyEvent, rates: &Rates) -> Asked {
        if key.kind != KeyEventKind::Press {
            return Asked::Nothing;
        }
        match key.code {
            KeyCode::Char('c') if key.modifiers.contains(KeyModifiers::CONTROL) => return Asked::End,
            KeyCode::Char('q') => return Asked::End,
            KeyCode::Char('n') => self.sort = Sort::Name,
            KeyCode::Char('p') => self.sort = Sort::Packets,
            KeyCode::Char('b') => self.sort = Sort::Bytes,
            KeyCode::Char('d') => self.sort = Sort::Drops,
            KeyCode::Char('c') => self.sort = Sort::Cpu,
            KeyCode::Up => self.table.select_previous(),
            KeyCode::Down => self.table.select_next(),
            KeyCode::Esc => self.open = None,
            KeyCode::Enter if self.open.is_some() => self.open = None,
            KeyCode::Enter => {
                let rows = rates.rows(self.sort);
                let chosen = self.table.selected().and_then(|n| rows.get(n.min(rows.len().saturating_sub(1))));
                self.open = chosen.map(|row| (row.name.clone(), String::new()));
                return Asked::Other;
            }
            _ => {}
        }
        Asked::Nothing
    }

    fn draw(&mut self, frame: &mut Frame<'_>, rates: &Rates) {
        let below = if self.open.is_some() { Constraint::Percentage(60) } else { Constraint::Length(0) };
        let areas = Layout::vertical([Constraint::Length(1), Constraint::Min(3), below, Constraint::Length(1)]);
        let [top, middle, detail, bottom] = areas.areas(frame.area());
        frame.render_widget(Line::from(rates.processes().trim_end().to_owned()), top);
        let rows = rates.rows(self.sort).into_iter().map(|row| {
            let mut cells = Rates::cells(row);
            cells[9] = sparkline(row.history.iter().copied());
            Row::new(cells)
        });
        let widths =
            [20, 12, 8, 8, 8, 8, 8, 8, 6].map(Constraint::Length).into_iter().chain([Constraint::Max(HISTORY as u16)]);
        let bold = Style::new().add_modifier(Modifier::BOLD);
        let table = Table::new(rows, widths).header(Row::new(Rates::HEADS).style(bold));
        let table = table.row_highlight_style(Style::new().add_modifier(Modifier::REVERSED));
        // An empty table has nothing chosen, and so has the first one.
        self.table.select(self.table.selected().or(Some(0)));
        frame.render_stateful_widget(table, middle, &mut self.table);
        if let Some((_, text)) = &self.open {
            frame.render_widget(Paragraph::new(text.as_str()), detail);
        }
        let keys = "q end  n p b d c sort by name packets bytes drops cpu  ↑ ↓ choose  Enter open, close";
        frame.render_widget(Line::from(keys), bottom);
    }
}

/// One character a look, the greatest of them full.
fn sparkline(values: impl Iterator<Item = u64> + Clone) -> String {
    let most = values.clone().max().unwrap_or(0).max(1);
    let bar = |value: u64| BARS.get((value as f64 / most as f64 * 8.0).ceil() as usize).copied().unwrap_or('█');
    values.map(bar).collect()
}

#[cfg(test)]
mod tests {
    use super::sparkline;

    #[test]
    fn a_sparkline_is_of_the_greatest() {
        assert_eq!(sparkline([0, 1, 50, 100].into_iter()), " ▁▄█");
        assert_eq!(sparkline([0, 0].into_iter()), "  ");
        assert_eq!(sparkline([u64::MAX, 1].into_iter()), "█▁");
    }
}
