//! Standard capability, command and status registers of RapidIO devices (RapidIO 2.2 part 3, 3.4 and 3.5; part 6,
//! chapter 6; Linux `include/linux/rio_regs.h`). Offsets are in bytes in the maintenance space, values have 32 bits.

/// Device in the upper 16 bits, vendor in the lower.
pub const DEVICE_IDENTITY: u32 = 0x00;
/// Revision of the device.
pub const DEVICE_INFORMATION: u32 = 0x04;
/// Assembly (board) and its vendor.
pub const ASSEMBLY_IDENTITY: u32 = 0x08;
/// Revision of the assembly in the upper 16 bits; offset of the first extended feature block in the lower.
pub const ASSEMBLY_INFORMATION: u32 = 0x0c;
/// Processing element features: the `FEATURE_` bits.
pub const FEATURES: u32 = 0x10;
/// Number of ports of a switch in bits 8 to 15; the port by which this request arrived in the lower 8.
pub const SWITCH_PORTS: u32 = 0x14;
/// Transactions that the device can send.
pub const SOURCE_OPERATIONS: u32 = 0x18;
/// Transactions that the device answers.
pub const DESTINATION_OPERATIONS: u32 = 0x1c;
/// The largest destination id that a switch has a route for.
pub const ROUTE_LIMIT: u32 = 0x34;
/// Own destination id: of 8 bits in bits 16 to 23, of 16 bits in the lower half.
pub const BASE_ID: u32 = 0x60;
/// Id of the host that holds the device's lock. A write of a host's id takes the lock if it is [`LOCK_FREE`]; a write
/// of the owner's id releases it.
pub const HOST_LOCK: u32 = 0x68;
/// Number that the enumerating host assigns to the device.
pub const COMPONENT_TAG: u32 = 0x6c;
/// Destination id whose route the next access to [`ROUTE_PORT`] reads or writes.
pub const ROUTE_ID: u32 = 0x70;
/// Output port for the id in [`ROUTE_ID`].
pub const ROUTE_PORT: u32 = 0x74;
/// Output port for ids without a route.
pub const DEFAULT_ROUTE: u32 = 0x78;

/// [`HOST_LOCK`]: no host holds the lock.
pub const LOCK_FREE: u32 = 0xffff;

/// [`FEATURES`]: the device is a switch.
pub const FEATURE_SWITCH: u32 = 1 << 28;
/// [`FEATURES`]: the device has several ports.
pub const FEATURE_MULTIPORT: u32 = 1 << 27;
/// [`FEATURES`]: routes of several ids can be written at once.
pub const FEATURE_EXTENDED_ROUTES: u32 = 1 << 9;
/// [`FEATURES`]: routes are written by [`ROUTE_ID`] and [`ROUTE_PORT`].
pub const FEATURE_STANDARD_ROUTES: u32 = 1 << 8;
/// [`FEATURES`]: ids of 16 bits.
pub const FEATURE_LARGE_IDS: u32 = 1 << 4;
/// [`FEATURES`]: there are extended feature blocks.
pub const FEATURE_EXTENDED: u32 = 1 << 3;

/// Operations: read.
pub const OPERATION_READ: u32 = 1 << 15;
/// Operations: write.
pub const OPERATION_WRITE: u32 = 1 << 14;
/// Operations: messages.
pub const OPERATION_MESSAGE: u32 = 1 << 11;
/// Operations: doorbells.
pub const OPERATION_DOORBELL: u32 = 1 << 10;
/// Operations: atomic ones of all kinds.
pub const OPERATION_ATOMICS: u32 = 0x01f8;
/// Operations: port-writes.
pub const OPERATION_PORT_WRITE: u32 = 1 << 2;

/// LP-Serial block: general control.
pub const GENERAL_CONTROL: u32 = 0x3c;
/// [`GENERAL_CONTROL`]: the device enumerates.
pub const CONTROL_HOST: u32 = 1 << 31;
/// [`GENERAL_CONTROL`]: the device may send requests.
pub const CONTROL_MASTER: u32 = 1 << 30;
/// [`GENERAL_CONTROL`]: a host has enumerated the device.
pub const CONTROL_DISCOVERED: u32 = 1 << 29;

/// LP-Serial block: error and status of port 0.
pub const PORT_STATUS: u32 = 0x58;
/// LP-Serial block: control of port 0.
pub const PORT_CONTROL: u32 = 0x5c;
/// [`PORT_STATUS`]: the link works.
pub const PORT_OK: u32 = 1 << 1;
/// [`PORT_STATUS`]: error bits, cleared by writing ones.
pub const PORT_ERRORS: u32 = 0x0707_0714;
/// [`PORT_CONTROL`]: all packets are blocked.
pub const PORT_LOCKOUT: u32 = 1 << 1;
/// [`PORT_CONTROL`]: packets other than maintenance pass in both directions.
pub const PORT_ENABLED: u32 = 0x0060_0000;
