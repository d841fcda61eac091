//! Names in RTRS and RNBD messages: up to 254 bytes in a field of 255, padded with zeroes.

use core::fmt;

/// A name of 0 to 254 bytes of UTF-8 without control characters.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Name {
    bytes: [u8; Name::FIELD],
    len: u8,
}

/// Invalid name: too long, not UTF-8, or with control characters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BadName;

impl fmt::Display for BadName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "a name has at most {} bytes of UTF-8 without control characters",
            Name::FIELD - 1
        )
    }
}

impl core::error::Error for BadName {}

impl Name {
    /// Size of the field that carries a name.
    pub const FIELD: usize = 255;

    /// Creates a name from a string.
    pub fn new(name: &str) -> Result<Self, BadName> {
        if name.chars().any(char::is_control) {
            return Err(BadName);
        }
        let mut bytes = [0; Name::FIELD];
        let room = bytes.get_mut(..name.len()).filter(|r| r.len() < Name::FIELD).ok_or(BadName)?;
        room.copy_from_slice(name.as_bytes());
        Ok(Name { bytes, len: name.len() as u8 })
    }

    /// Parses a field: the bytes before the first zero (which must exist).
    pub fn parse(field: &[u8; Name::FIELD]) -> Result<Self, BadName> {
        let len = field.iter().position(|&b| b == 0).ok_or(BadName)?;
        Name::new(core::str::from_utf8(&field[..len]).map_err(|_| BadName)?)
    }

    /// The field.
    pub fn field(&self) -> &[u8; Name::FIELD] {
        &self.bytes
    }

    /// As a string.
    pub fn as_str(&self) -> &str {
        core::str::from_utf8(&self.bytes[..self.len as usize]).unwrap_or_default()
    }
}

impl Default for Name {
    /// The empty name.
    fn default() -> Self {
        Name { bytes: [0; Name::FIELD], len: 0 }
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl fmt::Debug for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_round_trip_and_invalid_names_are_refused() {
        let name = Name::new("blå/ram0").unwrap();
        assert_eq!(Name::parse(name.field()).unwrap(), name);
        assert_eq!(Name::parse(&[b'a'; 255]), Err(BadName), "no terminator");
        let mut field = [0; 255];
        field[0] = 0xff;
        assert_eq!(Name::parse(&field), Err(BadName), "not UTF-8");
        assert_eq!(Name::new("a\nb"), Err(BadName));
        assert!(Name::new(&"x".repeat(254)).is_ok());
        assert_eq!(Name::new(&"x".repeat(255)), Err(BadName));
    }
}
