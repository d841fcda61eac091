//! RapidIO master ports: what a host has to a network of boards and switches that speak RapidIO (words as in the
//! RapidIO specification, revision 2.2, and Linux `include/linux/rio.h`). A driver knows nothing of what is said
//! over the network: who has which id, and how ids are routed, is for `net/rapidio`.

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
