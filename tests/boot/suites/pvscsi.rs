//! Disks behind QEMU's `pvscsi`, on machines without a virtio disk.

use super::drives::{Model, cases};

const PVSCSI: Model = Model {
    attach: |disk, _| disk.pvscsi(),
    unit: |n| format!("/{n}:0"),
    controller: "pvscsi0",
    pulled: "controller does not answer any more",
    largest_block: 4096,
    writes_zeroes: true,
    model: "",
};

cases!(PVSCSI);
