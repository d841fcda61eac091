//! The life of a path as a table.

/// State of a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PathState {
    /// Its connections are being made.
    Connecting,
    /// It carries requests.
    Connected,
    /// Its connections are gone, requests that are being worked on finish.
    Closing,
    /// Nothing is left of it.
    Closed,
}

/// What moves a path on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Input {
    /// INFO_REQ was accepted.
    InfoAccepted,
    /// Any end: disconnected by either side, a fault of the peer, silence.
    End,
    /// No request is left.
    Drained,
}

impl PathState {
    /// The state after `input`; None where it changes nothing.
    pub const fn next(self, input: Input) -> Option<PathState> {
        match (self, input) {
            (PathState::Connecting, Input::InfoAccepted) => Some(PathState::Connected),
            (PathState::Connecting | PathState::Connected, Input::End) => Some(PathState::Closing),
            (PathState::Closing, Input::Drained) => Some(PathState::Closed),
            _ => None,
        }
    }

    /// The word that the console shows.
    pub const fn as_str(self) -> &'static str {
        match self {
            PathState::Connecting => "connecting",
            PathState::Connected => "connected",
            PathState::Closing => "closing",
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
        let mut table = String::from("\n");
        for state in
            [PathState::Connecting, PathState::Connected, PathState::Closing, PathState::Closed]
        {
            write!(table, "{:<10}", state.as_str()).unwrap();
            for input in [Input::InfoAccepted, Input::End, Input::Drained] {
                let next = state.next(input).map_or("-", PathState::as_str);
                write!(table, " | {input:?} {next}").unwrap();
            }
            table.push('\n');
        }
        let expected = "
connecting | InfoAccepted connected | End closing | Drained -
connected  | InfoAccepted - | End closing | Drained -
closing    | InfoAccepted - | End - | Drained closed
closed     | InfoAccepted - | End - | Drained -
";
        assert_eq!(table, expected);
    }
}
