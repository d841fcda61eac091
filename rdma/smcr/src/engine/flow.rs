//! LLC exchanges that we start, one at a time in a group.

use super::ids::SocketId;

/// An LLC exchange of ours that waits for the peer's response.
#[derive(Clone, Debug)]
pub(super) enum Flow {
    /// ADD_LINK, as server, for this link slot.
    AddLink { link: usize },
    /// Version 1: ADD_LINK_CONT, as server; `more`: further messages allowed.
    MoveKeys { link: usize, more: u8 },
    /// CONFIRM_LINK, as server.
    ConfirmLink { link: usize },
    /// DELETE_RKEY.
    DeleteKey,
    /// CONFIRM_RKEY for a socket's buffer.
    ConfirmKey { rkey: u32, socket: SocketId },
}

impl Flow {
    /// The additional link that the exchange sets up.
    pub fn link(&self) -> Option<usize> {
        match *self {
            Flow::AddLink { link } | Flow::MoveKeys { link, .. } | Flow::ConfirmLink { link } => {
                Some(link)
            }
            Flow::DeleteKey | Flow::ConfirmKey { .. } => None,
        }
    }
}
