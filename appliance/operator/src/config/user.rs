//! `[[user]]`: who may use the appliance over HTTP, and what each may do.

use super::item::{section, text_items};
use super::schema::Config;
use super::servers::Fingerprint;
use super::values::{Name, Sha256};
use core::fmt;
use core::str::FromStr;
use net::tls::SubjectName;

section! {
    /// A user or a program that identifies itself by a token or a certificate.
    User {
        /// Name in the audit log.
        name: Name => AtOnce;
        /// Role: `read`, `operate` or `admin`.
        role: Role => AtOnce;
        /// SHA-256 of the user's token.
        token_sha256: Option<Sha256> => AtOnce;
        /// SHA-256 of the user's certificate, for HTTP with TLS, or with `http.client_ca` a name in it.
        certificate: Option<UserCertificate> => AtOnce;
    }
}

impl Config {
    /// Whether a user is known by a certificate.
    pub fn knows_certificates(&self) -> bool {
        self.user.iter().any(|user| user.certificate.is_some())
    }
}

/// By what the certificate of a user is known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum UserCertificate {
    /// Its SHA-256.
    Fingerprint(Fingerprint),
    /// A name in it, if an authority of `http.client_ca` has issued it.
    Name(SubjectName),
}

impl FromStr for UserCertificate {
    type Err = String;
    fn from_str(text: &str) -> Result<UserCertificate, String> {
        match text.parse() {
            Ok(fingerprint) => Ok(UserCertificate::Fingerprint(fingerprint)),
            Err(_) => text.parse().map(UserCertificate::Name),
        }
    }
}

impl fmt::Display for UserCertificate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            UserCertificate::Fingerprint(fingerprint) => fingerprint.fmt(f),
            UserCertificate::Name(name) => name.fmt(f),
        }
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
    UserCertificate: "the SHA-256 of a certificate, 64 hexadecimal digits, as `openssl x509 -noout -fingerprint -sha256` prints it, or with http.client_ca a name in it such as CN=ci, DNS:ci.example.net, email:ci@example.net or URI:spiffe://example.net/ci";
}

#[cfg(test)]
mod tests {
    use super::super::{Document, check};
    use super::*;

    /// The certificate of an authority and one that it has issued, both on P-256.
    const AUTHORITY: &str = include_str!("user_tests/authority.pem");
    const ISSUED: &str = include_str!("user_tests/issued.pem");

    fn problems(authority: &str, certificate: &str) -> Vec<String> {
        let user =
            format!("[[user]]\nname = \"ci\"\nrole = \"read\"\ncertificate = \"{certificate}\"\n");
        let authority = match authority {
            "" => String::new(),
            pem => format!("[http]\nclient_ca = \"\"\"\n{pem}\"\"\"\n"),
        };
        let checked = check((authority + &user).as_bytes());
        checked.err().into_iter().flatten().map(|problem| problem.to_string()).collect()
    }

    #[test]
    fn certificate_is_known_by_its_fingerprint_or_by_a_name_that_an_authority_vouches_for() {
        let digits = "ab".repeat(32);
        assert_eq!(problems("", &digits), [""; 0]);
        for name in ["CN=ci", "DNS:ci.example.net", "email:ci@example.net", "URI:spiffe://a/ci"] {
            assert_eq!(problems(AUTHORITY, name), [""; 0], "{name}");
            let refused = problems("", name);
            assert!(
                refused[0].contains("user.0.certificate: a name counts only with"),
                "{refused:?}"
            );
            assert_eq!(name.parse::<UserCertificate>().unwrap().to_string(), name);
        }
        for wrong in ["ci", "abab", "CN=", "DNS:", "cn=ci", "O=example", "IP:10.0.0.1"] {
            let refused = problems(AUTHORITY, wrong);
            assert!(
                refused[0].contains("user.0.certificate: ") && refused[0].contains("CN=ci"),
                "{wrong}"
            );
        }
    }

    #[test]
    fn authority_that_cannot_vouch_is_refused_with_the_reason() {
        for (pem, why) in [
            ("x", "not PEM"),
            (ISSUED, "certificate 1: it is not that of an authority"),
            (&AUTHORITY.repeat(9)[..], "more than 8 certificates"),
        ] {
            let refused = problems(pem, "CN=ci");
            assert!(
                refused.iter().any(|one| one.contains("http.client_ca: ") && one.contains(why)),
                "{refused:?}"
            );
        }
    }

    /// Of a document whose authorities cannot be used no user is left.
    #[test]
    fn users_by_name_go_with_their_authorities() {
        let mut document = Document::default();
        document.set("http.client_ca", &AUTHORITY.replace('\n', " ")).unwrap();
        document.set("user.0.name", "ci").unwrap();
        document.set("user.0.role", "read").unwrap();
        document.set("user.0.certificate", "CN=ci").unwrap();
        assert!(document.unset("http.client_ca").is_err(), "the user would be known by nothing");
        assert!(document.config().http.client_ca.is_some());
    }
}
