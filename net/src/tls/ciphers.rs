//! The record ciphers AES-128-GCM and ChaCha20-Poly1305 for rustls: TLS 1.3 (RFC 8446 section 5.2) and TLS 1.2 (RFC
//! 5288, RFC 7905).

use aes_gcm::Aes128Gcm;
use aes_gcm::aead::{AeadInOut, KeyInit, consts};
use alloc::boxed::Box;
use chacha20poly1305::ChaCha20Poly1305;
use core::marker::PhantomData;
use rustls::crypto::cipher::{
    AeadKey, InboundOpaqueMessage, InboundPlainMessage, Iv, KeyBlockShape, MessageDecrypter,
    MessageEncrypter, NONCE_LEN, Nonce, OutboundOpaqueMessage, OutboundPlainMessage,
    PrefixedPayload, Tls12AeadAlgorithm, Tls13AeadAlgorithm, UnsupportedOperationError,
    make_tls12_aad, make_tls13_aad,
};
use rustls::{ConnectionTrafficSecrets, ContentType, Error, ProtocolVersion};

/// Bytes of a tag; equal for both ciphers.
const TAG: usize = 16;

/// A cipher with its parameters in TLS.
pub trait Cipher:
    AeadInOut<NonceSize = consts::U12, TagSize = consts::U16> + KeyInit + Send + Sync + 'static
{
    /// Bytes of a key.
    const KEY: usize;
    /// Bytes of the explicit nonce in each record of TLS 1.2.
    const EXPLICIT: usize;
}

impl Cipher for Aes128Gcm {
    const KEY: usize = 16;
    const EXPLICIT: usize = 8;
}

impl Cipher for ChaCha20Poly1305 {
    const KEY: usize = 32;
    const EXPLICIT: usize = 0;
}

/// `C` as an algorithm of TLS.
pub struct Aead<C>(pub PhantomData<C>);

/// One direction of a connection.
struct Records<C> {
    cipher: C,
    iv: Iv,
}

impl<C: Cipher> Records<C> {
    fn new(key: &AeadKey, iv: Iv) -> Self {
        // rustls derives keys of the length that `key_len` returns.
        let cipher = C::new_from_slice(key.as_ref()).expect("a key of the cipher's length");
        Records { cipher, iv }
    }

    /// Encrypts `payload` from `start` on, and appends the tag.
    fn seal(
        &self,
        nonce: [u8; NONCE_LEN],
        aad: &[u8],
        payload: &mut PrefixedPayload,
        start: usize,
    ) -> Result<(), Error> {
        let text = payload.as_mut().get_mut(start..).ok_or(Error::EncryptError)?;
        let tag = self.cipher.encrypt_inout_detached(&nonce.into(), aad, text.into());
        payload.extend_from_slice(&tag.map_err(|_| Error::EncryptError)?);
        Ok(())
    }

    /// Decrypts `sealed`, which ends in its tag. Returns the length of the text.
    fn open(&self, nonce: [u8; NONCE_LEN], aad: &[u8], sealed: &mut [u8]) -> Result<usize, Error> {
        let len = sealed.len().checked_sub(TAG).ok_or(Error::DecryptError)?;
        let (text, tag) = sealed.split_at_mut(len);
        let tag: [u8; TAG] = (&*tag).try_into().map_err(|_| Error::DecryptError)?;
        self.cipher
            .decrypt_inout_detached(&nonce.into(), aad, text.into(), &tag.into())
            .map_err(|_| Error::DecryptError)?;
        Ok(len)
    }
}

struct Tls13<C>(Records<C>);
struct Tls12<C>(Records<C>);

impl<C: Cipher> Tls13AeadAlgorithm for Aead<C> {
    fn encrypter(&self, key: AeadKey, iv: Iv) -> Box<dyn MessageEncrypter> {
        Box::new(Tls13::<C>(Records::new(&key, iv)))
    }

    fn decrypter(&self, key: AeadKey, iv: Iv) -> Box<dyn MessageDecrypter> {
        Box::new(Tls13::<C>(Records::new(&key, iv)))
    }

    fn key_len(&self) -> usize {
        C::KEY
    }

    fn extract_keys(
        &self,
        _: AeadKey,
        _: Iv,
    ) -> Result<ConnectionTrafficSecrets, UnsupportedOperationError> {
        Err(UnsupportedOperationError)
    }
}

impl<C: Cipher> MessageEncrypter for Tls13<C> {
    fn encrypt(
        &mut self,
        m: OutboundPlainMessage<'_>,
        seq: u64,
    ) -> Result<OutboundOpaqueMessage, Error> {
        let total = self.encrypted_payload_len(m.payload.len());
        let mut payload = PrefixedPayload::with_capacity(total);
        payload.extend_from_chunks(&m.payload);
        payload.extend_from_slice(&m.typ.to_array());
        let nonce = Nonce::new(&self.0.iv, seq).0;
        self.0.seal(nonce, &make_tls13_aad(total), &mut payload, 0)?;
        // The outer type and version (RFC 8446 section 5.2).
        let (typ, version) = (ContentType::ApplicationData, ProtocolVersion::TLSv1_2);
        Ok(OutboundOpaqueMessage::new(typ, version, payload))
    }

    fn encrypted_payload_len(&self, payload_len: usize) -> usize {
        payload_len + 1 + TAG
    }
}

impl<C: Cipher> MessageDecrypter for Tls13<C> {
    fn decrypt<'a>(
        &mut self,
        mut m: InboundOpaqueMessage<'a>,
        seq: u64,
    ) -> Result<InboundPlainMessage<'a>, Error> {
        let aad = make_tls13_aad(m.payload.len());
        let len = self.0.open(Nonce::new(&self.0.iv, seq).0, &aad, &mut m.payload)?;
        m.payload.truncate(len);
        m.into_tls13_unpadded_message()
    }
}

/// An IV: the secret bytes followed by the explicit ones.
fn joined(secret: &[u8], explicit: &[u8]) -> [u8; NONCE_LEN] {
    let mut iv = [0; NONCE_LEN];
    for (to, from) in iv.iter_mut().zip(secret.iter().chain(explicit)) {
        *to = *from;
    }
    iv
}

impl<C: Cipher> Tls12AeadAlgorithm for Aead<C> {
    fn encrypter(&self, key: AeadKey, iv: &[u8], extra: &[u8]) -> Box<dyn MessageEncrypter> {
        Box::new(Tls12::<C>(Records::new(&key, Iv::new(joined(iv, extra)))))
    }

    fn decrypter(&self, key: AeadKey, iv: &[u8]) -> Box<dyn MessageDecrypter> {
        Box::new(Tls12::<C>(Records::new(&key, Iv::new(joined(iv, &[])))))
    }

    fn key_block_shape(&self) -> KeyBlockShape {
        KeyBlockShape {
            enc_key_len: C::KEY,
            fixed_iv_len: NONCE_LEN - C::EXPLICIT,
            explicit_nonce_len: C::EXPLICIT,
        }
    }

    fn extract_keys(
        &self,
        _: AeadKey,
        _: &[u8],
        _: &[u8],
    ) -> Result<ConnectionTrafficSecrets, UnsupportedOperationError> {
        Err(UnsupportedOperationError)
    }
}

impl<C: Cipher> MessageEncrypter for Tls12<C> {
    fn encrypt(
        &mut self,
        m: OutboundPlainMessage<'_>,
        seq: u64,
    ) -> Result<OutboundOpaqueMessage, Error> {
        let mut payload =
            PrefixedPayload::with_capacity(self.encrypted_payload_len(m.payload.len()));
        let nonce = Nonce::new(&self.0.iv, seq).0;
        payload.extend_from_slice(nonce.get(NONCE_LEN - C::EXPLICIT..).unwrap_or_default());
        payload.extend_from_chunks(&m.payload);
        let aad = make_tls12_aad(seq, m.typ, m.version, m.payload.len());
        self.0.seal(nonce, &aad, &mut payload, C::EXPLICIT)?;
        Ok(OutboundOpaqueMessage::new(m.typ, m.version, payload))
    }

    fn encrypted_payload_len(&self, payload_len: usize) -> usize {
        payload_len + C::EXPLICIT + TAG
    }
}

impl<C: Cipher> MessageDecrypter for Tls12<C> {
    fn decrypt<'a>(
        &mut self,
        mut m: InboundOpaqueMessage<'a>,
        seq: u64,
    ) -> Result<InboundPlainMessage<'a>, Error> {
        let Some(len) = m.payload.len().checked_sub(C::EXPLICIT + TAG) else {
            return Err(Error::DecryptError);
        };
        let aad = make_tls12_aad(seq, m.typ, m.version, len);
        let nonce = match C::EXPLICIT {
            0 => Nonce::new(&self.0.iv, seq).0,
            explicit => {
                let (secret, _) = self.0.iv.as_ref().split_at(NONCE_LEN - explicit);
                joined(secret, m.payload.get(..explicit).unwrap_or_default())
            }
        };
        let sealed = m.payload.get_mut(C::EXPLICIT..).ok_or(Error::DecryptError)?;
        self.0.open(nonce, &aad, sealed)?;
        m.payload.rotate_left(C::EXPLICIT);
        m.payload.truncate(len);
        Ok(m.into_plain_message())
    }
}
