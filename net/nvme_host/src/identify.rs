//! Structures with which a controller describes itself and its namespaces, checked (Base Specification section 5.17, NVM
//! Command Set Specification section 4.1.5). Numbers are little-endian; offsets are in bytes.

use crate::failure::Failure;
use drivers::hal::{Features, Geometry};
use nvme_tcp::wire::{SQE, u16_at, u32_at};

/// Largest command of ours in bytes, so that queues are shared fairly.
const MOST_PAYLOAD: u32 = 1 << 20;
/// Bytes of one discard or write-zeroes of the volume. A multiple of all blocks.
const MOST_WITHOUT_DATA: u32 = 128 << 20;
/// Largest block of a preferred granularity.
const LARGEST_GRANULARITY: u32 = 64 << 10;

fn u64_at(bytes: &[u8], offset: usize) -> u64 {
    u64::from(u32_at(bytes, offset)) | u64::from(u32_at(bytes, offset + 4)) << 32
}

fn u8_at(bytes: &[u8], offset: usize) -> u8 {
    bytes.get(offset).copied().unwrap_or(0)
}

/// Properties of a controller (Base Specification section 3.1.3.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Capabilities {
    /// Places of a queue.
    pub entries: u16,
    /// Time to get ready in units of 500 ms.
    pub timeout: u8,
    /// The value of CC that enables the controller.
    pub enable: u32,
    /// Bytes of the smallest page, as a power of two above 4096.
    pub page: u8,
}

impl Capabilities {
    pub fn parse(cap: u64) -> Result<Capabilities, Failure> {
        let entries = (cap as u16).saturating_add(1);
        if entries < 2 {
            return Err(Failure::Controller("its queues have fewer than two places"));
        }
        // Sets of I/O commands: NVM alone, or all that are supported.
        let sets = match (cap >> 37 & 1, cap >> 43 & 1) {
            (1, _) => 0,
            (_, 1) => 6 << 4,
            _ => return Err(Failure::Controller("it does not support the NVM command set")),
        };
        let page = (cap >> 48) as u8 & 0xf;
        // Entries of 64 and 16 bytes.
        let enable = 0x0046_0001 | sets | u32::from(page) << 7;
        Ok(Capabilities { entries, timeout: (cap >> 24) as u8, enable, page })
    }
}

/// What a controller says about itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Controller {
    /// Largest transfer in bytes.
    pub transfer: u32,
    /// Largest data of a write in its capsule, in bytes.
    pub in_capsule: u32,
    /// Commands in flight on a queue; 0 for no limit.
    pub most_commands: u16,
    /// Reports ANA states.
    pub ana: bool,
    /// Its logs may be read from an offset.
    pub log_offsets: bool,
    /// Events to ask for.
    pub events: u32,
    pub deallocate: bool,
    pub zeroes: bool,
    /// Bytes of a Write Zeroes, and blocks of a range that is deallocated.
    pub most_zeroes: u32,
    pub most_deallocated: u32,
    /// It has a volatile write cache.
    pub cache: bool,
}

/// Events: a namespace's attributes have changed, ANA has changed.
const EVENTS: u32 = 1 << 8 | 1 << 11;

impl Controller {
    /// Parses the structure of the controller that Connect gave the number `cntlid`.
    pub fn parse(
        page: &[u8],
        cap: &Capabilities,
        cntlid: u16,
        subsystem: &str,
    ) -> Result<Controller, Failure> {
        let wrong = |what| Err(Failure::Controller(what));
        if u16_at(page, 78) != cntlid {
            return wrong("its structure is that of another controller");
        }
        if !matches!(u8_at(page, 111), 0 | 1) {
            return wrong("it is not one for I/O: check `nqn`");
        }
        let name = page.get(768..1024).unwrap_or_default();
        let name = name.split(|byte| *byte == 0).next().unwrap_or_default();
        // Controllers before version 1.2.1 have no name.
        if !name.is_empty() && name != subsystem.as_bytes() {
            return wrong("it belongs to another subsystem");
        }
        if u32_at(page, 536) & 3 == 0 {
            return wrong("it does not support SGLs");
        }
        if u16_at(page, 1800) != 0 {
            return wrong("data in capsules has an offset");
        }
        let capsule = u32_at(page, 1792).saturating_mul(16);
        if capsule < SQE as u32 {
            return wrong("its capsules are smaller than a command");
        }
        // 0: no limit.
        let mdts = u8_at(page, 77);
        let power = u32::from(mdts) + u32::from(cap.page) + 12;
        let is_unlimited = mdts == 0 || power >= MOST_PAYLOAD.ilog2();
        let transfer = if is_unlimited { MOST_PAYLOAD } else { 1 << power };
        let oncs = u16_at(page, 520);
        Ok(Controller {
            transfer,
            in_capsule: (capsule - SQE as u32).min(MOST_PAYLOAD),
            most_commands: u16_at(page, 514),
            ana: u8_at(page, 76) & 1 << 3 != 0,
            log_offsets: u8_at(page, 261) & 1 << 2 != 0,
            events: u32_at(page, 92) & EVENTS,
            deallocate: oncs & 1 << 2 != 0,
            zeroes: oncs & 1 << 3 != 0,
            most_zeroes: u32::MAX,
            most_deallocated: u32::MAX,
            cache: u8_at(page, 525) & 1 != 0,
        })
    }
}

impl Controller {
    /// Applies the limits of the NVM command set (CNS 06). 0 means no limit.
    pub fn limit(&mut self, page: &[u8], cap: &Capabilities) {
        let power = u32::from(u8_at(page, 1)) + u32::from(cap.page) + 12;
        if u8_at(page, 1) != 0 && power < u32::BITS {
            self.most_zeroes = 1 << power;
        }
        let blocks = u32_at(page, 4);
        if blocks != 0 {
            self.most_deallocated = blocks;
        }
    }
}

/// Names of a namespace; zeroes where it has none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Names {
    uuid: [u8; 16],
    nguid: [u8; 16],
    eui64: [u8; 8],
}

impl Names {
    /// Adds the descriptors of CNS 03: type, length, two bytes, value.
    pub fn add(&mut self, page: &[u8]) -> Result<(), Failure> {
        let mut rest = page;
        while let [kind, length, _, _, behind @ ..] = rest {
            if *kind == 0 {
                break;
            }
            let length = usize::from(*length);
            let wrong = Failure::Protocol("a descriptor of the namespace has a wrong length");
            let value = behind.get(..length).filter(|value| !value.is_empty()).ok_or(wrong)?;
            match kind {
                1 => self.eui64 = value.try_into().map_err(|_| wrong)?,
                2 => self.nguid = value.try_into().map_err(|_| wrong)?,
                3 => self.uuid = value.try_into().map_err(|_| wrong)?,
                4 if value != [0] => {
                    return Err(Failure::Namespace("its command set is not NVM"));
                }
                _ => {}
            }
            rest = behind.get(length..).unwrap_or_default();
        }
        Ok(())
    }
}

/// A namespace, as the controller described it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Namespace {
    /// Its number.
    pub nsid: u32,
    /// Size in blocks.
    pub blocks: u64,
    /// Bytes of a block, as a power of two.
    pub shift: u8,
    /// Unit of writes that the controller prefers, in bytes.
    pub preferred: u32,
    /// Unit of deallocations that the controller prefers, in bytes.
    pub granularity: u32,
    /// It is write protected.
    pub read_only: bool,
    /// Its ANA group.
    pub group: u32,
    pub(crate) names: Names,
}

impl Namespace {
    /// A namespace of which only the number is known.
    pub(crate) fn numbered(nsid: u32) -> Namespace {
        let (names, read_only) = (Names::default(), false);
        Namespace {
            nsid,
            blocks: 0,
            shift: 9,
            preferred: 512,
            granularity: 512,
            read_only,
            group: 0,
            names,
        }
    }

    /// Parses the structure of CNS 00.
    pub(crate) fn parse(page: &[u8], nsid: u32) -> Result<Namespace, Failure> {
        let wrong = |what| Err(Failure::Namespace(what));
        let (blocks, flbas) = (u64_at(page, 0), u8_at(page, 26));
        if blocks == 0 {
            return wrong("it does not exist, or this host may not use it: check `nsid`");
        }
        let format = usize::from(flbas & 0xf | (flbas >> 5 & 3) << 4);
        let lbaf = 128 + 4 * format;
        let (metadata, shift) = (u16_at(page, lbaf), u8_at(page, lbaf + 2));
        if metadata != 0 || u8_at(page, 29) & 7 != 0 {
            return wrong("it has metadata or protection information");
        }
        if !(9..=12).contains(&shift) {
            return wrong("its blocks have neither 512, 1024, 2048 nor 4096 bytes");
        }
        if blocks > (i64::MAX as u64) >> shift {
            return wrong("its size does not fit in 63 bits");
        }
        let block = 1u32 << shift;
        let gives_units = u8_at(page, 24) & 1 << 4 != 0;
        let unit = |offset: usize| {
            let unit = (u32::from(u16_at(page, offset)) + 1).saturating_mul(block);
            let is_usable = gives_units && unit.is_power_of_two() && unit <= LARGEST_GRANULARITY;
            if is_usable { unit } else { block }
        };
        let mut names = Names::default();
        names.nguid.copy_from_slice(page.get(104..120).unwrap_or(&[0; 16]));
        names.eui64.copy_from_slice(page.get(120..128).unwrap_or(&[0; 8]));
        Ok(Namespace {
            nsid,
            blocks,
            shift,
            preferred: unit(64).max(4096),
            granularity: unit(68),
            read_only: u8_at(page, 99) & 1 != 0,
            group: u32_at(page, 92),
            names,
        })
    }

    /// Bytes of a block.
    pub fn block(&self) -> u32 {
        1 << self.shift
    }

    /// Size in bytes.
    pub fn size(&self) -> u64 {
        self.blocks << self.shift
    }

    /// Checks that this is the namespace `before`, perhaps grown.
    pub(crate) fn continues(&self, before: &Namespace) -> Result<(), Failure> {
        if self.nsid != before.nsid || self.names != before.names {
            return Err(Failure::Changed("its UUID, NGUID or EUI64 differs"));
        }
        if self.shift != before.shift {
            return Err(Failure::Changed("its blocks have another size"));
        }
        if self.size() < before.size() {
            return Err(Failure::Smaller(before.size(), self.size()));
        }
        if self.read_only && !before.read_only {
            return Err(Failure::Changed("it is read-only now"));
        }
        Ok(())
    }

    /// As a volume of a controller.
    pub(crate) fn geometry(
        &self,
        controller: &Controller,
        read_only: bool,
        write_through: bool,
    ) -> Geometry {
        let mut features = Features::empty();
        features.set(Features::READ_ONLY, read_only || self.read_only);
        features.set(Features::VOLATILE_CACHE, controller.cache && !write_through);
        features.set(Features::DISCARD, controller.deallocate);
        features.set(Features::WRITE_ZEROES, controller.zeroes);
        let most = MOST_WITHOUT_DATA / 512;
        let unless = |is_there, value| if is_there { value } else { 0 };
        Geometry {
            sectors: self.blocks << (self.shift - 9),
            logical_block: self.block(),
            physical_block: self.preferred,
            max_transfer: MOST_PAYLOAD,
            max_discard_sectors: unless(controller.deallocate, most),
            discard_granularity: unless(controller.deallocate, self.granularity),
            max_write_zeroes_sectors: unless(controller.zeroes, most),
            features,
        }
    }
}

/// The one namespace of a list (CNS 02): its numbers ascend, and a 0 ends it.
pub(crate) fn only_namespace(page: &[u8]) -> Result<u32, Failure> {
    match (u32_at(page, 0), u32_at(page, 4)) {
        (0, _) => Err(Failure::Namespace("this host may use no namespace of the subsystem")),
        (nsid, 0) => Ok(nsid),
        _ => Err(Failure::Namespace(
            "this host may use several namespaces of the subsystem: choose one with `nsid`",
        )),
    }
}

/// Access to a namespace over a path (Base Specification section 8.1, asymmetric namespace access).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Preferred.
    Optimized,
    /// Used if no path is optimized.
    NonOptimized,
    /// Not used.
    Inaccessible,
    /// Not used, and not expected back.
    PersistentLoss,
    /// Not used until it has changed.
    Change,
}

impl Access {
    fn of(state: u8) -> Option<Access> {
        Some(match state & 0xf {
            1 => Access::Optimized,
            2 => Access::NonOptimized,
            3 => Access::Inaccessible,
            4 => Access::PersistentLoss,
            0xf => Access::Change,
            _ => return None,
        })
    }

    /// Whether requests may be sent.
    pub fn is_usable(self) -> bool {
        matches!(self, Access::Optimized | Access::NonOptimized)
    }

    /// The state as the console shows it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Access::Optimized => "optimized",
            Access::NonOptimized => "non-optimized",
            Access::Inaccessible => "inaccessible",
            Access::PersistentLoss => "persistent-loss",
            Access::Change => "change",
        }
    }
}

/// Bytes of the header of the ANA log, and of a group without its namespaces.
pub(crate) const ANA_HEADER: usize = 16;
pub(crate) const ANA_GROUP: usize = 32;

/// Number of groups in an ANA log.
pub(crate) fn ana_groups(log: &[u8]) -> u16 {
    u16_at(log, 8)
}

/// The state of a group, in descriptors without namespaces.
pub(crate) fn ana_state(groups: &[u8], group: u32) -> Result<Option<Access>, Failure> {
    let mut groups = groups.chunks_exact(ANA_GROUP);
    let Some(one) = groups.find(|one| u32_at(one, 0) == group) else { return Ok(None) };
    if u32_at(one, 4) != 0 {
        return Err(Failure::Protocol("its ANA log lists namespaces that were not asked for"));
    }
    let state = Access::of(u8_at(one, 16));
    state.map(Some).ok_or(Failure::Protocol("its ANA log has an unknown state"))
}
