//! [`DeviceName`]: names of devices in the configuration and on the console.

use super::item::{Item, Range, Shape, integer};
use super::origin::Problem;
use super::tree::{Node, Value};
use super::values::Mac;
use core::fmt;
use core::str::FromStr;
use drivers::hal::{Location, Unit};

/// Maximum characters of a serial number, as of SCSI disks. Serial numbers of virtio disks have up to 20.
const SERIAL: usize = 64;
const NVME: &str = "an NVMe namespace looks like nvme:SERIAL/1";
/// Number of positions that a device can have.
const POSITIONS: u8 = 64;

/// The name of a device: a persistent one, or its position in the order of discovery. A position changes when a device
/// is added.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DeviceName {
    /// Position in the order of discovery, from 0.
    Position(u8),
    /// Location on the bus: `pci:0000:03:00.0`, `mmio:0xfeb00e00`.
    Location(Location),
    /// Serial number of a disk: `serial:…`.
    Serial(String),
    /// Serial number of an NVMe drive and the number of a namespace: `nvme:SERIAL/1`.
    Nvme(String, u32),
    /// Hardware address of a port: `mac:52:54:00:12:34:56`.
    Mac(Mac),
}

impl DeviceName {
    /// Whether the name matches the disk with this position, location and serial number.
    pub fn is_disk(&self, position: usize, location: &str, serial: &str) -> bool {
        match self {
            DeviceName::Position(wanted) => usize::from(*wanted) == position,
            DeviceName::Location(wanted) => wanted.to_string() == location,
            DeviceName::Serial(wanted) => wanted == serial,
            DeviceName::Nvme(wanted, nsid) => {
                wanted == serial && namespace_of(location) == Some(*nsid)
            }
            DeviceName::Mac(_) => false,
        }
    }

    /// Whether the name matches the port with this position, location and hardware address.
    pub fn is_port(&self, position: usize, location: &str, mac: [u8; 6]) -> bool {
        match self {
            DeviceName::Position(wanted) => usize::from(*wanted) == position,
            DeviceName::Location(wanted) => wanted.to_string() == location,
            DeviceName::Mac(wanted) => wanted.0 == mac,
            DeviceName::Serial(_) | DeviceName::Nvme(..) => false,
        }
    }
}

impl FromStr for DeviceName {
    type Err = String;

    /// Parses a name. A position may also be written as in reports: `disk0`.
    fn from_str(text: &str) -> Result<DeviceName, String> {
        if let Ok(position) = text.strip_prefix("disk").unwrap_or(text).parse::<u8>() {
            let position = Some(position).filter(|&position| position < POSITIONS);
            return position.map(DeviceName::Position).ok_or("the position is above 63".into());
        }
        match text.split_once(':') {
            Some(("serial", serial)) => Ok(DeviceName::Serial(parse_serial(serial)?)),
            Some(("nvme", name)) => {
                // A serial number may contain a slash, a namespace number cannot.
                let (serial, nsid) = name.rsplit_once('/').ok_or(NVME)?;
                let digits = nsid.bytes().all(|b| b.is_ascii_digit());
                let nsid =
                    nsid.parse().ok().filter(|&nsid: &u32| digits && nsid > 0).ok_or(NVME)?;
                Ok(DeviceName::Nvme(parse_serial(serial)?, nsid))
            }
            Some(("mac", mac)) => mac.parse().map(DeviceName::Mac),
            Some(("pci" | "mmio", _)) => Ok(DeviceName::Location(text.parse()?)),
            _ => Err("not the name of a device".into()),
        }
    }
}

fn parse_serial(serial: &str) -> Result<String, String> {
    match serial.len() {
        1..=SERIAL if serial.bytes().all(|b| b.is_ascii_graphic()) => Ok(serial.into()),
        _ => Err("a serial number has 1 to 64 visible characters".into()),
    }
}

/// The NVMe namespace number in a location's text, as [`Location`] displays it.
pub fn namespace_of(location: &str) -> Option<u32> {
    match location.parse::<Location>().ok()?.unit? {
        Unit::Namespace(nsid) => Some(nsid),
        Unit::Scsi { .. } | Unit::Port(_) => None,
    }
}

impl fmt::Display for DeviceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DeviceName::Position(position) => position.fmt(f),
            DeviceName::Location(location) => location.fmt(f),
            DeviceName::Serial(serial) => write!(f, "serial:{serial}"),
            DeviceName::Nvme(serial, nsid) => write!(f, "nvme:{serial}/{nsid}"),
            DeviceName::Mac(mac) => write!(f, "mac:{mac}"),
        }
    }
}

impl Item for DeviceName {
    const SHAPE: Shape = Shape::TextOrInteger;
    fn accepts(_: Option<Range>) -> String {
        "\"serial:…\", \"nvme:SERIAL/1\", \"pci:0000:03:00.0\", \"mmio:0xfeb00e00\" or \"mac:52:54:00:12:34:56\", as \
         `show disks` and `show interfaces` name it; or its position, from 0 to 63"
            .into()
    }
    fn decode(n: &Node, path: &str, _: Option<Range>, out: &mut Vec<Problem>) -> Option<Self> {
        match integer(n) {
            Some(position) => {
                let position = u8::try_from(position).ok().filter(|&p| p < POSITIONS);
                if position.is_none() {
                    let reason = "the position is above 63".to_string();
                    out.push(super::item::problem(n, path, reason, Self::accepts(None)));
                }
                position.map(DeviceName::Position)
            }
            None => super::item::decode_text(n, path, Self::accepts(None), out),
        }
    }
    fn encode(&self) -> Option<Value> {
        Some(match self {
            DeviceName::Position(position) => Value::Integer(i64::from(*position)),
            name => Value::Text(name.to_string()),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_round_trip_through_text() {
        for name in [
            "0",
            "63",
            "serial:disk-1",
            "nvme:S1/2/3",
            "pci:0000:03:00.0",
            "pci:0000:03:00.0/1",
            "mac:52:54:00:12:34:56",
        ] {
            assert_eq!(name.parse::<DeviceName>().unwrap().to_string(), name);
        }
        assert_eq!("disk2".parse(), Ok(DeviceName::Position(2)));
        for wrong in ["", "64", "-1", "serial:", "serial:a b", "pci:9", "mac:1", "sda", "x:y"]
            .into_iter()
            .chain(["nvme:", "nvme:a", "nvme:/1", "nvme:a/", "nvme:a/0", "nvme:a/+1", "nvme:a b/1"])
        {
            assert!(wrong.parse::<DeviceName>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn names_match_their_device_only() {
        let at = "pci:0000:00:03.0";
        let disk = |name: &str| name.parse::<DeviceName>().unwrap().is_disk(1, at, "a");
        assert!(disk("1") && disk(at) && disk("pci:00:03.0") && disk("serial:a"));
        assert!(!disk("0") && !disk("pci:0000:00:04.0") && !disk("serial:b"));
        assert!(!disk("mac:02:00:00:00:00:01") && !disk("nvme:a/1"));
        let at = "pci:0000:00:03.0/2";
        let disk = |name: &str| name.parse::<DeviceName>().unwrap().is_disk(0, at, "a");
        assert!(disk("nvme:a/2") && disk("serial:a") && disk(at) && disk("pci:00:03.0/2"));
        assert!(!disk("nvme:a/1") && !disk("nvme:b/2") && !disk("pci:00:03.0"));
        let port = |name: &str| name.parse::<DeviceName>().unwrap().is_port(0, at, [2; 6]);
        assert!(port("0") && port(at) && port("mac:02:02:02:02:02:02") && !port("serial:a"));
    }
}
