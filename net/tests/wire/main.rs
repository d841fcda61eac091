//! The engines of the control plane, run on one wire with virtual time.

mod client;
mod common;
mod connector;
mod crowd;
mod dhcp;
mod http;
mod interface;
mod noise;
mod path_mtu;
mod syslog;
mod tcp;
