//! The state shared by all TLS connections of a server, and the rate limit of handshakes.

use super::authorities::{Authorities, ClientCertificate, Vouched};
use super::pair::Pair;
use super::peer::AnyClient;
use super::provider::{CertificateKey, Random, Source, provider};
use super::session::Session;
use alloc::boxed::Box;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use core::time::Duration;
use drivers::hal::Instant;
use rustls::ServerConfig;
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::NoServerSessionStorage;
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::time_provider::TimeProvider;
use sha2::{Digest, Sha256};
use spin::Mutex;

/// Minimum interval after [`OPERATIONS`] public-key operations. Each takes some millions of instructions, so a flood of
/// handshakes takes at most a tenth of the time.
const PAUSE: Duration = Duration::from_millis(10);
/// Public-key operations of a handshake without a certificate of the client.
const OPERATIONS: u64 = 3;

/// TLS with one certificate. Public-key operations are rate limited: one connection in a round, the next one 10 ms
/// later.
#[derive(Debug)]
pub struct Tls {
    config: Arc<ServerConfig>,
    source: &'static Source,
    pair: Pair,
    clients: Arc<AnyClient>,
    /// Authorities that issue certificates of clients, and how often they have changed.
    authorities: Mutex<(Option<Arc<Authorities>>, u64)>,
    /// Wall-clock time at `Instant::ZERO` in nanoseconds since 1970; 0 if unknown.
    epoch: AtomicU64,
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
        let (authorities, epoch) = (Mutex::new((None, 0)), AtomicU64::new(0));
        Arc::new(Tls { config: Arc::new(config), source, pair, clients, authorities, epoch, due })
    }

    /// The certificate and the key.
    pub fn pair(&self) -> &Pair {
        &self.pair
    }

    /// Whether new clients are asked for a certificate. They may connect without one.
    pub fn ask_for_certificates(&self, asks: bool) {
        self.clients.asks.store(asks, Ordering::Relaxed);
    }

    /// Sets the authorities whose certificates name clients. A change ends what is known of clients by earlier ones.
    pub fn set_authorities(&self, authorities: Option<Authorities>) {
        let mut current = self.authorities.lock();
        if current.0.as_deref() != authorities.as_ref() {
            *current = (authorities.map(Arc::new), current.1 + 1);
        }
    }

    /// Sets the wall-clock time at `Instant::ZERO`, in nanoseconds since 1970. Without it no authority is believed,
    /// because certificates end.
    pub fn set_epoch(&self, epoch: u64) {
        self.epoch.store(epoch, Ordering::Relaxed);
    }

    /// Time since 1970, if it is known.
    fn since_1970(&self, now: Instant) -> Option<Duration> {
        let epoch = Some(self.epoch.load(Ordering::Relaxed)).filter(|&epoch| epoch > 0)?;
        Some(Duration::from_nanos(epoch.saturating_add(now.as_nanos())))
    }

    /// What is known of a client that has sent these certificates, and until when and until which change of the
    /// authorities. The client has proved that it has the key of the first.
    pub(super) fn identify(
        &self,
        sent: &[CertificateDer<'_>],
        now: Instant,
    ) -> Option<(Arc<ClientCertificate>, Term)> {
        let sha256 = Sha256::digest(sent.first()?).into();
        let (authorities, change) = self.authorities.lock().clone();
        let vouch = || -> Result<Vouched, String> {
            let authorities = authorities.ok_or("http.client_ca is not set")?;
            let at = self.since_1970(now).ok_or(NO_TIME)?;
            authorities.vouch(sent, at, self.source)
        };
        let (names, until) = match vouch() {
            Ok(Vouched { names, until }) => (Ok(names), until),
            Err(why) => (Err(why), Duration::MAX),
        };
        Some((Arc::new(ClientCertificate { sha256, names }), Term { until, change }))
    }

    /// Why the names of a client's certificate do not count any more.
    pub(super) fn objection(&self, term: Term, now: Instant) -> Option<&'static str> {
        if self.authorities.lock().1 != term.change {
            return Some("http.client_ca has changed since the connection began: connect again");
        }
        match self.since_1970(now) {
            None => Some(NO_TIME),
            Some(at) if at > term.until => Some("it, or an issuer, has expired"),
            Some(_) => None,
        }
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

    /// Records that there were this many public-key operations at `now`.
    pub(super) fn worked(&self, operations: u64, now: Instant) {
        let pauses = u32::try_from(operations.div_ceil(OPERATIONS)).unwrap_or(u32::MAX);
        *self.due.lock() = now + PAUSE * pauses;
    }
}

const NO_TIME: &str = "the appliance does not know the time (`show time`), and certificates end";

/// How long the names of a client's certificate count.
#[derive(Clone, Copy, Debug)]
pub(super) struct Term {
    /// Since 1970.
    until: Duration,
    /// Number of changes of the authorities.
    change: u64,
}

/// A constant time. TLS does not depend on it: there are no tickets, and certificates of clients are verified after the
/// handshake.
#[derive(Debug)]
struct NoClock;

impl TimeProvider for NoClock {
    fn current_time(&self) -> Option<UnixTime> {
        Some(UnixTime::since_unix_epoch(Duration::ZERO))
    }
}
