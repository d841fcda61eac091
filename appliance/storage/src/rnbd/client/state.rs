//! State machine of a device (rnbd-clt.h, `enum rnbd_clt_dev_state`).

/// State of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DeviceState {
    /// The session is down.
    Disconnected,
    /// OPEN was sent, or will be sent.
    Opening,
    /// The server refused to open it; OPEN is sent again after a delay.
    Refused,
    /// It accepts requests.
    Open,
    /// The server's operator closed it: the server responds that it is not open, and was not restarted. It stays
    /// closed until the operator maps it again or the session is established anew.
    Closed,
}

/// Input of the state machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Input {
    /// The session is up, the delay is over, or the operator opens it.
    Open,
    /// The server opened it.
    Opened,
    /// The server refused to open it.
    Refuse,
    /// The server responded that it is not open.
    Unknown,
    /// The session went down.
    Disconnect,
}

impl DeviceState {
    /// The next state; None if the input does not apply in this state.
    pub const fn next(self, input: Input) -> Option<DeviceState> {
        use DeviceState::{Closed, Disconnected, Open, Opening, Refused};
        match (self, input) {
            (Disconnected | Refused | Closed, Input::Open) => Some(Opening),
            // A device that is opened again to learn its size stays open meanwhile.
            (Opening, Input::Opened) => Some(Open),
            (Opening, Input::Refuse) => Some(Refused),
            (Open, Input::Unknown) => Some(Closed),
            (Opening | Refused | Open | Closed, Input::Disconnect) => Some(Disconnected),
            _ => None,
        }
    }

    /// The state as the console shows it.
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
    fn every_transition_is_as_listed() {
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
