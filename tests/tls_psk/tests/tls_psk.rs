//! `./isthmus test tls_psk`: TLS 1.3 with a PSK against OpenSSL and GnuTLS, on the loopback interface.

use std::io::Write;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use launch::qemu::free_port;
use nvme_auth::{ConfiguredPsk, Derivation, Hash, Version};
use tempfile::NamedTempFile;
use tls_psk::{Alert, Config, Failure, Group, Psk};
use tls_psk_tests::{Key, Link, Peer, listen, openssl_session};

const HOST: &str = "nqn.2014-08.org.nvmexpress:uuid:7f3c1c1e-0000-4000-8000-000000000001";
const SUBSYSTEM: &str = "nqn.2024-01.org.example:volumes";

/// OpenSSL's names of the groups.
const GROUPS: [(&str, &[Group]); 3] =
    [("X25519", &[Group::X25519]), ("P-256", &[Group::Secp256r1]), ("P-384", &[Group::Secp384r1])];

/// The TLS key of a host of NVMe/TCP.
fn key(hash: Hash, version: Version) -> Key {
    let seed = &mut |into: &mut [u8]| into.iter_mut().zip(1..).for_each(|(to, n)| *to = n);
    let psk = ConfiguredPsk::generate(hash, seed);
    let derived = psk.derive(HOST, SUBSYSTEM, version, Derivation::Standard);
    let (identity, key) = derived.expect("short names");
    (identity.into_bytes(), key)
}

fn hex(psk: &Psk) -> String {
    psk.key.as_bytes().iter().map(|byte| format!("{byte:02x}")).collect()
}

fn groups(groups: &'static [Group]) -> Config {
    Config { groups, ..Config::default() }
}

/// OpenSSL's arguments for a key, and the file that they name.
fn openssl_key(key: &Key) -> Result<(Vec<String>, NamedTempFile)> {
    let (identity, psk) = key;
    let mut file = NamedTempFile::new()?;
    file.write_all(openssl_session(psk.key.as_bytes()).as_bytes())?;
    let mut arguments: Vec<String> = vec!["-psk_identity".into(), str::from_utf8(identity)?.into()];
    match psk.hash {
        Hash::Sha256 => arguments.extend(["-psk".into(), hex(psk)]),
        _ => arguments.extend(["-psk_session".into(), file.path().display().to_string()]),
    }
    Ok((arguments, file))
}

fn s_client(address: &str, key: Option<&Key>, more: &[&str]) -> Result<(Peer, NamedTempFile)> {
    let none = (Vec::new(), NamedTempFile::new()?);
    let (secret, file) = key.map(openssl_key).transpose()?.unwrap_or(none);
    let mut arguments = vec!["s_client", "-connect", address];
    arguments.extend(secret.iter().map(String::as_str));
    arguments.extend(more);
    Ok((Peer::start("openssl", "openssl", &arguments)?, file))
}

fn s_server(key: &Key, more: &[&str]) -> Result<(Peer, NamedTempFile, u16)> {
    let (secret, file) = openssl_key(key)?;
    let port = free_port()?;
    let accept = format!("127.0.0.1:{port}");
    let mut arguments = vec!["s_server", "-accept", &accept, "-nocert", "-tls1_3"];
    arguments.extend(secret.iter().map(String::as_str));
    arguments.extend(more);
    Ok((Peer::start("openssl", "openssl", &arguments)?, file, port))
}

/// Time in which a program reads its input.
const TYPED: Duration = Duration::from_millis(300);

const HASHES: [Hash; 2] = [Hash::Sha256, Hash::Sha384];

#[test]
fn openssl_client_talks_to_the_server_with_every_suite_group_and_identity() -> Result<()> {
    for hash in HASHES {
        for version in [Version::V0, Version::V1] {
            for (name, choice) in GROUPS {
                let key = key(hash, version);
                let (listener, address) = listen()?;
                let (mut client, _file) =
                    s_client(&address, Some(&key), &["-tls1_3", "-groups", name])?;
                let mut link = Link::accept(&listener, groups(choice), vec![key])?;
                link.until_open().with_context(|| format!("{hash:?} {version:?} {name}"))?;
                client.type_in(b"hello from OpenSSL\n")?;
                link.until_text(b"hello from OpenSSL\n")?;
                link.write(b"hello from Isthmus\n")?;
                client.wait_for("hello from Isthmus")?;
                let suite = match hash {
                    Hash::Sha256 => "Cipher is TLS_AES_128_GCM_SHA256",
                    _ => "Cipher is TLS_AES_256_GCM_SHA384",
                };
                client.wait_for(suite)?;
                client.type_in(b"Q\n")?;
                link.until("the end", |link| link.session.is_ended())?;
            }
        }
    }
    Ok(())
}

/// With SHA-384, OpenSSL 3.0's `s_client` drops its PSK after a HelloRetryRequest, also of its own server.
#[test]
fn openssl_client_repeats_its_hello_for_another_group() -> Result<()> {
    for (_, choice) in GROUPS.into_iter().skip(1) {
        let key = key(Hash::Sha256, Version::V1);
        let (listener, address) = listen()?;
        let (mut client, _file) =
            s_client(&address, Some(&key), &["-tls1_3", "-groups", "X25519:P-384:P-256"])?;
        let mut link = Link::accept(&listener, groups(choice), vec![key])?;
        link.until_open().with_context(|| format!("{choice:?}"))?;
        client.type_in(b"hello\n")?;
        link.until_text(b"hello\n")?;
    }
    Ok(())
}

#[test]
fn openssl_client_updates_keys_in_both_directions() -> Result<()> {
    let key = key(Hash::Sha384, Version::V1);
    let (listener, address) = listen()?;
    let (mut client, _file) = s_client(&address, Some(&key), &["-tls1_3"])?;
    let config = Config { key_updates: true, blocks_per_key: 8, ..Config::default() };
    let mut link = Link::accept(&listener, config, vec![key])?;
    link.until_open()?;
    for n in 0..5 {
        // `K` requests an update of the server, `k` does not.
        client.type_in(if n % 2 == 0 { b"K\n" } else { b"k\n" })?;
        // It takes a command only at the start of a read, and drops the rest.
        std::thread::sleep(TYPED);
        let text = format!("number {n}\n");
        client.type_in(text.as_bytes())?;
        link.until_text(text.as_bytes())?;
        // The server's own limit leads to further updates.
        let answer = format!("answer {n} {}\n", "x".repeat(100));
        link.write(answer.as_bytes())?;
        client.wait_for(answer.trim())?;
    }
    Ok(())
}

#[test]
fn openssl_client_sends_and_receives_a_mebibyte() -> Result<()> {
    let text: Vec<u8> = (0..1_u32 << 20).map(|n| b'a' + (n % 23) as u8).collect();
    let key = key(Hash::Sha256, Version::V0);
    let (listener, address) = listen()?;
    let (mut client, _file) =
        s_client(&address, Some(&key), &["-tls1_3", "-quiet", "-nocommands"])?;
    let mut link = Link::accept(&listener, Config::default(), vec![key])?;
    link.until_open()?;
    client.type_in(&text)?;
    link.until("all text", |link| link.text.len() >= text.len())?;
    ensure!(link.text == text, "other text was received");
    link.write(&text)?;
    link.write(b"\nend\n")?;
    client.wait_for("\nend\n")?;
    let output = client.output();
    ensure!(output.windows(text.len()).any(|part| part == text), "other text was sent");
    Ok(())
}

#[test]
fn openssl_client_without_the_key_gets_the_alert_of_the_reason() -> Result<()> {
    let right = key(Hash::Sha256, Version::V1);
    let wrong = (right.0.clone(), key(Hash::Sha256, Version::V0).1);
    let other = (b"Client_identity".to_vec(), right.1.clone());
    let cases: [(&str, Option<&Key>, &[&str], Alert, &str); 5] = [
        ("wrong key", Some(&wrong), &["-tls1_3"], Alert::DECRYPT_ERROR, "alert decrypt error"),
        (
            "unknown identity",
            Some(&other),
            &["-tls1_3"],
            Alert::DECRYPT_ERROR,
            "alert decrypt error",
        ),
        ("no key", None, &["-tls1_3"], Alert::HANDSHAKE_FAILURE, "alert handshake failure"),
        ("TLS 1.2", Some(&right), &["-tls1_2"], Alert::PROTOCOL_VERSION, "alert protocol version"),
        (
            "other group",
            Some(&right),
            &["-tls1_3", "-groups", "X448"],
            Alert::HANDSHAKE_FAILURE,
            "alert handshake failure",
        ),
    ];
    for (name, key, options, expected, said) in cases {
        let (listener, address) = listen()?;
        let (client, _file) = s_client(&address, key, options)?;
        let mut link = Link::accept(&listener, Config::default(), vec![right.clone()])?;
        match link.until_failure().context(name)? {
            Failure::Violation { alert, .. } if alert == expected => (),
            why => anyhow::bail!("{name}: {why}"),
        }
        client.wait_for(said).context(name)?;
    }
    Ok(())
}

#[test]
fn client_talks_to_openssl_server_with_every_suite_group_and_identity() -> Result<()> {
    for hash in HASHES {
        for version in [Version::V0, Version::V1] {
            for (name, choice) in GROUPS {
                let key = key(hash, version);
                let (_server, _file, port) = s_server(&key, &["-rev", "-groups", name])?;
                let mut link = Link::connect(port, groups(choice), vec![key])?;
                link.until_open().with_context(|| format!("{hash:?} {version:?} {name}"))?;
                // The server reverses each line. Its tickets are skipped.
                link.write(b"abcdefgh\n")?;
                link.until_text(b"hgfedcba\n")?;
                link.close()?;
                link.until("the end", |link| link.session.is_ended())?;
            }
        }
    }
    Ok(())
}

#[test]
fn client_repeats_its_hello_for_openssl_server() -> Result<()> {
    for hash in HASHES {
        let key = key(hash, Version::V1);
        let (_server, _file, port) = s_server(&key, &["-rev", "-groups", "P-384"])?;
        let config = groups(&[Group::X25519, Group::Secp384r1]);
        let mut link = Link::connect(port, config, vec![key])?;
        link.until_open().with_context(|| format!("{hash:?}"))?;
        link.write(b"abc\n")?;
        link.until_text(b"cba\n")?;
    }
    Ok(())
}

#[test]
fn second_key_is_accepted_by_openssl_server() -> Result<()> {
    // As a host that offers both hashes to a subsystem that has one of them.
    let (first, second) = (key(Hash::Sha384, Version::V1), key(Hash::Sha256, Version::V1));
    let (_server, _file, port) = s_server(&second, &["-rev"])?;
    let mut link = Link::connect(port, Config::default(), vec![first, second])?;
    link.until_open()?;
    ensure!(link.session.accepted() == Some(1));
    link.write(b"abc\n")?;
    link.until_text(b"cba\n")
}

#[test]
fn openssl_server_updates_keys_in_both_directions() -> Result<()> {
    let key = key(Hash::Sha256, Version::V1);
    let (mut server, _file, port) = s_server(&key, &[])?;
    let config = Config { key_updates: true, blocks_per_key: 8, ..Config::default() };
    let mut link = Link::connect(port, config, vec![key])?;
    link.until_open()?;
    for n in 0..5 {
        server.type_in(if n % 2 == 0 { b"K\n" } else { b"k\n" })?;
        std::thread::sleep(TYPED);
        let text = format!("number {n}\n");
        server.type_in(text.as_bytes())?;
        link.until_text(text.as_bytes())?;
        let answer = format!("answer {n} {}\n", "x".repeat(100));
        link.write(answer.as_bytes())?;
        server.wait_for(answer.trim())?;
    }
    Ok(())
}

#[test]
fn client_fails_with_the_alert_of_openssl_server() -> Result<()> {
    let right = key(Hash::Sha256, Version::V1);
    let wrong = (right.0.clone(), key(Hash::Sha256, Version::V0).1);
    let (_server, _file, port) = s_server(&right, &[])?;
    let mut link = Link::connect(port, Config::default(), vec![wrong])?;
    let why = link.until_failure()?;
    ensure!(matches!(why, Failure::Alert(_)), "{why}");
    Ok(())
}

/// GnuTLS' priorities: TLS 1.3 with a PSK and a key exchange. Version 3.7 has SHA-256 only for external PSKs.
fn priority(group: &str) -> String {
    format!(
        "NORMAL:-VERS-ALL:+VERS-TLS1.3:-KX-ALL:+ECDHE-PSK:+DHE-PSK:-GROUP-ALL:+GROUP-{group}:-CIPHER-ALL:+AES-128-GCM"
    )
}

const GNUTLS_GROUPS: [(&str, &[Group]); 3] = [
    ("X25519", &[Group::X25519]),
    ("SECP256R1", &[Group::Secp256r1]),
    ("SECP384R1", &[Group::Secp384r1]),
];

#[test]
fn gnutls_client_talks_to_the_server_with_every_group() -> Result<()> {
    for (name, choice) in GNUTLS_GROUPS {
        let key = key(Hash::Sha256, Version::V1);
        let (listener, address) = listen()?;
        let port = address.rsplit(':').next().context("a port")?;
        let (identity, secret, priority) =
            (String::from_utf8(key.0.clone())?, hex(&key.1), priority(name));
        let arguments = [
            "--port",
            port,
            "--pskusername",
            &identity,
            "--pskkey",
            &secret,
            "--priority",
            &priority,
            "--no-ca-verification",
            "127.0.0.1",
        ];
        let mut client = Peer::start("gnutls-cli", "gnutls-bin", &arguments)?;
        let mut link = Link::accept(&listener, groups(choice), vec![key])?;
        link.until_open().with_context(|| name.to_string())?;
        client.type_in(b"hello from GnuTLS\n")?;
        link.until_text(b"hello from GnuTLS\n")?;
        link.write(b"hello from Isthmus\n")?;
        client.wait_for("hello from Isthmus")?;
    }
    Ok(())
}

#[test]
fn client_talks_to_gnutls_server_with_every_group() -> Result<()> {
    for (name, choice) in GNUTLS_GROUPS {
        let key = key(Hash::Sha256, Version::V1);
        let port = free_port()?;
        let mut file = NamedTempFile::new()?;
        // A name in hexadecimal, because it contains colons.
        let identity: String = key.0.iter().map(|byte| format!("{byte:02x}")).collect();
        writeln!(file, "#{identity}:{}", hex(&key.1))?;
        let (path, port_text, priority) =
            (file.path().display().to_string(), port.to_string(), priority(name));
        let arguments =
            ["--port", &port_text, "--pskpasswd", &path, "--priority", &priority, "--echo"];
        let server = Peer::start("gnutls-serv", "gnutls-bin", &arguments)?;
        let mut link = Link::connect(port, groups(choice), vec![key])?;
        let opened = link.until_open();
        opened.with_context(|| String::from_utf8_lossy(&server.output()).into_owned())?;
        link.write(b"echo this\n")?;
        link.until_text(b"echo this\n")?;
        link.close()?;
    }
    Ok(())
}
