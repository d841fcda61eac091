//! CON_REQ and CON_RSP: private data of the connection manager's REQ, REP and REJ.

use super::{MAGIC, MAX_CONNECTIONS, VERSION, WireError, array, fixed, put};
use crate::Errno;
use core::{fmt, ops::Range};

const REQ_MAGIC: Range<usize> = 2..4;
const REQ_VERSION: Range<usize> = 4..6;
const REQ_CID: Range<usize> = 6..8;
const REQ_CID_NUM: Range<usize> = 8..10;
const REQ_RECON_CNT: Range<usize> = 10..12;
const REQ_PATH: Range<usize> = 12..28;
const REQ_SESSION: Range<usize> = 28..44;
const REQ_FLAGS: usize = 44;

const RSP_MAGIC: Range<usize> = 0..2;
const RSP_VERSION: Range<usize> = 2..4;
const RSP_ERRNO: Range<usize> = 4..6;
const RSP_DEPTH: Range<usize> = 6..8;
const RSP_MAX_IO: Range<usize> = 8..12;
const RSP_MAX_HDR: Range<usize> = 12..16;
const RSP_FLAGS: Range<usize> = 16..20;
/// Reserved in Linux, which writes zeroes and ignores it.
const RSP_INCARNATION: Range<usize> = 20..28;

const FIRST_CONN: u8 = 1;
const NEW_RKEY: u32 = 2;

/// A UUID, which names a session or a path.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Uuid(pub [u8; 16]);

impl fmt::Display for Uuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, byte) in self.0.iter().enumerate() {
            let dash = if matches!(i, 4 | 6 | 8 | 10) { "-" } else { "" };
            write!(f, "{dash}{byte:02x}")?;
        }
        Ok(())
    }
}

impl fmt::Debug for Uuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// CON_REQ: connection, path and session of a connection request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectRequest {
    /// Number of the connection in its path; 0 is the service connection.
    pub cid: u16,
    /// Number of connections of the path.
    pub cid_num: u16,
    /// Grows with every (re)connect of the path.
    pub recon_cnt: u16,
    /// The path (`sess_uuid` in Linux).
    pub path: Uuid,
    /// The session (`paths_uuid` in Linux).
    pub session: Uuid,
    /// The server may create the session (`first_conn` in Linux).
    pub first: bool,
}

impl ConnectRequest {
    /// Size in bytes: all the private data of a REQ with the RDMA IP CM service.
    pub const SIZE: usize = 56;

    /// Parses private data (which may be longer). `cid` is less than `cid_num`, which is at most [`MAX_CONNECTIONS`].
    pub fn parse(bytes: &[u8]) -> Result<Self, WireError> {
        let b = fixed::<{ Self::SIZE }>(bytes)?;
        check(array(b, REQ_MAGIC), array(b, REQ_VERSION))?;
        let request = ConnectRequest {
            cid: u16::from_le_bytes(array(b, REQ_CID)),
            cid_num: u16::from_le_bytes(array(b, REQ_CID_NUM)),
            recon_cnt: u16::from_le_bytes(array(b, REQ_RECON_CNT)),
            path: Uuid(array(b, REQ_PATH)),
            session: Uuid(array(b, REQ_SESSION)),
            first: b[REQ_FLAGS] & FIRST_CONN != 0,
        };
        if request.cid_num > MAX_CONNECTIONS {
            return Err(WireError::Field("cid_num"));
        }
        if request.cid >= request.cid_num {
            return Err(WireError::Field("cid"));
        }
        Ok(request)
    }

    /// Emits private data.
    pub fn emit(&self) -> [u8; Self::SIZE] {
        let mut b = [0; Self::SIZE];
        put(&mut b, REQ_MAGIC, &MAGIC.to_le_bytes());
        put(&mut b, REQ_VERSION, &VERSION.to_le_bytes());
        put(&mut b, REQ_CID, &self.cid.to_le_bytes());
        put(&mut b, REQ_CID_NUM, &self.cid_num.to_le_bytes());
        put(&mut b, REQ_RECON_CNT, &self.recon_cnt.to_le_bytes());
        put(&mut b, REQ_PATH, &self.path.0);
        put(&mut b, REQ_SESSION, &self.session.0);
        b[REQ_FLAGS] = if self.first { FIRST_CONN } else { 0 };
        b
    }
}

impl fmt::Display for ConnectRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "CON_REQ cid {}/{} recon {} path {} session {}{}",
            self.cid,
            self.cid_num,
            self.recon_cnt,
            self.path,
            self.session,
            if self.first { " first" } else { "" }
        )
    }
}

/// CON_RSP: the server's parameters, or the error of a refusal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConnectResponse {
    /// In a REP.
    Accepted {
        /// Chunks of the session.
        queue_depth: u16,
        /// Bytes of data that a chunk holds.
        max_io_size: u32,
        /// Bytes of a chunk beside its data.
        max_header: u32,
        /// Every response has the chunk's next key (always_invalidate).
        new_rkey: bool,
        /// Random number of the server's boot; 0 if unknown, as from Linux.
        incarnation: u64,
    },
    /// In a REJ with reason 28.
    Refused(Errno),
}

impl ConnectResponse {
    /// Size in bytes.
    pub const SIZE: usize = 56;

    /// Parses private data (which may be longer).
    pub fn parse(bytes: &[u8]) -> Result<Self, WireError> {
        let b = fixed::<{ Self::SIZE }>(bytes)?;
        check(array(b, RSP_MAGIC), array(b, RSP_VERSION))?;
        match i16::from_le_bytes(array(b, RSP_ERRNO)) {
            0 => Ok(ConnectResponse::Accepted {
                queue_depth: u16::from_le_bytes(array(b, RSP_DEPTH)),
                max_io_size: u32::from_le_bytes(array(b, RSP_MAX_IO)),
                max_header: u32::from_le_bytes(array(b, RSP_MAX_HDR)),
                new_rkey: u32::from_le_bytes(array(b, RSP_FLAGS)) & NEW_RKEY != 0,
                incarnation: u64::from_le_bytes(array(b, RSP_INCARNATION)),
            }),
            errno => Errno::new(errno.unsigned_abs())
                .map(ConnectResponse::Refused)
                .ok_or(WireError::Field("errno")),
        }
    }

    /// Emits private data.
    pub fn emit(&self) -> [u8; Self::SIZE] {
        let mut b = [0; Self::SIZE];
        put(&mut b, RSP_MAGIC, &MAGIC.to_le_bytes());
        put(&mut b, RSP_VERSION, &VERSION.to_le_bytes());
        match *self {
            ConnectResponse::Accepted {
                queue_depth,
                max_io_size,
                max_header,
                new_rkey,
                incarnation,
            } => {
                put(&mut b, RSP_INCARNATION, &incarnation.to_le_bytes());
                put(&mut b, RSP_DEPTH, &queue_depth.to_le_bytes());
                put(&mut b, RSP_MAX_IO, &max_io_size.to_le_bytes());
                put(&mut b, RSP_MAX_HDR, &max_header.to_le_bytes());
                put(&mut b, RSP_FLAGS, &(if new_rkey { NEW_RKEY } else { 0 }).to_le_bytes());
            }
            ConnectResponse::Refused(errno) => {
                put(&mut b, RSP_ERRNO, &(-(errno.number() as i16)).to_le_bytes());
            }
        }
        b
    }
}

impl fmt::Display for ConnectResponse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ConnectResponse::Accepted {
                queue_depth, max_io_size, max_header, new_rkey, ..
            } => write!(
                f,
                "CON_RSP depth {queue_depth} max_io {max_io_size} max_hdr {max_header}{}",
                if *new_rkey { " new-rkey" } else { "" }
            ),
            ConnectResponse::Refused(errno) => write!(f, "CON_RSP refused: {errno}"),
        }
    }
}

fn check(magic: [u8; 2], version: [u8; 2]) -> Result<(), WireError> {
    let (magic, version) = (u16::from_le_bytes(magic), u16::from_le_bytes(version));
    if magic != MAGIC {
        return Err(WireError::Magic(magic));
    }
    if version >> 8 != VERSION >> 8 {
        return Err(WireError::Version(version));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::vectors::vector;
    use super::*;
    use proptest::prelude::*;
    use std::string::ToString;

    #[test]
    fn linux_messages_round_trip() {
        let bytes = vector("con_req");
        let request = ConnectRequest::parse(&bytes).unwrap();
        assert_eq!(
            request.to_string(),
            "CON_REQ cid 0/2 recon 1 path 5190cb28-a4ed-4393-b416-7f6cd9ff8f97 \
             session c0b251a3-6dc1-47b5-818c-028ada974796 first"
        );
        assert_eq!(request.emit(), bytes[..]);
        let accepted = ConnectResponse::Accepted {
            queue_depth: 512,
            max_io_size: 126_976,
            max_header: 4096,
            new_rkey: true,
            incarnation: 0,
        };
        let bytes = vector("con_rsp");
        assert_eq!(ConnectResponse::parse(&bytes), Ok(accepted));
        assert_eq!(accepted.emit(), bytes[..]);
        assert!(matches!(
            ConnectResponse::parse(&vector("n_con_rsp")),
            Ok(ConnectResponse::Accepted { new_rkey: false, .. })
        ));
    }

    #[test]
    fn invalid_fields_are_refused() {
        let good = vector("con_req");
        let with = |at: usize, byte: u8| {
            let mut bad = good.clone();
            bad[at] = byte;
            ConnectRequest::parse(&bad)
        };
        assert_eq!(with(2, 0), Err(WireError::Magic(0x1b00)));
        assert_eq!(with(5, 3), Err(WireError::Version(0x0300)));
        assert!(with(4, 9).is_ok(), "the minor version is free");
        assert_eq!(with(6, 2), Err(WireError::Field("cid")));
        assert_eq!(with(9, 0x20), Err(WireError::Field("cid_num")));
        assert_eq!(
            ConnectRequest::parse(&good[..55]),
            Err(WireError::Short { need: 56, have: 55 })
        );
    }

    proptest! {
        #[test]
        fn round_trip(
            cid in 0u16..4096, more in 1u16..4096, recon_cnt: u16, path: [u8; 16],
            session: [u8; 16], first: bool, errno in 1u16..512, depth: u16, size: u32, key: bool,
            incarnation: u64,
        ) {
            let cid_num = cid.saturating_add(more).min(MAX_CONNECTIONS);
            let request = ConnectRequest {
                cid, cid_num, recon_cnt, path: Uuid(path), session: Uuid(session), first,
            };
            prop_assert_eq!(ConnectRequest::parse(&request.emit()), Ok(request));
            for response in [
                ConnectResponse::Refused(Errno::new(errno).unwrap()),
                ConnectResponse::Accepted {
                    queue_depth: depth, max_io_size: size, max_header: !size, new_rkey: key,
                    incarnation,
                },
            ] {
                prop_assert_eq!(ConnectResponse::parse(&response.emit()), Ok(response));
            }
        }

        #[test]
        fn any_bytes(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
            let _ = ConnectRequest::parse(&bytes);
            let _ = ConnectResponse::parse(&bytes);
        }
    }
}
