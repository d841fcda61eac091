//! The NBD client on TCP sockets of the loopback interface, and stock NBD servers as its peers.

mod host;
mod server;

pub use host::Host;
pub use server::{Server, nbd_server, nbdkit, qemu_nbd};
