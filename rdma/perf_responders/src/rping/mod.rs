//! rping, a ping over RDMA (librdmacm, `examples/rping.c`): client and server.
//!
//! The client advertises a source buffer (a SEND of address, key, size: 16 bytes, big-endian). The server reads it by
//! RDMA READ, and reports that by a SEND of 16 meaningless bytes. The client advertises a sink buffer. The server
//! writes the data there by RDMA WRITE, and reports that too. Then the client compares both buffers. The data is a
//! zero-terminated string: Linux's server writes back `strlen + 1` bytes. The port is 7174.

mod client;
mod server;
#[cfg(test)]
mod tests;

pub use client::{Client, Event, Failure, Options, Summary};
pub use server::{Counters, Server};

use drivers::hal::Window;
use verbs::{Provider, QpId, RecvRequest, RemoteAddress, SendOperation, SendRequest, VerbsError};

/// The port that `rping -s` listens on.
pub const PORT: u16 = 7174;
/// Largest buffer that `rping -S` takes.
pub const MAX_SIZE: usize = 64 * 1024;
/// Size of a message.
const MESSAGE: usize = 16;
/// Receives kept posted; one message at a time is in flight.
const RECEIVES: u32 = 4;

/// Address, key and size in bytes of a buffer of the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Advertisement {
    at: RemoteAddress,
    size: u32,
}

impl Advertisement {
    fn parse(bytes: &[u8; MESSAGE]) -> Self {
        let [a, b, c, d, e, f, g, h, rkey @ .., w, x, y, z] = *bytes;
        let address = u64::from_be_bytes([a, b, c, d, e, f, g, h]);
        let at = RemoteAddress { address, rkey: u32::from_be_bytes(rkey) };
        Advertisement { at, size: u32::from_be_bytes([w, x, y, z]) }
    }

    fn emit(&self) -> [u8; MESSAGE] {
        let mut bytes = [0; MESSAGE];
        bytes[..8].copy_from_slice(&self.at.address.to_be_bytes());
        bytes[8..12].copy_from_slice(&self.at.rkey.to_be_bytes());
        bytes[12..].copy_from_slice(&self.size.to_be_bytes());
        bytes
    }
}

/// Posts receive `n` into its slot of `memory`.
fn post_receive<P: Provider + ?Sized>(
    provider: &mut P,
    qp: QpId,
    memory: Window,
    n: u64,
) -> Result<(), VerbsError> {
    let into = memory.slice(n as usize * MESSAGE, MESSAGE).ok_or(VerbsError::Invalid)?;
    provider.post_recv(qp, &RecvRequest { id: n, into: &[into] })
}

fn post<P: Provider + ?Sized>(
    provider: &mut P,
    qp: QpId,
    operation: SendOperation<'_>,
    signaled: bool,
) -> Result<(), VerbsError> {
    let request = SendRequest {
        id: 0,
        operation,
        signaled,
        solicited: false,
        datagram: None,
        carries: None,
        ack_lazily: false,
    };
    provider.post_send(qp, &request)
}
