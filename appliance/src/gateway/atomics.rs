//! Atomics for files that `tests/threads` compiles a second time, with loom's atomics.

pub(super) use core::sync::atomic::*;
