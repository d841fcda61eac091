//! The engines of the control plane, run on one wire with virtual time.

mod common;
mod interface;
