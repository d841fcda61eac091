//! Meaning of a completion's status (Base Specification section 4.6.1; the verdicts are those of Linux 6.12,
//! drivers/nvme/host/core.c, `nvme_decide_disposition`).

use crate::request::Error;

/// Do Not Retry.
const DNR: u16 = 0x4000;
/// Status code type and status code.
const CODE: u16 = 0x07ff;

/// What becomes of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It succeeded.
    Success,
    /// It fails.
    Error(Error),
    /// It is sent again, a few times.
    Retry,
    /// The namespace is not reached over this path now: it is sent over another.
    Elsewhere,
    /// The controller wants the queue to be authenticated again: the path is opened anew.
    Authenticate,
}

/// The status of a completion: bits 15 to 1 of its last word, without the phase.
pub fn of(cqe: &[u8; 16]) -> u16 {
    u16::from_le_bytes([cqe[14], cqe[15]]) >> 1
}

/// Whether the controller says that a retry fails as well.
pub fn is_final(status: u16) -> bool {
    status & DNR != 0
}

/// The verdict on a command's status. `optional`: the command is one that a controller need not support.
pub fn judge(status: u16, optional: bool) -> Verdict {
    let refusal = if optional { Error::Unsupported } else { Error::Invalid };
    match status & CODE {
        0 => Verdict::Success,
        // Invalid opcode, invalid field.
        0x01 | 0x02 => Verdict::Error(refusal),
        // Write protected, attempted write to read only range, access denied.
        0x20 | 0x182 | 0x286 => Verdict::Error(Error::ReadOnly),
        0x80 => Verdict::Error(Error::PastEnd),
        // Capacity exceeded.
        0x81 => Verdict::Error(Error::Io),
        0x83 => Verdict::Error(Error::Reserved),
        0x191 => Verdict::Authenticate,
        0x301..=0x303 => Verdict::Elsewhere,
        _ if is_final(status) => Verdict::Error(Error::Io),
        _ => Verdict::Retry,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn verdicts_respect_do_not_retry() {
        assert_eq!(judge(0, false), Verdict::Success);
        assert_eq!(judge(0x06, false), Verdict::Retry);
        assert_eq!(judge(0x06 | DNR, false), Verdict::Error(Error::Io));
        assert_eq!(judge(0x281, false), Verdict::Retry);
        assert_eq!(judge(0x80, false), Verdict::Error(Error::PastEnd));
        assert_eq!(judge(0x01 | DNR, true), Verdict::Error(Error::Unsupported));
        assert_eq!(judge(0x302, false), Verdict::Elsewhere);
        assert_eq!(judge(0x360 | DNR, false), Verdict::Error(Error::Io));
        assert_eq!(judge(0x4191, false), Verdict::Authenticate);
    }
}
