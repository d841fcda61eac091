//! Status of completions (Base Specification, section 4.6.1).

/// A status: status code, status code type, and the bits More and Do Not Retry, as in bits 15:1 of a completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Status(pub u16);

/// A retry of the command will fail as well.
const DNR: u16 = 0x4000;

impl Status {
    /// The command has succeeded.
    pub const SUCCESS: Status = Status(0);
    /// The opcode is not supported.
    pub const INVALID_OPCODE: Status = Status(0x01 | DNR);
    /// A field has a reserved or unsupported value.
    pub const INVALID_FIELD: Status = Status(0x02 | DNR);
    /// Data was damaged on the way; the host may send it again.
    pub const TRANSIENT_TRANSPORT: Status = Status(0x22);
    /// An error of this program.
    pub const INTERNAL: Status = Status(0x06);
    /// The volume has its most registrants.
    pub const FULL: Status = Status(0x06 | DNR);
    /// The host has aborted the command.
    pub const ABORTED: Status = Status(0x07 | DNR);
    /// The command's controller is being reset or shut down.
    pub const ABORTED_QUEUE: Status = Status(0x08);
    /// The other command of the fused operation has failed.
    pub const FAILED_FUSED: Status = Status(0x09 | DNR);
    /// The other command of the fused operation is missing.
    pub const MISSING_FUSED: Status = Status(0x0a | DNR);
    /// The namespace does not exist.
    pub const INVALID_NAMESPACE: Status = Status(0x0b | DNR);
    /// The command is not valid in the controller's state.
    pub const SEQUENCE: Status = Status(0x0c | DNR);
    /// The SGL describes fewer bytes than the command needs.
    pub const SGL_LENGTH: Status = Status(0x0f | DNR);
    /// The type of the SGL is not supported.
    pub const SGL_TYPE: Status = Status(0x11 | DNR);
    /// A fused operation on more than one block.
    pub const ATOMIC_UNIT: Status = Status(0x14 | DNR);
    /// The host has no identifier, and so cannot be a registrant.
    pub const OPERATION_DENIED: Status = Status(0x15 | DNR);
    /// The SGL's offset into the capsule is invalid.
    pub const SGL_OFFSET: Status = Status(0x16 | DNR);
    /// Host identifiers have 128 bits, and the host asked for 64.
    pub const HOST_ID_FORMAT: Status = Status(0x18 | DNR);
    /// Another host has preempted the host, and asked for its commands to be aborted.
    pub const PREEMPTED: Status = Status(0x1b | DNR);
    /// The namespace is write protected.
    pub const WRITE_PROTECTED: Status = Status(0x20 | DNR);
    /// Blocks beyond the end of the namespace.
    pub const LBA_RANGE: Status = Status(0x80 | DNR);
    /// The namespace is not ready.
    pub const NOT_READY: Status = Status(0x82);
    /// A reservation of another host excludes the command.
    pub const RESERVATION_CONFLICT: Status = Status(0x83 | DNR);
    /// Too many Asynchronous Event Requests.
    pub const EVENT_LIMIT: Status = Status(0x105 | DNR);
    /// The log page does not exist.
    pub const INVALID_LOG: Status = Status(0x109 | DNR);
    /// Connect: the format of the record is not supported.
    pub const CONNECT_FORMAT: Status = Status(0x180 | DNR);
    /// Connect: the queue exists, or the target has no resources at present.
    pub const CONNECT_BUSY: Status = Status(0x181);
    /// Connect: the queue exists.
    pub const CONNECT_IN_USE: Status = Status(0x181 | DNR);
    /// Connect: a parameter is invalid. The result names it.
    pub const CONNECT_PARAMETER: Status = Status(0x182 | DNR);
    /// The namespace is read-only.
    pub const READ_ONLY: Status = Status(0x182 | DNR);
    /// Writing failed.
    pub const WRITE_FAULT: Status = Status(0x280);
    /// Reading failed.
    pub const READ_ERROR: Status = Status(0x281);
    /// The command was interrupted; the host tries again.
    pub const INTERRUPTED: Status = Status(0x21);
    /// The queue has to be authenticated first, or again.
    pub const AUTH_REQUIRED: Status = Status(0x191);
    /// As above, and the host cannot: it has no secret, or no TLS.
    pub const AUTH_REFUSED: Status = Status(0x191 | DNR);
    /// The data differs.
    pub const COMPARE_FAILURE: Status = Status(0x285 | DNR);
    /// The namespace is not reached over this controller, and never will be.
    pub const ANA_PERSISTENT_LOSS: Status = Status(0x301);
    /// The namespace is not reached over this controller.
    pub const ANA_INACCESSIBLE: Status = Status(0x302);
    /// The namespace's accessibility is changing.
    pub const ANA_TRANSITION: Status = Status(0x303);

    /// Whether the command has succeeded.
    pub const fn is_success(self) -> bool {
        self.0 == 0
    }

    /// Whether the host must not retry.
    pub const fn is_final(self) -> bool {
        self.0 & DNR != 0
    }
}
