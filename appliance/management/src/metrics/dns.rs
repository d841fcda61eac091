//! The DNS client.

use super::page::Page;
use crate::appliance::Appliance;
use core::fmt::Error;
use net::dns::{Lookup, ServerStatus};

/// A counter of a name server: metric name, help, and value.
type Family = (&'static str, &'static str, fn(&ServerStatus) -> u64);

const FAMILIES: [Family; 4] = [
    ("isthmus_dns_sent_total", "Messages sent to the name server.", |s| s.sent),
    ("isthmus_dns_answers_total", "Answers of the name server.", |s| s.answers),
    ("isthmus_dns_timeouts_total", "Messages that it has not answered in time.", |s| s.timeouts),
    ("isthmus_dns_failures_total", "Of the answers, failures and malformed ones.", |s| s.failures),
];

pub(super) fn write(appliance: &dyn Appliance, w: &mut Page<'_>) -> Result<(), Error> {
    let resolver = appliance.resolver();
    for (name, help, value) in FAMILIES {
        let mut family = w.counter(name, help)?;
        for server in resolver.servers() {
            family.sample(&[("server", &server.server.address)], value(server))?;
        }
    }
    w.counter(
        "isthmus_dns_foreign_total",
        "Datagrams that were no answer to a query: another source, ID or question.",
    )?
    .sample(&[], resolver.counters().foreign)?;
    let mut unresolved = w.gauge(
        "isthmus_dns_name_unresolved",
        "Whether a name of the configuration has no address.",
    )?;
    for name in resolver.names(appliance.machine().now).filter(|name| name.followed) {
        let failed = matches!(name.lookup, Lookup::Failed(_));
        unresolved.sample(&[("name", name.name)], u64::from(failed))?;
    }
    Ok(())
}
