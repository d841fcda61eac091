//! Tests of the provider as a whole.

mod wire;
