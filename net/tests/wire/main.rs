//! The engines of the control plane, run on one wire with virtual time.

mod client;
mod common;
mod connector;
mod crowd;
mod dhcp;
mod dhcp_refusals;
mod dhcp_server;
mod http;
mod interface;
mod noise;
mod path_mtu;
mod path_probe;
mod router;
mod segment;
mod syslog;
mod tcp;
