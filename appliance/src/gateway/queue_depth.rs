//! The queue depth that clients of the storage server get. It stays the same after a restart.
//!
//! Linux gives a path up for good when the depth changes ("queue depth changed", `process_info_rsp` and its like in
//! `rtrs-clt.c`). So it depends on configuration and RAM alone. If a changed configuration would give another depth,
//! `save` also writes the present depth.

use crate::config::{Config, Document, Volume};
use rtrs::server;

/// The depth that clients get, and the settings that it was computed from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Offered {
    pub depth: u16,
    /// Configured queue depth, bytes of a chunk, and oversubscription of memory.
    wanted: (u16, u64, u16),
}

impl Offered {
    pub fn new(config: &Config, depth: u16) -> Self {
        Offered { depth, wanted: wanted(config) }
    }

    /// The depth to save for the next start with this configuration: the present one, if memory would give another and
    /// the settings are unchanged.
    fn to_keep(self, config: &Config, arena: u64) -> Option<u16> {
        (self.wanted == wanted(config) && of(config, arena) != self.depth).then_some(self.depth)
    }
}

fn wanted(config: &Config) -> (u16, u64, u16) {
    (config.rnbd.queue_depth, config.rnbd.chunk_size.0, config.rnbd.oversubscribe)
}

/// The depth for a machine with an arena of `arena` bytes.
pub(super) fn of(config: &Config, arena: u64) -> u16 {
    match config.rnbd.offered_depth {
        0 => by_memory(config, arena),
        kept => kept.min(config.rnbd.queue_depth),
    }
}

/// The depth at which four sessions fit into the arena, less the volumes in memory and an eighth. It does not depend on
/// the memory that is free at the moment.
fn by_memory(config: &Config, arena: u64) -> u16 {
    let volumes: u64 = config.volume.iter().map(Volume::memory).sum();
    let free = arena.saturating_sub(volumes) / 8 * 7;
    let memory = match u64::from(config.rnbd.oversubscribe) {
        1 => free,
        times => (free / 4 * 3).saturating_mul(times),
    };
    server::offered_depth(config.rnbd.queue_depth, config.rnbd.chunk_size.0 as u32, memory)
}

/// Logs the depth, if it is not the configured one.
pub(super) fn log_depth(config: &Config, depth: u16, free: u64) {
    let asked = config.rnbd.queue_depth;
    let session = u64::from(depth) * config.rnbd.chunk_size.0;
    if config.rnbd.offered_depth == 0 {
        if depth < asked {
            log::info!("rnbd: queue depth reduced from {asked} to {depth}: too little memory");
        }
    } else if config.rnbd.oversubscribe == 1 && session > free {
        log::warn!(
            "rnbd: no session fits into memory at the saved depth of {depth}: it needs {session} bytes, {free} are free: \
             free memory, or unset rnbd.offered_depth, save, reboot, and map the devices anew on the clients"
        );
    } else {
        log::info!("rnbd: sessions get a queue depth of {depth}, as before (rnbd.offered_depth)");
    }
}

impl Offered {
    /// Bytes of a chunk, which is the largest request of a client.
    pub fn chunk_size(self) -> usize {
        self.wanted.1 as usize
    }

    /// Call it before the configuration is saved. It sets `rnbd.offered_depth` if the next start would give another
    /// depth.
    pub fn keep(self, document: &mut Document, arena: u64) {
        let Some(depth) = self.to_keep(document.config(), arena) else { return };
        match document.set("rnbd.offered_depth", &depth.to_string()) {
            Ok(()) => log::info!(
                "rnbd.offered_depth = {depth} is saved as well: memory would give clients another depth"
            ),
            Err(_) => log::error!("rnbd.offered_depth = {depth} could not be persisted"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ARENA: u64 = 100 << 20;

    fn with_volume(mib: u64) -> Config {
        let mut document = Document::default();
        document.set("volume.0.name", "ram0").unwrap();
        document.set("volume.0.size", &format!("{mib}MiB")).unwrap();
        document.config().clone()
    }

    #[test]
    fn added_memory_volume_does_not_change_the_depth() {
        let before = with_volume(16);
        let offered = Offered::new(&before, of(&before, ARENA));
        assert_eq!((offered.depth, offered.to_keep(&before, ARENA)), (128, None));
        let mut after = with_volume(64);
        assert_eq!(of(&after, ARENA), 32);
        let kept = offered.to_keep(&after, ARENA);
        assert_eq!(kept, Some(128));
        after.rnbd.offered_depth = kept.unwrap_or_default();
        assert_eq!(of(&after, ARENA), 128);
        assert_eq!(offered.to_keep(&after, ARENA), None, "it is kept already");
    }

    #[test]
    fn configured_depth_is_used() {
        let before = with_volume(16);
        let offered = Offered::new(&before, of(&before, ARENA));
        let mut after = with_volume(64);
        after.rnbd.queue_depth = 16;
        assert_eq!(offered.to_keep(&after, ARENA), None);
        after.rnbd.offered_depth = 128;
        assert_eq!(of(&after, ARENA), 16, "never more than is asked for");
    }
}
