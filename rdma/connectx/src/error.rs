//! Errors of the setup of RDMA on a card.

use core::fmt;
use drivers::ethernet::mlx5;

/// Why a card cannot be used for RDMA.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Error {
    /// The card or its firmware failed.
    Card(mlx5::Error),
    /// A capability is missing.
    Lacks(&'static str),
    /// The DMA arena is too small.
    NoMemory,
    /// The card was reset meanwhile.
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
                "mlx5 lacks the capability {what}, which RDMA needs: update the card's firmware, or enable RoCE \
                 (devlink dev param set, mlxconfig)"
            ),
            Error::NoMemory => f.write_str(
                "no room in the DMA arena for RDMA queues: give the machine more memory",
            ),
            Error::Reset => {
                f.write_str("mlx5 was reset during RDMA setup: see its port's messages in the log")
            }
        }
    }
}

impl core::error::Error for Error {}
