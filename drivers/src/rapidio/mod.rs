//! RapidIO master ports: a host's access to a RapidIO network of boards and switches (terms as in the RapidIO
//! specification, revision 2.2, and Linux `include/linux/rio.h`). A driver does not know the network: `net/rapidio`
//! assigns ids and routes.
//!
//! [`MasterPort`] is the interface. `tsi721` is the only driver.
//!
//! # Tsi721
//!
//! * The device reports arrivals and completions in memory. Registers are read in three cases: a busy channel has
//!   completed nothing for 100 µs (the interval doubles after each check without result); a running loop checks the
//!   link, every 20 ms; or an interrupt reports an error. A halting loop checks an idle link once a second.
//! * Interrupts stay enabled. A set bit raises no further interrupt, so a halt costs a write for each channel with
//!   events, and a read; memory is checked once more after it. Sent messages cause an interrupt only if a caller waits
//!   for room.
//! * A channel (`tsi721/engine.rs`) that stops at an error, or whose first descriptor times out, is initialized. The
//!   failed descriptor is reported. The descriptors behind it move to the beginning of the ring, so each is executed
//!   once. The 10 µs of initialization pass between two polls; nothing waits for the device.
//! * The device's message descriptors are checked: a buffer is passed to the user only if the device owns it.

pub mod csr;
mod port;
pub mod tsi721;
mod types;

pub use port::{Counters, MasterPort, OpenPort};
pub use types::{
    Busy, Destination, Direction, Doorbell, Fault, HopCount, IdSize, Mailbox, Maintained,
    Maintenance, MaintenanceError, Message, OutboundMap, PortWrite, SendError, Source, Transfer,
    Transferred, Undelivered, WindowError,
};
