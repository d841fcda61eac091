//! Draws the screen.

use ratatui::Frame;
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::Widget as _;

use crate::app::App;
use crate::sections::{Column, MOST_ROWS, Row, SECTIONS, Table, Tone};
use crate::text::{columns, duration, fitted, wrapped};

/// Lines above the sections.
const HEAD: u16 = 3;
/// Lines below them.
const FOOT: u16 = 1;
/// Widest cell but for that of a last column that is wrapped.
const WIDEST: usize = 40;
/// Narrowest cell after columns were made narrower to fit.
const NARROWEST: usize = 6;
/// Columns between cells.
const GAP: usize = 2;
/// Lines of a cell that is wrapped.
const MOST_LINES: usize = 6;

/// Draws everything.
pub fn draw(app: &mut App, frame: &mut Frame<'_>) {
    let area = frame.area();
    let width = usize::from(area.width);
    let lines = body(app, width);
    app.room = usize::from(area.height.saturating_sub(HEAD + FOOT));
    let top = app.top();
    let mut y = area.y;
    let print = |line: &Line<'_>, buffer: &mut Buffer, y: u16| {
        if y < area.bottom() {
            line.render(Rect { y, height: 1, ..area }, buffer);
        }
    };
    let buffer = frame.buffer_mut();
    for line in head(app, width) {
        print(&line, buffer, y);
        y += 1;
    }
    for line in lines.iter().skip(top).take(app.room) {
        print(line, buffer, y);
        y += 1;
    }
    if area.height > HEAD {
        print(&foot(app, width), buffer, area.bottom() - FOOT);
    }
}

/// Everything as plain text of this many columns, without the line of keys.
pub fn plain(app: &mut App, width: usize) -> String {
    let lines = [head(app, width), body(app, width)].concat();
    let height = u16::try_from(lines.len()).unwrap_or(u16::MAX);
    let columns = u16::try_from(width).unwrap_or(u16::MAX);
    // A buffer has at most 65,535 cells, so each line gets one of its own.
    let area = Rect::new(0, 0, columns, 1);
    let mut text = String::new();
    for line in lines.iter().take(usize::from(height)) {
        let mut buffer = Buffer::empty(area);
        line.render(area, &mut buffer);
        text.push_str(plain_line(&buffer).trim_end());
        text.push('\n');
    }
    text
}

/// The first line of a buffer. A wide character takes two cells.
fn plain_line(buffer: &Buffer) -> String {
    let mut line = String::new();
    let mut x = 0;
    while x < buffer.area.width {
        let symbol = buffer[(x, 0)].symbol();
        line.push_str(symbol);
        x += u16::try_from(columns(symbol).max(1)).unwrap_or(1);
    }
    line
}

fn style(tone: Tone) -> Style {
    match tone {
        Tone::Plain => Style::new(),
        Tone::Fault => Style::new().fg(Color::Red),
        Tone::Warning => Style::new().fg(Color::Yellow),
    }
}

fn bold() -> Style {
    Style::new().add_modifier(Modifier::BOLD)
}

/// Title, health, and what keeps the reports from being new.
fn head(app: &App, width: usize) -> Vec<Line<'static>> {
    let (health, grade) = app.health();
    let health_style = match grade {
        0 => bold().fg(Color::Green),
        1 => bold().fg(Color::Yellow),
        _ => bold().fg(Color::Red),
    };
    let state = if let Some(why) = &app.denied {
        Line::styled(fitted(&format!("{why}; r tries again"), width, false), style(Tone::Fault))
    } else if let Some(away) = &app.away {
        let time = duration(away.since.elapsed().as_secs_f64());
        let text = format!("unreachable since {} ({time}): {}", away.clock, away.why);
        Line::styled(fitted(&text, width, false), style(Tone::Fault))
    } else if app.is_paused {
        Line::styled("paused; p goes on", style(Tone::Warning))
    } else {
        Line::default()
    };
    vec![
        Line::styled(fitted(&app.title(), width, false), bold()),
        Line::styled(fitted(&health, width, false), health_style),
        state,
    ]
}

/// Keys, or the filter.
fn foot(app: &App, width: usize) -> Line<'static> {
    let text = match (app.is_typing, app.filter.is_empty()) {
        (true, _) => format!("/{}_   Enter keeps the filter, Esc clears it", app.filter),
        (false, false) => format!("filter: {}   Esc clears it", app.filter),
        (false, true) => "q leave   Tab, arrows: sections and lines   / filter   p pause".into(),
    };
    Line::styled(fitted(&text, width, false), Style::new().add_modifier(Modifier::REVERSED))
}

/// The lines of all sections. Notes their heights.
fn body(app: &mut App, width: usize) -> Vec<Line<'static>> {
    let mut lines = Vec::new();
    for (at, section) in SECTIONS.iter().enumerate() {
        let start = lines.len();
        if let Some((table, all)) = app.table(at) {
            let count = match (table.rows.len(), app.filter.is_empty()) {
                (shown, false) => format!(" ({shown} of {all})"),
                (0, true) => String::new(),
                (shown, true) => format!(" ({shown})"),
            };
            let mark = if at == app.section { "▌" } else { " " };
            let title = format!("{mark}{}{count}", section.title);
            lines.push(Line::styled(fitted(&title, width, false), bold()));
            lines.extend(of_table(&table, width, all));
            lines.push(Line::default());
        }
        app.heights[at] = lines.len() - start;
    }
    lines
}

/// Widths of the columns. Columns are made narrower, the widest first, until all fit.
fn widths(table: &Table, width: usize) -> Vec<usize> {
    let rows = || table.rows.iter().take(MOST_ROWS);
    let of = |at: usize, column: &Column| {
        let cells = rows().filter_map(|row| row.cells.get(at)).map(|cell| columns(cell));
        cells.chain([columns(&column.name)]).max().unwrap_or(0).min(WIDEST)
    };
    let mut widths: Vec<usize> =
        table.columns.iter().enumerate().map(|(at, one)| of(at, one)).collect();
    let gaps = GAP * widths.len().saturating_sub(1);
    // A wrapped column takes what is left.
    let fixed = if table.wraps { widths.len().saturating_sub(1) } else { widths.len() };
    let least = if table.wraps { 2 * NARROWEST } else { 0 };
    while widths[..fixed].iter().sum::<usize>() + gaps + least > width {
        match widths[..fixed].iter_mut().max_by_key(|width| **width) {
            Some(widest) if *widest > NARROWEST => *widest -= 1,
            _ => break,
        }
    }
    if let (true, Some((last, others))) = (table.wraps, widths.split_last_mut()) {
        *last = width.saturating_sub(others.iter().sum::<usize>() + gaps).max(least);
    }
    widths
}

/// The lines of a table.
fn of_table(table: &Table, width: usize, all: usize) -> Vec<Line<'static>> {
    let dim = Style::new().add_modifier(Modifier::DIM);
    let mut lines = Vec::new();
    if table.rows.is_empty() {
        let text = if all > 0 { "the filter admits no row" } else { &table.empty };
        if !text.is_empty() {
            lines.push(Line::styled(fitted(&format!("  {text}"), width, false), dim));
        }
    } else {
        let width = width.saturating_sub(GAP);
        let widths = widths(table, width);
        let names = table.columns.iter().zip(&widths);
        let names = names.map(|(one, &width)| fitted(&one.name, width, one.to_the_right));
        let names = names.collect::<Vec<_>>().join(&" ".repeat(GAP));
        lines.push(Line::styled(format!("{}{names}", " ".repeat(GAP)), dim));
        for row in table.rows.iter().take(MOST_ROWS) {
            lines.extend(of_row(table, row, &widths));
        }
        if let Some(more @ 1..) = table.rows.len().checked_sub(MOST_ROWS) {
            lines.push(Line::styled(format!("  and {more} more; / filters"), dim));
        }
    }
    if !table.end.is_empty() {
        lines.push(Line::styled(fitted(&format!("  {}", table.end), width, false), dim));
    }
    lines
}

/// The lines of a row: more than one if its last cell is wrapped or has a note.
fn of_row(table: &Table, row: &Row, widths: &[usize]) -> Vec<Line<'static>> {
    let gap = " ".repeat(GAP);
    let last = widths.len().saturating_sub(1);
    let mut text = gap.clone();
    let mut more = Vec::new();
    for (at, (column, &width)) in table.columns.iter().zip(widths).enumerate() {
        let cell = row.cells.get(at).map_or("", String::as_str);
        if at > 0 {
            text.push_str(&gap);
        }
        if at == last && table.wraps {
            let mut parts = wrapped(cell, width).into_iter().take(MOST_LINES);
            text.push_str(&fitted(&parts.next().unwrap_or_default(), width, false));
            more.extend(parts);
        } else {
            text.push_str(&fitted(cell, width, column.to_the_right));
        }
    }
    let indent = GAP + widths[..last].iter().map(|width| width + GAP).sum::<usize>();
    if !row.note.is_empty() {
        more.extend(wrapped(&row.note, widths[last]).into_iter().take(MOST_LINES));
    }
    let mut lines = vec![Line::from(Span::styled(text, style(row.tone)))];
    lines.extend(more.into_iter().map(|part| Line::from(format!("{}{part}", " ".repeat(indent)))));
    lines
}
