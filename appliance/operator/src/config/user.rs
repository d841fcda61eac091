//! `[[user]]`: who may use the appliance over HTTP, and what each may do.

use super::item::{section, text_items};
use super::schema::Config;
use super::servers::Fingerprint;
use super::values::{Name, Sha256};
use core::fmt;
use core::str::FromStr;

section! {
    /// A user or a program that identifies itself by a token or a certificate.
    User {
        /// Name in the audit log.
        name: Name => AtOnce;
        /// Role: `read`, `operate` or `admin`.
        role: Role => AtOnce;
        /// SHA-256 of the user's token.
        token_sha256: Option<Sha256> => AtOnce;
        /// SHA-256 of the user's certificate, for HTTP with TLS.
        certificate: Option<Fingerprint> => AtOnce;
    }
}

impl Config {
    /// Whether a user is known by a certificate.
    pub fn knows_certificates(&self) -> bool {
        self.user.iter().any(|user| user.certificate.is_some())
    }
}

/// What a user may do. A role includes those before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Role {
    /// Read state, including what identifies peers.
    Read,
    /// Also end sessions, capture, ping, reboot.
    Operate,
    /// Also change the configuration, volumes and releases.
    Admin,
}

impl Role {
    /// Name in the configuration.
    pub fn name(self) -> &'static str {
        match self {
            Role::Read => "read",
            Role::Operate => "operate",
            Role::Admin => "admin",
        }
    }
}

impl FromStr for Role {
    type Err = String;
    fn from_str(text: &str) -> Result<Role, String> {
        let roles = [Role::Read, Role::Operate, Role::Admin];
        roles.into_iter().find(|role| role.name() == text).ok_or_else(|| "unknown role".into())
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

text_items! {
    Role: "read, operate or admin";
}
