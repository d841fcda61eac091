//! Storage: volumes (memory, disks, extents, mirrors), and RNBD, which exports them and maps those of other servers.
//!
//! ```text
//!    rtrs::server ──► rnbd server ──► volume::Volumes ──► ram | disk, extents ──► drivers::Disk
//!                                           ▲    └──► mirror ──► two volumes
//!                                           │         rnbd client ──► rtrs::client ──► other server
//!                      catalog, channel ────┘ (loops of other cores)
//! ```
//!
//! Invariants:
//!
//! * A write that was acknowledged and flushed survives a power cut.
//! * A request ends once; a late completion of an abandoned one changes nothing.
//! * Deleted space is given to another owner only after every loop has released it.
//!
//! Tests: `src/tests`, `volume/**/tests`, `tests/sim` (power cuts, mirrors), the suites `volumes`, `storage`,
//! `storage_cores`, `power_cuts`, `remote_mirror`, `save`.
//!
//! # Volumes
//!
//! A [`volume::Volume`] completes requests at once (memory) or later (disks). The caller names the windows for data;
//! nothing is copied on the way to a disk. [`volume::Volumes`] is the set of a loop.
//!
//! | module | what it is |
//! |---|---|
//! | `volume::ram` | memory of the arena; reads lend it instead of copying |
//! | `volume::disk` | a disk, or extents of it; splits requests |
//! | `volume::queue` | shares one disk's queue among its volumes and the table of extents |
//! | `volume::extents` | the table of extents on a disk, and its engine, which the gateway drives (`gateway/volumes.rs`) while clients use the volumes |
//! | `volume::reservation` | which hosts may access a volume: reservations of NVMe, which fence RNBD as well; kept in the table of extents |
//! | `volume::mirror` | two volumes with the same contents |
//! | `volume::channel`, `volume::catalog`, `volume::share` | volumes of the first loop for loops of other cores |
//!
//! # Limits
//!
//! [`limits`] bound requests and bytes in a second, of an export or of an NVMe namespace. Requests that have to wait
//! keep the memory that their client gave them (RNBD: the chunk), or have none yet (NVMe).
//!
//! # Mirrors
//!
//! A mirror keeps its records in the first 32 KiB of both members: regions that may differ, marked before they are
//! written, and whether the other member is left out, recorded before any write that it missed is acknowledged. A round
//! of the loop copies one part at most. Members in memory complete at once.
//!
//! A mirror leaves out a member that does not respond while the other one does (`mirror/patience.rs`). When the first
//! member's time is over, the mirror probes the other member, because an earlier response is no evidence. If the other
//! member was silent too, the first gets the same time again once the other responds. A member that was left out is
//! tried again only when it is idle, so none of its late writes can damage the copy.
//!
//! If the last member in sync may have lost unflushed data, no copy exists, and the mirror fails the next flush.
//!
//! # Volumes of other servers
//!
//! `rnbd::client` maps devices of a server over an RTRS session ([`rtrs::client`]). Each device is a [`volume::Volume`]
//! that shares a queue with its client and completes when that is polled. The client of a session is polled only after a
//! request to its volumes, completions (`Provider::watch_cq`) or its timer (`rnbd::client::Bells`).
//!
//! `appliance/src/gateway/remote_storage` owns the sessions, resolves servers (ARP and neighbour discovery, on the
//! interface with the path's own address), and assembles mirrors, whose members it takes out of the set of volumes. In
//! a round, sessions and server are polled in turns until none makes progress, so the response of another server is
//! forwarded in the same round. Without configuration there are no sessions and no mirrors.
//!
//! # Cores
//!
//! The first loop owns the volumes and publishes them in a catalog: a revision, which other loops compare in each round,
//! and a listing. Each loop serves the clients of its own ports.
//!
//! * RAM volume: each loop has a share (`RamMemory`), which zeroes each stretch once for all loops.
//! * Volume on a drive with a queue for the core: the loop has a `DiskShare` over that queue (`hal::MoreQueues`). No
//!   request or completion crosses cores.
//! * All other volumes are reached over a channel: two rings that wake a halting loop. A user names a request by its
//!   `Tag`, so the completion returns to it. A volume that does not respond holds at most 128 requests of a channel.
//!
//! `OpenCounts` counts the opens of all cores. A deleted volume cannot be opened. Its memory returns to the arena when
//! every loop has released its share, which it does when none of its requests refers to it. A volume is deleted, or
//! becomes a member of a mirror, only when no device is open on it and no loop has requests for it, also after its client
//! has gone (`OpenCounts::retire`): its extents may get another owner. A loop sees the new size of a volume that grew
//! when it reads the catalog; the old space does not move. The table of volumes, mirrors and all operations but reads
//! and writes stay with the first loop. A flush covers the namespace, and so all requests that completed on any queue.
#![no_std]
#![forbid(unsafe_code)]
extern crate alloc;
#[cfg(test)]
extern crate std;

pub mod limits;
pub mod rnbd;
pub mod volume;

#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;
