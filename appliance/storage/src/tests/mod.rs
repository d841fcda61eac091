//! The servers and the client against each other, over a wire in memory.

mod bad;
mod basic;
mod cores;
mod disks;
mod ends;
mod exports;
mod hosts;
mod late_keys;
mod leaks;
mod memory;
mod over_both;
mod over_ntrdma;
mod over_roce;
mod paths;
