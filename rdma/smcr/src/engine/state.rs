//! Connection states and the transitions that end connections, as a table (Linux 6.12, net/smc/smc_close.c).
//!
//! Each side sends once that its socket is closed: CLOSED, or ABORT if data was lost. SENDING_DONE may precede it. A
//! socket is removed when both sides have sent it.

/// State of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum State {
    /// The handshake is under way.
    Init,
    /// Both sides may send.
    Active,
    /// We have ended our side, the peer has not.
    PeerCloseWait1,
    /// We have ended our side, and the peer has stopped sending.
    PeerCloseWait2,
    /// The peer has ended its side, we have not.
    AppCloseWait1,
    /// The peer has ended its side, and we have stopped sending.
    AppCloseWait2,
    /// We have stopped sending, then the peer has closed.
    AppFinCloseWait,
    /// The peer has stopped sending, then we have closed.
    PeerFinCloseWait,
    /// The peer aborted; our user has not closed yet.
    ProcessAbort,
    /// The connection is over.
    Closed,
}

/// An event that changes the state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Input {
    /// Our user has stopped sending, and all data is sent.
    Shutdown,
    /// Our user has closed, and all data is sent.
    Close,
    /// The peer sent SENDING_DONE.
    PeerDone,
    /// The peer sent CLOSED.
    PeerClosed,
    /// The peer sent ABORT.
    PeerAborted,
    /// No link is left.
    LinksLost,
}

/// Which sides have closed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CloseStatus {
    /// We have sent CLOSED or ABORT.
    pub closed_here: bool,
    /// The peer has sent CLOSED or ABORT.
    pub closed_there: bool,
}

/// End flag of CDC messages, to be sent to the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flag {
    /// SENDING_DONE.
    Done,
    /// CLOSED, or ABORT if our user has unread data.
    Closed,
    /// ABORT.
    Abort,
}

impl State {
    /// The state after `input`, and the flag to send.
    pub const fn next(self, input: Input, status: CloseStatus) -> (State, Option<Flag>) {
        use State::*;
        match (input, self) {
            (_, Closed) => (Closed, None),
            (Input::LinksLost, _) => (Closed, None),

            (Input::Shutdown, Active) => (PeerCloseWait1, Some(Flag::Done)),
            (Input::Shutdown, AppCloseWait1) => (AppCloseWait2, Some(Flag::Done)),
            (Input::Shutdown, _) => (self, None),

            (Input::Close, Init) => (Closed, None),
            (Input::Close, Active) => (PeerCloseWait1, Some(Flag::Closed)),
            (Input::Close, PeerCloseWait1 | PeerCloseWait2) if !status.closed_here => {
                (self, Some(Flag::Closed))
            }
            (Input::Close, AppCloseWait1 | AppCloseWait2) if status.closed_there => {
                (Closed, Some(Flag::Closed))
            }
            (Input::Close, AppCloseWait1 | AppCloseWait2) => (PeerFinCloseWait, Some(Flag::Closed)),
            (Input::Close, AppFinCloseWait) => (Closed, Some(Flag::Closed)),
            (Input::Close, ProcessAbort) => (Closed, Some(Flag::Abort)),
            (Input::Close, _) => (self, None),

            (Input::PeerDone, Init | Active) => (AppCloseWait1, None),
            (Input::PeerDone, PeerCloseWait1) => (PeerCloseWait2, None),
            (Input::PeerDone, _) => (self, None),

            (Input::PeerClosed, Init | Active) => (AppCloseWait1, None),
            (Input::PeerClosed, PeerCloseWait1 | PeerCloseWait2) if status.closed_here => {
                (Closed, None)
            }
            (Input::PeerClosed, PeerCloseWait1 | PeerCloseWait2) => (AppFinCloseWait, None),
            (Input::PeerClosed, PeerFinCloseWait) => (Closed, None),
            (Input::PeerClosed, _) => (self, None),

            (Input::PeerAborted, PeerCloseWait1 | PeerCloseWait2) if status.closed_here => {
                (Closed, None)
            }
            (Input::PeerAborted, PeerFinCloseWait) => (Closed, None),
            // In AppCloseWait2 Linux closes at once and sends nothing; here the user closes.
            (Input::PeerAborted, _) => (ProcessAbort, None),
        }
    }

    /// The name on the console, as smc-tools print it.
    pub const fn as_str(self) -> &'static str {
        match self {
            State::Init => "INIT",
            State::Active => "ACTIVE",
            State::PeerCloseWait1 => "PEERCLOSEWAIT1",
            State::PeerCloseWait2 => "PEERCLOSEWAIT2",
            State::AppCloseWait1 => "APPCLOSEWAIT1",
            State::AppCloseWait2 => "APPCLOSEWAIT2",
            State::AppFinCloseWait => "APPFINCLOSEWAIT",
            State::PeerFinCloseWait => "PEERFINCLOSEWAIT",
            State::ProcessAbort => "PROCESSABORT",
            State::Closed => "CLOSED",
        }
    }

    /// All states.
    pub const ALL: [State; 10] = [
        State::Init,
        State::Active,
        State::PeerCloseWait1,
        State::PeerCloseWait2,
        State::AppCloseWait1,
        State::AppCloseWait2,
        State::AppFinCloseWait,
        State::PeerFinCloseWait,
        State::ProcessAbort,
        State::Closed,
    ];
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fmt::Write;
    use std::string::String;

    const INPUTS: [Input; 6] = [
        Input::Shutdown,
        Input::Close,
        Input::PeerDone,
        Input::PeerClosed,
        Input::PeerAborted,
        Input::LinksLost,
    ];

    #[test]
    fn transition_table_is_as_expected() {
        let mut table = String::new();
        for (closed_here, closed_there) in
            [(false, false), (true, false), (false, true), (true, true)]
        {
            writeln!(table, "closed here {closed_here}, there {closed_there}").unwrap();
            for state in State::ALL {
                write!(table, "{:<16}", state.as_str()).unwrap();
                for input in INPUTS {
                    let (next, bit) = state.next(input, CloseStatus { closed_here, closed_there });
                    if next == state && bit.is_none() {
                        continue;
                    }
                    write!(table, " | {input:?} {}", next.as_str()).unwrap();
                    if let Some(bit) = bit {
                        write!(table, " +{bit:?}").unwrap();
                    }
                }
                table.truncate(table.trim_end().len());
                table.push('\n');
            }
        }
        let expected = include_str!("../testdata/states.txt");
        assert!(table == expected, "\n{table}");
    }

    /// Every sequence of actions of two peers ends with both sockets closed.
    #[test]
    fn two_peers_always_end() {
        // Each peer does at most a shutdown, then a close. Messages arrive in order, at any time.
        #[derive(Clone, Debug, PartialEq, Eq, Hash)]
        struct End {
            state: State,
            done: bool,
            closed: bool,
            user: u8,
        }
        type World = (End, End, std::vec::Vec<(usize, Flag)>);
        fn input(end: &mut End, peer_closed: bool, input: Input) -> Option<Flag> {
            let status = CloseStatus { closed_here: end.closed, closed_there: peer_closed };
            let (next, bit) = end.state.next(input, status);
            end.state = next;
            match bit {
                Some(Flag::Done) => end.done = true,
                Some(_) => end.closed = true,
                None => {}
            }
            bit
        }
        let end = || End { state: State::Active, done: false, closed: false, user: 0 };
        let mut seen = std::collections::HashSet::new();
        let mut todo: std::vec::Vec<(World, [bool; 2])> =
            std::vec![((end(), end(), std::vec![]), [false; 2])];
        let mut ends = 0;
        while let Some((world, received)) = todo.pop() {
            if !seen.insert((
                world.0.clone(),
                world.1.clone(),
                std::format!("{:?}", world.2),
                received,
            )) {
                continue;
            }
            let mut moved = false;
            for side in 0..2 {
                // The user: shutdown or not, close, abort.
                for step in [1u8, 2] {
                    let mut next = world.clone();
                    let end = if side == 0 { &mut next.0 } else { &mut next.1 };
                    if end.user >= step {
                        continue;
                    }
                    end.user = step;
                    let event = if step == 1 { Input::Shutdown } else { Input::Close };
                    for abort in [false, true] {
                        let mut next = next.clone();
                        let end = if side == 0 { &mut next.0 } else { &mut next.1 };
                        if let Some(bit) = input(end, received[side], event) {
                            let bit = if abort && bit == Flag::Closed { Flag::Abort } else { bit };
                            next.2.push((1 - side, bit));
                        }
                        todo.push((next, received));
                    }
                    moved = true;
                }
                // Delivers the first message to `side`.
                if let Some(at) = world.2.iter().position(|&(to, _)| to == side) {
                    let mut next = world.clone();
                    let (_, bit) = next.2.remove(at);
                    let mut received = received;
                    let event = match bit {
                        Flag::Done => Input::PeerDone,
                        Flag::Closed => Input::PeerClosed,
                        Flag::Abort => Input::PeerAborted,
                    };
                    received[side] |= bit != Flag::Done;
                    let end = if side == 0 { &mut next.0 } else { &mut next.1 };
                    if let Some(bit) = input(end, received[side], event) {
                        next.2.push((1 - side, bit));
                    }
                    todo.push((next, received));
                    moved = true;
                }
            }
            if !moved {
                ends += 1;
                assert_eq!((world.0.state, world.1.state), (State::Closed, State::Closed));
                assert!(world.0.closed && world.1.closed, "both have sent it: {world:?}");
            }
        }
        assert_eq!(ends, 4, "with and without a shutdown, on either side");
    }
}
