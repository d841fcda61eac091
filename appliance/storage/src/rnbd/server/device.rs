//! OPEN and CLOSE, by the rules of Linux's server (rnbd-srv.c, `process_msg_open`).

use super::export;
use super::session::{Opened, Session};
use super::{Export, Server};
use crate::rnbd::wire::{AccessMode, CachePolicy, Open, OpenResponse};
use crate::volume::{OpenError, VolumeId, Volumes};
use core::net::IpAddr;
use drivers::hal::{Features, Geometry};
use rtrs::server::{Refused, SessionId};
use rtrs::{Errno, Name};

/// Most segments of 4 KiB in a request of a client; clients use fewer if chunks are smaller.
const MAX_SEGMENTS: u16 = 128;

const fn refused(errno: Errno, reason: &'static str, advice: &'static str) -> Refused {
    Refused { errno, reason, advice }
}

const MALFORMED: Refused =
    refused(Errno::EINVAL, "malformed", "the client sent an unknown access mode; it is defective");
const GONE: Refused = refused(Errno::ENOTCONN, "session_ended", "the session ended meanwhile");
const NO_VOLUME: Refused = refused(
    Errno::ENXIO,
    "no_volume",
    "the export's volume is not available (yet); `volume list` shows its state",
);
const OPEN_ALREADY: Refused = refused(
    Errno::EEXIST,
    "open_already",
    "the session has the device open, perhaps with another spelling (/dev/); unmap it on the host first",
);
const READ_ONLY: Refused = refused(
    Errno::EACCES,
    "read_only",
    "the export or its volume is read-only; map it with access_mode=ro, or `export set NAME rw`",
);
const IN_USE: Refused = refused(
    Errno::EPERM,
    "in_use",
    "another session has it open for writing (`device list`); unmap it there, or map it with \
     access_mode=ro or migration",
);
const TOO_MANY: Refused = refused(
    Errno::EMFILE,
    "devices",
    "the session has the most devices open that one session can have",
);

/// An open device, for the console.
#[derive(Clone, Copy, Debug)]
pub struct DeviceStatus {
    /// The session that opened it.
    pub session: SessionId,
    /// Its id on the wire.
    pub id: u32,
    /// Name in the client's OPEN.
    pub name: Name,
    /// The volume.
    pub volume: VolumeId,
    /// Access mode.
    pub mode: AccessMode,
}

impl Server {
    /// All open devices.
    pub fn devices(&self) -> impl Iterator<Item = DeviceStatus> + '_ {
        self.sessions.iter().enumerate().flat_map(|(index, session)| {
            session.devices().map(move |device| DeviceStatus {
                session: SessionId(index as u32),
                id: device.id,
                name: device.opened.name,
                volume: device.opened.volume,
                mode: device.opened.mode,
            })
        })
    }

    /// Closes a device on the operator's command: later I/O on it gets ENOTCONN. False if no device has that id.
    pub fn force_close(&mut self, session: SessionId, device: u32) -> bool {
        self.close(session, device)
    }

    /// Opens a device for a host; if the session has it open, returns the open one. Records a refusal.
    pub(super) fn open(
        &mut self,
        id: SessionId,
        host: IpAddr,
        open: &Open,
        volumes: &Volumes,
    ) -> Result<OpenResponse, Errno> {
        self.try_open(id, host, open, volumes).map_err(|why| {
            let session = self.transport.session(id).map(|session| session.name);
            let (device, session) = (open.name, session.unwrap_or_default());
            let asked = alloc::format!("{device} by session {session}");
            self.transport.refuse(host, "map", asked, why);
            why.errno
        })
    }

    fn try_open(
        &mut self,
        id: SessionId,
        host: IpAddr,
        open: &Open,
        volumes: &Volumes,
    ) -> Result<OpenResponse, Refused> {
        let mode = open.mode.map_err(|_| MALFORMED)?;
        let status = self.transport.session(id).ok_or(GONE)?;
        let session = self.sessions.get(id.index()).ok_or(GONE)?;
        // Requests arrive over any path of a session: the export has to admit all of the session's hosts.
        let hosts = || self.transport.hosts(id).chain([host]);
        if let Some(device) = session.named(&open.name) {
            let geometry = volumes.geometry(device.opened.volume).ok_or(NO_VOLUME)?;
            match self.find_export(&status.name, &open.name, hosts) {
                // The export was removed: its open devices stay open.
                Ok(_) | Err(export::NO_EXPORT) => {}
                Err(why) => return Err(why),
            }
            return Ok(self.response(device.id, &geometry));
        }
        let wanted = export::plain(open.name.as_str());
        if session.devices().any(|device| export::plain(device.opened.name.as_str()) == wanted) {
            // As in Linux: a session opens a device once, whatever prefix its name has.
            return Err(OPEN_ALREADY);
        }
        let export = self.find_export(&status.name, &open.name, hosts)?;
        let &Export { volume, read_only, .. } = export;
        let (hosts, limiter) = (export.hosts.clone(), export.limiter.clone());
        let geometry = volumes.geometry(volume).ok_or(NO_VOLUME)?;
        if geometry.sectors == 0 {
            // A volume of another server that has not been reached yet.
            return Err(NO_VOLUME);
        }
        let read_only = read_only || geometry.features.contains(Features::READ_ONLY);
        let max_devices = self.max_devices;
        let beside = match mode {
            AccessMode::ReadOnly => None,
            _ if read_only => return Err(READ_ONLY),
            AccessMode::ReadWrite => Some(0),
            AccessMode::Migration => Some(1),
        };
        let counts = volumes.open_counts(volume).ok_or(NO_VOLUME)?;
        let hold = counts.open(beside).map_err(|why| match why {
            OpenError::InUse => IN_USE,
            OpenError::Retired => NO_VOLUME,
        })?;
        let copies_at_once = volumes.copies_at_once(volume);
        let (name, throttle) = (open.name, self.throttles.place(&limiter));
        let opened = Opened { volume, mode, copies_at_once, name, hosts, hold, limiter, throttle };
        let session = self.sessions.get_mut(id.index()).ok_or(GONE)?;
        let device = session.add(opened, max_devices).ok_or(TOO_MANY)?;
        self.opened += 1;
        self.settle_writes(id);
        super::volume_state(&mut self.volume_states, volume)
            .waiting
            .reserve(usize::from(status.queue_depth));
        Ok(self.response(device, &geometry))
    }

    /// Closes a device; false if no device has that id.
    pub(super) fn close(&mut self, session: SessionId, device: u32) -> bool {
        let closed = self.sessions.get_mut(session.index()).and_then(|s| s.remove(device));
        self.opened += usize::from(closed.is_some());
        if closed.is_some() {
            self.throttles.close((session, device));
        }
        self.settle_writes(session);
        closed.is_some()
    }

    /// Informs the transport whether the volumes of all of a session's devices copy written data at once.
    fn settle_writes(&mut self, id: SessionId) {
        let Some(session) = self.sessions.get(id.index()) else { return };
        let copies = session.devices().all(|device| device.opened.copies_at_once);
        self.transport.copies_at_once(id, copies);
    }

    /// Closes all devices of a session whose last path is down.
    pub(super) fn close_devices(&mut self, id: SessionId) {
        while let Some(device) = self.sessions.get(id.index()).and_then(Session::first) {
            self.close(id, device);
        }
    }

    fn response(&self, device: u32, geometry: &Geometry) -> OpenResponse {
        let write_back = geometry.features.contains(Features::VOLATILE_CACHE);
        let if_can = |feature, sectors| match geometry.features.contains(feature) {
            true => sectors,
            false => 0,
        };
        // `add_export` rejects logical blocks that do not fit; physical blocks are advisory.
        let block = |bytes| u16::try_from(bytes).unwrap_or(1 << 15);
        OpenResponse {
            device,
            sectors: geometry.sectors,
            max_hw_sectors: geometry.max_transfer / 512,
            max_write_zeroes_sectors: if_can(
                Features::WRITE_ZEROES,
                geometry.max_write_zeroes_sectors,
            ),
            max_discard_sectors: if_can(Features::DISCARD, geometry.max_discard_sectors),
            discard_granularity: geometry.discard_granularity,
            discard_alignment: 0,
            physical_block: block(geometry.physical_block),
            logical_block: block(geometry.logical_block),
            max_segments: MAX_SEGMENTS,
            secure_discard: self.secure_erase && geometry.features.contains(Features::SECURE_ERASE),
            cache_policy: match write_back {
                true => CachePolicy::WRITEBACK | CachePolicy::FUA,
                false => CachePolicy::empty(),
            },
        }
    }
}
