//! Non-transparent bridges: two functions, one in each machine, that are one state.
//!
//! What a machine writes to its windows, to the other's scratchpads and bells is posted: it arrives, in order, when the
//! other machine's function is polled, or ahead of the answer when the machine loads through a window.

pub mod amd;
mod crossing;
pub mod intel;
pub mod switchtec;

pub use crossing::Counts;
