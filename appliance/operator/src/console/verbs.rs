//! Verbs of commands on objects such as volumes or exports, an enum for each kind of object. Their words are in the
//! table of commands.

/// A command on objects of a kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ObjectVerb {
    /// `volume`.
    Volume(VolumeVerb),
    /// `export`.
    Export(ExportVerb),
    /// `remote`.
    Remote(RemoteVerb),
    /// `mirror`.
    Mirror(MirrorVerb),
    /// `session`.
    Session(SessionVerb),
    /// `device`.
    Device(DeviceVerb),
    /// `path`.
    Path(PathVerb),
    /// `ntb`.
    Ntb(NtbVerb),
    /// `nvme`.
    Nvme(NvmeVerb),
    /// `resolve`.
    Name(NameVerb),
    /// `usnic`.
    Usnic(UsnicVerb),
    /// `upgrade`.
    Upgrade(UpgradeVerb),
    /// The candidate and the revisions of the configuration.
    Configure(ConfigureVerb),
    /// `wipe`: erases the config disk, or the table of volumes of another.
    Wipe,
}

/// Commands on the candidate and the revisions of the configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConfigureVerb {
    /// Changes a key of the candidate.
    Set,
    /// Removes a key from the candidate.
    Unset,
    /// Replaces the candidate by a whole document.
    Load,
    /// Shows the candidate.
    Show,
    /// Drops the candidate.
    Discard,
    /// Lists the revisions.
    History,
    /// Shows what the candidate changes.
    Compare,
    /// Checks the candidate.
    Check,
    /// Puts the candidate in force.
    Commit,
    /// Keeps a commit on trial.
    Confirm,
    /// Returns to a revision.
    Rollback,
}

/// Commands on volumes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VolumeVerb {
    /// Lists volumes.
    List,
    /// Shows one volume.
    Show,
    /// Creates a volume.
    Create,
    /// Grows a volume on a disk.
    Grow,
    /// Deletes a volume and its data.
    Delete,
}

/// Commands on exports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExportVerb {
    /// Lists exports.
    List,
    /// Exports a volume.
    Add,
    /// Changes an export.
    Set,
    /// Withdraws an export.
    Remove,
}

/// Commands on remote volumes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RemoteVerb {
    /// Lists remote volumes.
    List,
    /// Maps a volume of another server.
    Add,
    /// Reopens a remote volume.
    Remap,
    /// Benchmarks reads.
    Read,
    /// Unmaps a remote volume.
    Remove,
}

/// Commands on mirrors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MirrorVerb {
    /// Lists mirrors.
    List,
    /// Makes a mirror of two volumes.
    Create,
    /// Runs on the only readable member.
    Force,
    /// Grows a mirror.
    Grow,
    /// Takes a member out of use.
    Detach,
    /// Takes a detached member back.
    Attach,
    /// Dissolves a mirror.
    Remove,
}

/// Commands on sessions of clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SessionVerb {
    /// Lists sessions.
    List,
    /// Shows one session.
    Show,
    /// Ends all paths of a session.
    Disconnect,
}

/// Commands on devices that clients have open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceVerb {
    /// Lists devices.
    List,
    /// Shows one device.
    Show,
    /// Closes a device by force.
    Close,
}

/// Commands on paths of sessions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PathVerb {
    /// Lists paths.
    List,
    /// Shows one path.
    Show,
    /// Ends a path.
    Disconnect,
    /// Resets counters.
    Reset,
}

/// Commands on bridges.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NtbVerb {
    /// Measures bandwidth and latency.
    Measure,
    /// Resets the link.
    Reset,
}

/// Commands on the NVMe-oF target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NvmeVerb {
    /// Lists namespaces.
    List,
    /// Shows a subsystem.
    Show,
    /// Lists connected hosts.
    Hosts,
    /// Checks whether a host would be admitted.
    Check,
    /// Shows how a host connects.
    Connect,
    /// Sets the state of an ANA group.
    Ana,
}

/// Commands on names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NameVerb {
    /// Shows the addresses of a name.
    Resolve,
}

/// Commands on usNIC peers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UsnicVerb {
    /// Sends PINGs.
    Ping,
    /// Resets the connection.
    Reset,
    /// Shows the CRC-32 of data that the peer has PUT.
    Look,
    /// PUTs data to the peer.
    Put,
}

/// Commands on releases.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UpgradeVerb {
    /// Keeps the running release.
    Confirm,
    /// Writes a release, and boots it on trial.
    Write,
}

impl ObjectVerb {
    /// Whether the command changes something, and is logged for that reason.
    pub fn is_change(self) -> bool {
        match self {
            ObjectVerb::Volume(VolumeVerb::List | VolumeVerb::Show)
            | ObjectVerb::Export(ExportVerb::List)
            | ObjectVerb::Remote(RemoteVerb::List | RemoteVerb::Read)
            | ObjectVerb::Mirror(MirrorVerb::List)
            | ObjectVerb::Session(SessionVerb::List | SessionVerb::Show)
            | ObjectVerb::Device(DeviceVerb::List | DeviceVerb::Show)
            | ObjectVerb::Path(PathVerb::List | PathVerb::Show)
            | ObjectVerb::Ntb(NtbVerb::Measure)
            | ObjectVerb::Nvme(
                NvmeVerb::List
                | NvmeVerb::Show
                | NvmeVerb::Hosts
                | NvmeVerb::Check
                | NvmeVerb::Connect,
            )
            | ObjectVerb::Name(NameVerb::Resolve)
            | ObjectVerb::Usnic(UsnicVerb::Ping | UsnicVerb::Look)
            // These log what they do.
            | ObjectVerb::Configure(_) => false,
            ObjectVerb::Volume(VolumeVerb::Create | VolumeVerb::Grow | VolumeVerb::Delete)
            | ObjectVerb::Export(ExportVerb::Add | ExportVerb::Set | ExportVerb::Remove)
            | ObjectVerb::Remote(RemoteVerb::Add | RemoteVerb::Remap | RemoteVerb::Remove)
            | ObjectVerb::Mirror(
                MirrorVerb::Create
                | MirrorVerb::Force
                | MirrorVerb::Grow
                | MirrorVerb::Detach
                | MirrorVerb::Attach
                | MirrorVerb::Remove,
            )
            | ObjectVerb::Session(SessionVerb::Disconnect)
            | ObjectVerb::Device(DeviceVerb::Close)
            | ObjectVerb::Path(PathVerb::Disconnect | PathVerb::Reset)
            | ObjectVerb::Ntb(NtbVerb::Reset)
            | ObjectVerb::Nvme(NvmeVerb::Ana)
            | ObjectVerb::Usnic(UsnicVerb::Reset | UsnicVerb::Put)
            | ObjectVerb::Wipe
            | ObjectVerb::Upgrade(UpgradeVerb::Confirm | UpgradeVerb::Write) => true,
        }
    }
}
