//! The state shared by all TLS connections of a server, and the rate limit of handshakes.

use super::pair::Pair;
use super::peer::AnyClient;
use super::provider::{CertificateKey, Random, Source, provider};
use super::session::Session;
use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, Ordering};
use core::time::Duration;
use drivers::hal::Instant;
use rustls::ServerConfig;
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::NoServerSessionStorage;
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::time_provider::TimeProvider;
use spin::Mutex;

/// Minimum interval between the public-key operations of two handshakes. Each takes some millions of instructions, so a
/// flood of handshakes takes at most a tenth of the time.
const PAUSE: Duration = Duration::from_millis(10);

/// TLS with one certificate. Public-key operations are rate limited: one connection in a round, the next one 10 ms
/// later.
#[derive(Debug)]
pub struct Tls {
    config: Arc<ServerConfig>,
    source: &'static Source,
    pair: Pair,
    clients: Arc<AnyClient>,
    /// When the next handshake may continue.
    due: Mutex<Instant>,
}

impl Tls {
    /// TLS with this certificate and key. Create it once: objects that rustls needs for ever are leaked.
    pub fn new(pair: Pair, random: Random) -> Arc<Tls> {
        let source: &'static Source = Box::leak(Box::new(Source::new(random)));
        let key = CertificateKey { key: pair.key().clone(), source };
        let chain: Vec<CertificateDer<'static>> =
            pair.chain().iter().cloned().map(CertificateDer::from).collect();
        let certified = CertifiedKey::new(chain, Arc::new(key));
        let clients = Arc::new(AnyClient { source, asks: AtomicBool::new(false) });
        let mut config =
            ServerConfig::builder_with_details(Arc::new(provider(source)), Arc::new(NoClock))
                .with_safe_default_protocol_versions()
                .expect("there are suites of both versions")
                .with_client_cert_verifier(clients.clone())
                .with_cert_resolver(Arc::new(SingleCertAndKey::from(certified)));
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        let due = Mutex::new(Instant::ZERO);
        Arc::new(Tls { config: Arc::new(config), source, pair, clients, due })
    }

    /// The certificate and the key.
    pub fn pair(&self) -> &Pair {
        &self.pair
    }

    /// Whether new clients are asked for a certificate. They may connect without one.
    pub fn ask_for_certificates(&self, asks: bool) {
        self.clients.asks.store(asks, Ordering::Relaxed);
    }

    /// A new connection of a client.
    pub fn session(self: &Arc<Self>, now: Instant) -> Session {
        Session::new(self.clone(), self.config.clone(), now)
    }

    /// When a handshake may continue.
    pub fn due(&self) -> Instant {
        *self.due.lock()
    }

    /// Number of public-key operations so far.
    pub(super) fn operations(&self) -> u64 {
        self.source.operations()
    }

    /// Records that there were public-key operations at `now`.
    pub(super) fn worked(&self, now: Instant) {
        *self.due.lock() = now + PAUSE;
    }
}

/// A constant time. TLS does not depend on it: there are no tickets, and dates in certificates of clients are not verified.
#[derive(Debug)]
struct NoClock;

impl TimeProvider for NoClock {
    fn current_time(&self) -> Option<UnixTime> {
        Some(UnixTime::since_unix_epoch(Duration::ZERO))
    }
}
