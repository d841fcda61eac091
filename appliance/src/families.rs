//! Families of protocols and tools that an image can leave out (`./isthmus build --without smc`). State of a family is
//! in a `Box`, or in nothing if it is left out ([`drivers::hal::Hold`]).

pub(crate) use management::missing;

macro_rules! family {
    ($(#[$doc:meta])* $name:ident, $has:ident, $feature:literal) => {
        /// Whether the image includes the family.
        pub(crate) const $has: bool = cfg!(feature = $feature);
        $(#[$doc])*
        #[cfg(feature = $feature)]
        pub(crate) type $name<T> = Box<T>;
        $(#[$doc])*
        #[cfg(not(feature = $feature))]
        pub(crate) type $name<T> = drivers::hal::Absent<T>;
    };
}

family! {
    /// Bridges (NTB): NTRDMA, and `ntb_transport` with stock Linux hosts.
    OfNtb, NTB, "ntb"
}
family! {
    /// SMC-R, its services, and rules, including those over TCP.
    OfSmc, SMC, "smc"
}
family! {
    /// Volumes of other servers: the clients of RTRS and RNBD.
    OfRemote, REMOTE, "remote"
}
family! {
    /// Mirrors of two volumes.
    OfMirror, MIRROR, "mirror"
}
family! {
    /// Measuring tools: servers of rping, perftest and qperf, the console's `rping`, `ntb measure` and `remote read`.
    OfMeasure, MEASURE, "measure"
}
