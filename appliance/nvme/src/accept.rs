//! What a command must be to be accepted: its opcode for the queue, its data for the capsule.

use crate::command::{Command, Sgl, fabrics};
use crate::queue::Role;
use crate::status::Status;

/// Why a command is refused before it is executed.
pub(crate) enum Wrong {
    /// The capsule's data is not what the entry says: the connection cannot continue.
    Capsule,
    Status(Status),
}

/// Checks the opcode before any data is fetched.
pub(crate) fn check_opcode(command: &Command, role: Role) -> Option<Status> {
    let opcode = command.opcode();
    let (supported, status) = match role {
        Role::Fresh => {
            let connects = command.is_fabrics() && command.fctype() == fabrics::CONNECT;
            (connects, Status::SEQUENCE)
        }
        _ if command.is_fabrics() => {
            (crate::fabrics::is_supported(command.fctype()), Status::INVALID_OPCODE)
        }
        Role::Admin { .. } => (crate::admin::is_supported(opcode), Status::INVALID_OPCODE),
        Role::Io { .. } => (crate::io::is_supported(opcode), Status::INVALID_OPCODE),
    };
    (!supported).then_some(status)
}

/// Checks Authentication Send or Receive before any data is fetched.
pub(crate) fn check_authentication(command: &Command, is_offered: bool) -> Option<Status> {
    let is_long = command.u32(32) > crate::auth::LONGEST_MESSAGE;
    match is_offered {
        false => Some(Status::INVALID_OPCODE),
        true => is_long.then_some(Status::INVALID_FIELD),
    }
}

/// Checks what a command says about its data against its capsule.
pub(crate) fn check_data(
    command: &Command,
    in_capsule: u32,
    max_transfer: u32,
) -> Result<(), Wrong> {
    let sgl = command.sgl().map_err(Wrong::Status)?;
    match sgl {
        Sgl::InCapsule { length } if length != in_capsule => Err(Wrong::Capsule),
        Sgl::Transport { .. } if in_capsule != 0 => Err(Wrong::Capsule),
        Sgl::InCapsule { length: 1.. } if !command.sends_data() => {
            Err(Wrong::Status(Status::INVALID_FIELD))
        }
        Sgl::Transport { length } if length > max_transfer => {
            Err(Wrong::Status(Status::INVALID_FIELD))
        }
        _ => Ok(()),
    }
}
