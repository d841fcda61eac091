//! Linux error numbers that RTRS transmits (positive, at most 9 bits in an immediate).

use core::fmt;

/// An error number of Linux (asm-generic/errno.h), 1 to 511.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Errno(u16);

macro_rules! errnos {
    ($($(#[$doc:meta])* $name:ident = $number:literal;)*) => {
        impl Errno {
            $($(#[$doc])* pub const $name: Errno = Errno($number);)*

            /// Linux's name of the number, if this side uses it.
            pub const fn name(self) -> Option<&'static str> {
                match self.0 {
                    $($number => Some(stringify!($name)),)*
                    _ => None,
                }
            }
        }
    };
}

errnos! {
    /// Operation not permitted.
    EPERM = 1;
    /// No such file or directory.
    ENOENT = 2;
    /// I/O error.
    EIO = 5;
    /// No such device or address.
    ENXIO = 6;
    /// Out of memory.
    ENOMEM = 12;
    /// Permission denied.
    EACCES = 13;
    /// File exists.
    EEXIST = 17;
    /// Invalid argument.
    EINVAL = 22;
    /// Too many open files.
    EMFILE = 24;
    /// Read-only file system.
    EROFS = 30;
    /// Invalid exchange: a reservation excludes the request.
    EBADE = 52;
    /// Operation not supported.
    EOPNOTSUPP = 95;
    /// Software caused connection abort.
    ECONNABORTED = 103;
    /// Connection reset by peer.
    ECONNRESET = 104;
    /// Not connected.
    ENOTCONN = 107;
}

impl Errno {
    /// Creates an error from a positive number; None for 0 and numbers of more than 9 bits.
    pub const fn new(number: u16) -> Option<Self> {
        if number == 0 || number > 511 { None } else { Some(Errno(number)) }
    }

    /// The positive number.
    pub const fn number(self) -> u16 {
        self.0
    }
}

impl fmt::Display for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => f.write_str(name),
            None => write!(f, "errno {}", self.0),
        }
    }
}

impl fmt::Debug for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
