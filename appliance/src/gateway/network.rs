//! The IP interface of each port, and its services: HTTP, ping, and listeners of measuring tools.

use super::ports::PortSlot;
use crate::config::{Config, Http};
use crate::console::Progress;
use crate::families::OfMeasure;
use core::net::IpAddr;
use core::time::Duration;
use drivers::hal::{Instant, Severity};
use management::Web;
use net::hosts::Hosts;
use net::http::access::Doors;
use net::http::{Limits, Server};
use net::ping::{Event, Ping};
use net::tls::Tls;
use net::{Addressing, Cidr, Interface};
use perf_responders::tcp_control::TcpControl;
use std::sync::Arc;

/// Shortest time between two reports of the same event.
const REPORT: Duration = Duration::from_secs(60);

/// One interface with its services.
pub(super) struct Network {
    pub interface: Interface,
    pub http: Option<Server>,
    /// TLS of its HTTP server, if it uses TLS.
    tls: Option<Arc<Tls>>,
    pub ping: Option<(IpAddr, Ping)>,
    /// TCP listeners of the measuring tools, on the interface with RDMA.
    pub front: Option<OfMeasure<TcpControl>>,
    pub generation: Option<u64>,
    /// Changes of its path MTUs that were passed to RDMA.
    pub path_changes: u64,
    /// When guesses of SYN cookies were reported last.
    guesses_reported: Option<Instant>,
    /// Activity counter of the interface at the last poll.
    pub seen: Option<u64>,
    /// When the next timer of a service expires. Only activity of the interface or an expired timer changes it.
    pub services_due: Option<Instant>,
}

impl Network {
    /// An interface without services.
    #[cfg(test)]
    pub fn over(interface: Interface) -> Network {
        Network {
            interface,
            http: None,
            tls: None,
            ping: None,
            front: None,
            generation: None,
            path_changes: 0,
            guesses_reported: None,
            seen: None,
            services_due: None,
        }
    }

    /// Creates and configures the interface of port number `index`.
    pub fn new(
        slot: &PortSlot,
        index: usize,
        config: &Config,
        tls: Option<Arc<Tls>>,
        seed: [u8; 32],
        now: Instant,
    ) -> Self {
        let mut interface = Interface::new(slot.mac, slot.mtu, seed, now);
        interface.detect_duplicates(now);
        interface.set_hostname(String::leak(config.system.hostname.to_string()));
        let mut network = Network {
            interface,
            http: None,
            tls,
            ping: None,
            front: None,
            generation: None,
            path_changes: 0,
            guesses_reported: None,
            seen: None,
            services_due: None,
        };
        network.configure(slot, index, config, now);
        network
    }

    /// Applies the configuration to addresses and services.
    pub fn configure(&mut self, slot: &PortSlot, index: usize, config: &Config, now: Instant) {
        let wanted = config.net(index, slot.mac, &slot.location);
        let addressing = Addressing {
            addresses: wanted.fixed().map(|(ip, prefix)| Cidr::new(ip.into(), prefix)).collect(),
            gateways: wanted.gateway.clone(),
            dhcp: wanted.dhcp(),
            slaac: wanted.dhcp(),
            fixed_mtu: wanted.mtu.is_some(),
        };
        if let Err(error) = self.interface.set_addressing(addressing, now) {
            log::error!("{}: net.{index}: {error}; the former addresses stay", slot.name);
        }
        let port = self.port(&config.http);
        if self.http.is_none() {
            let connections = config.http.connections.into();
            let limits = Limits { connections, ..Limits::default() };
            self.http =
                port.map(|port| Server::new(&mut self.interface, port, limits, self.tls.clone()));
        }
        if let Some(server) = &mut self.http {
            let hosts = Hosts::new(config.http.hosts.clone());
            server.set_doors(Doors { hosts, listen: config.http.listen.clone() });
        }
    }

    /// Port of the HTTP server, if it is enabled.
    fn port(&self, http: &Http) -> Option<u16> {
        http.enabled.then(|| http.port(self.tls.is_some()))
    }

    /// Stops the HTTP server if its port has changed or it was disabled.
    pub fn stop_moved_server(&mut self, web: &mut Web<'_>) {
        let port = self.port(&web.appliance.document().config().http);
        if let Some(server) = self.http.take_if(|server| Some(server.port()) != port) {
            server.stop(&mut self.interface, web);
        }
    }

    /// Logs guesses of SYN cookies, at most once a minute, if there are more than `before`.
    pub fn report_cookie_guesses(&mut self, name: &str, before: u64, now: Instant) {
        let guesses = self.interface.counters().cookie_guesses;
        let pauses = self.guesses_reported.is_some_and(|at| now.since(at) < REPORT);
        if guesses == before || pauses {
            return;
        }
        self.guesses_reported = Some(now);
        log::warn!(
            "{name}: {guesses} TCP segments so far acknowledged a wrong SYN cookie, in a flood of SYNs: a station may be \
             guessing cookies to connect from an address that is not its own"
        );
    }

    /// Whether its interface has work now.
    pub fn wants_poll(&self) -> bool {
        self.interface.wants_poll() || self.interface.has_news()
    }

    /// When the next timer expires.
    pub fn poll_timeout(&self) -> Option<Instant> {
        Instant::first([self.interface.poll_timeout(), self.services_due])
    }

    pub fn services_timeout(&self) -> Option<Instant> {
        let http = self.http.as_ref().and_then(Server::poll_timeout);
        let ping = self.ping.as_ref().and_then(|(_, ping)| ping.poll_timeout());
        let front = self.front.as_ref().and_then(|front| front.poll_timeout());
        Instant::first([http, ping, front])
    }

    pub fn poll_ping(&mut self, now: Instant, report: &mut dyn FnMut(Progress)) {
        let Some((target, mut ping)) = self.ping.take() else { return };
        while let Some(event) = ping.poll(&mut self.interface, now) {
            match event {
                Event::Reply { sequence, time } => {
                    let millis = time.as_secs_f64() * 1000.0;
                    report(Progress::Line(format!(
                        "answer from {target}: seq={sequence} time={millis:.3} ms"
                    )));
                }
                Event::Timeout { sequence } => {
                    report(Progress::Line(format!("no answer from {target}: seq={sequence}")));
                }
                Event::Finished(summary) => {
                    let _ = ping.stop(&mut self.interface);
                    return report(Progress::Done(ping_result(target, &summary)));
                }
            }
        }
        self.ping = Some((target, ping));
    }
}

/// Summary of a finished ping, for the console.
pub(super) fn ping_result(target: IpAddr, summary: &net::ping::Summary) -> Result<String, String> {
    let net::ping::Summary { sent, received, .. } = *summary;
    match received {
        0 => Err(format!("{target} did not answer any of {sent} requests")),
        _ => {
            let mean = summary.mean().unwrap_or_default().as_secs_f64() * 1000.0;
            Ok(format!("{received} of {sent} answered, mean {mean:.3} ms"))
        }
    }
}

/// Records and logs the addresses of an interface after a change.
pub(super) fn record_addresses(interface: &Interface, slot: &mut PortSlot) {
    let (v4, v6) = interface.gateways();
    let list: Vec<String> = interface.addresses().iter().map(ToString::to_string).collect();
    if list != slot.addresses.list {
        log::info!("{}: {}", slot.name, list.join(" "));
    }
    slot.addresses.list = list;
    slot.addresses.gateways =
        v4.map(|ip| ip.to_string()).into_iter().chain(v6.map(|ip| ip.to_string())).collect();
    slot.addresses.lease = interface.has_lease();
    slot.addresses.mtus = Some(interface.mtus());
}

/// Logs the notices of an interface.
pub(super) fn log_notices(interface: &mut Interface, name: &str) {
    while let Some(notice) = interface.next_notice() {
        match notice.severity {
            Severity::Information => log::info!("{name}: {notice}"),
            Severity::Warning => log::warn!("{name}: {notice}"),
            Severity::Error => log::error!("{name}: {notice}"),
        }
    }
}
