//! SMC-R: TCP sockets whose bytes travel by RDMA (RFC 7609; versions 2 and 2.1 as Linux 6.12 speaks
//! them in net/smc).

pub mod admission;
pub mod back;
pub mod echo;
pub mod engine;
pub mod front;
mod joint;
mod tcp;
pub mod wire;

#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;
