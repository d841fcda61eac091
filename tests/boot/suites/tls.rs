//! HTTP over TLS with curl and OpenSSL: versions, certificates, and floods of handshakes.
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use boot_tests::{boot, keeps_configuration, spec};
use launch::image::config_disk;
use launch::qemu::{Nic, Spec, Vm, free_port};

const TLS: &str = "[http]\ntls = true\n";
/// OpenSSL's arguments that make an ECDSA key on P-256.
const MAKE_KEY: &[&str] =
    &["genpkey", "-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-256", "-out"];

/// A machine under test, and the forwarded ports of its services.
struct Server {
    vm: Vm,
    tls: SocketAddr,
    plain: SocketAddr,
    udp: u16,
}

fn start(spec: Spec) -> Result<Server> {
    let (tls, plain, udp) = (free_port()?, free_port()?, free_port()?);
    let forwards = vec![("tcp", tls, 443), ("tcp", plain, 80), ("udp", udp, 7)];
    let mut vm = boot(spec.nic(Nic::User { forwards }))?;
    for _ in 0..600 {
        if vm.run("show interfaces")?.text.contains("10.0.2.15") {
            let at = |port| SocketAddr::from((Ipv4Addr::LOCALHOST, port));
            return Ok(Server { vm, tls: at(tls), plain: at(plain), udp });
        }
        sleep(Duration::from_millis(50));
    }
    Err(vm.error("no address by DHCP within 30 s"))
}

/// Runs a program. Returns whether it succeeded, and its output.
fn run(program: &str, arguments: &[&str]) -> Result<(bool, String)> {
    let mut command = Command::new(program);
    let out = command.args(arguments).stdin(Stdio::null()).output();
    let out = out.with_context(|| format!("could not run {program}"))?;
    let printed = String::from_utf8_lossy(&out.stdout) + String::from_utf8_lossy(&out.stderr);
    Ok((out.status.success(), printed.into_owned()))
}

impl Server {
    /// Fetches a page with `curl`. Returns whether it succeeded, and its output.
    fn curl(&self, options: &[&str], path: &str) -> Result<(bool, String)> {
        let url = format!("https://{}{path}", self.tls);
        let common = ["--silent", "--show-error", "--max-time", "20"];
        run("curl", &[&common[..], options, &[url.as_str()]].concat())
    }

    /// A value of `show tls`.
    fn tls_value(&mut self, key: &str) -> Result<String> {
        let tls = self.vm.run("show tls --json")?.json()?;
        let value = tls[key].as_str().map(str::to_string);
        value.with_context(|| format!("show tls has no {key}: {tls}"))
    }
}

#[test]
fn curl_and_openssl_are_served_in_both_versions() -> Result<()> {
    let mut server = start(spec()?.config(TLS))?;
    let pin = server.tls_value("pin")?;
    let fingerprint = server.tls_value("sha256_fingerprint")?;
    server.vm.run("show log")?.contains("is not kept across a reboot")?.contains(&fingerprint)?;
    let pinned = ["--insecure", "--pinnedpubkey", pin.as_str()];
    for version in [&["--tlsv1.3"][..], &["--tls-max", "1.2"], &["--http2"]] {
        let (good, said) = server.curl(&[&pinned[..], version].concat(), "/healthz")?;
        ensure!(good && said == "ok\n", "curl {version:?}: {said}");
    }
    let wrong = "sha256//AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=";
    let (good, said) = server.curl(&["--insecure", "--pinnedpubkey", wrong], "/healthz")?;
    ensure!(!good, "a wrong pin was accepted: {said}");
    // A long page, which is generated while it is sent.
    let (good, page) = server.curl(&["--insecure"], "/metrics")?;
    ensure!(good && page.contains("isthmus_uptime_seconds"), "/metrics: {page}");
    let address = server.tls.to_string();
    let ciphers = [
        ("-tls1_3", "-ciphersuites", "TLS_AES_128_GCM_SHA256", "X25519"),
        ("-tls1_3", "-ciphersuites", "TLS_CHACHA20_POLY1305_SHA256", "P-256"),
        ("-tls1_2", "-cipher", "ECDHE-ECDSA-AES128-GCM-SHA256", "X25519:P-256"),
        ("-tls1_2", "-cipher", "ECDHE-ECDSA-CHACHA20-POLY1305", "P-256"),
    ];
    for (version, option, cipher, group) in ciphers {
        let arguments =
            ["s_client", "-connect", &address, version, option, cipher, "-groups", group];
        let (_, said) = run("openssl", &arguments)?;
        ensure!(said.contains(&format!("Cipher is {cipher}")), "{arguments:?}: {said}");
    }
    let (_, said) = run("openssl", &["s_client", "-connect", &address, "-tls1_1"])?;
    ensure!(said.contains("Cipher is (NONE)"), "TLS 1.1 was accepted: {said}");
    // OpenSSL computes the same fingerprint, and accepts the self-signed certificate as its own CA.
    let certificate = tempfile::NamedTempFile::new()?;
    let path = certificate.path().display().to_string();
    let get = format!("openssl s_client -connect {address} </dev/null | openssl x509 > {path}");
    run("sh", &["-c", &get])?;
    let show = ["x509", "-in", &path, "-noout", "-fingerprint", "-sha256"];
    ensure!(run("openssl", &show)?.1.contains(&fingerprint));
    let (good, said) =
        run("openssl", &["verify", "-CAfile", &path, "-purpose", "sslserver", &path])?;
    ensure!(good, "{said}");
    let resolve = format!("isthmus:{}:127.0.0.1", server.tls.port());
    let url = format!("https://isthmus:{}/healthz", server.tls.port());
    let trusted = ["-sS", "--cacert", &path, "--resolve", &resolve, &url];
    ensure!(run("curl", &trusted)? == (true, "ok\n".into()), "curl --cacert");
    Ok(())
}

#[test]
fn plain_http_is_refused_with_tls_on() -> Result<()> {
    let mut server = start(spec()?.config(TLS))?;
    let plain = launch::http::get(server.plain, "/healthz");
    ensure!(plain.is_err(), "port 80 answers: {plain:?}");
    let over_tls_port = launch::http::get(server.tls, "/healthz");
    ensure!(over_tls_port.is_err(), "port 443 answers without TLS: {over_tls_port:?}");
    server.vm.run("show refused")?.contains("tls_failed")?.contains("https://")?;
    // A misspelt key does not switch TLS off.
    let mut mistyped = start(spec()?.config("[http]\ntsl = true\n"))?;
    ensure!(launch::http::get(mistyped.plain, "/healthz").is_err());
    mistyped.vm.run("show log")?.contains("http.tsl: unknown key (did you mean \"tls\"?)")?;
    Ok(())
}

#[test]
fn the_certificate_survives_a_reboot_where_the_configuration_is_kept() -> Result<()> {
    let disk = tempfile::NamedTempFile::new()?;
    std::fs::write(disk.path(), config_disk(Some(TLS))?)?;
    let with_disk =
        || Ok::<_, anyhow::Error>(spec()?.disk(boot_tests::keeps_configuration(disk.path())));
    let mut first = start(with_disk()?)?;
    let fingerprint = first.tls_value("sha256_fingerprint")?;
    ensure!(first.tls_value("certificate_of")? == "config disk (made now)");
    first.vm.run("set system.hostname other")?.lacks("error")?;
    first.vm.run("save")?.contains("saved")?;
    first.vm.kill();
    let mut second = start(with_disk()?)?;
    second.vm.run("show version")?.contains("other")?;
    ensure!(second.tls_value("certificate_of")? == "config disk");
    ensure!(second.tls_value("sha256_fingerprint")? == fingerprint);
    let pin = second.tls_value("pin")?;
    let (good, said) = second.curl(&["--insecure", "--pinnedpubkey", &pin], "/healthz")?;
    ensure!(good && said == "ok\n", "{said}");
    // Without a disk each boot makes a new certificate.
    let mut third = start(spec()?.config(TLS))?;
    ensure!(third.tls_value("sha256_fingerprint")? != fingerprint);
    Ok(())
}

/// Makes a key and a certificate for 127.0.0.1.
fn make_pair(directory: &Path) -> Result<(String, String)> {
    let path = |name: &str| directory.join(name).display().to_string();
    let (key, certificate) = (path("key.pem"), path("certificate.pem"));
    run("openssl", &[MAKE_KEY, &[&key]].concat())?;
    let subject = ["-subj", "/CN=gateway", "-addext", "subjectAltName=IP:127.0.0.1"];
    let request = ["req", "-x509", "-new", "-key", &key, "-out", &certificate, "-days", "30"];
    let (good, said) = run("openssl", &[&request[..], &subject].concat())?;
    ensure!(good, "{said}");
    Ok((certificate, key))
}

#[test]
fn operators_certificate_is_served_and_a_mismatched_key_is_reported() -> Result<()> {
    let directory = tempfile::tempdir()?;
    let (certificate, key) = make_pair(directory.path())?;
    let (pem, secret) = (std::fs::read_to_string(&certificate)?, std::fs::read_to_string(&key)?);
    let document = format!("{TLS}certificate = '''\n{pem}'''\nkey = '''\n{secret}'''\n");
    let mut server = start(spec()?.config(&document))?;
    ensure!(server.tls_value("certificate_of")? == "configuration");
    let (good, said) = server.curl(&["--cacert", &certificate], "/healthz")?;
    ensure!(good && said == "ok\n", "{said}");
    // The key is never shown.
    let body = secret.lines().nth(1).context("a line of the key")?;
    for command in ["show config", "show config --json", "show log"] {
        server.vm.run(command)?.lacks(body)?;
    }
    server.vm.run("show config")?.contains("(not shown)")?;
    // A key that does not match the certificate: the document is not used, and no other certificate is served.
    let elsewhere = tempfile::tempdir()?;
    let (_, other) = make_pair(elsewhere.path())?;
    let mismatch = document.replace(&secret, &std::fs::read_to_string(other)?);
    let mut server = start(spec()?.config(&mismatch))?;
    server.vm.run("show log")?.contains("http.key: ")?;
    let ready = launch::http::get(server.plain, "/readyz")?;
    ensure!(ready.status == 503 && ready.body.contains("http.key"), "{}", ready.body);
    Ok(())
}

/// A flood of new handshakes, beside UDP echoes and an honest client.
#[test]
fn a_flood_of_handshakes_stops_neither_echoes_nor_honest_clients() -> Result<()> {
    let server = start(spec()?.config(&format!("{TLS}[services]\nudp_echo = true\n")))?;
    let hello = client_hello()?;
    let flooded = Instant::now() + Duration::from_secs(6);
    let flood: Vec<_> = (0..4)
        .map(|_| {
            let (hello, target) = (hello.clone(), server.tls);
            std::thread::spawn(move || {
                let mut count = 0;
                while Instant::now() < flooded {
                    let Ok(mut client) = TcpStream::connect(target) else { continue };
                    let _ = client.set_read_timeout(Some(Duration::from_millis(200)));
                    let _ = client.write_all(&hello);
                    let mut answer = [0; 5];
                    count += usize::from(client.read_exact(&mut answer).is_ok());
                }
                count
            })
        })
        .collect();
    let udp = std::net::UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
    udp.connect((Ipv4Addr::LOCALHOST, server.udp))?;
    udp.set_read_timeout(Some(Duration::from_secs(1)))?;
    sleep(Duration::from_millis(300));
    let (mut echoed, mut slowest) = (0, Duration::ZERO);
    for number in 0..200u32 {
        let sent = Instant::now();
        udp.send(&number.to_be_bytes())?;
        let mut answer = [0; 4];
        echoed += u32::from(udp.recv(&mut answer).is_ok_and(|len| len == 4));
        slowest = slowest.max(sent.elapsed());
    }
    let (good, said) = server.curl(&["--insecure"], "/healthz")?;
    let handshakes: usize = flood.into_iter().map(|thread| thread.join().unwrap_or(0)).sum();
    println!("{handshakes} handshakes in 6 s; {echoed} of 200 echoes, the slowest {slowest:?}");
    ensure!(echoed >= 198, "{echoed} of 200 echoes came back");
    ensure!(good && said == "ok\n", "an honest client in the flood: {said}");
    ensure!((1..=6 * 100 + 8).contains(&handshakes), "{handshakes} handshakes in 6 s");
    Ok(())
}

/// Clients with unfinished handshakes take all connection slots. An honest client is still served, and the stalled ones
/// are dropped after five seconds.
#[test]
fn stalled_handshakes_do_not_block_other_clients() -> Result<()> {
    let mut server = start(spec()?.config(TLS))?;
    let hello = client_hello()?;
    let mut stalled = Vec::new();
    for _ in 0..16 {
        let mut client = TcpStream::connect(server.tls)?;
        client.write_all(&hello[..20])?;
        stalled.push(client);
        sleep(Duration::from_millis(20));
    }
    let start = Instant::now();
    let (good, said) =
        server.curl(&["--insecure", "--retry", "5", "--retry-all-errors"], "/healthz")?;
    ensure!(good && said.starts_with("ok\n"), "an honest client beside stalled ones: {said}");
    ensure!(start.elapsed() < Duration::from_secs(6), "the request took {:?}", start.elapsed());
    for client in &mut stalled {
        client.set_read_timeout(Some(Duration::from_secs(10)))?;
        let end = client.read(&mut [0; 64]);
        ensure!(end.as_ref().is_ok_and(|n| *n <= 64) || end.is_err());
    }
    ensure!(start.elapsed() < Duration::from_secs(12), "they stayed for {:?}", start.elapsed());
    server.vm.run("show refused")?.contains("tls_timeout")?;
    Ok(())
}

/// The ClientHello of an OpenSSL client, captured by a listener.
fn client_hello() -> Result<Vec<u8>> {
    let listener = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let address = listener.local_addr()?.to_string();
    let mut openssl = Command::new("openssl")
        .args(["s_client", "-connect", &address])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .context("could not run openssl")?;
    let (mut client, _) = listener.accept()?;
    client.set_read_timeout(Some(Duration::from_secs(5)))?;
    let mut head = [0; 5];
    client.read_exact(&mut head)?;
    let mut hello = vec![0; usize::from(u16::from_be_bytes([head[3], head[4]]))];
    client.read_exact(&mut hello)?;
    openssl.kill()?;
    openssl.wait()?;
    Ok([&head[..], &hello].concat())
}

/// A certificate with its issuers, which exceeds the usual line length, is set on the console, and served after a
/// reboot.
#[test]
fn a_pair_with_its_chain_is_set_on_the_console() -> Result<()> {
    let directory = tempfile::tempdir()?;
    let (certificate, key) = make_pair(directory.path())?;
    let line =
        |path: &str| Ok::<_, anyhow::Error>(std::fs::read_to_string(path)?.replace('\n', " "));
    let disk = tempfile::NamedTempFile::new()?;
    std::fs::write(disk.path(), config_disk(Some("[system]\nhostname = \"a\"\n"))?)?;
    let mut vm = boot(spec()?.disk(keeps_configuration(disk.path())))?;
    // Eight certificates, of which the first matches the key.
    let chain = line(&certificate)?.repeat(8);
    ensure!(chain.len() > 4096, "the chain is too short for this case: {}", chain.len());
    vm.run(&format!("set http.certificate {}", chain.trim()))?.lacks("error")?;
    let secret = line(&key)?;
    vm.run(&format!("set http.key {}", secret.trim()))?.lacks("error")?.lacks(secret.trim())?;
    vm.run("set http.tls true")?.lacks("error")?;
    vm.press("\x1b[A\x1b[A\r")?.lacks("PRIVATE")?;
    vm.run("save")?.contains("saved")?;
    vm.kill();
    let mut server = start(spec()?.disk(keeps_configuration(disk.path())))?;
    ensure!(server.tls_value("certificate_of")? == "configuration");
    let (good, said) = server.curl(&["--cacert", &certificate], "/healthz")?;
    ensure!(good && said == "ok\n", "{said}");
    let (_, metrics) = server.curl(&["--cacert", &certificate], "/metrics")?;
    ensure!(metrics.contains("isthmus_tls_certificate_not_after_seconds "), "{metrics}");
    Ok(())
}

#[test]
fn certificate_of_a_client_is_that_of_a_user() -> Result<()> {
    let (own, other) = (tempfile::tempdir()?, tempfile::tempdir()?);
    let (certificate, key) = make_pair(own.path())?;
    let (foreign, foreign_key) = make_pair(other.path())?;
    let print = ["x509", "-in", &certificate, "-noout", "-fingerprint", "-sha256"];
    let (good, said) = run("openssl", &print)?;
    let fingerprint = said.trim().rsplit('=').next().unwrap_or_default();
    ensure!(good && fingerprint.len() == 95, "{said}");
    let user =
        format!("[[user]]\nname = \"ci\"\nrole = \"admin\"\ncertificate = \"{fingerprint}\"\n");
    let mut server = start(spec()?.config(&format!("{user}{TLS}")))?;
    let with = |certificate, key| ["--insecure", "--cert", certificate, "--key", key];
    for version in [&["--tlsv1.3"][..], &["--tls-max", "1.2"]] {
        let own = [&with(&certificate, &key)[..], version].concat();
        let (good, said) = server.curl(&own, "/api/v1/config/running")?;
        ensure!(good && said.contains("ram0"), "{version:?}: {said}");
        let foreign = [&with(&foreign, &foreign_key)[..], version].concat();
        let (_, said) = server.curl(&foreign, "/api/v1/config/running")?;
        ensure!(said.contains("is that of no [[user]]"), "{version:?}: {said}");
        let none = [&["--insecure"][..], version].concat();
        let (_, said) = server.curl(&none, "/api/v1/config/running")?;
        ensure!(said.contains("401") && said.contains("certificate"), "{version:?}: {said}");
    }
    let command = ["--data", "{\"command\":\"set system.hostname certified\"}"];
    let own = with(&certificate, &key);
    let (good, said) = server.curl(&[&own[..], &command].concat(), "/api/v1/commands")?;
    ensure!(good && said.contains("\"error\":null"), "{said}");
    server.vm.run("show audit")?.contains("http ci by certificate from")?;
    server.vm.run("show refused")?.contains("wrong_certificate")?;
    Ok(())
}

/// An authority, and certificates that it has issued.
struct Issuer(tempfile::TempDir);

impl Issuer {
    fn new(name: &str) -> Result<Issuer> {
        let issuer = Issuer(tempfile::tempdir()?);
        let (key, own) = (issuer.path("ca.key"), issuer.path("ca.pem"));
        run("openssl", &[MAKE_KEY, &[&key]].concat())?;
        let subject = format!("/CN={name}");
        let request = ["req", "-x509", "-new", "-key", &key, "-out", &own, "-days", "30", "-subj"];
        let (good, said) = run("openssl", &[&request[..], &[&subject]].concat())?;
        ensure!(good, "{said}");
        Ok(issuer)
    }

    fn path(&self, name: &str) -> String {
        self.0.path().join(name).display().to_string()
    }

    /// A certificate with this common name and these extensions, and its key.
    fn issue(&self, name: &str, extensions: &str, days: &str) -> Result<[String; 2]> {
        let [request, own, key] =
            ["csr", "pem", "key"].map(|end| self.path(&format!("{name}{days}.{end}")));
        run("openssl", &[MAKE_KEY, &[&key]].concat())?;
        let subject = format!("/O=example/CN={name}");
        let arguments = ["req", "-new", "-key", &key, "-out", &request, "-subj", &subject];
        run("openssl", &arguments)?;
        let file = self.path("extensions");
        std::fs::write(&file, extensions)?;
        let (ca, ca_key) = (self.path("ca.pem"), self.path("ca.key"));
        let sign = ["x509", "-req", "-in", &request, "-CA", &ca, "-CAkey", &ca_key];
        let rest = ["-CAcreateserial", "-days", days, "-extfile", &file, "-out", &own];
        let (good, said) = run("openssl", &[&sign[..], &rest].concat())?;
        ensure!(good, "{said}");
        Ok([own, key])
    }
}

#[test]
fn name_in_a_certificate_of_the_operators_authority_is_that_of_a_user() -> Result<()> {
    const CLIENT: &str = "extendedKeyUsage=clientAuth\n";
    let (own, foreign) = (Issuer::new("operators")?, Issuer::new("operators")?);
    let ca = std::fs::read_to_string(own.path("ca.pem"))?;
    let user = |name: &str, role: &str, certificate: &str| {
        format!("[[user]]\nname = \"{name}\"\nrole = \"{role}\"\ncertificate = \"{certificate}\"\n")
    };
    let users = user("ann", "admin", "CN=ann") + &user("ci", "read", "DNS:ci.example.net");
    let document = format!("{TLS}client_ca = '''\n{ca}'''\n{users}");
    let mut server = start(spec()?.config(&document))?;
    let get = |server: &Server, [certificate, key]: &[String; 2], more: &[&str], path: &str| {
        let with = ["--insecure", "--cert", certificate.as_str(), "--key", key.as_str()];
        let (_, said) = server.curl(&[&with[..], more].concat(), path)?;
        Ok::<_, anyhow::Error>(said)
    };
    let running = "/api/v1/config/running";
    let ann = own.issue("ann", CLIENT, "5")?;
    let dns = format!("{CLIENT}subjectAltName=DNS:ci.example.net\n");
    let ci = own.issue("host7", &dns, "5")?;
    let expired = own.issue("ann", CLIENT, "0")?;
    let wrong = [
        (own.issue("eve", CLIENT, "5")?, "http.client_ca vouches for: CN=eve"),
        (foreign.issue("ann", CLIENT, "5")?, "a signature is wrong"),
        (expired, "has expired"),
        (own.issue("ann", "extendedKeyUsage=serverAuth\n", "6")?, "lacks clientAuth"),
        (own.issue("ann", &dns, "7")?, "names more than one [[user]]"),
    ];
    let (renewed, other_ann) = (own.issue("ann", CLIENT, "9")?, foreign.issue("ann", CLIENT, "9")?);
    // The machine's clock may be a second late.
    sleep(Duration::from_secs(3));
    for version in [&["--tlsv1.3"][..], &["--tls-max", "1.2"]] {
        for good in [&ann, &ci] {
            let said = get(&server, good, version, running)?;
            ensure!(said.contains("ram0"), "{version:?} {good:?}: {said}");
        }
        for (wrong, why) in &wrong {
            let said = get(&server, wrong, version, running)?;
            ensure!(said.contains("401") && said.contains(why), "{version:?} {wrong:?}: {said}");
        }
    }
    // The role is that of the user, and the audit log names it. A renewed certificate is the same user.
    let command = ["--data", "{\"command\":\"set system.log_level debug\"}"];
    let said = get(&server, &renewed, &command, "/api/v1/commands")?;
    ensure!(said.contains("\"error\":null"), "{said}");
    let said = get(&server, &ci, &command, "/api/v1/commands")?;
    ensure!(said.contains("needs the role admin"), "{said}");
    server.vm.run("show audit")?.contains("http ann by certificate from")?;
    let refused = server.vm.run("show refused")?;
    for reason in ["unknown_subject", "ambiguous_certificate", "wrong_certificate"] {
        refused.contains(reason)?;
    }
    // The name goes with the authority.
    server.vm.run("unset http.client_ca")?.contains("a name counts only with")?;
    let other = std::fs::read_to_string(foreign.path("ca.pem"))?.replace('\n', " ");
    server.vm.run(&format!("set http.client_ca {}", other.trim()))?.lacks("error")?;
    let said = get(&server, &ann, &[], running)?;
    ensure!(said.contains("401") && said.contains("a signature is wrong"), "{said}");
    ensure!(get(&server, &other_ann, &[], running)?.contains("ram0"));
    Ok(())
}
