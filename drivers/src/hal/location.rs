//! Where a device is, in the words in which operators name it.

use super::PciAddress;
use core::fmt;
use core::str::FromStr;

/// Where a device is. Written as `pci:0000:03:00.0` or `mmio:0xfeb00e00`, which it is also read from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Location {
    /// A PCI function.
    Pci(PciAddress),
    /// Memory-mapped registers at this bus address.
    Mmio(u64),
}

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Location::Pci(address) => write!(f, "pci:{address}"),
            Location::Mmio(address) => write!(f, "mmio:{address:#x}"),
        }
    }
}

impl FromStr for Location {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Location, &'static str> {
        if let Some(address) = text.strip_prefix("pci:") {
            let address = pci(address).ok_or("a PCI address looks like pci:0000:03:00.0")?;
            return Ok(Location::Pci(address));
        }
        let address = text.strip_prefix("mmio:").and_then(|address| {
            let digits = address.strip_prefix("0x").unwrap_or(address);
            hexadecimal(digits, 16)
        });
        address.map(Location::Mmio).ok_or("a place looks like pci:0000:03:00.0 or mmio:0xfeb00e00")
    }
}

/// `0000:03:00.0`, or without the segment `03:00.0`.
fn pci(text: &str) -> Option<PciAddress> {
    let (rest, function) = text.rsplit_once('.')?;
    let (rest, device) = rest.rsplit_once(':')?;
    let (segment, bus) = rest.split_once(':').unwrap_or(("0", rest));
    let segment = u16::try_from(hexadecimal(segment, 4)?).ok()?;
    let bus = u8::try_from(hexadecimal(bus, 2)?).ok()?;
    let device = u8::try_from(hexadecimal(device, 2)?).ok().filter(|&device| device < 32)?;
    let function = u8::try_from(hexadecimal(function, 1)?).ok().filter(|&number| number < 8)?;
    Some(PciAddress::new(segment, bus, device, function))
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
    fn a_place_is_read_as_it_is_written() {
        for place in ["pci:0000:03:00.0", "pci:0001:ff:1f.7", "mmio:0xfeb00e00"] {
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
