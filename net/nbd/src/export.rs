//! The description of an export by its server, checked.

use crate::failure::Failure;
use crate::wire::flag;
use drivers::hal::{Features, Geometry};

/// Largest block of a volume.
const LARGEST_BLOCK: u32 = 64 << 10;
/// Payload of one request: what a server takes that says nothing.
const DEFAULT_PAYLOAD: u32 = 32 << 20;
/// Bytes of one discard or write-zeroes, so that a server which writes the zeroes replies in time. A multiple of all
/// blocks.
const MOST_WITHOUT_DATA: u32 = 128 << 20;
/// Payload of one request of ours at most, so that connections are shared fairly.
const MOST_PAYLOAD: u32 = 1 << 20;

/// An export, as the server described it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Export {
    /// Size in bytes.
    pub size: u64,
    /// Transmission flags ([`crate::wire::flag`]).
    pub flags: u16,
    /// Smallest unit of requests in bytes, a power of two of at least 512.
    pub block: u32,
    /// Unit of requests that the server prefers, in bytes.
    pub preferred: u32,
    /// Largest payload of a request of ours, in bytes.
    pub payload: u32,
    /// The server sends structured replies.
    pub structured: bool,
}

impl Export {
    /// Checks size, flags and, if the server gave them, smallest, preferred and largest block.
    pub(crate) fn new(
        size: u64,
        flags: u16,
        blocks: Option<[u32; 3]>,
        structured: bool,
    ) -> Result<Export, Failure> {
        let [least, preferred, most] = blocks.unwrap_or([512, 4096, DEFAULT_PAYLOAD]);
        if flags & flag::HAS_FLAGS == 0 {
            return Err(Failure::Export("the server sent no flags"));
        }
        if size > i64::MAX as u64 {
            return Err(Failure::Export("its size does not fit in 63 bits"));
        }
        if !least.is_power_of_two() || !preferred.is_power_of_two() || preferred < least {
            return Err(Failure::Export("its block sizes are not powers of two in order"));
        }
        if least > LARGEST_BLOCK {
            return Err(Failure::Export("its smallest block is larger than 64 KiB"));
        }
        let block = least.max(512);
        if most < block {
            return Err(Failure::Export("its largest payload is smaller than a block"));
        }
        if size < u64::from(block) {
            return Err(Failure::Export("it is smaller than a block"));
        }
        let payload = most.min(MOST_PAYLOAD) / block * block;
        let preferred = preferred.clamp(block, LARGEST_BLOCK);
        Ok(Export { size, flags, block, preferred, payload, structured })
    }

    /// Whether the server offers this ([`crate::wire::flag`]).
    pub fn offers(&self, flag: u16) -> bool {
        self.flags & flag != 0
    }

    /// Checks that this is the export `before`, perhaps grown, and can do at least the same.
    pub(crate) fn continues(&self, before: &Export) -> Result<(), Failure> {
        const ABILITIES: u16 = flag::FLUSH | flag::FUA | flag::TRIM | flag::WRITE_ZEROES;
        if self.size < before.size {
            return Err(Failure::Smaller(before.size, self.size));
        }
        if self.block > before.block {
            return Err(Failure::Changed("its smallest block is larger"));
        }
        if self.offers(flag::READ_ONLY) && !before.offers(flag::READ_ONLY) {
            return Err(Failure::Changed("it is read-only now"));
        }
        if before.flags & ABILITIES & !self.flags != 0 {
            return Err(Failure::Changed("it lacks flush, FUA, trim or write-zeroes now"));
        }
        Ok(())
    }

    /// As a volume. Bytes behind the last whole block are not part of it.
    pub fn geometry(&self, read_only: bool, write_through: bool) -> Geometry {
        let mut features = Features::empty();
        features.set(Features::READ_ONLY, read_only || self.offers(flag::READ_ONLY));
        features.set(Features::VOLATILE_CACHE, self.offers(flag::FLUSH) && !write_through);
        features.set(Features::DISCARD, self.offers(flag::TRIM));
        features.set(Features::WRITE_ZEROES, self.offers(flag::WRITE_ZEROES));
        let most = MOST_WITHOUT_DATA / 512;
        let unless = |is_there, value| if is_there { value } else { 0 };
        Geometry {
            sectors: self.size / u64::from(self.block) * u64::from(self.block / 512),
            logical_block: self.block,
            physical_block: self.preferred,
            max_transfer: self.payload,
            max_discard_sectors: unless(self.offers(flag::TRIM), most),
            discard_granularity: unless(self.offers(flag::TRIM), self.preferred),
            max_write_zeroes_sectors: unless(self.offers(flag::WRITE_ZEROES), most),
            features,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FLAGS: u16 = flag::HAS_FLAGS | flag::FLUSH | flag::FUA | flag::TRIM | flag::WRITE_ZEROES;

    #[test]
    fn export_with_impossible_numbers_is_refused() {
        let sound = Some([512, 4096, 1 << 20]);
        assert!(Export::new(1 << 20, FLAGS, sound, true).is_ok());
        assert!(Export::new(1 << 20, FLAGS, Some([1, 4096, u32::MAX]), true).is_ok());
        for (size, flags, blocks) in [
            (1 << 20, 0, sound),
            (0, FLAGS, sound),
            (511, FLAGS, sound),
            (u64::MAX, FLAGS, sound),
            (1 << 20, FLAGS, Some([0, 4096, 1 << 20])),
            (1 << 20, FLAGS, Some([768, 4096, 1 << 20])),
            (1 << 20, FLAGS, Some([512, 5000, 1 << 20])),
            (1 << 20, FLAGS, Some([4096, 512, 1 << 20])),
            (1 << 30, FLAGS, Some([128 << 10, 128 << 10, 1 << 20])),
            (1 << 20, FLAGS, Some([4096, 4096, 2048])),
        ] {
            assert!(Export::new(size, flags, blocks, true).is_err(), "{size} {flags} {blocks:?}");
        }
    }

    #[test]
    fn geometry_offers_what_the_server_offers() {
        let export = Export::new((1 << 20) + 700, FLAGS, None, true).unwrap();
        let all = export.geometry(false, false);
        assert_eq!((all.sectors, all.logical_block, all.physical_block), (2049, 512, 4096));
        assert!(all.features.contains(Features::VOLATILE_CACHE | Features::DISCARD));
        assert!(!export.geometry(false, true).features.contains(Features::VOLATILE_CACHE));
        assert!(export.geometry(true, false).features.contains(Features::READ_ONLY));
        let bare = Export::new(1 << 20, flag::HAS_FLAGS, Some([4096, 4096, 1 << 25]), true);
        let bare = bare.unwrap().geometry(false, false);
        assert_eq!((bare.features, bare.max_discard_sectors), (Features::empty(), 0));
        assert_eq!((bare.logical_block, bare.max_transfer), (4096, 1 << 20));
    }

    #[test]
    fn reconnect_to_another_export_is_refused() {
        let of = |size, flags, block| Export::new(size, flags, Some([block, 4096, 1 << 20]), true);
        let before = of(1 << 20, FLAGS, 512).unwrap();
        assert_eq!(of(2 << 20, FLAGS | flag::MULTI_CONN, 512).unwrap().continues(&before), Ok(()));
        let smaller = of(1 << 19, FLAGS, 512).unwrap().continues(&before);
        assert_eq!(smaller, Err(Failure::Smaller(1 << 20, 1 << 19)));
        for (flags, block) in
            [(FLAGS | flag::READ_ONLY, 512), (FLAGS & !flag::FLUSH, 512), (FLAGS, 4096)]
        {
            let other = of(1 << 20, flags, block).unwrap();
            assert!(matches!(other.continues(&before), Err(Failure::Changed(_))));
        }
    }
}
