//! State machine of a path.

/// State of a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PathState {
    /// Connections are being established.
    Connecting,
    /// The path carries requests.
    Connected,
    /// Connections are gone; executing requests finish.
    Closing,
    /// The path can be removed.
    Closed,
}

/// An event that changes the state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Input {
    /// INFO_REQ was accepted.
    InfoAccepted,
    /// The path ends: disconnected by either side, protocol violation, or silence.
    End,
    /// No request is executing.
    Drained,
}

impl PathState {
    /// The state after `input`; None if the input has no effect.
    pub const fn next(self, input: Input) -> Option<PathState> {
        match (self, input) {
            (PathState::Connecting, Input::InfoAccepted) => Some(PathState::Connected),
            (PathState::Connecting | PathState::Connected, Input::End) => Some(PathState::Closing),
            (PathState::Closing, Input::Drained) => Some(PathState::Closed),
            _ => None,
        }
    }

    /// The name on the console.
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
    fn transition_table_is_as_expected() {
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
