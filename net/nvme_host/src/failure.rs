//! Why a path ended, in words for the operator.

use core::fmt;
use nvme_tcp::wire::{Fatal, Fes};

/// Why a path ended or was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// No route, no free connection, or the name has no address.
    NoRoute,
    /// The machine refused the TCP connection, or did not answer.
    Refused,
    /// The controller closed or reset a connection.
    Closed,
    /// This step of the connection's beginning was not answered within its time limit.
    Slow(&'static str),
    /// No completion of a command within `keepalive_ms`.
    Silent,
    /// The controller sent an invalid PDU.
    Pdu(Fatal),
    /// Data arrived with a wrong digest.
    DataDigest,
    /// The controller ended the connection with this status of a C2HTermReq.
    Terminated(u16),
    /// The controller answered this command with this status.
    Rejected(&'static str, u16),
    /// Authentication failed, or is missing at one end.
    Authentication(&'static str),
    /// The controller cannot be used.
    Controller(&'static str),
    /// The namespace cannot be a volume.
    Namespace(&'static str),
    /// The namespace is not the one that the volume was opened with.
    Changed(&'static str),
    /// The namespace is smaller than before, in bytes: before, now.
    Smaller(u64, u64),
    /// The controller broke the protocol of commands.
    Protocol(&'static str),
    /// The volume's user gave up its requests.
    GivenUp,
}

impl Failure {
    /// Whether the controller is there, and an operator has to correct something.
    pub fn is_refusal(&self) -> bool {
        matches!(
            self,
            Failure::Rejected(..)
                | Failure::Authentication(_)
                | Failure::Controller(_)
                | Failure::Namespace(_)
                | Failure::Changed(_)
                | Failure::Smaller(..)
        )
    }
}

/// A fatal error of the transport, in words.
fn transport(f: &mut fmt::Formatter<'_>, fatal: &Fatal) -> fmt::Result {
    let what = match fatal.status {
        Fes::Field => "a field of its header, at that offset, is invalid",
        Fes::Sequence => "it is not allowed at this point",
        Fes::HeaderDigest => "its header digest is wrong",
        Fes::Range => "its data is outside of the command's",
        Fes::Limit => "it asks for data before the data that it asked for was sent",
        Fes::Unsupported => "its parameters are not supported",
    };
    write!(f, "the controller sent an invalid PDU: {what} ({})", fatal.info)
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Failure::NoRoute => f.write_str("no address of the controller, or no route to it"),
            Failure::Refused => {
                f.write_str("the machine refuses the connection or does not answer")
            }
            Failure::Closed => f.write_str("the controller closed the connection"),
            Failure::Slow(step) => write!(f, "the controller did not answer in time: {step}"),
            Failure::Silent => {
                f.write_str("the controller did not complete a command within `keepalive_ms`")
            }
            Failure::Pdu(fatal) => transport(f, fatal),
            Failure::DataDigest => f.write_str("data arrived with a wrong digest"),
            Failure::Terminated(status) => {
                write!(f, "the controller ended the connection with status {status}")
            }
            Failure::Rejected("Connect", 0x4182) => f.write_str(
                "the controller refuses this host: check `nqn`, and that the subsystem admits `host_nqn`",
            ),
            Failure::Rejected("Connect", 0x4184) => {
                f.write_str("the subsystem does not admit `host_nqn`")
            }
            Failure::Rejected(command, status) => {
                write!(f, "the controller answered {command} with status {status:#x}")
            }
            Failure::Authentication(why) => write!(f, "authentication: {why}"),
            Failure::Controller(what) => write!(f, "the controller cannot be used: {what}"),
            Failure::Namespace(what) => write!(f, "the namespace cannot be a volume: {what}"),
            Failure::Changed(what) => write!(
                f,
                "not the namespace that was opened before: {what}; remove and add the remote to accept it"
            ),
            Failure::Smaller(before, now) => write!(
                f,
                "the namespace had {before} bytes and has {now}; remove and add the remote to accept it"
            ),
            Failure::Protocol(what) => write!(f, "invalid answer of the controller: {what}"),
            Failure::GivenUp => {
                f.write_str("its requests were given up, because it did not answer")
            }
        }
    }
}
