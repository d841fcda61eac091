//! A disk with a volatile cache: an NBD server in this process, to which QEMU connects. A power cut loses a random
//! choice of the sectors that were written without FUA and not flushed. (A file on the host would keep all of them when
//! QEMU is killed.) The disk can also be silenced: it accepts requests, and executes and answers them when the silence
//! ends.
//!
//! The NBD protocol's fixed newstyle handshake and simple replies (github.com/NetworkBlockDevice/nbd, doc/proto.md).

use std::collections::BTreeSet;
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use anyhow::Result;
use tempfile::TempDir;

const SECTOR: usize = 512;

// Handshake.
const MAGIC: u64 = 0x4e42_444d_4147_4943;
const OPTION: u64 = 0x4948_4156_454f_5054;
const OPTION_REPLY: u64 = 0x0003_e889_0455_65a9;
const FIXED_NEWSTYLE: u16 = 1;
const ABORT: u32 = 2;
const GO: u32 = 7;
const REPLY_ACK: u32 = 1;
const REPLY_INFO: u32 = 3;
const REPLY_UNSUPPORTED: u32 = 1 << 31 | 1;
/// Transmission flags of the export: flags are valid, supports flush, supports FUA.
const FLAGS: u16 = 1 | 4 | 8;

// Transmission.
const REQUEST: u32 = 0x2560_9513;
const REPLY: u32 = 0x6744_6698;
const READ: u16 = 0;
const WRITE: u16 = 1;
const DISCONNECT: u16 = 2;
const FLUSH: u16 = 3;
const FUA: u16 = 1;
const EINVAL: u32 = 22;

/// Statistics of a disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Number of flushes.
    pub flushes: u64,
    /// Number of writes, including those with FUA.
    pub writes: u64,
    /// Number of writes with FUA.
    pub through: u64,
    /// Sectors that were lost in power cuts.
    pub lost: u64,
}

struct Medium {
    /// The contents that the machine reads.
    now: Vec<u8>,
    /// The contents that survive a power cut.
    durable: Vec<u8>,
    /// Sectors in which `now` and `durable` may differ.
    dirty: BTreeSet<usize>,
    counts: Counts,
}

impl Medium {
    fn flush(&mut self) {
        self.counts.flushes += 1;
        for sector in core::mem::take(&mut self.dirty) {
            self.keep(sector);
        }
    }

    fn keep(&mut self, sector: usize) {
        let part = sector * SECTOR..(sector + 1) * SECTOR;
        self.durable[part.clone()].copy_from_slice(&self.now[part]);
    }

    fn write(&mut self, at: usize, data: &[u8], through: bool) {
        self.counts.writes += 1;
        self.counts.through += u64::from(through);
        self.now[at..at + data.len()].copy_from_slice(data);
        let sectors = at / SECTOR..(at + data.len()).div_ceil(SECTOR);
        for sector in sectors {
            if through {
                self.dirty.remove(&sector);
                self.keep(sector);
            } else {
                self.dirty.insert(sector);
            }
        }
    }
}

type Shared = Arc<Mutex<Medium>>;

fn lock<T>(shared: &Mutex<T>) -> MutexGuard<'_, T> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Whether the disk withholds its answers.
#[derive(Default)]
struct Silence {
    silent: Mutex<bool>,
    changed: Condvar,
}

impl Silence {
    fn set(&self, silent: bool) {
        *lock(&self.silent) = silent;
        self.changed.notify_all();
    }

    fn wait_for_end(&self) {
        let mut silent = lock(&self.silent);
        while *silent {
            silent = self.changed.wait(silent).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// A disk with a volatile cache.
pub struct CachedDisk {
    directory: TempDir,
    medium: Shared,
    silence: Arc<Silence>,
    /// Serves one connection after the other.
    _server: JoinHandle<()>,
    /// Locked while a connection is open.
    busy: Arc<Mutex<()>>,
}

impl CachedDisk {
    /// A zeroed disk of `mib` MiB.
    pub fn new(mib: usize) -> Result<CachedDisk> {
        let zeroes = vec![0; mib << 20];
        let (now, dirty) = (zeroes.clone(), BTreeSet::new());
        let medium = Medium { now, durable: zeroes, dirty, counts: Counts::default() };
        let medium = Arc::new(Mutex::new(medium));
        let directory = tempfile::Builder::new().prefix("isthmus-nbd-").tempdir()?;
        let listener = UnixListener::bind(directory.path().join("socket"))?;
        let busy = Arc::new(Mutex::new(()));
        let silence = Arc::<Silence>::default();
        let (shared, connected, quiet) = (medium.clone(), busy.clone(), silence.clone());
        let server = std::thread::spawn(move || {
            for stream in listener.incoming().map_while(io::Result::ok) {
                let _busy = connected.lock();
                // An error ends this connection only.
                let _ = serve(&stream, &shared, &quiet);
            }
        });
        Ok(CachedDisk { directory, medium, silence, _server: server, busy })
    }

    /// Stops answering requests, or resumes and answers the requests received meanwhile.
    pub fn be_silent(&self, silent: bool) {
        self.silence.set(silent);
    }

    /// The contents that the machine reads.
    pub fn contents(&self) -> Vec<u8> {
        lock(&self.medium).now.clone()
    }

    /// The socket that QEMU connects to.
    pub(super) fn socket(directory: &Path) -> PathBuf {
        directory.join("socket")
    }

    /// The directory of the socket, for [`super::Disk::cached`].
    pub fn path(&self) -> &Path {
        self.directory.path()
    }

    /// Cuts the power, after the machine was killed. A random sequence seeded with `chance` decides for each sector in
    /// the cache whether it is lost.
    pub fn cut_power(&self, mut chance: u64) {
        self.be_silent(false);
        // Waits until the connection has ended, and with it all requests that the machine sent.
        let _idle = self.busy.lock();
        let medium = &mut *lock(&self.medium);
        for sector in core::mem::take(&mut medium.dirty) {
            chance ^= chance << 13;
            chance ^= chance >> 7;
            chance ^= chance << 17;
            if chance & 3 == 0 {
                medium.keep(sector);
            } else {
                medium.counts.lost += 1;
            }
            let part = sector * SECTOR..(sector + 1) * SECTOR;
            medium.now[part.clone()].copy_from_slice(&medium.durable[part]);
        }
    }

    /// The statistics so far.
    pub fn counts(&self) -> Counts {
        lock(&self.medium).counts
    }
}

fn array<const N: usize>(mut stream: &UnixStream) -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    stream.read_exact(&mut bytes)?;
    Ok(bytes)
}

fn bytes(mut stream: &UnixStream, len: u32) -> io::Result<Vec<u8>> {
    if len > 64 << 20 {
        return Err(ErrorKind::InvalidData.into());
    }
    let mut bytes = vec![0; len as usize];
    stream.read_exact(&mut bytes)?;
    Ok(bytes)
}

fn expect(found: impl Into<u64>, wanted: impl Into<u64>) -> io::Result<()> {
    if found.into() == wanted.into() { Ok(()) } else { Err(ErrorKind::InvalidData.into()) }
}

fn serve(stream: &UnixStream, medium: &Shared, silence: &Silence) -> io::Result<()> {
    handshake(stream, lock(medium).now.len() as u64)?;
    loop {
        request(stream, medium, silence)?;
    }
}

fn handshake(mut stream: &UnixStream, size: u64) -> io::Result<()> {
    let hello = [&MAGIC.to_be_bytes()[..], &OPTION.to_be_bytes(), &FIXED_NEWSTYLE.to_be_bytes()];
    stream.write_all(&hello.concat())?;
    array::<4>(stream)?;
    loop {
        expect(u64::from_be_bytes(array(stream)?), OPTION)?;
        let option = u32::from_be_bytes(array(stream)?);
        let len = u32::from_be_bytes(array(stream)?);
        bytes(stream, len)?;
        let reply = |kind: u32, data: &[u8]| {
            let len = data.len() as u32;
            [
                &OPTION_REPLY.to_be_bytes()[..],
                &option.to_be_bytes(),
                &kind.to_be_bytes(),
                &len.to_be_bytes(),
                data,
            ]
            .concat()
        };
        match option {
            GO => {
                let export = [&[0, 0][..], &size.to_be_bytes(), &FLAGS.to_be_bytes()].concat();
                stream.write_all(&reply(REPLY_INFO, &export))?;
                return stream.write_all(&reply(REPLY_ACK, &[]));
            }
            ABORT => return Err(ErrorKind::ConnectionAborted.into()),
            _ => stream.write_all(&reply(REPLY_UNSUPPORTED, &[]))?,
        }
    }
}

fn request(mut stream: &UnixStream, medium: &Shared, silence: &Silence) -> io::Result<()> {
    expect(u32::from_be_bytes(array(stream)?), REQUEST)?;
    let flags = u16::from_be_bytes(array(stream)?);
    let kind = u16::from_be_bytes(array(stream)?);
    let handle: [u8; 8] = array(stream)?;
    let offset = u64::from_be_bytes(array(stream)?) as usize;
    let len = u32::from_be_bytes(array(stream)?);
    let data = if kind == WRITE { bytes(stream, len)? } else { Vec::new() };
    silence.wait_for_end();
    let mut answer = Vec::new();
    let mut medium = lock(medium);
    let inside = offset.checked_add(len as usize).is_some_and(|end| end <= medium.now.len());
    let error = match kind {
        DISCONNECT => return Err(ErrorKind::ConnectionAborted.into()),
        FLUSH => {
            medium.flush();
            0
        }
        READ if inside => {
            answer.extend_from_slice(&medium.now[offset..offset + len as usize]);
            0
        }
        WRITE if inside => {
            medium.write(offset, &data, flags & FUA != 0);
            0
        }
        _ => EINVAL,
    };
    drop(medium);
    let head = [&REPLY.to_be_bytes()[..], &error.to_be_bytes(), &handle, &answer];
    stream.write_all(&head.concat())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn power_cut_loses_unflushed_sectors_only() {
        let disk = CachedDisk::new(1).unwrap();
        let sector = |byte: u8| vec![byte; SECTOR];
        {
            let medium = &mut *lock(&disk.medium);
            medium.write(0, &sector(1), false);
            medium.flush();
            medium.write(SECTOR, &sector(2), true);
            (2..100).for_each(|n| medium.write(n * SECTOR, &sector(3), false));
            medium.write(0, &sector(4), false);
        }
        disk.cut_power(88_172_645_463_325_252);
        let medium = lock(&disk.medium);
        let found = |n: usize| medium.now[n * SECTOR];
        assert!([1, 4].contains(&found(0)) && found(1) == 2);
        let kept = (2..100).filter(|&n| found(n) == 3).count();
        assert!((1..97).contains(&kept) && (2..100).all(|n| [0, 3].contains(&found(n))));
        assert_eq!(medium.counts.lost as usize + kept + usize::from(found(0) == 4), 99);
        assert!(medium.now == medium.durable);
    }
}
