//! The time client.

use super::page::Page;
use crate::appliance::Appliance;
use core::fmt::Error;
use net::sntp::{ServerState, ServerStatus};

pub(super) fn write(appliance: &dyn Appliance, w: &mut Page<'_>) -> Result<(), Error> {
    let (machine, client) = (appliance.machine(), appliance.time_client());
    let servers: Vec<ServerStatus> = client.servers(machine.clock.epoch, machine.now).collect();
    let is_good = |server: &ServerStatus| server.state == ServerState::Good;
    w.gauge(
        "isthmus_time_synchronized",
        "Whether a majority of the time servers that answer agrees on the time.",
    )?
    .sample(&[], u64::from(servers.iter().any(is_good)))?;
    // Absent without system.ntp.
    if servers.is_empty() {
        return Ok(());
    }
    let mut good = w.gauge(
        "isthmus_time_server_good",
        "Whether the time server answers and agrees with the majority.",
    )?;
    for server in &servers {
        good.sample(&[("server", &server.address)], u64::from(is_good(server)))?;
    }
    let mut offset = w.gauge(
        "isthmus_time_server_offset_seconds",
        "The time server's time less the wall clock.",
    )?;
    for server in &servers {
        let Some(nanos) = server.offset else { continue };
        offset.sample(&[("server", &server.address)], nanos as f64 / 1e9)?;
    }
    let mut answers =
        w.counter("isthmus_time_server_answers_total", "Usable answers of the time server.")?;
    for server in &servers {
        answers.sample(&[("server", &server.address)], server.answers)?;
    }
    w.counter(
        "isthmus_time_foreign_total",
        "Datagrams that were no answer to a request to a time server.",
    )?
    .sample(&[], client.counters().foreign)?;
    Ok(())
}
