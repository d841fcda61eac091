//! The queue depth that clients of the storage server are given: the same after a restart.
//!
//! Linux gives a path up for good when the depth changes ("queue depth changed", `process_info_rsp` and its like in
//! `rtrs-clt.c`). So it is reckoned from the configuration and the machine alone, and where the configuration has changed
//! what it would be, `save` writes the depth that clients have beside it.

use crate::config::{Config, Document, Volume};
use rtrs::server;

/// What clients are given, and by which settings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Offered {
    pub depth: u16,
    /// Queue depth, bytes of a chunk, and how many times over memory is promised, as they are wanted.
    wanted: (u16, u64, u16),
}

impl Offered {
    pub fn new(config: &Config, depth: u16) -> Self {
        Offered { depth, wanted: wanted(config) }
    }

    /// The depth that has to be kept for the next start with this configuration: that of now, if memory would give
    /// another and nobody asked for one.
    fn to_keep(self, config: &Config, arena: u64) -> Option<u16> {
        (self.wanted == wanted(config) && of(config, arena) != self.depth).then_some(self.depth)
    }
}

fn wanted(config: &Config) -> (u16, u64, u16) {
    (config.rnbd.queue_depth, config.rnbd.chunk_size.0, config.rnbd.oversubscribe)
}

/// The depth for a machine with an arena of so many bytes.
pub(super) fn of(config: &Config, arena: u64) -> u16 {
    match config.rnbd.offered_depth {
        0 => as_memory_goes(config, arena),
        kept => kept.min(config.rnbd.queue_depth),
    }
}

/// The depth at which four sessions have room in what the machine has for all uses, less the volumes in memory and an
/// eighth. Of what is free at the moment nothing goes in.
fn as_memory_goes(config: &Config, arena: u64) -> u16 {
    let volumes: u64 = config.volume.iter().map(Volume::memory).sum();
    let free = arena.saturating_sub(volumes) / 8 * 7;
    let memory = match u64::from(config.rnbd.oversubscribe) {
        1 => free,
        times => (free / 4 * 3).saturating_mul(times),
    };
    server::offered_depth(config.rnbd.queue_depth, config.rnbd.chunk_size.0 as u32, memory)
}

/// Says in the log what the depth is, if that is not what was asked for.
pub(super) fn tell(config: &Config, depth: u16, free: u64) {
    let asked = config.rnbd.queue_depth;
    let session = u64::from(depth) * config.rnbd.chunk_size.0;
    if config.rnbd.offered_depth == 0 {
        if depth < asked {
            log::info!("rnbd: queue depth reduced from {asked} to {depth}: too little memory");
        }
    } else if config.rnbd.oversubscribe == 1 && session > free {
        log::warn!(
            "rnbd: no session fits into memory at the depth that clients were given, {depth}: {session} bytes of \
             {free}; make room, or unset rnbd.offered_depth, save and reboot, and map anew"
        );
    } else {
        log::info!("rnbd: sessions get a queue depth of {depth}, as before (rnbd.offered_depth)");
    }
}

impl Offered {
    /// Bytes of a chunk: no request of a client is larger.
    pub fn chunk_size(self) -> usize {
        self.wanted.1 as usize
    }

    /// Before the configuration is saved: with it the next start is to give clients the depth that they have.
    pub fn keep(self, document: &mut Document, arena: u64) {
        let Some(depth) = self.to_keep(document.config(), arena) else { return };
        match document.set("rnbd.offered_depth", &depth.to_string()) {
            Ok(()) => log::info!(
                "rnbd.offered_depth = {depth} is saved as well: memory would give clients another depth"
            ),
            Err(_) => log::error!("rnbd.offered_depth = {depth} could not be noted"),
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
    fn a_volume_that_was_added_in_memory_does_not_change_the_depth() {
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
    fn a_depth_that_was_asked_for_is_taken() {
        let before = with_volume(16);
        let offered = Offered::new(&before, of(&before, ARENA));
        let mut after = with_volume(64);
        after.rnbd.queue_depth = 16;
        assert_eq!(offered.to_keep(&after, ARENA), None);
        after.rnbd.offered_depth = 128;
        assert_eq!(of(&after, ARENA), 16, "never more than is asked for");
    }
}
