//! A command in execution, and its states.
//!
//! | state | the request waits for | then |
//! |---|---|---|
//! | `Arriving` | its data, which is in the capsule | it is executed |
//! | `Throttled` | the limits of its namespace | `AwaitingMemory`, `Fetching`, or it is executed |
//! | `AwaitingMemory` | memory for its data | `Fetching`, or it is executed |
//! | `Fetching` | its data, which the transport moves | it is executed |
//! | `AwaitingPartner` | the other command of a fused operation, or its volume without other writes | it is executed |
//! | `AwaitingVolume` | room in its volume | it is executed |
//! | `Executing` | its volume | it is executed further, or completed |
//! | `Yielding` | the next round, because it has used its share of this one | it is executed further |
//! | `Sending` | its data to be copied by the transport | `Free` |
//! | `Parked` | an event (Asynchronous Event Request) | it is completed |
//! | `AwaitingReservation` | a change of its volume's reservations to be written | it is executed |
//! | `Persisting` | its own change of the reservations to be written | `AwaitingAborts`, or it is completed |
//! | `AwaitingAborts` | its volume to end commands of preempted hosts | it is completed |
//! | `Computing` | a key exchange (Authentication Receive) | `Sending` |
//! | `Held` | the end of an older controller of the same host (Connect) | it is executed |

use crate::command::Command;
use crate::fused::Fuse;
use crate::status::Status;
use alloc::sync::Arc;
use drivers::hal::Window;
use storage::volume::{Hold, VolumeId};

/// State of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    Free,
    Arriving,
    Throttled,
    AwaitingMemory,
    Fetching,
    AwaitingPartner,
    AwaitingVolume,
    Executing,
    Yielding,
    Sending,
    Parked,
    AwaitingReservation,
    Persisting,
    AwaitingAborts,
    Held,
    Computing,
}

impl State {
    /// All states.
    #[cfg(test)]
    pub const ALL: [State; 16] = [
        State::Free,
        State::Arriving,
        State::Throttled,
        State::AwaitingMemory,
        State::Fetching,
        State::AwaitingPartner,
        State::AwaitingVolume,
        State::Executing,
        State::Yielding,
        State::Sending,
        State::Parked,
        State::AwaitingReservation,
        State::Persisting,
        State::AwaitingAborts,
        State::Held,
        State::Computing,
    ];

    /// Whether a request may pass from this state to `next`. Each may become free: its queue ends.
    pub const fn may_become(self, next: State) -> bool {
        use State::*;
        match (self, next) {
            (_, Free) => true,
            (Free, Arriving | AwaitingMemory | Fetching | Parked) => true,
            // A command without data, or with memory at once.
            (Free, AwaitingVolume | Executing | Yielding | Sending) => true,
            (Free | Arriving, Throttled) => true,
            (Throttled, AwaitingMemory) => true,
            (AwaitingMemory | Throttled, Fetching) => true,
            (Free | Arriving | Throttled | Fetching, AwaitingPartner) => true,
            (AwaitingPartner, AwaitingVolume | Executing | Yielding) => true,
            (Free | AwaitingMemory, Computing) | (Computing, Sending) => true,
            (Arriving | Fetching, Held) => true,
            (
                Free | Arriving | Fetching | AwaitingReservation,
                AwaitingReservation | Persisting | AwaitingAborts,
            ) => true,
            (Persisting, AwaitingAborts) => true,
            (
                Arriving | Throttled | AwaitingMemory | Fetching | AwaitingVolume | Executing
                | Yielding,
                AwaitingVolume | Executing | Yielding | Sending,
            ) => true,
            _ => false,
        }
    }
}

/// Origin of a request's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Memory {
    /// The pool for data in capsules.
    Small,
    /// Further places for data in capsules, while commands wait for limits.
    Extra,
    /// The pool for all other data.
    Large,
}

/// A command in execution.
#[derive(Debug)]
pub struct Request {
    pub state: State,
    pub command: Command,
    /// Bytes of data, as its SGL says.
    pub length: u32,
    /// Memory of the data, and its origin.
    pub data: Option<(Window, Memory)>,
    /// Second piece of memory, of the same origin: what Compare reads.
    pub other: Option<Window>,
    /// Progress: sectors of the present range that are done.
    pub done: u64,
    /// Sectors of the part in its volume.
    pub part: u64,
    /// Index of the present range, or namespace.
    pub index: u32,
    /// Keeps the volume from being removed.
    pub hold: Option<Arc<Hold>>,
    /// The volume that has its part.
    pub volume: Option<VolumeId>,
    /// Another host has preempted its host: it is not executed further.
    pub is_preempted: bool,
    /// Its part in a fused operation, and the slot of the other command.
    pub fuse: Fuse,
    pub partner: Option<u16>,
    /// Status with which it fails, because of the other command.
    pub doom: Option<Status>,
    /// The volume is reserved for its fused operation.
    pub runs: bool,
}

impl Default for Request {
    fn default() -> Self {
        Request {
            state: State::Free,
            command: Command([0; 64]),
            length: 0,
            data: None,
            other: None,
            done: 0,
            part: 0,
            index: 0,
            hold: None,
            volume: None,
            is_preempted: false,
            fuse: Fuse::None,
            partner: None,
            doom: None,
            runs: false,
        }
    }
}

impl Request {
    /// Changes the state.
    ///
    /// # Panics
    /// If the table of states has no such change, which is a bug here.
    pub fn enter(&mut self, next: State) {
        debug_assert!(self.state.may_become(next), "{:?} to {next:?}", self.state);
        self.state = next;
    }

    /// Its data; empty without any.
    pub fn window(&self) -> Window {
        self.data.map_or(Window::empty(), |(window, _)| window)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_state_but_free_is_reached_and_left() {
        for state in State::ALL {
            assert!(state.may_become(State::Free));
            let reached =
                State::ALL.into_iter().any(|from| from != state && from.may_become(state));
            assert!(reached, "{state:?}");
        }
        assert!(!State::Executing.may_become(State::Fetching), "data is fetched before execution");
        assert!(!State::Sending.may_become(State::Executing));
        assert!(!State::Parked.may_become(State::Executing));
    }
}
