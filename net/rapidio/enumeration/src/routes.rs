//! Route tables of switches, by switch family.

use super::device::{Device, Kind};
use super::walk::{Fabric, Failed, Path};
use core::time::Duration;
use drivers::rapidio::csr;

/// Number of ids whose routes are cleared and read. Higher ids are not in use, because the lowest free ones are
/// assigned.
pub const IDS: u16 = 256;
/// Table entry of an id without a route.
pub const NOWHERE: u8 = 0xff;

const IDT: u32 = 0x0038;
/// IDT's second generation: selects the table that the standard registers access; 0 selects all.
const TABLE_SELECT: u32 = 0x10070;
/// Default route that drops packets.
const DROP_DEFAULT: u32 = 0xdf;
/// Third generation: entries that write all tables.
const ALL_TABLES: u32 = 0x31000;
/// Third generation: table of port 0.
const PORT_TABLE: u32 = 0x51000;
/// Third generation: entry that drops packets.
const DROP: u32 = 0x300;

/// Switches with the same programming interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// The registers of RapidIO part 3.
    Standard,
    /// CPS-1848, -1432, -1616, SPS-1616 (Linux `idt_gen2.c`).
    Second,
    /// RXS1632, RXS2448 (Linux `idt_gen3.c`).
    Third,
}

impl Family {
    /// Family of the device with this identity.
    pub fn of(identity: u32) -> Family {
        if identity & 0xffff != IDT {
            return Family::Standard;
        }
        match identity >> 16 {
            0x0374 | 0x0375 | 0x0378 | 0x0379 => Family::Second,
            0x80e5 | 0x80e6 => Family::Third,
            _ => Family::Standard,
        }
    }
}

/// Minimum time between two writes of standard registers.
const SETTLING: Duration = Duration::from_micros(10);

/// Sets a route in all tables of a switch.
pub async fn set(
    fabric: &Fabric,
    device: &mut Device,
    path: Path,
    id: u16,
    port: u8,
) -> Result<(), Failed> {
    let family = Family::of(device.identity);
    let Kind::Switch { routes, .. } = &mut device.kind else { return Ok(()) };
    match family {
        Family::Third if id < IDS => {
            let entry = if port == NOWHERE { DROP } else { port.into() };
            fabric.write(path, ALL_TABLES + 4 * u32::from(id), entry).await?;
        }
        Family::Second | Family::Standard | Family::Third => {
            if family == Family::Second {
                fabric.write(path, TABLE_SELECT, 0).await?;
            }
            fabric.write(path, csr::ROUTE_ID, id.into()).await?;
            fabric.write(path, csr::ROUTE_PORT, port.into()).await?;
            if family == Family::Standard {
                fabric.wait(SETTLING).await;
            }
        }
    }
    routes.insert(id, port);
    Ok(())
}

/// Clears the table of a switch, so that no id has a route.
pub async fn clear(fabric: &Fabric, device: &mut Device, path: Path) -> Result<(), Failed> {
    match Family::of(device.identity) {
        Family::Third => {
            for id in 0..u32::from(IDS) {
                fabric.write(path, ALL_TABLES + 4 * id, DROP).await?;
            }
        }
        Family::Second | Family::Standard => {
            // Four entries at a time, if the switch supports it.
            let (flag, step) = match device.features & csr::FEATURE_EXTENDED_ROUTES != 0 {
                true => (1 << 31, 4),
                false => (0, 1),
            };
            for id in (0..u32::from(IDS)).step_by(step) {
                fabric.write(path, csr::ROUTE_ID, flag | id).await?;
                fabric.write(path, csr::ROUTE_PORT, u32::MAX).await?;
            }
            fabric.write(path, csr::DEFAULT_ROUTE, DROP_DEFAULT).await?;
        }
    }
    if let Kind::Switch { routes, .. } = &mut device.kind {
        routes.clear();
    }
    Ok(())
}

/// Reads the routes of all ids. The caller holds the switch's lock, which keeps other readers out.
pub async fn read(fabric: &Fabric, device: &mut Device, path: Path) -> Result<(), Failed> {
    let family = Family::of(device.identity);
    let ports = device.ports();
    let Kind::Switch { ingress, routes, .. } = &mut device.kind else { return Ok(()) };
    if family == Family::Second {
        fabric.write(path, TABLE_SELECT, 0).await?;
    }
    for id in 0..IDS {
        let entry = match family {
            Family::Third => {
                let table = PORT_TABLE + 0x2000 * u32::from(*ingress);
                fabric.read(path, table + 4 * u32::from(id)).await?
            }
            Family::Second | Family::Standard => {
                fabric.write(path, csr::ROUTE_ID, id.into()).await?;
                fabric.read(path, csr::ROUTE_PORT).await?
            }
        };
        if entry < u32::from(ports) {
            routes.insert(id, entry as u8);
        }
    }
    Ok(())
}

/// Makes a switch report link changes to the host by port-writes.
pub async fn enable_port_writes(
    fabric: &Fabric,
    device: &Device,
    path: Path,
    host: u16,
    is_large: bool,
) -> Result<(), Failed> {
    let Some(management) = device.error_management else { return Ok(()) };
    if device.operations[0] & csr::OPERATION_PORT_WRITE == 0 {
        return Ok(());
    }
    let target = u32::from(host) << 16 | u32::from(is_large) << 15;
    fabric.write(path, management + 0x28, target).await?;
    let Kind::Switch { ingress, .. } = device.kind else { return Ok(()) };
    for port in 0..u32::from(device.ports()) {
        match Family::of(device.identity) {
            Family::Standard => return Ok(()),
            Family::Second => {
                let control = 0x00f4_0004 + 0x100 * port;
                let value = fabric.read(path, control).await?;
                fabric.write(path, control, value | 0x0800_0000).await?;
            }
            Family::Third => {
                // Link up and link down, by error management and by the port itself.
                fabric.write(path, management + 0x44 + 0x40 * port, 0x5000_0000).await?;
                fabric.write(path, 0x10118 + 0x100 * port, 0x5000_0000).await?;
            }
        }
    }
    if Family::of(device.identity) == Family::Third {
        fabric.write(path, 0x40208, 1 << ingress).await?;
    }
    Ok(())
}
