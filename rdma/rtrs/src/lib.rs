//! RTRS, the RDMA transport of Linux's block storage (drivers/infiniband/ulp/rtrs): sessions of several paths, paths of
//! several reliable connections, requests written into chunks of the server's memory.
//!
//! ```text
//!    WRITE with immediate ──► server ──► Execute (rnbd server) ──► volume
//!                                │◄──────── respond ◄──────────────┘
//!    empty WRITE with immediate ◄┘            (new key, result)
//!
//!    volume of another server ◄── client ◄── rnbd client ◄── mirror, export
//! ```
//!
//! Invariants:
//!
//! * A response carries only bytes that a volume delivered for this request.
//! * A request starts only with room for its response.
//! * A session's memory is zero before its client can read it.
//!
//! Tests: `appliance/storage/src/tests` (hosts over memory, RoCE and NTRDMA), `tests/sim`, `tests/fuzz`, the suites
//! `storage`, `paths`, `rnbd_faults`, `rtrs_hostile`, `remote`, `remote_faults`.
//!
//! [`wire`] has the message formats, [`server`] the side that owns the chunks, [`client`] the side that writes into
//! them.
//!
//! # Requests and responses
//!
//! RTRS gives a request to its executor ([`server::Execute`]) while connection, path and session are at hand, and posts
//! the result as the response. A request that is done at once is not stored. A slot per chunk and path stores a request
//! that a volume completes later or that has to wait: for its chunk's key, for send queue room, for memory, or for a
//! request of another path in the chunk. [`server::Server::respond`] answers these.
//!
//! A request starts only with room for its response in the send queue. So responses never wait, and a chunk costs a
//! session 32 bytes of state.
//!
//! The data direction follows the operation: a response contains only what a volume delivered for a read, whatever the
//! RTRS header asks for. The tag that the volume returns marks a read, not the header, which the client may change
//! meanwhile.
//!
//! All sessions are offered the same queue depth, because Linux's client gives up a path that reconnects with another
//! one. The depth is a function of configuration and machine (`offered_depth`), so it survives a restart without being
//! stored, also without a disk.
//!
//! # Keys
//!
//! With `always_invalidate` (the default, as in Linux) each request rotates the key of its chunk. Software does it at
//! once. A card does it by a work request that goes before the response, and its completion arrives one interrupt
//! later.
//!
//! The headers of RTRS and RNBD are read once into private memory, and only the copies are used. So a client gains
//! nothing by changing them in the chunk. Three cases follow:
//!
//! * A read uses nothing else in the chunk. It does not wait.
//! * A write to a volume that copies at once (memory) does not wait either: a change by the client is as if the client
//!   had written it. The key change is posted (`KeyChange::Promised`), the request is executed, and the response is
//!   posted behind the change. It announces a key that is valid by then, while the old one is revoked.
//! * Any other write (a disk reads the chunk later, a mirror twice) waits for the completion, unless all devices that
//!   the session has open are memory. A write for another device may arrive while the session had none open, from a
//!   client that names the device before its OPEN was answered. It gets EIO unless its key is gone
//!   (`Request::settled`).
//!
//! # Memory of sessions
//!
//! The chunks of a session are one stretch of the arena, or on demand with `rnbd.oversubscribe`, as with ODP in
//! hardware: a chunk has memory from the WRITE that begins in it until its owner returns it. A WRITE without free
//! memory gets an RNR NAK (`softverbs::pool`). Only bytes that were written since are returned, so no session sees
//! another's data. The response to a read takes its memory along into the send queue, and the acknowledgement frees it.
//! Bytes before a client's data in a chunk are zeroed when the chunk is backed from its beginning.
//!
//! A session gets its memory at INFO_REQ, which a client can send only after it has received the server's REP. So a REQ
//! from a forged address takes none. The memory is zeroed in pieces, one per round (`server/memory.rs`), and INFO_RSP
//! follows when all of it is zero. Half-open sessions are evicted if others need the place.
//!
//! Responses share ACKs. No caller waits for the completion of a response, so the provider asks for an ACK every 8 ms
//! (`Provider::coalesce_acks`), less often for rare responses (up to a quarter of the ACK timeout). If nothing follows
//! for twice as long, it repeats the last packet. A chunk may be reused before the ACK: its client does so only with
//! the response in hand. Responses with memory on demand, and those that are signaled because the send queue is half
//! full, ask at once.
//!
//! # Identity of a session
//!
//! A session has a UUID of 128 random bits. The client draws it, and only this server receives it. No report, metric or
//! log contains it (a capture of whole frames does). A new path names it, and a REQ counts only if its frame comes from
//! the address that it claims (`rdma/cm`). So a second address of a host joins only with the host's own secret.
//!
//! Joining gives no more than the host's rights. The exports of the session's open devices must admit all of its hosts,
//! at each OPEN and at each new path. A path is valid only from the address that it began at. A session's name belongs
//! to the addresses of its paths until all of them are gone. A new session with that name from one of these addresses
//! is the restarted host, and the old session ends; from another address it is refused.
//!
//! A reader of the host's frames knows the UUID, as it knows all data. Only network separation helps against that.
//!
//! A session keeps to one core, because its paths share chunks and the order of requests. [`server::Directory`] has
//! what servers on other cores need: the owner of a name, the share of a host, the core of a session. It is used only
//! when a connection is made, named or ended. A path that arrives at another core is refused (`session_elsewhere`).
//!
//! # Client
//!
//! Data is sent from and received into the memory of the caller (`MemoryVerbs::remap`).
//!
//! * **Restarted servers.** A restarted server has lost data that it acknowledged and that was not flushed. Our server
//!   reports a random number per boot in reserved bytes of CON_RSP (`incarnation`). A stock server forgets a session
//!   with its last path, and refuses `first_conn` 0 in both cases. The evidence is the local id of its connection
//!   manager: Linux counts up, and masks the count with a number drawn when `ib_cm` is loaded, so ids of one boot
//!   differ as close counts do (`client/life.rs`). Without evidence, a loss of all paths counts as a restart. The next
//!   flush then fails.
//! * **Additional paths** state that their session must exist (`first_conn` 0). Linux sends this only once. A restarted
//!   server refuses, and is not mistaken for the old one.
//! * **Repeated requests** keep their permit, so our server does not execute a request twice at a time. It may execute
//!   it twice in sequence. Two hosts that write the same sectors need a lock, as with any disk with several paths.
//! * **Abandoned requests** (`Volume::give_up`) end at once: their path is closed, so no send queue refers to their
//!   memory and no response reaches it. The server may execute them all the same. Our server starts the next request
//!   with a permit only after the previous one. Linux's server brings a path up only after all its earlier requests.
//!   The volume is idle again when a flush was answered with each of the permits and the paths are up.
//! * **End of a write.** A write ends when the server has responded and its data has left all send queues. The response
//!   alone does not prove that the acknowledgement arrived, and without that the data is sent again. So memory of a
//!   chunk, of the on-demand pool or of a mirror is free again at the completion of the remote volume.
//!
//! The server asks an active client for a heartbeat once a minute, and a silent one as often as Linux does.
#![no_std]
#![forbid(unsafe_code)]
extern crate alloc;
#[cfg(any(test, feature = "testing"))]
extern crate std;

pub mod client;
mod errno;
mod heartbeat;
mod name;
pub mod server;

pub mod wire;

pub use errno::Errno;
pub use heartbeat::{Heartbeat, Tick};
pub use name::{BadName, Name};
