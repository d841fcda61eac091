//! Orders: changes that management requests of the appliance. Management parses the command and looks up its objects
//! first. The owner of the object executes the order and returns a result or the reason for a refusal.

use crate::config::{Attempts, Config, DeviceName, Mirror, MpPolicy, PathPair, Remote, Volume};
use crate::console::UsnicVerb;
use core::net::IpAddr;
use core::time::Duration;
use net::capture::Filter;
use net::dns::Name;
use perf_responders::rping;

/// How the appliance stops.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// Reboot the machine.
    Reboot,
    /// Power the machine off.
    PowerOff,
}

/// Change to the packet capture of the first loop's ports.
pub enum Capturing {
    /// Starts a new capture with this filter, in a ring of this many bytes.
    Start(Filter, usize),
    /// Stops the capture and keeps its packets.
    Stop,
    /// Discards the capture.
    Discard,
}

/// Order for a client's path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PathOrder {
    /// Closes the path.
    Disconnect,
    /// Resets all counters of the path.
    Reset,
    /// Resets the counters of reads and writes.
    ResetRdma,
}

/// Order for clients of the storage server. It may be sent to another core.
#[derive(Clone, Debug)]
pub enum ClientOrder {
    /// Ends the session of this name with all its paths.
    EndSession(String),
    /// Order for a path, in one session or in any session with a path of this name.
    Path {
        /// Name of the session; None for any session.
        session: Option<String>,
        /// Name of the path.
        path: String,
        /// The order.
        what: PathOrder,
    },
    /// Closes a device by force, in one session or in all.
    Close {
        /// The client's name of the device.
        device: String,
        /// Name of the session; None for all sessions.
        session: Option<String>,
    },
    /// Closes a device by force, by the name of its export.
    CloseExported {
        /// Name of the export in `/api`.
        device: String,
        /// Name of the session.
        session: String,
    },
}

/// Order for a session with a remote server.
pub enum SessionOrder {
    /// Adds a path.
    AddPath(PathPair),
    /// Sets the maximum number of reconnect attempts.
    Attempts(Attempts),
    /// Sets the multipath policy.
    Policy(MpPolicy),
    /// Order for a path of the session.
    Path(PathPair, RemotePathOrder),
}

/// Order for a path to a remote server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RemotePathOrder {
    /// Reconnects the path.
    Reconnect,
    /// Disconnects the path.
    Disconnect,
    /// Removes the path.
    Remove,
    /// Resets the counters of the path.
    Reset,
}

/// Parameters of `remote read`.
#[derive(Clone, Copy, Debug)]
pub struct Reads {
    /// Number of reads.
    pub count: u32,
    /// Bytes per read.
    pub size: usize,
    /// Reads in flight.
    pub depth: u32,
}

/// Order for a mirror.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MirrorOrder {
    /// Starts the mirror on its only readable member.
    Force,
    /// Takes the member with this index out of use.
    Detach(usize),
    /// Takes the member with this index back.
    Attach(usize),
    /// Grows the mirror to the size of its smaller member.
    Grow,
    /// Ends its own work, so that it can be dissolved, or continues with it.
    End(bool),
}

/// An order to the appliance.
pub enum Order<'a> {
    /// Applies a change of the configuration at this path, or of all keys if it is empty, where that needs no reboot.
    PutInForce(&'a str),
    /// Checks whether a configuration can start on this machine.
    Check(&'a Config),
    /// Writes a document that the next boot tries, with the seconds for its confirmation, and reboots.
    ArmTrial(&'a str, u64),
    /// Makes the served exports those of the configuration.
    ApplyExports,
    /// Sets the state of an ANA group of all subsystems.
    AnaState(u32, nvme::AnaState),
    /// Writes the configuration to the config disk.
    Save,
    /// Erases the config disk, whose name the operator has typed.
    WipeConfig(Option<&'a str>),
    /// Erases the table of volumes of the disk with this number. No client may have a volume of it.
    WipeDisk(usize),
    /// Sends ICMP echo requests, one a second: the address, the count, and the bytes of data in each.
    Ping(IpAddr, u16, u16),
    /// Probes the paths to these hosts, unless that runs or was done seconds ago.
    ProbePaths(&'a [IpAddr]),
    /// Resolves a name.
    Resolve(&'a Name),
    /// Runs rping, an echo over RDMA, with an address.
    Rping(IpAddr, rping::Options),
    /// Cancels the running task, if it can be cancelled.
    Cancel,
    /// Stops the appliance.
    End(End),
    /// Changes the packet capture.
    Capture(Capturing),
    /// Order for clients of the first loop and of the other loops with these indices.
    Clients(ClientOrder, &'a [usize]),
    /// Creates a volume in memory or from a whole disk.
    MakeVolume(&'a Volume),
    /// Creates a volume in extents of a disk.
    CreateOnDisk {
        /// The disk.
        disk: &'a DeviceName,
        /// Name of the volume.
        name: &'a str,
        /// Its size.
        bytes: u64,
        /// Create the volume even if the disk holds other data.
        force: bool,
    },
    /// Grows a volume in extents: the number of its disk, its name, and its new size in bytes.
    Grow(usize, &'a str, u64),
    /// Prevents clients from opening a volume.
    RetireVolume(&'a str),
    /// Deletes a retired volume. If the volume was a whole disk, frees that disk.
    DeleteVolume(&'a str, Option<&'a DeviceName>),
    /// Adds a remote volume of this configuration.
    AddRemote(&'a Remote, &'a Config),
    /// Removes a remote volume.
    RemoveRemote(&'a str),
    /// Reopens the device behind a remote volume.
    Remap(&'a str),
    /// Starts a read benchmark of a volume.
    Read(&'a str, Reads),
    /// Order for the session of this name.
    Session(&'a str, SessionOrder),
    /// Creates a mirror of two volumes.
    MakeMirror(&'a Mirror),
    /// Creates a mirror again whose members do not belong to one mirror.
    RemakeMirror(&'a Mirror),
    /// Assembles a configured mirror of two volumes that nothing uses, as a start does. Their data stays.
    AssembleMirror(&'a Mirror),
    /// Order for an existing mirror.
    Mirror(&'a str, MirrorOrder),
    /// Removes a retired mirror without requests in flight. Its members become volumes of their own.
    DissolveMirror(&'a str),
    /// Quiesces a mirror and removes it.
    EndMirror(&'a str),
    /// Takes the link of a bridge down, by default of the first.
    ResetBridge(Option<&'a str>),
    /// Measures a bridge, by default the first, for this time a test.
    MeasureBridge(Option<&'a str>, Duration),
    /// Confirms the running release, which ends its trial.
    ConfirmUpgrade,
    /// Writes a release to the other slot and boots it.
    Upgrade(&'a [&'a str]),
    /// A command on a usNIC peer, with its arguments.
    Usnic(UsnicVerb, &'a [&'a str]),
}
