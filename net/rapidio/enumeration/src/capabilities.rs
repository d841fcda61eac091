//! Capability registers of a device: its kind and its features. Reads its id as well.

use super::blocks;
use super::device::{Device, Kind};
use super::walk::{Fabric, Failed, Path};
use alloc::collections::BTreeMap;
use drivers::rapidio::{IdSize, csr};

/// Reads the capabilities of a device.
pub async fn describe(
    fabric: &Fabric,
    path: Path,
    parent: Option<(usize, u8)>,
) -> Result<Device, Failed> {
    let features = fabric.read(path, csr::FEATURES).await?;
    let identity = fabric.read(path, csr::DEVICE_IDENTITY).await?;
    let first = fabric.read(path, csr::ASSEMBLY_INFORMATION).await?;
    let (serial, error_management) = match features & csr::FEATURE_EXTENDED != 0 {
        true => blocks::find(fabric, path, first).await?,
        false => (None, None),
    };
    let source = fabric.read(path, csr::SOURCE_OPERATIONS).await?;
    let destination = fabric.read(path, csr::DESTINATION_OPERATIONS).await?;
    let kind = match features & csr::FEATURE_SWITCH != 0 {
        true => {
            let ports = fabric.read(path, csr::SWITCH_PORTS).await?;
            let neighbours = alloc::vec![None; (ports >> 8 & 0xff) as usize];
            Kind::Switch { ingress: ports as u8, neighbours, routes: BTreeMap::new() }
        }
        false => Kind::EndPoint,
    };
    Ok(Device {
        id: path.to,
        hops: path.hops,
        tag: 0,
        identity,
        operations: [source, destination],
        kind,
        parent,
        present: true,
        features,
        serial,
        error_management,
    })
}

/// Reads the id of a device.
pub async fn own_id(fabric: &Fabric, path: Path, size: IdSize) -> Result<u16, Failed> {
    let id = fabric.read(path, csr::BASE_ID).await?;
    Ok(if size == IdSize::Large { id as u16 } else { (id >> 16) as u16 & 0xff })
}

/// Offset of the own general control register.
pub async fn own_control(fabric: &Fabric) -> u32 {
    (fabric.read_own(csr::ASSEMBLY_INFORMATION).await & 0xfffc) + csr::GENERAL_CONTROL
}
