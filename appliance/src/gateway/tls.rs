//! TLS of the HTTP servers: selects the certificate at start. It is the configuration's, whose parts are checked with
//! the document, or a self-signed one, which is stored in the configuration's area (`config/kept_pair.rs`).

use super::disk_transfer;
use super::disks::DiskSlot;
use crate::config::{Config, kept_pair};
use crate::randomness::Randomness;
use drivers::hal::{Arena, Clock, Features};
use management::status::WallClock;
use net::tls::{Pair, PairError, Tls};
use rand_core::Rng;
use std::sync::Arc;

/// TLS with its certificate, which stay the same until a reboot.
pub(super) struct Secure {
    pub tls: Arc<Tls>,
    /// Origin of the certificate, for reports.
    pub origin: String,
}

/// Creates TLS if configured: with the configured certificate, else a self-signed one, which is `kept` on a disk from a
/// sector on.
pub(super) fn start(
    config: &Config,
    kept: Option<(usize, u64)>,
    disks: &mut [DiskSlot],
    arena: &mut Arena,
    clock: &dyn Clock,
    mut rng: Randomness,
) -> Option<Secure> {
    if !config.http.tls {
        return None;
    }
    let (pair, origin) = match config.http.pair() {
        Some(Ok(pair)) => (pair, "configuration".to_string()),
        // Not expected, because a document with an invalid pair is rejected. TLS stays on all the same.
        Some(Err(PairError::Certificate(why) | PairError::Key(why))) => {
            log::error!("http: the certificate of the configuration cannot be used: {why}");
            own(config, kept, disks, arena, clock, &mut rng)
        }
        None => own(config, kept, disks, arena, clock, &mut rng),
    };
    log::info!("http: TLS, certificate of the {origin}: SHA-256 {}", pair.fingerprint());
    let tls = Tls::new(pair, Box::new(move |into| rng.fill_bytes(into)));
    let secure = Secure { tls, origin };
    secure.configure(config);
    Some(secure)
}

impl Secure {
    /// Applies what of clients' certificates takes effect without a reboot.
    pub fn configure(&self, config: &Config) {
        self.tls.ask_for_certificates(config.knows_certificates());
        // A document whose authorities cannot be used is not in force.
        self.tls.set_authorities(config.http.authorities().and_then(Result::ok));
    }

    /// Tells the time, in which certificates of clients are valid or not.
    pub fn set_time(&self, clock: &WallClock) {
        self.tls.set_epoch(if clock.is_plausible { clock.epoch } else { 0 });
    }
}

/// The appliance's self-signed certificate, from the disk, or a new one.
fn own(
    config: &Config,
    kept: Option<(usize, u64)>,
    disks: &mut [DiskSlot],
    arena: &mut Arena,
    clock: &dyn Clock,
    rng: &mut Randomness,
) -> (Pair, String) {
    let mut kept_nowhere = "there is no config disk".to_string();
    if let Some((number, sector)) = kept {
        let slot = &mut disks[number];
        match disk_transfer::read(slot, sector, kept_pair::LEN, arena, clock) {
            Ok(bytes) => {
                if let Some(pair) = kept_pair::read(&bytes) {
                    return (pair, "config disk".into());
                }
            }
            Err(why) => log::error!("{}: the certificate: {why}", slot.name),
        }
    }
    let addresses: Vec<_> =
        config.net.iter().flat_map(|net| net.fixed()).map(|(ip, _)| ip).collect();
    let hostname = config.system.hostname.as_str();
    let pair = Pair::self_signed(hostname, &addresses, &mut |into| rng.fill_bytes(into));
    if let Some((number, sector)) = kept {
        let slot = &mut disks[number];
        let written = match kept_pair::write(&pair) {
            _ if slot.geometry.features.contains(Features::READ_ONLY) => {
                Err("the config disk is read-only".to_string())
            }
            Some(bytes) => disk_transfer::write(slot, sector, &bytes, arena, clock),
            None => Err("it is too long".into()),
        };
        match written {
            Ok(()) => return (pair, "config disk (made now)".into()),
            Err(why) => kept_nowhere = why,
        }
    }
    log::warn!("http: the certificate is new and is not kept across a reboot: {kept_nowhere}");
    (pair, "this boot".into())
}
