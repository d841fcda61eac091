//! Configuration documents, the kernel command line, and single settings.

use appliance::config::{Document, Sources, check};

/// A valid document stays valid when it is written out as `save` does.
pub fn run(data: &[u8]) {
    let _ = check(data);
    let mut parts = data.splitn(3, |&byte| byte == 0);
    let image = parts.next();
    let text = |part: Option<&[u8]>| String::from_utf8_lossy(part.unwrap_or_default()).into_owned();
    let (command_line, setting) = (text(parts.next()), text(parts.next()));
    let sources = Sources { image, command_line: &command_line, ..Sources::default() };
    let (mut document, problems) = Document::load(&sources);
    for problem in problems {
        let _ = problem.to_string();
    }
    let (path, value) = setting.split_once(' ').unwrap_or((&setting, ""));
    let _ = document.set(path, value);
    let _ = document.complete(path);
    let written = document.to_toml();
    let again = check(written.as_bytes());
    assert!(again.is_ok(), "the document that `save` writes is refused: {written}\n{again:?}");
    assert_eq!(again.ok().as_ref(), Some(document.config()), "{written}");
    let _ = document.to_report();
}

pub fn corpus() -> Vec<Vec<u8>> {
    let default = Document::default().to_toml();
    let full = r#"
[system]
hostname = "gate-1"
syslog = "10.0.0.9"

[net.0]
addresses = ["10.0.0.1/24", "fd00::1/64"]
gateway = "10.0.0.254"
dhcp = false

[net.1]
mac = "02:00:00:00:00:01"
dhcp = true
slaac = true

[memory]
sessions = "64 MiB"

[volume.ram0]
kind = "ram"
size = "16MiB"

[volume.disk0]
kind = "disk"
disk = 0

[[export]]
volume = "ram0"
name = "scratch"

[rnbd]
heartbeat = 5
[roce]
services = true
[http]
port = 8080
"#;
    let more = "\0isthmus.system.hostname=told isthmus.net.0.dhcp=true quiet\0net.0.addresses [\"10.0.0.2/24\"]";
    vec![
        default.clone().into_bytes(),
        full.into(),
        format!("{default}{more}").into_bytes(),
        format!("{full}{more}").into_bytes(),
        b"a = 1\n\0isthmus.config=\"x y\" isthmus.=\0volume.v.size 4 GiB".to_vec(),
        b"[volume.\"\\u0000\"]\nsize = 0x10\nn = [1, {a = 2}]\nt = 1979-05-27T07:32:00Z\nf = 1e400"
            .to_vec(),
    ]
}
