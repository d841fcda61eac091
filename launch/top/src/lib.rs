//! `./isthmus top`: the page `/` of an appliance in a terminal, from the same reports. A crate of its own, so that the
//! launcher compiles without the libraries of the terminal.

mod app;
mod sections;
mod snapshot;
mod text;
mod view;

use std::io::IsTerminal as _;
use std::process::ExitCode;
use std::sync::mpsc::{Receiver, TryRecvError, channel, sync_channel};
use std::time::Duration;

use anyhow::{Context, Result};
use clap::Parser;
use launch::remote::{Appliance, Failure, TopOptions};
use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event, KeyEventKind};

use app::App;
use snapshot::{Order, Snapshot};

/// Time between two looks at keys and rounds.
const TICK: Duration = Duration::from_millis(100);
/// Columns of a plain frame that is not printed to a terminal.
const COLUMNS: u16 = 120;
/// Columns of a plain frame at least and at most.
const WIDTHS: (u16, u16) = (40, 400);

/// Shows what the page `/` of an appliance shows, in a terminal.
#[derive(Parser)]
#[command(name = "isthmus top", bin_name = "./isthmus top")]
struct Arguments {
    #[command(flatten)]
    options: TopOptions,
}

/// Parses the command line, and shows the screen.
pub fn main() -> ExitCode {
    let options = Arguments::parse().options;
    let done = if options.once { once(&options) } else { screen(options) };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("isthmus: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Prints one frame as plain text. Rates are those between two rounds.
fn once(options: &TopOptions) -> Result<()> {
    let appliance = options.appliance.connect()?;
    let width = match std::io::stdout().is_terminal() {
        true => ratatui::crossterm::terminal::size().map_or(COLUMNS, |(columns, _)| columns),
        false => COLUMNS,
    };
    print!("{}", frame(&appliance, width.clamp(WIDTHS.0, WIDTHS.1), options.period())?);
    Ok(())
}

/// One frame as plain text, of two rounds.
fn frame(appliance: &Appliance, width: u16, period: Duration) -> Result<String, Failure> {
    let mut app = App::new(appliance.address());
    let first = snapshot::fetch(appliance, &[], None)?;
    app.take(Ok(first.clone()));
    std::thread::sleep(period.min(Duration::from_secs(1)));
    app.take(Ok(snapshot::fetch(appliance, &[sections::DOCTOR, sections::LOG], Some(&first))?));
    Ok(view::plain(&mut app, usize::from(width)))
}

/// Shows the screen until the user leaves.
fn screen(options: TopOptions) -> Result<()> {
    let appliance = options.appliance.connect()?;
    let mut app = App::new(appliance.address());
    let (orders, taken) = channel();
    let (sender, rounds) = sync_channel(1);
    let period = options.period();
    // It may be in a request when the user leaves; it ends with the program.
    std::thread::spawn(move || snapshot::run(&appliance, period, &taken, &sender));
    let mut terminal =
        ratatui::try_init().context("standard output is no terminal; --once prints text")?;
    let shown = show(&mut app, &mut terminal, &rounds, |order| {
        // The thread ends with the program only.
        let _ = orders.send(order);
    });
    ratatui::restore();
    shown
}

fn show(
    app: &mut App,
    terminal: &mut DefaultTerminal,
    rounds: &Receiver<Result<Snapshot, Failure>>,
    order: impl Fn(Order),
) -> Result<()> {
    while !app.is_over {
        loop {
            match rounds.try_recv() {
                // A round that was under way when the user paused.
                Ok(_) if app.is_paused => {}
                Ok(round) => app.take(round),
                Err(TryRecvError::Empty) => break,
                Err(TryRecvError::Disconnected) => {
                    anyhow::bail!("the thread that fetches has ended")
                }
            }
        }
        terminal.draw(|frame| view::draw(app, frame))?;
        let mut wait = TICK;
        while event::poll(wait)? {
            wait = Duration::ZERO;
            match event::read()? {
                Event::Key(key) if key.kind != KeyEventKind::Release => {
                    if let Some(wanted) = app.press(key) {
                        order(wanted);
                    }
                }
                _ => {}
            }
            if app.is_over {
                break;
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
