//! Configuration: one typed TOML document.
//!
//! Sources, later ones win: the built-in default, the document embedded in the image, the fw_cfg file
//! `opt/isthmus/config`, SMBIOS strings (`oem_strings.rs`), the seed disk, the config disk, `isthmus.PATH=VALUE` on the
//! kernel command line, `set PATH VALUE` on the console. Documents are merged table by table. A list (`[[net]]`, `[[volume]]`, an array) replaces an earlier one as
//! a whole; a path with an index changes or adds one entry. The platform reads the sources. Formats and meaning are
//! here.
//!
//! # Life of a document
//!
//! Beside the running document there are the saved one (`disk.rs`), a candidate that operators edit and commit, the last
//! revisions, and a commit that waits for its confirmation (`lifecycle.rs`, `history.rs`, `replace.rs`, `compare.rs`).
//! `json_schema.rs` describes the document to programs, from the same tables that decode it.
//!
//! # What is open
//!
//! A mistake never stops the appliance, and never makes it less restrictive:
//!
//! * A source with a mistake is ignored and reported with its line. Everything that it may have restricted is closed.
//! * An unknown key is ignored, and the rest of its document is in force. In a section that grants access it closes its
//!   entry. A key that sounds like a restriction closes everything (`closing.rs`).
//! * While a document cannot be used, exports, rules, bridge, services and writing over HTTP are closed, unless a later
//!   source defines them.
//!
//! `net::http::access` has the rules of HTTP: allowed hosts and addresses, a token for writes and captures, and for
//! writes a `Host` of the appliance and no foreign `Origin`.

mod checks;
mod closing;
pub mod command_line;
mod compare;
mod console_login;
mod cores;
mod device_name;
mod dhchap;
pub mod disk;
mod document;
mod doors;
mod effect;
mod history;
mod in_force;
mod item;
mod json_schema;
mod json_text;
pub mod kept_pair;
mod known_secrets;
mod lifecycle;
mod limits;
mod linx;
mod log_levels;
mod messaging;
mod ntb;
pub mod nvme;
mod nvme_host;
mod oem_strings;
mod origin;
mod origins;
pub mod partitions;
mod pending;
mod rapidio;
mod remote;
mod remote_tcp;
mod renamed;
mod replace;
mod schema;
mod sections;
mod servers;
pub mod slot;
mod toml_text;
mod tree;
mod user;
pub mod usnic;
mod values;

pub use self::nvme::{Nvme, Subsystem};
pub use compare::{Change, changes_json, compare};
pub use console_login::Console;
pub use cores::Cores;
pub use device_name::{DeviceName, namespace_of};
pub use document::{Document, Sources, check, renamed_keys};
pub use history::{History, Revision};
pub use in_force::InForce;
pub use json_schema::{named_lists, schema_piece};
pub use json_text::{Json, parse as parse_json};
pub use lifecycle::{Candidate, Leaving, Lifecycle, Trial};
pub use linx::{Linx, LinxName, LinxService, LinxTransport};
pub use log_levels::{Log, SubjectLevel};
pub use messaging::{Rule, RuleFraming, Smc, Ueid};
pub use ntb::{Ntb, NtbProtocol};
pub use oem_strings::OemStrings;
pub use origin::{Kind, Origin, Problem, Source};
pub use pending::{Entry, Pending};
pub use rapidio::{Rapidio, RapidioRole, RapidioService};
pub use remote::{
    Access, Attempts, DevicePath, Mirror, MpPolicy, PathPair, Remote, RemoteKind, RemotePath,
    SessName,
};
pub use remote_tcp::{Digests, RemoteAddress, RemoteExport};
pub use schema::{Config, Export, Http, Memory, Net, Rnbd, Roce, Services, System, Volume};
pub use servers::{Fingerprint, NameServer, SyslogServer, TimeServer};
pub use toml_text::MAX_DOCUMENT;
pub use user::{Role, User, UserCertificate};
pub use values::{
    Address, Authority, ConfigPlace, Ed25519Key, ExportName, Hostname, Mac, Name, OnPanic, Pem,
    PrivateKey, RoceBy, SessionName, Sha256, Size,
};

/// Last path segments of keys whose values are secrets, or hashes or public halves of secrets.
const SECRETS: [&str; 3] = ["key", "token_sha256", "upgrade_key"];

/// Whether the value at a path is a secret, or may be one under a mistyped path. Such a value is neither logged nor
/// kept in the history.
pub fn is_secret(path: &str) -> bool {
    let last = path.rsplit('.').next().unwrap_or_default().to_ascii_lowercase();
    ["key", "token", "secret", "passw", "psk"].iter().any(|word| last.contains(word))
        || crate::suggestion::nearest(&last, SECRETS.into_iter()).is_some()
}

#[cfg(test)]
mod manual_tests;
#[cfg(test)]
mod mistake_tests;
#[cfg(test)]
mod names_tests;
#[cfg(test)]
mod tests;
