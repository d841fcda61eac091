//! Models of non-transparent bridges: two functions, one in each machine, with shared state.
//!
//! A machine's writes to its windows and to the other machine's scratchpads and doorbells are posted. They arrive in
//! order: when the other machine's function is polled, or before a load through a window returns.

pub mod amd;
mod crossing;
pub mod intel;
pub mod switchtec;

pub use crossing::Counts;
