//! LLC exchanges that we begin, one at a time in a group.

use super::ids::SocketId;

/// An LLC exchange that we began and whose answer we wait for.
#[derive(Clone, Debug)]
pub(super) enum Flow {
    /// ADD_LINK, as server, for this place.
    AddLink { link: usize },
    /// Version 1: ADD_LINK_CONT, as server; so many more may follow.
    MoveKeys { link: usize, more: u8 },
    /// CONFIRM_LINK, as server.
    ConfirmLink { link: usize },
    /// DELETE_RKEY.
    DeleteKey,
    /// CONFIRM_RKEY for a socket's buffer.
    ConfirmKey { rkey: u32, socket: SocketId },
}

impl Flow {
    /// The further link that it makes.
    pub fn link(&self) -> Option<usize> {
        match *self {
            Flow::AddLink { link } | Flow::MoveKeys { link, .. } | Flow::ConfirmLink { link } => {
                Some(link)
            }
            Flow::DeleteKey | Flow::ConfirmKey { .. } => None,
        }
    }
}
