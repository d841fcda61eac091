//! How connections end, as a table (Linux 6.12, net/smc/smc_close.c).
//!
//! Each side says once that its socket is closed: CLOSED, or ABORT where data was lost. SENDING_DONE
//! may go before. A socket is gone when both have said so.

/// State of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum State {
    /// The handshake runs.
    Init,
    /// Both sides may send.
    Active,
    /// We have ended our side, the peer has not.
    PeerCloseWait1,
    /// Likewise, and the peer has stopped sending.
    PeerCloseWait2,
    /// The peer has ended its side, we have not.
    AppCloseWait1,
    /// Likewise, and we have stopped sending.
    AppCloseWait2,
    /// We have stopped sending, then the peer has closed.
    AppFinCloseWait,
    /// The peer has stopped sending, then we have closed.
    PeerFinCloseWait,
    /// The peer aborted; our user has not closed yet.
    ProcessAbort,
    /// Over.
    Closed,
}

/// What moves a connection on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Input {
    /// Our user has stopped sending, and everything is sent.
    Shutdown,
    /// Our user has closed, and everything is sent.
    Close,
    /// The peer said SENDING_DONE.
    PeerDone,
    /// The peer said CLOSED.
    PeerClosed,
    /// The peer said ABORT.
    PeerAborted,
    /// No link is left.
    LinksLost,
}

/// What was said before.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Said {
    /// CLOSED or ABORT, by us.
    pub closed_here: bool,
    /// CLOSED or ABORT, by the peer.
    pub closed_there: bool,
}

/// What is to be said to the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Say {
    /// SENDING_DONE.
    Done,
    /// CLOSED, or ABORT if there is data that our user has not read.
    Closed,
    /// ABORT.
    Abort,
}

impl State {
    /// The state after `input`, and what is to be said.
    pub const fn next(self, input: Input, said: Said) -> (State, Option<Say>) {
        use State::*;
        match (input, self) {
            (_, Closed) => (Closed, None),
            (Input::LinksLost, _) => (Closed, None),

            (Input::Shutdown, Active) => (PeerCloseWait1, Some(Say::Done)),
            (Input::Shutdown, AppCloseWait1) => (AppCloseWait2, Some(Say::Done)),
            (Input::Shutdown, _) => (self, None),

            (Input::Close, Init) => (Closed, None),
            (Input::Close, Active) => (PeerCloseWait1, Some(Say::Closed)),
            (Input::Close, PeerCloseWait1 | PeerCloseWait2) if !said.closed_here => {
                (self, Some(Say::Closed))
            }
            (Input::Close, AppCloseWait1 | AppCloseWait2) if said.closed_there => {
                (Closed, Some(Say::Closed))
            }
            (Input::Close, AppCloseWait1 | AppCloseWait2) => (PeerFinCloseWait, Some(Say::Closed)),
            (Input::Close, AppFinCloseWait) => (Closed, Some(Say::Closed)),
            (Input::Close, ProcessAbort) => (Closed, Some(Say::Abort)),
            (Input::Close, _) => (self, None),

            (Input::PeerDone, Init | Active) => (AppCloseWait1, None),
            (Input::PeerDone, PeerCloseWait1) => (PeerCloseWait2, None),
            (Input::PeerDone, _) => (self, None),

            (Input::PeerClosed, Init | Active) => (AppCloseWait1, None),
            (Input::PeerClosed, PeerCloseWait1 | PeerCloseWait2) if said.closed_here => {
                (Closed, None)
            }
            (Input::PeerClosed, PeerCloseWait1 | PeerCloseWait2) => (AppFinCloseWait, None),
            (Input::PeerClosed, PeerFinCloseWait) => (Closed, None),
            (Input::PeerClosed, _) => (self, None),

            (Input::PeerAborted, PeerCloseWait1 | PeerCloseWait2) if said.closed_here => {
                (Closed, None)
            }
            (Input::PeerAborted, PeerFinCloseWait) => (Closed, None),
            // Linux closes at once in AppCloseWait2, and says nothing; here the user closes.
            (Input::PeerAborted, _) => (ProcessAbort, None),
        }
    }

    /// The word that the console shows; the tools of Linux use the same.
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
    fn the_table() {
        let mut table = String::new();
        for (closed_here, closed_there) in
            [(false, false), (true, false), (false, true), (true, true)]
        {
            writeln!(table, "closed here {closed_here}, there {closed_there}").unwrap();
            for state in State::ALL {
                write!(table, "{:<16}", state.as_str()).unwrap();
                for input in INPUTS {
                    let (next, say) = state.next(input, Said { closed_here, closed_there });
                    if next == state && say.is_none() {
                        continue;
                    }
                    write!(table, " | {input:?} {}", next.as_str()).unwrap();
                    if let Some(say) = say {
                        write!(table, " +{say:?}").unwrap();
                    }
                }
                table.truncate(table.trim_end().len());
                table.push('\n');
            }
        }
        let expected = include_str!("../testdata/states.txt");
        assert!(table == expected, "\n{table}");
    }

    /// Every path of two peers ends with both closed, whoever does what when.
    #[test]
    fn two_peers_always_end() {
        // Each does at most a shutdown, then a close; messages arrive in order, at any time.
        #[derive(Clone, Debug, PartialEq, Eq, Hash)]
        struct End {
            state: State,
            done: bool,
            closed: bool,
            user: u8,
        }
        type World = (End, End, std::vec::Vec<(usize, Say)>);
        fn input(end: &mut End, peer_closed: bool, input: Input) -> Option<Say> {
            let said = Said { closed_here: end.closed, closed_there: peer_closed };
            let (next, say) = end.state.next(input, said);
            end.state = next;
            match say {
                Some(Say::Done) => end.done = true,
                Some(_) => end.closed = true,
                None => {}
            }
            say
        }
        let end = || End { state: State::Active, done: false, closed: false, user: 0 };
        let mut seen = std::collections::HashSet::new();
        let mut todo: std::vec::Vec<(World, [bool; 2])> =
            std::vec![((end(), end(), std::vec![]), [false; 2])];
        let mut ends = 0;
        while let Some((world, heard)) = todo.pop() {
            if !seen.insert((
                world.0.clone(),
                world.1.clone(),
                std::format!("{:?}", world.2),
                heard,
            )) {
                continue;
            }
            let mut moved = false;
            for who in 0..2 {
                // The user: shutdown or not, close, abort.
                for step in [1u8, 2] {
                    let mut next = world.clone();
                    let end = if who == 0 { &mut next.0 } else { &mut next.1 };
                    if end.user >= step {
                        continue;
                    }
                    end.user = step;
                    let what = if step == 1 { Input::Shutdown } else { Input::Close };
                    for abort in [false, true] {
                        let mut next = next.clone();
                        let end = if who == 0 { &mut next.0 } else { &mut next.1 };
                        if let Some(say) = input(end, heard[who], what) {
                            let say = if abort && say == Say::Closed { Say::Abort } else { say };
                            next.2.push((1 - who, say));
                        }
                        todo.push((next, heard));
                    }
                    moved = true;
                }
                // The first message that is on its way to `who`.
                if let Some(at) = world.2.iter().position(|&(to, _)| to == who) {
                    let mut next = world.clone();
                    let (_, say) = next.2.remove(at);
                    let mut heard = heard;
                    let what = match say {
                        Say::Done => Input::PeerDone,
                        Say::Closed => Input::PeerClosed,
                        Say::Abort => Input::PeerAborted,
                    };
                    heard[who] |= say != Say::Done;
                    let end = if who == 0 { &mut next.0 } else { &mut next.1 };
                    if let Some(say) = input(end, heard[who], what) {
                        next.2.push((1 - who, say));
                    }
                    todo.push((next, heard));
                    moved = true;
                }
            }
            if !moved {
                ends += 1;
                assert_eq!((world.0.state, world.1.state), (State::Closed, State::Closed));
                assert!(world.0.closed && world.1.closed, "both have said so: {world:?}");
            }
        }
        assert_eq!(ends, 4, "with and without a shutdown, on either side");
    }
}
