//! Value types that the document writes as strings: sizes, addresses, names.

use super::device_name::DeviceName;
use super::item::{Item, Range, Shape, integer, problem, text_items};
use super::known_secrets;
use super::origin::Problem;
use super::tree::{Node, Value};
use core::fmt;
use core::net::{IpAddr, Ipv4Addr, SocketAddr};
use core::str::FromStr;
use net::hosts::Network;

text_items! {
    Network: "a network or a host such as 10.0.0.0/24, 2001:db8::/64 or 10.0.0.7";
    Ed25519Key: "the public half of the key that releases are signed with, 64 hexadecimal digits, as `./isthmus release` prints it";
    Sha256: "the SHA-256 of a token, 64 hexadecimal digits, as of `printf %s TOKEN | sha256sum`";
    OnPanic: "reboot, poweroff or halt";
    ConfigPlace: "a disk as `show disks` names it, \"serial:…\", \"nvme:SERIAL/1\" or \"pci:0000:03:00.0\", or \"none\"";
    RoceBy: "hardware or software";
    IpAddr: "an IPv4 or IPv6 address such as 10.0.0.1 or fd00::1";
    Ipv4Addr: "an IPv4 address such as 10.0.0.1";
    SocketAddr: "an address and a port such as 10.0.0.1:514 or [fd00::1]:514";
    Mac: "a MAC address such as 52:54:00:12:34:56";
    Address: "\"dhcp\", or an address with its prefix length such as 10.0.0.1/24 or fd00::1/64";
    Hostname: "letters, digits and hyphens in parts of at most 63, joined by dots";
    Name: "1 to 63 letters, digits, '.', '_' and '-'";
    ExportName: "1 to 255 letters, digits, '.', '_', '-' and '/', and %SESSNAME% for the session's name";
    SessionName: "1 to 255 visible characters";
}

/// Texts that are not validated alone. A certificate and its key are checked together (`checks.rs`).
macro_rules! opaque_items {
    ($($(#[$about:meta])* $name:ident: $accepts:expr;)*) => {$(
        $(#[$about])*
        #[derive(Clone, PartialEq, Eq)]
        pub struct $name(String);

        impl $name {
            /// The text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(stringify!($name))
            }
        }

        impl FromStr for $name {
            type Err = String;
            fn from_str(text: &str) -> Result<$name, String> {
                Ok($name(text.into()))
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        text_items! {
            $name: $accepts;
        }
    )*};
}

opaque_items! {
    /// A certificate, or several, as PEM.
    Pem: "a certificate as PEM, -----BEGIN CERTIFICATE----- and so on; that of the key first";
    /// Certificates of authorities, as PEM.
    Authority: "certificates of 1 to 8 authorities as PEM, with keys on P-256, -----BEGIN CERTIFICATE----- and so on";
    /// The private key of a certificate, as PEM.
    PrivateKey: "an ECDSA key on P-256 as PEM, -----BEGIN PRIVATE KEY----- and so on";
}

impl Item for log::LevelFilter {
    fn accepts(_: Option<Range>) -> String {
        "off, error, warn, info, debug or trace".into()
    }
    fn decode(n: &Node, path: &str, _: Option<Range>, out: &mut Vec<Problem>) -> Option<Self> {
        super::item::decode_text(n, path, Self::accepts(None), out)
    }
    fn encode(&self) -> Option<Value> {
        Some(Value::Text(self.as_str().to_ascii_lowercase()))
    }
}

/// A SHA-256 digest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sha256(
    /// The digest.
    pub [u8; 32],
);

impl FromStr for Sha256 {
    type Err = String;
    fn from_str(text: &str) -> Result<Sha256, String> {
        known_secrets::refuse_token(text)?;
        hexadecimal(text).map(Sha256)
    }
}

pub(super) fn hexadecimal(text: &str) -> Result<[u8; 32], String> {
    if text.len() != 64 || !text.bytes().all(|b| b.is_ascii_hexdigit()) {
        return Err("not 64 hexadecimal digits".into());
    }
    let mut bytes = [0; 32];
    for (i, byte) in bytes.iter_mut().enumerate() {
        let digits = text.get(2 * i..2 * i + 2).unwrap_or_default();
        *byte = u8::from_str_radix(digits, 16).map_err(|_| "not hexadecimal")?;
    }
    Ok(bytes)
}

impl fmt::Display for Sha256 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// The public half of an Ed25519 key (RFC 8032).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ed25519Key(
    /// The encoded point.
    pub [u8; 32],
);

impl FromStr for Ed25519Key {
    type Err = String;
    fn from_str(text: &str) -> Result<Ed25519Key, String> {
        known_secrets::refuse_key(text)?;
        hexadecimal(text).map(Ed25519Key)
    }
}

impl fmt::Display for Ed25519Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&Sha256(self.0), f)
    }
}

/// The operator's choice of the config disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ConfigPlace {
    /// No config disk.
    Nowhere,
    /// This disk.
    Disk(DeviceName),
}

impl FromStr for ConfigPlace {
    type Err = String;
    fn from_str(text: &str) -> Result<ConfigPlace, String> {
        match text {
            "none" => Ok(ConfigPlace::Nowhere),
            name => name.parse().map(ConfigPlace::Disk),
        }
    }
}

impl fmt::Display for ConfigPlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ConfigPlace::Nowhere => f.write_str("none"),
            ConfigPlace::Disk(name) => name.fmt(f),
        }
    }
}

/// Action after a panic or an exception.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnPanic {
    /// Reboot.
    Reboot,
    /// Power the machine off.
    PowerOff,
    /// Halt, for inspection.
    Halt,
}

/// RoCE implementation of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RoceBy {
    /// The card, if capable.
    Hardware,
    /// The software provider.
    Software,
}

impl FromStr for RoceBy {
    type Err = String;
    fn from_str(text: &str) -> Result<RoceBy, String> {
        match text {
            "hardware" => Ok(RoceBy::Hardware),
            "software" => Ok(RoceBy::Software),
            _ => Err("unknown RoCE mode".into()),
        }
    }
}

impl fmt::Display for RoceBy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            RoceBy::Hardware => "hardware",
            RoceBy::Software => "software",
        })
    }
}

impl FromStr for OnPanic {
    type Err = String;
    fn from_str(text: &str) -> Result<OnPanic, String> {
        match text {
            "reboot" => Ok(OnPanic::Reboot),
            "poweroff" => Ok(OnPanic::PowerOff),
            "halt" => Ok(OnPanic::Halt),
            _ => Err("unknown action".into()),
        }
    }
}

impl fmt::Display for OnPanic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            OnPanic::Reboot => "reboot",
            OnPanic::PowerOff => "poweroff",
            OnPanic::Halt => "halt",
        })
    }
}

/// A number of bytes, written with a binary unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Size(
    /// Bytes.
    pub u64,
);

const UNITS: [(&str, u32); 4] = [("TiB", 40), ("GiB", 30), ("MiB", 20), ("KiB", 10)];

impl FromStr for Size {
    type Err = String;
    fn from_str(text: &str) -> Result<Size, String> {
        let (digits, shift) = UNITS
            .iter()
            .find_map(|&(unit, shift)| text.strip_suffix(unit).map(|d| (d, shift)))
            .unwrap_or((text, 0));
        let number: u64 = digits.trim().parse().map_err(|_| "not a size".to_string())?;
        number
            .checked_mul(1 << shift)
            .filter(|&bytes| i64::try_from(bytes).is_ok())
            .map(Size)
            .ok_or_else(|| "too large".to_string())
    }
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let exact = |&&(_, shift): &&(&str, u32)| self.0 > 0 && self.0.is_multiple_of(1 << shift);
        match UNITS.iter().find(exact) {
            Some((unit, shift)) => write!(f, "{}{unit}", self.0 >> shift),
            None => write!(f, "{}", self.0),
        }
    }
}

impl Item for Size {
    const SHAPE: Shape = Shape::TextOrInteger;
    fn accepts(range: Option<Range>) -> String {
        let limits = range.map(|(a, b)| format!(", from {} to {}", Size(a), Size(b)));
        format!("a size such as 64MiB, or bytes{}", limits.unwrap_or_default())
    }
    fn decode(n: &Node, path: &str, range: Option<Range>, out: &mut Vec<Problem>) -> Option<Size> {
        let size = match integer(n).and_then(|i| u64::try_from(i).ok()) {
            Some(bytes) => Size(bytes),
            None => super::item::decode_text(n, path, Self::accepts(range), out)?,
        };
        if range.is_some_and(|(least, most)| size.0 < least || size.0 > most) {
            let reason = format!("{size} is out of range");
            out.push(problem(n, path, reason, Self::accepts(range)));
            return None;
        }
        Some(size)
    }
    fn encode(&self) -> Option<Value> {
        Some(Value::Text(self.to_string()))
    }
}

/// An Ethernet address, first byte first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mac(
    /// The six bytes in wire order.
    pub [u8; 6],
);

impl FromStr for Mac {
    type Err = String;
    fn from_str(text: &str) -> Result<Mac, String> {
        let mut bytes = [0; 6];
        let mut parts = text.split([':', '-']);
        for byte in &mut bytes {
            let part = parts.next().filter(|p| p.len() == 2 && !p.starts_with('+'));
            let part = part.ok_or("not six pairs of digits")?;
            *byte = u8::from_str_radix(part, 16).map_err(|_| "not hexadecimal")?;
        }
        if parts.next().is_some() {
            return Err("more than six bytes".into());
        }
        Ok(Mac(bytes))
    }
}

impl fmt::Display for Mac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

/// Configuration of an interface's address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Address {
    /// Address from a DHCPv4 server.
    Dhcp,
    /// Fixed address with its prefix length in bits.
    Static(IpAddr, u8),
}

impl FromStr for Address {
    type Err = String;
    fn from_str(text: &str) -> Result<Address, String> {
        if text == "dhcp" {
            return Ok(Address::Dhcp);
        }
        let (address, prefix) = text.split_once('/').ok_or("no prefix length")?;
        let address: IpAddr = address.parse().map_err(|_| "not an address")?;
        let longest = if address.is_ipv4() { 32 } else { 128 };
        let prefix: u8 = prefix.parse().map_err(|_| "the prefix length is not a number")?;
        if prefix == 0 || prefix > longest {
            return Err(format!("the prefix length must be 1 to {longest}"));
        }
        let broadcast = matches!(address, IpAddr::V4(a) if a.is_broadcast());
        if address.is_unspecified() || address.is_multicast() || broadcast || address.is_loopback()
        {
            return Err("no host can have this address".into());
        }
        Ok(Address::Static(address, prefix))
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Address::Dhcp => f.write_str("dhcp"),
            Address::Static(address, prefix) => write!(f, "{address}/{prefix}"),
        }
    }
}

/// Whether `other` is in the subnet of `address`/`prefix`.
pub fn same_subnet(address: IpAddr, prefix: u8, other: IpAddr) -> bool {
    let shared = match (address, other) {
        (IpAddr::V4(a), IpAddr::V4(b)) => (a.to_bits() ^ b.to_bits()).leading_zeros(),
        (IpAddr::V6(a), IpAddr::V6(b)) => (a.to_bits() ^ b.to_bits()).leading_zeros(),
        _ => return false,
    };
    shared >= u32::from(prefix)
}

macro_rules! names {
    ($($(#[$about:meta])* $name:ident: $valid:expr, $why:expr;)*) => {$(
        $(#[$about])*
        #[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
        pub struct $name(String);

        impl $name {
            /// The name.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl FromStr for $name {
            type Err = String;
            fn from_str(text: &str) -> Result<$name, String> {
                let valid: fn(&str) -> bool = $valid;
                if valid(text) { Ok($name(text.into())) } else { Err($why.into()) }
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
    )*};
}

names! {
    /// Host name, optionally with a domain (RFC 1123).
    Hostname: valid_hostname, "not a host name";
    /// Name of a volume.
    Name: |t| t.len() <= 63 && valid_component(t), "not a name";
    /// Name under which clients open a volume (the `device_path` of rnbd-client).
    ExportName: valid_export, "not an export name";
    /// Name that a client gives its session (the `sessname` of rnbd-client).
    SessionName: |t| (1..=255).contains(&t.len()) && t.bytes().all(|b| b.is_ascii_graphic()),
        "not a session name";
}

fn valid_hostname(text: &str) -> bool {
    let label = |l: &str| {
        (1..=63).contains(&l.len())
            && l.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-')
            && !l.starts_with('-')
            && !l.ends_with('-')
    };
    text.len() <= 253 && text.split('.').all(label)
}

fn valid_component(text: &str) -> bool {
    let valid = |b: u8| b.is_ascii_alphanumeric() || b"._-".contains(&b);
    !text.is_empty() && text.bytes().all(valid) && text != "." && text != ".."
}

fn valid_export(text: &str) -> bool {
    let plain = text.replace("%SESSNAME%", "session");
    text.len() <= 255
        && plain.split('/').skip_while(|c| c.is_empty()).all(valid_component)
        && plain.split('/').any(valid_component)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_parsed_and_displayed() {
        for (text, bytes) in [("64MiB", 64 << 20), ("512", 512), ("3 GiB", 3 << 30), ("0", 0)] {
            assert_eq!(text.parse::<Size>().unwrap().0, bytes);
        }
        assert_eq!(Size(64 << 20).to_string(), "64MiB");
        assert_eq!(Size((64 << 20) + 1).to_string(), "67108865");
        for wrong in ["", "MiB", "-1", "9999999TiB", "1MB", "1.5GiB"] {
            assert!(wrong.parse::<Size>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn addresses_are_parsed_and_displayed() {
        for good in ["dhcp", "10.0.0.1/24", "fd00::1/64", "10.0.0.1/32"] {
            assert_eq!(good.parse::<Address>().unwrap().to_string(), good);
        }
        for wrong in ["10.0.0.1", "10.0.0.1/33", "10.0.0/24", "0.0.0.0/8", "ff02::1/64", "::1/128"]
        {
            assert!(wrong.parse::<Address>().is_err(), "{wrong}");
        }
        let (a, b) = ("10.0.1.1".parse().unwrap(), "10.0.0.9".parse().unwrap());
        assert!(same_subnet(a, 16, b) && !same_subnet(a, 24, b));
    }

    #[test]
    fn names_are_validated() {
        for good in ["52:54:00:12:34:56", "52-54-00-12-34-56"] {
            assert_eq!(good.parse::<Mac>().unwrap().to_string(), "52:54:00:12:34:56");
        }
        for wrong in ["52:54:00:12:34", "52:54:00:12:34:56:78", "52:54:00:12:34:+6", "x"] {
            assert!(wrong.parse::<Mac>().is_err(), "{wrong}");
        }
        for good in ["ram0", "/dev/ram0", "%SESSNAME%/disk", "a/b.c"] {
            assert!(good.parse::<ExportName>().is_ok(), "{good}");
        }
        for wrong in ["", "/", "a/../b", "%OTHER%", "a b", "a//b"] {
            assert!(wrong.parse::<ExportName>().is_err(), "{wrong}");
        }
        assert!("gw-1.example".parse::<Hostname>().is_ok() && "-a".parse::<Hostname>().is_err());
    }
}
