//! Two engines on a wire that the test makes, and one beside models of the stock BTL.

mod basics;
mod goodput;
mod hostile;
mod idle;
mod in_turn;
mod loss;
mod pings;
mod stock;
mod world;
