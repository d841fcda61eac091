//! Orders: what management has the appliance do. Words of operators were read, and what they are about was looked up,
//! before one is given; whoever carries it out says what came of it, or why it is not done.

use crate::config::{Attempts, Config, DeviceName, Mirror, MpPolicy, PathPair, Remote, Volume};
use core::net::IpAddr;
use core::time::Duration;
use net::capture::Filter;
use perf_responders::rping;

/// How the appliance ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// It starts anew.
    Reboot,
    /// The machine is switched off.
    PowerOff,
}

/// What is done with packets of the first loop's ports.
pub enum Capturing {
    /// Captured anew, in a ring of so many bytes.
    Start(Filter, usize),
    /// No more captured.
    Stop,
    /// Forgotten.
    Discard,
}

/// What is done with a client's path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PathOrder {
    /// It ends.
    Disconnect,
    /// All that was counted of it begins at 0.
    Reset,
    /// Of that, what was read and written.
    ResetRdma,
}

/// What is done about clients of the storage server. It may go to another core.
#[derive(Clone, Debug)]
pub enum ClientOrder {
    /// A session ends with all its paths.
    EndSession(String),
    /// A path, of one session or of whichever has one of this name.
    Path {
        /// Name of the session.
        session: Option<String>,
        /// Name of the path.
        path: String,
        /// What is done.
        what: PathOrder,
    },
    /// A device is closed by force, of one session or of all.
    Close {
        /// As the client has named it.
        device: String,
        /// Name of the session.
        session: Option<String>,
    },
    /// The same by the name of its export.
    CloseExported {
        /// As `/api` shows it.
        device: String,
        /// Name of the session.
        session: String,
    },
}

/// What is done with a session with another server.
pub enum SessionOrder {
    /// One more path.
    AddPath(PathPair),
    /// So many attempts to connect a path again.
    Attempts(Attempts),
    /// How requests are spread.
    Policy(MpPolicy),
    /// What is done with a path.
    Path(PathPair, RemotePathOrder),
}

/// What is done with a path to another server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RemotePathOrder {
    /// It connects again.
    Reconnect,
    /// It is taken down.
    Disconnect,
    /// It is no more.
    Remove,
    /// What was counted of it begins at 0.
    Reset,
}

/// What `remote read` reads.
#[derive(Clone, Copy, Debug)]
pub struct Reads {
    /// Reads in all.
    pub count: u32,
    /// Bytes of each.
    pub size: usize,
    /// So many at a time.
    pub depth: u32,
}

/// What a mirror is to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MirrorOrder {
    /// Uses the one member that can be read.
    Force,
    /// Does without a member, one of two.
    Detach(usize),
    /// Takes it back.
    Attach(usize),
    /// Takes the space that its members have got.
    Grow,
}

/// An order.
pub enum Order<'a> {
    /// The configuration has changed at this path: what can be is in force from now on.
    PutInForce(&'a str),
    /// What is exported is what the configuration says.
    ApplyExports,
    /// The configuration is written to the config disk.
    Save,
    /// Echo requests, so many, one a second, with so many bytes of data each.
    Ping(IpAddr, u16, u16),
    /// The same over RDMA.
    Rping(IpAddr, rping::Options),
    /// What takes a while ends, if it can be ended.
    Cancel,
    /// The appliance ends.
    End(End),
    /// The capture.
    Capture(Capturing),
    /// About clients: of the first loop, and of those of other cores at these places among them.
    Clients(ClientOrder, &'a [usize]),
    /// A volume that takes no extents is made.
    MakeVolume(&'a Volume),
    /// A volume of extents is made.
    CreateOnDisk {
        /// The disk.
        disk: &'a DeviceName,
        /// Name of the volume.
        name: &'a str,
        /// Its size.
        bytes: u64,
        /// Whatever else may be on the disk.
        force: bool,
    },
    /// A volume of extents on the disk of a number grows to so many bytes.
    Grow(usize, &'a str, u64),
    /// Nobody may open a volume any more.
    RetireVolume(&'a str),
    /// A volume that was retired is no more; the disk that it was is free.
    DeleteVolume(&'a str, Option<&'a DeviceName>),
    /// A remote volume, of a configuration.
    AddRemote(&'a Remote, &'a Config),
    /// It is no more.
    RemoveRemote(&'a str),
    /// The device behind a remote volume is opened anew.
    Remap(&'a str),
    /// Reads are measured.
    Read(&'a str, Reads),
    /// The session of a name.
    Session(&'a str, SessionOrder),
    /// A mirror is made of two volumes.
    MakeMirror(&'a Mirror),
    /// One whose members are not of one mirror is made one.
    RemakeMirror(&'a Mirror),
    /// To a mirror that is there.
    Mirror(&'a str, MirrorOrder),
    /// A mirror comes to rest, and is taken apart.
    EndMirror(&'a str),
    /// The link of a bridge, or of the first, is taken down.
    ResetBridge(Option<&'a str>),
    /// What a bridge carries is measured, for so long each test.
    MeasureBridge(Option<&'a str>, Duration),
    /// What runs has come up.
    ConfirmUpgrade,
    /// A release is written and started.
    Upgrade(&'a [&'a str]),
    /// To the engine over UDP of a name.
    UdpEngine {
        /// Its name.
        name: &'a str,
        /// What it is to do.
        order: &'a str,
        /// And with what.
        words: &'a [&'a str],
    },
}
