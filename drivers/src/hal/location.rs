//! Location of a device, in the notation that operators use.

use super::PciAddress;
use core::fmt;
use core::str::FromStr;

/// Location of a device. Displayed and parsed as `pci:0000:03:00.0` or `mmio:0xfeb00e00`; a unit behind a controller as
/// `pci:0000:03:00.0/1:0` (target and LUN), `pci:0000:03:00.0/1` (NVMe namespace) or `pci:0000:00:1f.2/port1` (SATA).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Location {
    /// The device on its bus.
    pub bus: BusAddress,
    /// The unit, if the device is a controller with several.
    pub unit: Option<Unit>,
}

/// Address of a device on its bus.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BusAddress {
    /// A PCI function.
    Pci(PciAddress),
    /// Memory-mapped registers at this bus address.
    Mmio(u64),
}

/// A unit behind a controller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// A SCSI logical unit (SAM-5, 4.7).
    Scsi {
        /// Target.
        target: u8,
        /// Logical unit number.
        lun: u16,
    },
    /// An NVMe namespace, by its NSID (NVMe 1.4, 6.1).
    Namespace(u32),
    /// A port of a SATA controller.
    Port(u8),
}

impl Location {
    /// Location of a PCI function.
    pub const fn pci(address: PciAddress) -> Self {
        Location { bus: BusAddress::Pci(address), unit: None }
    }

    /// Location of memory-mapped registers.
    pub const fn mmio(address: u64) -> Self {
        Location { bus: BusAddress::Mmio(address), unit: None }
    }

    /// Location of a SCSI unit behind this device.
    pub const fn unit(self, target: u8, lun: u16) -> Self {
        Location { unit: Some(Unit::Scsi { target, lun }), ..self }
    }

    /// Location of an NVMe namespace behind this device.
    pub const fn namespace(self, nsid: u32) -> Self {
        Location { unit: Some(Unit::Namespace(nsid)), ..self }
    }

    /// Location of the drive at a port of this SATA controller.
    pub const fn port(self, port: u8) -> Self {
        Location { unit: Some(Unit::Port(port)), ..self }
    }
}

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.bus {
            BusAddress::Pci(address) => write!(f, "pci:{address}"),
            BusAddress::Mmio(address) => write!(f, "mmio:{address:#x}"),
        }?;
        match self.unit {
            Some(Unit::Scsi { target, lun }) => write!(f, "/{target}:{lun}"),
            Some(Unit::Namespace(nsid)) => write!(f, "/{nsid}"),
            Some(Unit::Port(port)) => write!(f, "/port{port}"),
            None => Ok(()),
        }
    }
}

impl FromStr for Location {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Location, &'static str> {
        let (bus, unit) = match text.split_once('/') {
            Some((bus, unit)) => {
                let unit = parse_unit(unit);
                let unit = unit.ok_or(
                    "a unit looks like pci:0000:03:00.0/1:0, target and LUN, pci:0000:03:00.0/1, namespace, \
                     or pci:0000:00:1f.2/port1, port of a SATA controller",
                )?;
                (bus, Some(unit))
            }
            None => (text, None),
        };
        if let Some(address) = bus.strip_prefix("pci:") {
            let address = parse_pci(address).ok_or("a PCI address looks like pci:0000:03:00.0")?;
            return Ok(Location { bus: BusAddress::Pci(address), unit });
        }
        let address = bus.strip_prefix("mmio:").and_then(|address| {
            let digits = address.strip_prefix("0x").unwrap_or(address);
            hexadecimal(digits, 16)
        });
        let address = address.ok_or("a location looks like pci:0000:03:00.0 or mmio:0xfeb00e00")?;
        Ok(Location { bus: BusAddress::Mmio(address), unit })
    }
}

/// `0000:03:00.0`, or without the segment `03:00.0`.
fn parse_pci(text: &str) -> Option<PciAddress> {
    let (rest, function) = text.rsplit_once('.')?;
    let (rest, device) = rest.rsplit_once(':')?;
    let (segment, bus) = rest.split_once(':').unwrap_or(("0", rest));
    let segment = u16::try_from(hexadecimal(segment, 4)?).ok()?;
    let bus = u8::try_from(hexadecimal(bus, 2)?).ok()?;
    let device = u8::try_from(hexadecimal(device, 2)?).ok().filter(|&device| device < 32)?;
    let function = u8::try_from(hexadecimal(function, 1)?).ok().filter(|&number| number < 8)?;
    Some(PciAddress::new(segment, bus, device, function))
}

/// `1:0`, `1` or `port1`, in decimal.
fn parse_unit(text: &str) -> Option<Unit> {
    let plain = |digits: &str| !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit());
    if let Some(port) = text.strip_prefix("port") {
        let port = plain(port).then(|| port.parse().ok()).flatten()?;
        return (port < 32).then_some(Unit::Port(port));
    }
    let Some((target, lun)) = text.split_once(':') else {
        let nsid = plain(text).then(|| text.parse().ok()).flatten()?;
        return (nsid != 0).then_some(Unit::Namespace(nsid));
    };
    if !plain(target) || !plain(lun) {
        return None;
    }
    Some(Unit::Scsi { target: target.parse().ok()?, lun: lun.parse().ok()? })
}

fn hexadecimal(digits: &str, most: usize) -> Option<u64> {
    let plain = (1..=most).contains(&digits.len()) && !digits.starts_with('+');
    plain.then(|| u64::from_str_radix(digits, 16).ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::string::ToString;

    #[test]
    fn location_parses_as_it_is_displayed() {
        for place in [
            "pci:0000:03:00.0",
            "pci:0001:ff:1f.7",
            "mmio:0xfeb00e00",
            "pci:0000:03:00.0/255:16383",
            "mmio:0xfeb00e00/0:0",
            "pci:0000:03:00.0/1",
            "pci:0000:03:00.0/4294967294",
            "pci:0000:00:1f.2/port0",
            "pci:0000:00:1f.2/port31",
        ] {
            assert_eq!(place.parse::<Location>().unwrap().to_string(), place);
        }
        assert_eq!("pci:03:00.0".parse::<Location>().unwrap().to_string(), "pci:0000:03:00.0");
        for wrong in [
            "",
            "pci:",
            "pci:3",
            "pci:0000:03:20.0",
            "pci:0000:03:00.8",
            "pci:0:0:0:0.0",
            "pci:0000:+3:00.0",
            "pci:0000:03:00.0/",
            "pci:0000:03:00.0/0",
            "pci:0000:03:00.0/x",
            "pci:0000:03:00.0/256:0",
            "pci:0000:03:00.0/+1:0",
            "pci:0000:03:00.0/1:0/1",
            "pci:0000:03:00.0/port",
            "pci:0000:03:00.0/port32",
            "mmio:",
            "mmio:0x",
            "mmio:x",
            "mac:1",
            "0000:03:00.0",
        ] {
            assert!(wrong.parse::<Location>().is_err(), "{wrong}");
        }
    }
}
