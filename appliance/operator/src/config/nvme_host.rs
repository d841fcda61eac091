//! `[[nvme_host]]`: secrets with which NVMe hosts prove their names.

use super::item::{section, text_items};
use super::nvme::HostNqn;
use super::schema::Config;
use core::fmt;
use core::str::FromStr;
use nvme::HostKeys;
use nvme_auth::{ConfiguredPsk, DhchapSecret, TargetConfig};

section! {
    /// Secrets of an NVMe host, for all subsystems that admit it.
    NvmeHost {
        /// NQN of the host.
        nqn: HostNqn => AtOnce;
        /// Its secret of DH-HMAC-CHAP, DHHC-1:…: with it, the host has to authenticate.
        dhchap_secret: Option<DhchapText> => AtOnce;
        /// The controller's secret, with which the host lets the controller authenticate.
        dhchap_controller_secret: Option<DhchapText> => AtOnce;
        /// Its TLS key, NVMeTLSkey-1:…: with it and without `dhchap_secret`, the host has to use TLS.
        tls_psk: Option<PskText> => AtOnce;
    }
}

text_items! {
    DhchapText: "a secret DHHC-1:…: as `nvme gen-dhchap-key` prints it";
    PskText: "a TLS key NVMeTLSkey-1:…: as `nvme gen-tls-key` prints it";
}

/// Secrets in their text form.
macro_rules! secrets {
    ($($(#[$about:meta])* $name:ident: $key:ty;)*) => {$(
        $(#[$about])*
        #[derive(Clone, PartialEq, Eq)]
        pub struct $name($key);

        impl FromStr for $name {
            type Err = String;
            fn from_str(text: &str) -> Result<$name, String> {
                let key = <$key>::parse(text).map_err(|why| why.to_string())?;
                match key.is_sequence() {
                    true => Err("a regular sequence of bytes, as in examples, is not secret".into()),
                    false => Ok($name(key)),
                }
            }
        }

        impl fmt::Display for $name {
            /// The secret: for documents that are saved. Reports hide the key.
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0.text())
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(stringify!($name))
            }
        }
    )*};
}

secrets! {
    /// A secret of DH-HMAC-CHAP.
    DhchapText: DhchapSecret;
    /// A configured TLS key.
    PskText: ConfiguredPsk;
}

impl DhchapText {
    /// The secret.
    pub fn secret(&self) -> &DhchapSecret {
        &self.0
    }
}

impl Config {
    /// Secrets of NVMe hosts, for the target.
    pub fn host_keys(&self) -> Vec<HostKeys> {
        let keys = |one: &NvmeHost| HostKeys {
            nqn: one.nqn.to_string(),
            dhchap: one.dhchap_secret.as_ref().map(|secret| secret.0.clone()),
            controller: one.dhchap_controller_secret.as_ref().map(|secret| secret.0.clone()),
            tls: one.tls_psk.as_ref().map(|psk| psk.0.clone()),
        };
        self.nvme_host.iter().map(keys).collect()
    }

    /// Preferences of DH-HMAC-CHAP, for the target.
    pub fn dhchap(&self) -> TargetConfig {
        TargetConfig {
            hashes: self.nvme.dhchap_hashes.iter().map(|hash| hash.0).collect(),
            groups: self.nvme.dhchap_groups.iter().map(|group| group.0).collect(),
            ..TargetConfig::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::config::{Document, Sources, check};
    use nvme::Demand;

    const SECRET: &str = "DHHC-1:00:YfEJbVxTwBJm0HgvAvpxdtBua+7LJGXnu8AvjEi9WPWDgsdm:";
    const EQUAL: &str = "DHHC-1:00:ERERERERERERERERERERERERERERERERERERERERERHYIEm8:";
    const COUNTED: &str = "NVMeTLSkey-1:01:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh+KfiaR:";
    const PSK: &str = "NVMeTLSkey-1:01:oTGLJIkEQBPfhHOj3d/MJNiBuDc8/rsGEaEuShBpkVLVlkod:";

    fn good() -> String {
        format!(
            "[[subsystem]]\nnqn = \"nqn.2026-01.x:a\"\nhosts = [\"nqn.2026-01.h:1\"]\n\
             dhchap = \"required\"\ntls = false\n\
             [[nvme_host]]\nnqn = \"nqn.2026-01.h:1\"\ndhchap_secret = \"{SECRET}\"\n\
             dhchap_controller_secret = \"{SECRET}\"\ntls_psk = \"{PSK}\"\n"
        )
    }

    #[test]
    fn secrets_reach_the_target_and_no_report() {
        let (document, problems) =
            Document::load(&Sources { disk: Some(good().as_bytes()), ..Sources::default() });
        assert_eq!(problems, []);
        let config = document.config();
        let keys = config.host_keys().remove(0);
        assert_eq!(keys.dhchap.as_ref().unwrap().text().as_str(), SECRET);
        assert_eq!(keys.tls.unwrap().text().as_str(), PSK);
        assert_eq!(keys.controller, keys.dhchap);
        let subsystem = config.subsystems().remove(0);
        assert_eq!((subsystem.dhchap, subsystem.tls), (Demand::Required, Demand::Optional));
        assert_eq!(config.dhchap().groups, nvme_auth::DhGroup::USUAL);
        let shown = [document.to_text(false), format!("{config:?}"), document.to_json()];
        for report in shown {
            assert!(!report.contains("ERER") && !report.contains("IiIi"), "{report}");
        }
        // The saved document contains the secrets. A document with hidden secrets keeps those of the host with the same NQN.
        assert!(document.to_text(true).contains(SECRET));
        let other = "[[nvme_host]]\nnqn = \"nqn.2026-01.h:0\"\ntls_psk = \"(not shown)\"\n";
        let hidden = format!("{}{other}", document.to_text(false));
        let replaced = document.replaced(hidden.as_bytes(), crate::config::Source::Http).unwrap();
        let keys = replaced.config().host_keys();
        assert_eq!((keys[0].tls.is_some(), keys[1].tls.is_none()), (true, true));
        assert_eq!(keys[0].dhchap.as_ref().unwrap().text().as_str(), SECRET);
    }

    #[test]
    fn mistakes_are_reported_at_their_key_without_the_secret() {
        assert!(check(good().as_bytes()).is_ok());
        let twice = "[[nvme_host]]\nnqn = \"nqn.2026-01.h:1\"\n";
        for (text, wanted, why) in [
            (good().replace("WDgsdm", "WDgsdA"), "nvme_host.0.dhchap_secret", "CRC-32"),
            (good().replace("WDgsdm:\"\ntls", ":\"\ntls"), "nvme_host.0.dhchap_controller", "key"),
            (good().replace("Vlkod:", "VlkoA:"), "nvme_host.0.tls_psk", "CRC-32"),
            (good().replace("NVMeTLSkey-1:01", "NVMeTLSkey-1:02"), "nvme_host.0.tls_psk", "48"),
            (good().replacen(SECRET, EQUAL, 1), "nvme_host.0.dhchap_secret", "sequence"),
            (good().replace(PSK, COUNTED), "nvme_host.0.tls_psk", "sequence"),
            (format!("{}{twice}", good()), "nvme_host.1.nqn", "another"),
            (good().replace("nqn.2026-01.h:1\"\ndh", "*\"\ndh"), "nvme_host.0.nqn", "one host"),
            (
                good().replace(&format!("dhchap_secret = \"{SECRET}\"\n"), ""),
                "nvme_host.0.dhchap_controller",
                "dhchap_secret",
            ),
            (good().replace("\"required\"", "\"maybe\""), "subsystem.0.dhchap", "optional"),
            (
                good() + "[nvme]\ndhchap_groups = []\n",
                "nvme.dhchap_groups",
                "no host could authenticate",
            ),
        ] {
            let problems = check(text.as_bytes()).unwrap_err();
            let found = problems.iter().find(|one| one.path.starts_with(wanted));
            let found = found.unwrap_or_else(|| panic!("{wanted}: {problems:?}"));
            assert!(found.to_string().contains(why), "{found}");
            assert!(!format!("{problems:?}").contains("ERER"), "{problems:?}");
        }
    }

    /// A host of which the document says that it has to prove its name must not get in by name alone.
    #[test]
    fn required_proof_that_no_host_can_give_is_reported() {
        let text = good().replace("tls = false", "tls = true");
        assert!(check(text.as_bytes()).is_ok());
        let nobody = text.split("[[nvme_host]]").next().unwrap();
        let problems = check(nobody.as_bytes()).unwrap_err();
        assert!(problems.iter().any(|one| one.path == "subsystem.0.dhchap"), "{problems:?}");
    }
}
