//! The report of `show dns`: name servers, and names with their addresses.

use crate::appliance::Appliance;
use crate::report::Value;
use net::dns::{Lookup, NameStatus, ServerStatus};

/// The report.
pub(crate) fn report(appliance: &dyn Appliance) -> Value {
    let (resolver, now) = (appliance.resolver(), appliance.machine().now);
    let counters = resolver.counters();
    Value::object([
        ("servers", Value::list(resolver.servers().iter().map(server))),
        ("names", Value::list(resolver.names(now).map(name))),
        ("answered", counters.answered.into()),
        ("failed", counters.failed.into()),
        ("foreign_datagrams", counters.foreign.into()),
        ("over_tcp", counters.over_tcp.into()),
    ])
}

fn server(status: &ServerStatus) -> Value {
    let interface = status.server.interface.map(|number| format!("net{number}"));
    Value::object([
        ("address", Value::display(status.server.address)),
        ("from", status.server.origin.into()),
        ("interface", interface.unwrap_or_else(|| "no route".into()).into()),
        ("sent", status.sent.into()),
        ("answers", status.answers.into()),
        ("timeouts", status.timeouts.into()),
        ("failures", status.failures.into()),
        ("round_trip_seconds", status.round_trip.map(|time| time.as_secs_f64()).into()),
    ])
}

fn name(status: NameStatus<'_>) -> Value {
    let addresses = match &status.lookup {
        Lookup::Known(addresses) => Value::list(addresses.iter().map(Value::display)),
        Lookup::Pending | Lookup::Failed(_) => Value::None,
    };
    let state = match (&status.lookup, status.stale) {
        (Lookup::Known(_), None) => "known".to_string(),
        (Lookup::Known(_), Some(problem)) => format!("last known: {problem}"),
        (other, _) => other.to_string(),
    };
    Value::object([
        ("name", Value::display(status.name)),
        ("addresses", addresses),
        ("state", state.into()),
        ("seconds_left", status.seconds.into()),
        ("configured", status.followed.into()),
    ])
}
