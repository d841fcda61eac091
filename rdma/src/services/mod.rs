//! Peers that the appliance offers for measurement: the tools with which operators prove a fabric.

pub mod rping;
