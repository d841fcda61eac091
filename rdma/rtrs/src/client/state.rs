//! The life of a path (rtrs-clt.c, `rtrs_clt_change_state`). Linux's CONNECTING_ERR and CLOSING
//! are moments here, because queue pairs end at once; its DEAD is a path that is not there.

/// State of a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PathState {
    /// Its connections are being made, or INFO_RSP is awaited.
    Connecting,
    /// It carries requests.
    Connected,
    /// It failed, and will be tried again.
    Reconnecting,
    /// It is down until the operator wants it again.
    Closed,
}

/// What moves a path from state to state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Input {
    /// It is to be connected: the pause is over, or the operator wants it.
    Connect,
    /// INFO_RSP was accepted.
    InfoAccepted,
    /// Something failed.
    Fail,
    /// The operator takes it down, or there were enough attempts.
    Close,
}

impl PathState {
    /// The next state; None if the input means nothing now.
    pub const fn next(self, input: Input) -> Option<PathState> {
        use PathState::{Closed, Connected, Connecting, Reconnecting};
        match (self, input) {
            (Reconnecting | Closed, Input::Connect) => Some(Connecting),
            (Connecting, Input::InfoAccepted) => Some(Connected),
            (Connecting | Connected, Input::Fail) => Some(Reconnecting),
            (Connecting | Connected | Reconnecting, Input::Close) => Some(Closed),
            _ => None,
        }
    }

    /// The word that the console shows.
    pub const fn as_str(self) -> &'static str {
        match self {
            PathState::Connecting => "connecting",
            PathState::Connected => "connected",
            PathState::Reconnecting => "reconnecting",
            PathState::Closed => "closed",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fmt::Write;
    use std::string::String;

    #[test]
    fn the_table() {
        use PathState::{Closed, Connected, Connecting, Reconnecting};
        let mut table = String::from("\n");
        for state in [Connecting, Connected, Reconnecting, Closed] {
            write!(table, "{:<12}", state.as_str()).unwrap();
            for input in [Input::Connect, Input::InfoAccepted, Input::Fail, Input::Close] {
                let next = state.next(input).map_or("-", PathState::as_str);
                write!(table, " | {input:?} {next}").unwrap();
            }
            table.push('\n');
        }
        let expected = "
connecting   | Connect - | InfoAccepted connected | Fail reconnecting | Close closed
connected    | Connect - | InfoAccepted - | Fail reconnecting | Close closed
reconnecting | Connect connecting | InfoAccepted - | Fail - | Close closed
closed       | Connect connecting | InfoAccepted - | Fail - | Close -
";
        assert_eq!(table, expected);
    }
}
