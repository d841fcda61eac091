//! Configuration by the VMM in SMBIOS: the OEM strings (type 11) that begin with `isthmus.`. Each is one of
//!
//! * `isthmus.PATH=VALUE`: a setting, as on the kernel command line, without quotes around it;
//! * `isthmus.document=BASE64`: the document. Further strings of this name continue it;
//! * `isthmus.config_disk=NAME`, `isthmus.seed=NAME`: the disk with the configuration, and the disk with a seed.
//!
//! Other strings are those of other programs. Several strings with the name of a disk: the last one counts.

use super::command_line::{self, CONFIG_DISK, SEED};
use base64ct::{Base64, Encoding as _};

/// Most bytes of all strings that are for the appliance.
const MOST_BYTES: usize = 64 << 10;
const PREFIX: &[u8] = b"isthmus.";
const DOCUMENT: &str = "document";

/// The strings for the appliance, sorted by their use.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OemStrings {
    /// Settings in order, as (path, value).
    pub settings: Vec<(String, String)>,
    /// The document.
    pub document: Option<Vec<u8>>,
    /// The name of the config disk.
    pub config_disk: Option<String>,
    /// The name of the disk with a seed.
    pub seed: Option<String>,
    /// Why strings may be missing, so that everything that they may have restricted is closed.
    pub trouble: Option<&'static str>,
}

impl OemStrings {
    /// Reads all strings. None if none is for the appliance.
    pub fn of(mut strings: drivers::smbios::OemStrings<'_>) -> Option<OemStrings> {
        let mut found = OemStrings::default();
        let (mut encoded, mut has_document, mut bytes) = (String::new(), false, 0);
        let mut any = false;
        for string in strings.by_ref().filter(|string| string.starts_with(PREFIX)) {
            any = true;
            bytes += string.len();
            let text = core::str::from_utf8(string).ok().filter(|_| bytes <= MOST_BYTES);
            let Some((path, value)) = text.and_then(command_line::setting) else {
                found.trouble = Some("not plain text, or more than 64 KiB of strings");
                continue;
            };
            match path {
                DOCUMENT => {
                    has_document = true;
                    encoded.extend(value.chars().filter(|c| !c.is_ascii_whitespace()));
                }
                CONFIG_DISK => found.config_disk = Some(value.into()),
                SEED => found.seed = Some(value.into()),
                _ => found.settings.push((path.into(), value.into())),
            }
        }
        if has_document {
            found.document = Base64::decode_vec(&encoded).ok();
            if found.document.is_none() {
                found.trouble = Some("isthmus.document is not base64");
            }
        }
        if strings.is_cut() {
            found.trouble = Some("the firmware's table is cut");
        }
        any.then_some(found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A structure table with these strings.
    fn table(strings: &[&[u8]]) -> Vec<u8> {
        let strings = strings.iter().flat_map(|string| [*string, &[0]].concat());
        let structure = [11, 5, 1, 0, 2].into_iter().chain(strings);
        structure.chain([0, 127, 4, 2, 0, 0, 0]).collect()
    }

    fn read(table: &[u8]) -> Option<OemStrings> {
        OemStrings::of(drivers::smbios::OemStrings::of(table))
    }

    #[test]
    fn strings_are_sorted_by_their_use() {
        let found = read(&table(&[
            b"io.systemd.credential:x=y",
            b"isthmus.net.0.address=[\"10.0.0.1/24\", \"fd00::1/64\"]",
            b"isthmus.config_disk=serial:a",
            b"isthmus.document=W3N5c3",
            b"isthmus.document=RlbV0K",
            b"isthmus.roce.services",
            b"isthmus.seed=serial:b",
        ]));
        let setting = |path: &str, value: &str| (path.to_string(), value.to_string());
        let settings = vec![
            setting("net.0.address", "[\"10.0.0.1/24\", \"fd00::1/64\"]"),
            setting("roce.services", "true"),
        ];
        let document = Some(b"[system]\n".to_vec());
        let (config_disk, seed) = (Some("serial:a".into()), Some("serial:b".into()));
        assert_eq!(
            found,
            Some(OemStrings { settings, document, config_disk, seed, trouble: None })
        );
        assert_eq!(read(&table(&[b"isthmus", b"other"])), None);
    }

    #[test]
    fn strings_that_cannot_be_read_are_trouble() {
        for strings in [
            &[&b"isthmus.http.hosts=\xff"[..]][..],
            &[b"isthmus.document=W3"],
            &[b"isthmus.document=????"],
            &[&[&b"isthmus.x="[..], &[b'y'; MOST_BYTES]].concat()],
        ] {
            let found = read(&table(strings)).unwrap();
            assert!(found.trouble.is_some(), "{strings:?}");
            assert_eq!((found.settings, found.document), (Vec::new(), None));
        }
        let whole = table(&[b"isthmus.http.port=81"]);
        let mut cut = whole.clone();
        cut.truncate(whole.len() - 6);
        cut.extend([9, 9]);
        assert!(read(&cut).unwrap().trouble.is_some());
        assert!(read(&whole).unwrap().trouble.is_none());
        // Strings of other programs are ignored.
        assert_eq!(read(&[11, 5, 1, 0, 1, b'x']), None);
    }
}
