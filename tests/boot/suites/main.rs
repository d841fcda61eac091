//! The image in QEMU, with the peers of its wires in the test process: a module for each suite, in one program.
//! `./isthmus test SUITE` runs the cases of one module.

mod boot;
mod config;
mod console;
mod consoles;
mod cores;
mod disk;
mod families;
mod libvirt;
mod linx_tcp;
mod net;
mod netboot;
mod nics;
mod ntb;
mod nvme;
mod platform;
mod save;
mod tls;
mod uhyve;
mod upgrade;
mod volumes;
