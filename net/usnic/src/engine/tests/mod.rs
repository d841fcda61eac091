//! Two engines on a wire that the test makes.

mod basics;
mod hostile;
mod idle;
mod loss;
mod pings;
mod world;
