//! Executes the commands of the console.

use super::State;
use super::command::Verb;
use super::commands::COMMANDS;
use super::output::Output;
use super::parse::{Invocation, parse};
use super::report::Report;
use super::system::{Managed, System, Topic};
use crate::config::Problem;
use crate::log_ring::{Filter, audit, audit_refused};
use crate::report::Value;
use core::net::IpAddr;
use perf_responders::rping::MAX_SIZE;

/// Default number of echo requests.
const PINGS: u32 = 4;
/// Default bytes of data in an echo request, as in Linux's `ping`.
const PING_SIZE: u16 = 56;
/// Maximum bytes of data: the capacity of an IPv4 packet of 64 KiB.
const MAX_PING_SIZE: u16 = 65_507;
/// Default bytes of an rping message, as in rping itself.
const RPING_SIZE: usize = 64;

/// The object that controls captures.
const CAPTURE: &str = "/capture";

/// Executes a line. Writes the reply to `out`, or sets `long` to a long report. Returns the next state of the console.
pub fn execute(
    line: &str,
    system: &mut dyn System,
    out: &mut Output,
    long: &mut Option<Report>,
) -> State {
    try_execute(line, system, out, long).unwrap_or_else(|why| {
        out.text(&format!("error: {why}\n"));
        State::Prompt
    })
}

/// [`execute`], with the reason of a refusal as an error.
pub fn try_execute(
    line: &str,
    system: &mut dyn System,
    out: &mut Output,
    long: &mut Option<Report>,
) -> Result<State, String> {
    let Some(invocation) = parse(line)? else { return Ok(State::Prompt) };
    system.needs(invocation.role, line)?;
    match invocation.verb {
        Verb::Show(topic) => {
            *long = Report::new(topic, invocation.json, system);
            Ok(match long {
                Some(_) => State::Report,
                None => show(&system.show(topic), invocation.json, out),
            })
        }
        Verb::ShowAudit => {
            *long = Some(Report::audit(invocation.json));
            Ok(State::Report)
        }
        Verb::ShowLog(filter) => {
            *long = Some(Report::log(filter, invocation.json, system));
            Ok(State::Report)
        }
        Verb::Support => {
            audit(&system.caller(), format_args!("support"));
            *long = Some(Report::support(system));
            Ok(State::Report)
        }
        Verb::Doctor => {
            *long = Some(Report::doctor(invocation.json, system));
            Ok(State::Report)
        }
        _ => act(&invocation, system, out),
    }
}

/// Shows a value; the prompt is next.
fn show(value: &Value, json: bool, out: &mut Output) -> State {
    match json {
        true => out.text(&format!("{}\n", value.to_json())),
        false => out.text(&value.to_text()),
    }
    State::Prompt
}

fn act(what: &Invocation, system: &mut dyn System, out: &mut Output) -> Result<State, String> {
    let argument = |i: usize| what.arguments.get(i).map_or("", String::as_str);
    let mut report = |value: &Value| {
        show(value, what.json, out);
    };
    match what.verb {
        Verb::Help => help(out),
        Verb::Show(topic) => report(&system.show(topic)),
        Verb::ShowLinx if argument(0).is_empty() => report(&system.show(Topic::Linx)),
        Verb::ShowLinx => report(&link_named(argument(0), system)?),
        // `try_execute` handles them as long reports.
        Verb::ShowLog(_) | Verb::ShowAudit | Verb::Doctor | Verb::Support => {}
        Verb::LogFollow => {
            let filter = filter(argument(0))?;
            out.text("Ctrl-C ends it\n");
            return Ok(State::Follow(filter));
        }
        Verb::ShowConfig if what.json => report(&system.document().to_report()),
        Verb::ShowConfig => {
            out.text(&system.document().to_shown_toml());
            out.text(&system.document().pending_toml());
            out.text(&system.document().covered_toml());
        }
        Verb::Set => set(argument(0), argument(1), system, out)?,
        Verb::Unset => unset(argument(0), argument(1), system, out)?,
        Verb::LogLevel => set_log_level(&what.arguments, system, out)?,
        Verb::Save => {
            system.start_save()?;
            for pending in system.document().pending() {
                out.text(&format!("not saved: {pending}\n"));
            }
            return Ok(State::Task);
        }
        Verb::Ping => {
            let (address, count) = ping_arguments(argument(0), what.arguments.get(1))?;
            let size = ping_size(what.arguments.get(2))?;
            return system.start_ping(address, count, size).map(|()| State::Task);
        }
        Verb::Rping => {
            let (address, count) = ping_arguments(argument(0), what.arguments.get(1))?;
            let size = rping_size(what.arguments.get(2))?;
            return system.start_rping(address, count, size).map(|()| State::Task);
        }
        Verb::CaptureStart => {
            let order = format!("start {}", argument(0));
            return system.write(CAPTURE, order.trim_end()).map(|done| after(done, out));
        }
        Verb::CaptureStop => return system.write(CAPTURE, "stop").map(|done| after(done, out)),
        Verb::List => {
            let names = system.list(&absolute(argument(0)))?;
            report(&Value::list(names.into_iter().map(Value::from)));
        }
        Verb::Cat => report(&system.read(&absolute(argument(0)))?),
        Verb::Write => {
            let done = system.write(&absolute(argument(0)), argument(1))?;
            return Ok(after(done, out));
        }
        Verb::Paste => return Ok(State::Paste),
        Verb::Manage(verb) => {
            let done = system.manage(verb, if what.json { "json" } else { argument(0) })?;
            return Ok(after(done, out));
        }
        Verb::LogOut => return Ok(State::LoggingOut),
        Verb::Reboot => {
            may_end("reboot", argument(0), system)?;
            out.text("rebooting\n");
            return Ok(State::Rebooting);
        }
        Verb::PowerOff => {
            may_end("poweroff", argument(0), system)?;
            out.text("powering off\n");
            return Ok(State::PoweringOff);
        }
    }
    Ok(State::Prompt)
}

/// All about the link to a LINX node with this name.
fn link_named(name: &str, system: &mut dyn System) -> Result<Value, String> {
    let links = match system.read("/linx")? {
        Value::List(links) => links,
        _ => Vec::new(),
    };
    let link = links.into_iter().find(|link| link.has_text("name", name));
    link.ok_or_else(|| format!("there is no link {name:?}"))
}

/// Sets the level of all messages, or of a subject's.
fn set_log_level(
    arguments: &[String],
    system: &mut dyn System,
    out: &mut Output,
) -> Result<(), String> {
    match arguments {
        [subject, level] => {
            let levels = system.document().config().log.with(subject, level)?;
            set("log.levels", &levels, system, out)
        }
        [level] => set("system.log_level", level, system, out),
        _ => Err("missing level".into()),
    }
}

/// Shows the reply of a command. The next state of the console.
fn after(done: Managed, out: &mut Output) -> State {
    match done {
        Managed::Told(text) => {
            out.text(&text);
            State::Prompt
        }
        Managed::Started => State::Task,
    }
}

/// The filter of `log follow`.
fn filter(word: &str) -> Result<Filter, String> {
    match word {
        "" => Ok(Filter::All),
        "audit" => Ok(Filter::Audit),
        "errors" => Ok(Filter::Errors),
        _ => Err(format!("{word:?} is not understood; accepted: audit, errors")),
    }
}

fn help(out: &mut Output) {
    // Longer usages break the column, so that most lines fit a terminal.
    let width = 32;
    for command in COMMANDS {
        out.text(&format!("{:width$}  {}\n", command.usage(), command.about));
    }
    out.text("Tab completes, the arrows recall earlier lines.\n");
}

fn set(path: &str, value: &str, system: &mut dyn System, out: &mut Output) -> Result<(), String> {
    let effect = system.set(path, value).map_err(lines)?;
    out.text(&format!("{effect}\n"));
    Ok(())
}

fn unset(path: &str, how: &str, system: &mut dyn System, out: &mut Output) -> Result<(), String> {
    let force = is_force(how)?;
    let effect = system.unset(path, force).map_err(lines)?;
    out.text(&format!("{effect}\n"));
    Ok(())
}

/// Whether the optional last word of a command is `force`.
fn is_force(word: &str) -> Result<bool, String> {
    match word {
        "" => Ok(false),
        "force" => Ok(true),
        _ => Err(format!("{word:?} is not understood; accepted: force")),
    }
}

/// Refuses to stop the machine with unsaved changes unless `force` is given.
fn may_end(command: &str, how: &str, system: &mut dyn System) -> Result<(), String> {
    if is_force(how)? || !system.has_unsaved() {
        return Ok(());
    }
    audit_refused(&system.caller(), format_args!("{command}: refused: unsaved changes"));
    Err(format!("unsaved changes: `save` first, or `{command} force` discards them"))
}

fn lines(problems: Vec<Problem>) -> String {
    problems.iter().map(ToString::to_string).collect::<Vec<_>>().join("\nerror: ")
}

fn ping_arguments(address: &str, count: Option<&String>) -> Result<(IpAddr, u32), String> {
    let address = address.parse().map_err(|_| {
        format!("{address:?} is not an address; accepted: 10.0.0.1 or fd00::1, for example")
    })?;
    let count = match count {
        None => PINGS,
        Some(text) => match text.parse() {
            Ok(count @ 1..=1000) => count,
            _ => return Err(format!("{text:?} is not a valid count; accepted: 1 to 1000")),
        },
    };
    Ok((address, count))
}

fn ping_size(size: Option<&String>) -> Result<u16, String> {
    let Some(text) = size else { return Ok(PING_SIZE) };
    match text.parse() {
        Ok(size @ 0..=MAX_PING_SIZE) => Ok(size),
        _ => Err(format!(
            "{text:?} is not a valid size; accepted: 0 to {MAX_PING_SIZE} bytes of data"
        )),
    }
}

fn rping_size(size: Option<&String>) -> Result<usize, String> {
    let Some(text) = size else { return Ok(RPING_SIZE) };
    match text.parse() {
        Ok(size @ 1..=MAX_SIZE) => Ok(size),
        _ => Err(format!("{text:?} is not a valid size; accepted: 1 to {MAX_SIZE} bytes")),
    }
}

/// The path of an object from the top.
fn absolute(path: &str) -> String {
    format!("/{}", path.trim_start_matches('/'))
}
