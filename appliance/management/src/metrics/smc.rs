//! Metrics of SMC-R and of the messaging gateway's rules.

use super::page::Page;
use crate::appliance::Appliance;
use core::fmt::Error;
use messaging::relay;
use smcr::engine::Counters;

/// A counter of a `T`: metric name, help, and value.
type Family<T> = (&'static str, &'static str, fn(&T) -> u64);

const ENGINE: [Family<Counters>; 12] = [
    ("isthmus_smc_handshake_errors_total", "Handshakes that failed.", |c| c.failed),
    ("isthmus_smc_first_contacts_total", "Connections that created a link group.", |c| {
        c.first_contacts
    }),
    ("isthmus_smc_aborted_total", "Connections aborted, or lost with their last link.", |c| {
        c.aborted
    }),
    ("isthmus_smc_cdc_received_total", "CDC messages received.", |c| c.cdc_received),
    ("isthmus_smc_cdc_sent_total", "CDC messages sent.", |c| c.cdc_sent),
    ("isthmus_smc_malformed_total", "Malformed messages received.", |c| c.malformed),
    (
        "isthmus_smc_violations_total",
        "Link groups ended because the peer violated the protocol.",
        |c| c.violations,
    ),
    ("isthmus_smc_links_failed_total", "Links that failed.", |c| c.links_failed),
    ("isthmus_smc_failovers_total", "Connections moved to another link.", |c| c.failovers),
    ("isthmus_smc_returned_total", "Connections moved back to a link that is up again.", |c| {
        c.returned
    }),
    ("isthmus_smc_receive_bytes_total", "Bytes received.", |c| c.bytes_received),
    ("isthmus_smc_transmit_bytes_total", "Bytes queued for transmission.", |c| c.bytes_sent),
];

const RULE: [Family<relay::Counters>; 7] = [
    ("isthmus_rule_lost_messages_total", "Messages lost when their connection ended.", |c| c.lost),
    ("isthmus_rule_smc_servers_total", "Servers reached over SMC-R.", |c| c.smc_servers),
    ("isthmus_rule_refused_total", "Clients refused because no server was available.", |c| {
        c.refused
    }),
    ("isthmus_rule_aborted_total", "Connections aborted because one side was lost.", |c| c.aborted),
    ("isthmus_rule_timed_out_total", "Connections closed after an idle timeout.", |c| c.timed_out),
    ("isthmus_rule_receive_bytes_total", "Bytes from clients.", |c| c.bytes_in),
    ("isthmus_rule_transmit_bytes_total", "Bytes to clients.", |c| c.bytes_out),
];

pub(super) fn write(appliance: &dyn Appliance, w: &mut Page<'_>) -> Result<(), Error> {
    let Some(smc) = appliance.smc() else { return Ok(()) };
    let counters = smc.engine.counters();
    let mut family = w.counter("isthmus_smc_connections_total", "Connections over SMC-R.")?;
    family.sample(&[("role", &"client")], counters.client)?;
    family.sample(&[("role", &"server")], counters.server)?;
    let mut family =
        w.counter("isthmus_smc_fallbacks_total", "Connections that fell back to TCP, by reason.")?;
    for (reason, &count) in &counters.fallbacks {
        family.sample(&[("reason", &format_args!("{:08x}", reason.0))], count)?;
    }
    for (name, help, value) in ENGINE {
        w.counter(name, help)?.sample(&[], value(counters))?;
    }
    let [sockets, groups, links] = smc.engine.counts();
    let mut family = w.gauge("isthmus_smc_sockets", "Sockets that exist.")?;
    family.sample(&[], sockets as u64)?;
    let mut family = w.gauge("isthmus_smc_link_groups", "Link groups that exist.")?;
    family.sample(&[], groups as u64)?;
    let mut family = w.gauge("isthmus_smc_links", "Links that exist.")?;
    family.sample(&[], links as u64)?;
    if smc.users.rules().next().is_none() {
        return Ok(());
    }
    let mut family = w.gauge("isthmus_rule_connections", "Connections that are relayed.")?;
    for (name, relay) in smc.users.rules() {
        family.sample(&[("rule", &name)], relay.connections() as u64)?;
    }
    let mut family = w.counter("isthmus_rule_clients_total", "Clients accepted, by mode.")?;
    for (name, relay) in smc.users.rules() {
        let counters = relay.counters();
        family.sample(&[("rule", &name), ("mode", &"smcr")], counters.smc)?;
        family.sample(&[("rule", &name), ("mode", &"tcp")], counters.tcp)?;
        family.sample(&[("rule", &name), ("mode", &"messages")], counters.messages)?;
    }
    for (family, help, value) in RULE {
        let mut family = w.counter(family, help)?;
        for (name, relay) in smc.users.rules() {
            family.sample(&[("rule", &name)], value(relay.counters()))?;
        }
    }
    let mut family = w.gauge("isthmus_rule_backend_up", "Whether the server is reachable.")?;
    for (name, relay) in smc.users.rules() {
        for backend in relay.backends() {
            family
                .sample(&[("rule", &name), ("backend", &backend.address)], u64::from(backend.up))?;
        }
    }
    let mut family = w.gauge("isthmus_rule_backend_connections", "Connections to the server.")?;
    for (name, relay) in smc.users.rules() {
        for backend in relay.backends() {
            family.sample(
                &[("rule", &name), ("backend", &backend.address)],
                u64::from(backend.connections),
            )?;
        }
    }
    Ok(())
}
