//! The life of a device (rnbd-clt.h, `enum rnbd_clt_dev_state`).

/// State of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DeviceState {
    /// The session is down.
    Disconnected,
    /// OPEN was sent, or will be.
    Opening,
    /// The server refused; it is asked again after a pause.
    Refused,
    /// It takes requests.
    Open,
    /// The server does not know it any more, although it was not started anew: somebody closed it
    /// there. It waits for the operator, or for the next session.
    Closed,
}

/// What moves a device from state to state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Input {
    /// The session is up, or the pause is over, or the operator wants it opened.
    Open,
    /// OPEN was answered.
    Opened,
    /// OPEN was refused.
    Refuse,
    /// The server says that it is not open.
    Unknown,
    /// The session went down.
    Disconnect,
}

impl DeviceState {
    /// The next state; None if the input means nothing now.
    pub const fn next(self, input: Input) -> Option<DeviceState> {
        use DeviceState::{Closed, Disconnected, Open, Opening, Refused};
        match (self, input) {
            (Disconnected | Refused | Closed, Input::Open) => Some(Opening),
            // A device that is opened again to learn its size goes on taking requests.
            (Opening, Input::Opened) => Some(Open),
            (Opening, Input::Refuse) => Some(Refused),
            (Open, Input::Unknown) => Some(Closed),
            (Opening | Refused | Open | Closed, Input::Disconnect) => Some(Disconnected),
            _ => None,
        }
    }

    /// The word that the console shows.
    pub const fn as_str(self) -> &'static str {
        match self {
            DeviceState::Disconnected => "disconnected",
            DeviceState::Opening => "opening",
            DeviceState::Refused => "refused",
            DeviceState::Open => "open",
            DeviceState::Closed => "closed",
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
        use DeviceState::{Closed, Disconnected, Open, Opening, Refused};
        let mut table = String::from("\n");
        for state in [Disconnected, Opening, Refused, Open, Closed] {
            write!(table, "{:<12}", state.as_str()).unwrap();
            for input in
                [Input::Open, Input::Opened, Input::Refuse, Input::Unknown, Input::Disconnect]
            {
                let next = state.next(input).map_or("-", DeviceState::as_str);
                write!(table, " | {input:?} {next}").unwrap();
            }
            table.push('\n');
        }
        let expected = "
disconnected | Open opening | Opened - | Refuse - | Unknown - | Disconnect -
opening      | Open - | Opened open | Refuse refused | Unknown - | Disconnect disconnected
refused      | Open opening | Opened - | Refuse - | Unknown - | Disconnect disconnected
open         | Open - | Opened - | Refuse - | Unknown closed | Disconnect disconnected
closed       | Open opening | Opened - | Refuse - | Unknown - | Disconnect disconnected
";
        assert_eq!(table, expected);
    }
}
