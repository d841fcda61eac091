//! CLC Decline.

use super::clc::{FLAG, Header, MessageType, PeerId, seal};
use super::{Os, Reason, WireError, byte, field};
use alloc::vec::Vec;

const V1: usize = 28;
const V2: usize = 44;

/// A Decline: the sender falls back to TCP, which carries the application's bytes from here on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Decline {
    /// Version.
    pub version: u8,
    /// The sender does not know the link group of the Accept or Confirm. The receiver ends that group.
    pub out_of_sync: bool,
    /// The sender's peer ID.
    pub peer_id: PeerId,
    /// Diagnosis code.
    pub reason: Reason,
    /// Version 2: the sender's operating system.
    pub os: Os,
}

impl Decline {
    /// Parses a message.
    pub fn parse(bytes: &[u8]) -> Result<Self, WireError> {
        let header = Header::of_message(bytes)?;
        if header.kind != MessageType::Decline {
            return Err(WireError::Type(header.kind as u8));
        }
        let need = if header.version == 1 { V1 } else { V2 };
        if bytes.len() != need {
            return Err(WireError::Length { have: bytes.len() });
        }
        Ok(Decline {
            version: header.version,
            out_of_sync: header.flag(),
            peer_id: PeerId(field(bytes, 8..16)?),
            reason: Reason(u32::from_be_bytes(field(bytes, 16..20)?)),
            os: Os(byte(bytes, 20)? >> 4),
        })
    }

    /// Emits the message.
    pub fn emit(&self) -> Vec<u8> {
        let mut b = alloc::vec![0; if self.version == 1 { V1 } else { V2 }];
        b[8..16].copy_from_slice(&self.peer_id.0);
        b[16..20].copy_from_slice(&self.reason.0.to_be_bytes());
        b[20] = if self.version == 1 { 0 } else { self.os.0 << 4 };
        let bits = if self.out_of_sync { FLAG } else { 0 };
        seal(&mut b, MessageType::Decline, self.version, bits);
        b
    }
}

/// Whether `bytes` begin with a Decline.
pub fn is_decline(bytes: &[u8]) -> bool {
    let message = || bytes.get(..crate::wire::frame_length(bytes).ok()??);
    message().is_some_and(|message| Decline::parse(message).is_ok())
}

#[cfg(test)]
mod tests {
    use super::super::vectors::vector;
    use super::*;

    #[test]
    fn version_1() {
        let bytes = vector("decline_v1");
        let decline = Decline::parse(&bytes).unwrap();
        assert_eq!((decline.version, decline.reason), (1, Reason::NO_DEVICE));
        assert!(!decline.out_of_sync);
        assert_eq!(decline.emit(), bytes);
    }

    #[test]
    fn version_2_round_trips() {
        let decline = Decline {
            version: 2,
            out_of_sync: true,
            peer_id: PeerId::new(0x1234, [2, 0, 0, 0, 0, 1]),
            reason: Reason::SYNC,
            os: Os::LINUX,
        };
        let mut bytes = decline.emit();
        assert_eq!(bytes.len(), 44);
        assert_eq!(Decline::parse(&bytes), Ok(decline));
        *bytes.last_mut().unwrap() = 0;
        assert_eq!(Decline::parse(&bytes), Ok(decline), "its trailer is not checked");
        bytes[6] = 28;
        assert!(Decline::parse(&bytes[..28]).is_err(), "the length is that of version 1");
    }
}
