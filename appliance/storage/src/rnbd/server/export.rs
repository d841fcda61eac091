//! Exports: map the name in an OPEN to a volume, by session and host.

use super::Server;
use super::session::Session;
use crate::limits::Limiter;
use crate::volume::{VolumeId, Volumes};
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt;
use core::net::IpAddr;
use net::hosts::Hosts;
use rtrs::server::Refused;
use rtrs::{Errno, Name};

/// Placeholder for the name of the session in the name of an export.
const SESSNAME: &str = "%SESSNAME%";

/// A volume that clients can open by a name.
#[derive(Clone, Debug)]
pub struct Export {
    /// Name in a client's OPEN, which may have `/` or `/dev/` before it. `%SESSNAME%` stands for the name of the
    /// session.
    pub name: Name,
    /// The exported volume.
    pub volume: VolumeId,
    /// Whether it can only be opened for reading.
    pub read_only: bool,
    /// Sessions that may open it; if empty, all sessions.
    pub allow: Vec<Name>,
    /// Hosts that may open it.
    pub hosts: Hosts,
    /// Limits of all its devices together, on all cores. They change without a new export.
    pub limiter: Arc<Limiter>,
}

/// Two exports are equal if they have the same name, volume and access. Limits change in place.
impl PartialEq for Export {
    fn eq(&self, other: &Self) -> bool {
        let key = |it: &Self| (it.name, it.volume, it.read_only);
        key(self) == key(other) && self.allow == other.allow && self.hosts == other.hosts
    }
}

impl Eq for Export {}

/// Why an export was rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExportError {
    /// Another export has that name.
    Exists,
    /// The volume does not exist.
    NoVolume,
    /// No client can open that name: it is empty, or contains `..`.
    BadName,
    /// The block size does not fit into OPEN_RSP.
    BlockSize,
}

impl fmt::Display for ExportError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            ExportError::Exists => "an export of that name exists",
            ExportError::NoVolume => "no such volume",
            ExportError::BadName => "the name of an export must not be empty or contain '..'",
            ExportError::BlockSize => "blocks of more than 32 KiB cannot be exported",
        })
    }
}

impl Export {
    /// Whether the name in an OPEN of that session matches this export.
    pub fn is_meant(&self, session: &str, wanted: &str) -> bool {
        let (own, wanted) = (plain(self.name.as_str()), plain(wanted));
        match own.split_once(SESSNAME) {
            None => own == wanted,
            Some((before, after)) => wanted
                .strip_prefix(before)
                .and_then(|rest| rest.strip_prefix(session))
                .is_some_and(|rest| rest == after),
        }
    }

    fn allows(&self, session: &Name) -> bool {
        self.allow.is_empty() || self.allow.contains(session)
    }
}

/// A name without the leading `/` or `/dev/` of a Linux path. Names that are equal then name one device.
pub fn plain(name: &str) -> &str {
    let name = name.trim_start_matches('/');
    name.strip_prefix("dev/").unwrap_or(name)
}

impl Server {
    /// Adds an export; open devices are not affected.
    pub fn add_export(&mut self, export: Export, volumes: &Volumes) -> Result<(), ExportError> {
        let name = plain(export.name.as_str());
        if name.is_empty() || name.contains("..") {
            return Err(ExportError::BadName);
        }
        if self.exports.iter().any(|other| plain(other.name.as_str()) == name) {
            return Err(ExportError::Exists);
        }
        let geometry = volumes.geometry(export.volume).ok_or(ExportError::NoVolume)?;
        if geometry.logical_block > 1 << 15 {
            return Err(ExportError::BlockSize);
        }
        self.exports.push(export);
        self.exports_revision += 1;
        Ok(())
    }

    /// Replaces the exports by those of the first loop, which owns the volumes and has checked the exports.
    pub fn set_exports(&mut self, exports: &[Export]) {
        self.exports.clear();
        self.exports.extend_from_slice(exports);
    }

    /// Removes an export; open devices stay open. False if no export has that name.
    pub fn remove_export(&mut self, name: &str) -> bool {
        let before = self.exports.len();
        self.exports_revision += 1;
        self.exports.retain(|export| plain(export.name.as_str()) != plain(name));
        self.exports.len() < before
    }

    /// Increases with each change of the exports.
    pub fn exports_revision(&self) -> u64 {
        self.exports_revision
    }

    /// All exports.
    pub fn exports(&self) -> &[Export] {
        &self.exports
    }

    /// Looks up the export for an OPEN of a session with paths from these hosts.
    pub(super) fn find_export<H: Iterator<Item = IpAddr>>(
        &self,
        session: &Name,
        wanted: &Name,
        hosts: impl Fn() -> H,
    ) -> Result<&Export, Refused> {
        if wanted.as_str().contains("..") {
            return Err(BAD_NAME);
        }
        let matching =
            self.exports.iter().filter(|e| e.is_meant(session.as_str(), wanted.as_str()));
        let mut why = NO_EXPORT;
        for export in matching {
            let admitted = hosts().all(|host| export.hosts.admits(host));
            match (export.allows(session), admitted) {
                (true, true) => return Ok(export),
                (true, false) => why = HOST_NOT_ADMITTED,
                (false, _) if why == NO_EXPORT => why = SESSION_NOT_ALLOWED,
                (false, _) => {}
            }
        }
        Err(why)
    }
}

/// Whether a host may connect: at least one export has to admit it. If the connection is a path of a session with
/// open devices, the exports of these devices have to admit the host too, because requests arrive over any path.
pub(super) fn admit(
    exports: &[Export],
    session: Option<&Session>,
    host: IpAddr,
) -> Result<(), Refused> {
    if exports.is_empty() {
        return Err(NOTHING_EXPORTED);
    }
    if !exports.iter().any(|export| export.hosts.admits(host)) {
        return Err(NO_EXPORT_ADMITS);
    }
    let mut devices = session.into_iter().flat_map(Session::devices);
    match devices.all(|device| device.opened.hosts.admits(host)) {
        true => Ok(()),
        false => Err(DEVICE_NOT_FOR_HOST),
    }
}

const fn refused(errno: Errno, reason: &'static str, advice: &'static str) -> Refused {
    Refused { errno, reason, advice }
}

const BAD_NAME: Refused = refused(
    Errno::EINVAL,
    "bad_name",
    "no export has '..' in its name; `export list` shows all names",
);
pub(super) const NO_EXPORT: Refused = refused(
    Errno::ENOENT,
    "no_such_export",
    "no export has that name; `export list` shows all exports, `export add` creates one",
);
const SESSION_NOT_ALLOWED: Refused = refused(
    Errno::EACCES,
    "session_not_allowed",
    "the export is not for that session; `export set NAME sessions=…` changes it",
);
const HOST_NOT_ADMITTED: Refused = refused(
    Errno::EACCES,
    "host_not_admitted",
    "the export does not admit a host of that session; `export set NAME hosts=…` changes it",
);
const NOTHING_EXPORTED: Refused =
    refused(Errno::EACCES, "nothing_exported", "no export exists (yet); `export add` creates one");
const NO_EXPORT_ADMITS: Refused = refused(
    Errno::EACCES,
    "host_not_admitted",
    "no export admits this host; `export set NAME hosts=…` changes it",
);
const DEVICE_NOT_FOR_HOST: Refused = refused(
    Errno::EACCES,
    "host_not_admitted",
    "the session has a device open whose export does not admit this host; `export set NAME hosts=…` \
     changes it; then map the device again",
);

#[cfg(test)]
mod tests {
    use super::*;

    fn export(name: &str) -> Export {
        let name = Name::new(name).unwrap();
        let (volume, allow, hosts) = (VolumeId(0), Vec::new(), Hosts::default());
        Export { name, volume, read_only: false, allow, hosts, limiter: Arc::default() }
    }

    #[test]
    fn export_matches_names_with_dev_prefix_and_session_name() {
        let ram = export("ram0");
        for wanted in ["ram0", "/ram0", "/dev/ram0", "//dev/ram0"] {
            assert!(ram.is_meant("s", wanted), "{wanted}");
        }
        assert!(!ram.is_meant("s", "ram00") && !ram.is_meant("s", "/dev/dev/ram0"));
        let own = export("/pool/%SESSNAME%/disk");
        assert!(own.is_meant("host1", "pool/host1/disk"));
        assert!(!own.is_meant("host1", "pool/host2/disk"));
        assert!(!own.is_meant("host1", "pool/%SESSNAME%/disk"));
    }
}
