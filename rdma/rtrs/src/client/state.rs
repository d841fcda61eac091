//! State machine of a path (rtrs-clt.c, `rtrs_clt_change_state`). Linux's CONNECTING_ERR and CLOSING do not exist,
//! because queue pairs end at once; Linux's DEAD is a removed path.

/// State of a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PathState {
    /// Connections are being established, or INFO_RSP is awaited.
    Connecting,
    /// The path carries requests.
    Connected,
    /// The path failed, and will be retried.
    Reconnecting,
    /// The path is down until the operator reconnects it.
    Closed,
}

/// An event that changes the state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Input {
    /// Connect: the pause is over, or the operator reconnects.
    Connect,
    /// INFO_RSP was accepted.
    InfoAccepted,
    /// A failure.
    Fail,
    /// The operator disconnects, or all attempts are used up.
    Close,
}

impl PathState {
    /// The next state; None if the input has no effect.
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

    /// The name on the console.
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
    fn transition_table_is_as_expected() {
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
