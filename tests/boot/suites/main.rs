//! The image in QEMU, with the peers of its wires in the test process: a module for each suite, in one program.
//! `./isthmus test SUITE` runs the cases of one module.

mod ahci;
mod boot;
mod config;
mod console;
mod consoles;
mod cores;
mod disk;
mod drives;
mod families;
mod fleet;
mod host_tools;
mod libvirt;
mod lifecycle;
mod linx_tcp;
mod monitoring;
mod names;
mod nbd_image;
mod net;
mod netboot;
mod nics;
mod ntb;
mod nvme;
mod platform;
mod processors;
mod provisioning;
mod pvscsi;
mod recipes;
mod save;
mod schemathesis;
mod tls;
mod uhyve;
mod upgrade;
mod volumes;
