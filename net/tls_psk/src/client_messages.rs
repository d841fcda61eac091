//! The ClientHello that a client sends, with its binders.

use crate::alert::Checked;
use crate::client::OfferedPsk;
use crate::codec;
use crate::group::{Ephemeral, Group};
use crate::hash::Transcript;
use crate::hello;
use crate::schedule::{Early, Suite};
use alloc::vec::Vec;

/// Contents of a ClientHello.
pub struct Offer<'a> {
    pub random: &'a [u8; 32],
    pub psks: &'a [OfferedPsk],
    pub groups: &'static [Group],
    /// The group of the share.
    pub group: Group,
    pub cookie: &'a [u8],
}

/// The transcript with which a binder begins: empty for a first ClientHello.
pub type Before<'a> = &'a dyn Fn(&OfferedPsk) -> Transcript;

/// Makes the message.
pub fn client_hello(
    offer: &Offer<'_>,
    ephemeral: &Ephemeral,
    before: Before<'_>,
) -> Checked<Vec<u8>> {
    let mut public = Vec::new();
    ephemeral.public(offer.group, &mut public)?;
    let mut hello = Vec::new();
    let mut binders = 0;
    codec::message(&mut hello, hello::CLIENT_HELLO, |into| {
        into.extend(hello::LEGACY.to_be_bytes());
        into.extend(offer.random);
        into.push(0);
        codec::nested(into, 2, |into| {
            for suite in [Suite::Aes256GcmSha384, Suite::Aes128GcmSha256] {
                if offer.psks.iter().any(|psk| Suite::of(psk.key.hash) == Some(suite)) {
                    into.extend(suite.code().to_be_bytes());
                }
            }
        });
        into.extend([1, 0]);
        codec::nested(into, 2, |into| {
            extensions(offer, &public, into);
            binders = pre_shared_key(offer, into);
        });
    });
    fill_binders(offer, &mut hello, binders, before);
    Ok(hello)
}

fn extensions(offer: &Offer<'_>, public: &[u8], into: &mut Vec<u8>) {
    codec::extension(into, hello::SUPPORTED_GROUPS, |into| {
        codec::nested(into, 2, |into| {
            offer.groups.iter().for_each(|group| into.extend(group.code().to_be_bytes()));
        });
    });
    codec::extension(into, hello::SUPPORTED_VERSIONS, |into| {
        codec::nested(into, 1, |into| into.extend(hello::TLS_1_3.to_be_bytes()));
    });
    codec::extension(into, hello::PSK_MODES, |into| into.extend([1, hello::PSK_DHE]));
    codec::extension(into, hello::KEY_SHARE, |into| {
        codec::nested(into, 2, |into| {
            into.extend(offer.group.code().to_be_bytes());
            codec::nested(into, 2, |into| into.extend(public));
        });
    });
    if !offer.cookie.is_empty() {
        codec::extension(into, hello::COOKIE, |into| {
            codec::nested(into, 2, |into| into.extend(offer.cookie));
        });
    }
}

/// Appends the identities, and zeros for the binders. Returns where the list of binders begins.
fn pre_shared_key(offer: &Offer<'_>, into: &mut Vec<u8>) -> usize {
    let mut binders = 0;
    codec::extension(into, hello::PRE_SHARED_KEY, |into| {
        codec::nested(into, 2, |into| {
            for psk in offer.psks {
                codec::nested(into, 2, |into| into.extend(&psk.identity));
                // The age of an external PSK is 0 (RFC 8446 section 4.2.11).
                into.extend([0; 4]);
            }
        });
        binders = into.len();
        codec::nested(into, 2, |into| {
            for psk in offer.psks {
                let len = psk.key.hash.len();
                codec::nested(into, 1, |into| into.resize(into.len() + len, 0));
            }
        });
    });
    binders
}

/// Replaces the zeros by binders over everything before their list.
fn fill_binders(offer: &Offer<'_>, hello: &mut [u8], at: usize, before: Before<'_>) {
    let Some((truncated, list)) = hello.split_at_mut_checked(at) else { return };
    let mut rest = list.get_mut(2..).unwrap_or_default();
    for psk in offer.psks {
        let mut transcript = before(psk);
        transcript.update(truncated);
        let binder = Early::new(&psk.key).binder(&transcript.current());
        let binder = binder.as_bytes();
        let (this, others) = rest.split_at_mut_checked(1 + binder.len()).unwrap_or_default();
        if let Some(place) = this.get_mut(1..) {
            place.copy_from_slice(binder);
        }
        rest = others;
    }
}
