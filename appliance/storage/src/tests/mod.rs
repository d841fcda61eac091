//! RNBD servers and clients against each other, over a link in memory and over real engines.

mod bad;
mod basic;
mod cores;
mod disks;
mod ends;
mod exports;
mod hosts;
mod late_keys;
mod leaks;
mod limits;
mod memory;
mod over_both;
mod over_ntrdma;
mod over_roce;
mod paths;
