//! Why a card cannot be used for RDMA.

use core::fmt;
use drivers::ethernet::mlx5;

/// Why a card cannot be used for RDMA.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Error {
    /// The card, or its firmware.
    Card(mlx5::Error),
    /// It lacks a capability.
    Lacks(&'static str),
    /// The DMA arena is too small.
    NoMemory,
    /// It was reset meanwhile.
    Reset,
}

impl From<mlx5::Error> for Error {
    fn from(error: mlx5::Error) -> Self {
        Error::Card(error)
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Card(error) => write!(f, "no RDMA: {error}"),
            Error::Lacks(what) => write!(
                f,
                "mlx5 lacks the capability {what}, which RDMA needs: renew the card's firmware, or turn RoCE on \
                 (devlink dev param set, mlxconfig)"
            ),
            Error::NoMemory => f.write_str(
                "the DMA arena has no room for RDMA's queues: give the machine more memory",
            ),
            Error::Reset => {
                f.write_str("mlx5 was reset while RDMA was set up: see the notices of its port")
            }
        }
    }
}

impl core::error::Error for Error {}
