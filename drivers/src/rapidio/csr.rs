//! Capability and command and status registers that every RapidIO device has (RapidIO 2.2 part 3, 3.4 and 3.5;
//! part 6, chapter 6; Linux `include/linux/rio_regs.h`): offsets in bytes in the space that maintenance requests
//! reach, values of 32 bits.

/// Device in the upper 16 bits, vendor in the lower.
pub const DEVICE_IDENTITY: u32 = 0x00;
/// Revision of the device.
pub const DEVICE_INFORMATION: u32 = 0x04;
/// Assembly (board) and its vendor.
pub const ASSEMBLY_IDENTITY: u32 = 0x08;
/// Revision of the assembly in the upper 16 bits; offset of the first extended feature block in the lower.
pub const ASSEMBLY_INFORMATION: u32 = 0x0c;
/// What the device is.
pub const FEATURES: u32 = 0x10;
/// Ports of a switch in bits 8 to 15, and in the lower 8 the port that this very request came in by.
pub const SWITCH_PORTS: u32 = 0x14;
/// Transactions that it can send.
pub const SOURCE_OPERATIONS: u32 = 0x18;
/// Transactions that it answers.
pub const DESTINATION_OPERATIONS: u32 = 0x1c;
/// The largest destination id that a switch has a route for.
pub const ROUTE_LIMIT: u32 = 0x34;
/// Own destination id: of 8 bits in bits 16 to 23, of 16 bits in the lower half.
pub const BASE_ID: u32 = 0x60;
/// Which host has it: [`LOCK_FREE`] takes any id, and writing the owner's id frees it.
pub const HOST_LOCK: u32 = 0x68;
/// A number by which the enumerating host knows the device.
pub const COMPONENT_TAG: u32 = 0x6c;
/// Which destination id the next access to [`ROUTE_PORT`] is about.
pub const ROUTE_ID: u32 = 0x70;
/// The port that packets for that id leave by.
pub const ROUTE_PORT: u32 = 0x74;
/// The port of ids without a route.
pub const DEFAULT_ROUTE: u32 = 0x78;

/// [`HOST_LOCK`] of a device that nobody has.
pub const LOCK_FREE: u32 = 0xffff;

/// [`FEATURES`]: it is a switch.
pub const FEATURE_SWITCH: u32 = 1 << 28;
/// [`FEATURES`]: it has several ports.
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

/// LP-Serial block, general control: whose device it is.
pub const GENERAL_CONTROL: u32 = 0x3c;
/// [`GENERAL_CONTROL`]: the device enumerates.
pub const CONTROL_HOST: u32 = 1 << 31;
/// [`GENERAL_CONTROL`]: the device may send requests.
pub const CONTROL_MASTER: u32 = 1 << 30;
/// [`GENERAL_CONTROL`]: a host has enumerated it.
pub const CONTROL_DISCOVERED: u32 = 1 << 29;

/// LP-Serial block, of port 0: error and status.
pub const PORT_STATUS: u32 = 0x58;
/// LP-Serial block, of port 0: control.
pub const PORT_CONTROL: u32 = 0x5c;
/// [`PORT_STATUS`]: the link works.
pub const PORT_OK: u32 = 1 << 1;
/// [`PORT_STATUS`]: what is cleared by writing ones to it.
pub const PORT_ERRORS: u32 = 0x0707_0714;
/// [`PORT_CONTROL`]: nothing goes in or out.
pub const PORT_LOCKOUT: u32 = 1 << 1;
/// [`PORT_CONTROL`]: packets other than maintenance go in and out.
pub const PORT_ENABLED: u32 = 0x0060_0000;
