//! Atomics of what `tests/threads` compiles a second time, with those of loom.

pub(super) use core::sync::atomic::*;
