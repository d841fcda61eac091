//! Tests of two engines on a simulated link, and of an engine against models of the stock BTL.

mod basics;
mod goodput;
mod hostile;
mod idle;
mod in_turn;
mod loss;
mod pings;
mod stock;
mod world;
