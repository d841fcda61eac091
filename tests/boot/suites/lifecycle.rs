//! The life of the configuration: candidate, commit, commit on trial, revisions; over the console and over HTTP, by users
//! with roles.

mod commits;

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use boot_tests::{boot, keeps_configuration, spec};
use launch::http::{Answer, request};
use launch::image::config_disk;
use launch::qemu::{Disk, Vm};
use serde_json::Value;

use super::config::with_http;

/// Users with the tokens `reader-token`, `operator-token` and `admin-token`.
pub(super) const USERS: &str = "[[user]]\nname = \"rita\"\nrole = \"read\"\n\
    token_sha256 = \"ba5005a40cf5212e4ac0190104cc127edab013294bb71279a975b27a80982d45\"\n\
    [[user]]\nname = \"otto\"\nrole = \"operate\"\n\
    token_sha256 = \"0850123315d21ab90f4f7236408a52ef6dbd6a02a6550e5c10dc73f4d993680e\"\n\
    [[user]]\nname = \"ada\"\nrole = \"admin\"\n\
    token_sha256 = \"10a4c7c9fc5206d6f36dc6944a81bb6f4a3cb0e25014ae3b12e6c3e52712292a\"\n";

#[test]
fn candidate_is_committed_and_rolled_back_on_the_console() -> Result<()> {
    let mut vm = boot(spec()?)?;
    vm.run("compare")?.contains("error")?.contains("no candidate")?;
    vm.run("configure set rule.0.listen 6379")?.contains("pending: rule.0: still missing: name")?;
    vm.run("commit")?.contains("error")?.contains("incomplete")?;
    vm.run("configure set rule.0.name redis")?.lacks("error")?;
    vm.run("configure set rule.0.backend 10.9.0.9:6379")?.contains("differs in")?;
    vm.run("configure set volume.1.name more")?.lacks("error")?;
    vm.run("configure set volume.1.size 1MiB")?.lacks("error")?;
    vm.run("show config")?.lacks("redis")?;
    vm.run("compare")?.contains("+ rule.0.name = \"redis\"")?.contains("# more")?;
    vm.run("check")?.contains("can start")?;
    vm.run("commit comment a new rule")?.contains("revision 2 is in force")?;
    vm.run("show config")?.contains("redis")?;
    vm.run("show volumes")?.contains("more")?.lacks("missing")?;
    let history = vm.run("show history")?;
    history.contains("a new rule")?.contains("console boot")?;
    vm.run("rollback 1")?.contains("error: cuts off: volume more goes, and its data is lost")?;
    vm.run("rollback 1 --yes")?.contains("revision 3 is in force")?;
    vm.run("show volumes")?.lacks("more")?;
    vm.run("show config")?.lacks("redis")?;
    vm.run("compare 2")?.contains("- rule.0.name = \"redis\"")?;
    vm.run("rollback 99")?.contains("error: there is no revision 99")?;
    vm.run("show log audit")?.contains("console: commit: revision 2")?;
    // A key that needs a reboot is named.
    vm.run("configure set net.0.mtu 1400")?.lacks("error")?;
    vm.run("commit")?.contains("in force after `save` and `reboot`: net.0.")?;
    // A change on the console is a revision too.
    vm.run("set system.hostname typed")?.lacks("error")?;
    vm.run("show history --json")?.contains("\"revision\":5")?;
    // A withdrawn export is to be confirmed.
    vm.run("export add other volume=ram0")?.lacks("error")?;
    vm.run("configure unset export.0")?.lacks("error")?;
    vm.run("commit")?.contains("error: cuts off: export ram0 is withdrawn")?;
    vm.run("commit --yes")?.contains("in force")?;
    vm.run("show exports")?.contains("other")?;
    Ok(())
}

#[test]
fn pasted_document_becomes_the_candidate() -> Result<()> {
    let mut vm = boot(spec()?)?;
    let keys = "configure paste\r[system]\rhostname = \"pasted\"\r.\r";
    vm.serial.send(keys.as_bytes())?;
    vm.wait_for("the candidate differs in 1 keys")?;
    vm.wait_for(launch::qemu::PROMPT)?;
    vm.run("configure show")?.contains("pasted")?;
    vm.run("commit")?.contains("in force")?;
    vm.run("show version")?.contains("pasted")?;
    vm.serial.send(b"configure paste\r[http]\rprot = 1\r.\r")?;
    vm.wait_for("unknown key (did you mean \"port\"?)")?;
    vm.wait_for(launch::qemu::PROMPT)?;
    vm.run("configure show")?.contains("no candidate")?;
    Ok(())
}

#[test]
fn unconfirmed_commit_is_taken_back() -> Result<()> {
    let disk = tempfile::NamedTempFile::new()?;
    std::fs::write(disk.path(), config_disk(None)?)?;
    let mut vm = boot(spec()?.disk(keeps_configuration(disk.path())).reboots())?;
    vm.run("configure set system.hostname tried")?.lacks("error")?;
    vm.run("commit confirmed 5s")?.contains("taken back in 5 s without `confirm`")?;
    vm.run("save")?.contains("error: a commit waits for its confirmation")?;
    vm.run("show version")?.contains("tried")?;
    vm.wait_for("was not confirmed in time, and is taken back")?;
    vm.run("show version")?.lacks("tried")?;
    vm.run("configure set system.hostname kept")?.lacks("error")?;
    vm.run("commit confirmed 5s")?.lacks("error")?;
    vm.run("confirm")?.contains("confirmed")?;
    std::thread::sleep(Duration::from_secs(6));
    vm.run("show version")?.contains("kept")?;
    vm.run("confirm")?.contains("error: nothing waits")?;
    vm.run("save")?.contains("saved")?;
    vm.reboot()?;
    vm.run("show version")?.contains("kept")?;
    // The config disk keeps the revisions.
    vm.run("show history")?.contains("not confirmed")?.contains("commit")?;
    Ok(())
}

/// Commits a host name that the next boot tries, and waits for that boot.
fn try_after_reboot(vm: &mut Vm, name: &str, time: &str) -> Result<()> {
    vm.run(&format!("configure set system.hostname {name}"))?.lacks("error")?;
    vm.serial.send(format!("commit confirmed {time} reboot\r").as_bytes())?;
    vm.wait_for("the next boot tries the configuration")?;
    vm.wait_for(" ready")?;
    vm.wait_for(launch::qemu::PROMPT)?;
    vm.run("show version")?.contains(name)?;
    Ok(())
}

#[test]
fn commit_tried_after_a_reboot_comes_back_or_is_confirmed() -> Result<()> {
    let disk = tempfile::NamedTempFile::new()?;
    std::fs::write(disk.path(), config_disk(Some("[system]\nhostname = \"saved\"\n"))?)?;
    let spec = || Ok::<_, anyhow::Error>(spec()?.disk(keeps_configuration(disk.path())).reboots());
    let mut vm = boot(spec()?)?;
    try_after_reboot(&mut vm, "first", "5s")?;
    // The time is over: the machine reboots by itself.
    vm.wait_for("was not confirmed in time, and is taken back")?;
    vm.wait_for(" ready")?;
    vm.wait_for(launch::qemu::PROMPT)?;
    vm.run("show version")?.contains("saved")?;
    // A power cut during the trial.
    try_after_reboot(&mut vm, "second", "10")?;
    vm.kill();
    let mut vm = boot(spec()?)?;
    vm.run("show version")?.contains("saved")?;
    try_after_reboot(&mut vm, "third", "10")?;
    vm.run("confirm")?.contains("saved")?;
    vm.kill();
    let mut vm = boot(spec()?)?;
    vm.run("show version")?.contains("third")?;
    Ok(())
}

/// A client with a token.
struct Client<'a>(SocketAddr, &'a str);

impl Client<'_> {
    fn send(&self, method: &str, path: &str, tag: &str, body: &str) -> Result<Answer> {
        let (host, bearer) = (self.0.to_string(), format!("Bearer {}", self.1));
        let mut fields = vec![("Host", host.as_str())];
        if !self.1.is_empty() {
            fields.push(("Authorization", &bearer));
        }
        if !tag.is_empty() {
            fields.push(("If-Match", tag));
        }
        request(self.0, method, &format!("/api/v1/{path}"), &fields, body)
    }

    /// Sends a request, checks the status, and returns the body as JSON.
    fn json(&self, method: &str, path: &str, body: &str, status: u16) -> Result<Value> {
        let answer = self.send(method, path, "", body)?;
        let what = format!("{method} {path}: {} {}", answer.head, answer.body);
        ensure!(answer.status == status, "{what}");
        serde_json::from_str(&answer.body).context(what)
    }
}

/// The entity tag of a response.
fn tag(answer: &Answer) -> Result<String> {
    let line = answer.head.lines().find_map(|line| line.strip_prefix("ETag: "));
    Ok(line.with_context(|| answer.head.clone())?.trim().into())
}

#[test]
fn configuration_is_changed_over_http_by_users_with_roles() -> Result<()> {
    let (mut vm, server) = with_http(spec()?.config(USERS))?;
    let [none, rita, otto, ada] =
        ["", "reader-token", "operator-token", "admin-token"].map(|token| Client(server, token));
    // Roles.
    ensure!(none.send("GET", "config/running", "", "")?.status == 401, "no token");
    let running = rita.send("GET", "config/running", "", "")?;
    ensure!(running.status == 200 && running.body.contains("ram0"), "{}", running.body);
    ensure!(!running.body.contains("ba5005a4"), "a hash: {}", running.body);
    for client in [&rita, &otto] {
        client.json("PUT", "config/candidate", "", 403)?;
        client.json("PUT", "rules/r", "{}", 403)?;
        client.json("POST", "config/commit", "", 403)?;
        client.json("POST", "commands", "{\"command\":\"set http.port 81\"}", 403)?;
    }
    rita.json("POST", "commands", "{\"command\":\"session disconnect x\"}", 403)?;
    otto.json("POST", "commands", "{\"command\":\"session disconnect x\"}", 400)?;
    let shown = rita.json("POST", "commands", "{\"command\":\"show exports\"}", 200)?;
    ensure!(shown["output"].as_str().is_some_and(|text| text.contains("ram0")), "{shown}");
    let log = rita.json("POST", "commands", "{\"command\":\"show log audit\"}", 200)?;
    ensure!(log["output"].as_str().is_some_and(|text| text.contains("http otto from")), "{log}");

    // The candidate.
    let rule = "{\"rule\":[{\"name\":\"web\",\"listen\":81,\"backend\":[\"10.9.0.9:80\"]}]}";
    ensure!(ada.send("PATCH", "config/candidate", "\"wrong\"", rule)?.status == 412, "a wrong tag");
    let before = tag(&ada.send("GET", "config/candidate", "", "")?)?;
    let patched = ada.send("PATCH", "config/candidate", &before, rule)?;
    ensure!(patched.status == 200, "{}", patched.body);
    ensure!(ada.send("PATCH", "config/candidate", &before, rule)?.status == 412, "an old tag");
    let changes = ada.json("GET", "config/compare", "", 200)?;
    ensure!(changes.to_string().contains("rule.0.name"), "{changes}");
    vm.run("show config")?.lacks("name = \"web\"")?;
    let done = ada.json("POST", "config/commit", "{\"comment\":\"web\"}", 200)?;
    ensure!(done["revision"] == 2, "{done}");
    vm.run("show config")?.contains("name = \"web\"")?.contains("HTTP")?;
    ada.json("PUT", "config/candidate", "[http]\nprot = 1\n", 400)?;

    // Resources.
    let body = "{\"listen\":82,\"backend\":[\"10.9.0.9:80\"]}";
    ada.json("PUT", "rules/r2", body, 201)?;
    let again = ada.json("PUT", "rules/r2", body, 200)?;
    ensure!(again["revision"] == 3 && again["changes"] == serde_json::json!([]), "{again}");
    let entry = rita.send("GET", "rules/r2", "", "")?;
    ensure!(ada.send("DELETE", "rules/r2", "\"x\"", "")?.status == 412, "a wrong tag");
    ensure!(ada.send("DELETE", "rules/r2", &tag(&entry)?, "")?.status == 200, "the right tag");
    ada.json("GET", "rules/r2", "", 404)?;
    ada.json("PUT", "exports/safe", "{\"volume\":\"ram0\",\"hosts\":[\"10.0.0.0/24\"]}", 201)?;
    let cut = ada.json("DELETE", "exports/ram0", "", 409)?;
    ensure!(cut["cuts"][0] == "export ram0 is withdrawn", "{cut}");
    ada.json("DELETE", "exports/ram0?yes=true", "", 200)?;
    vm.run("show exports")?.contains("safe")?.lacks("everybody")?;
    ada.json("PUT", "volumes/more", "{\"size\":\"1MiB\"}", 201)?;
    vm.run("show volumes")?.contains("more")?.lacks("missing")?;
    ada.json("PUT", "volumes/huge", "{\"size\":\"1TiB\"}", 400)?;

    // What cuts the caller off.
    ada.json("PATCH", "config/candidate", "{\"http\":{\"hosts\":[\"10.99.0.0/24\"]}}", 200)
        .err()
        .context("the candidate is TOML")?;
    let cut = ada.json("POST", "config/commit", "", 409)?;
    ensure!(cut.to_string().contains("http.hosts does not admit"), "{cut}");
    ada.json("DELETE", "config/candidate", "", 200)?;
    let history = rita.json("GET", "config/history", "", 200)?;
    ensure!(
        history[0]["by"].as_str().is_some_and(|by| by.starts_with("http ada from")),
        "{history}"
    );
    ada.json("POST", "config/rollback/1", "{\"yes\":true}", 200)?;
    vm.run("show config")?.lacks("name = \"web\"")?;
    vm.run("show log audit")?.contains("http ada from")?.contains("rollback 1: revision")?;
    Ok(())
}

#[test]
fn described_paths_are_served_and_the_schema_is_complete() -> Result<()> {
    let (_vm, server) = with_http(spec()?.config(USERS))?;
    let (none, ada) = (Client(server, ""), Client(server, "admin-token"));
    let schema = none.json("GET", "schema", "", 200)?;
    ensure!(schema["properties"]["http"]["properties"]["port"]["maximum"] == 65535, "{schema}");
    let api = none.json("GET", "openapi.json", "", 200)?;
    let mut served = 0;
    for (path, operations) in api["paths"].as_object().context("paths")? {
        let path = path.strip_prefix("/api/v1/").context("a path of the API")?;
        let given = path.replace("{name}", "nothing").replace("{revision}", "999");
        for method in operations.as_object().context("operations")?.keys() {
            let answer = ada.send(&method.to_uppercase(), &given, "\"never\"", "")?;
            ensure!(![405, 500, 501].contains(&answer.status), "{method} {path}: {}", answer.head);
            let has_parameter = given != path;
            let is_found = answer.status != 404 || has_parameter || path.ends_with("compare");
            ensure!(is_found, "{method} {path}: {}", answer.body);
            served += 1;
        }
    }
    ensure!(served > 30, "{served}");
    Ok(())
}

#[test]
fn audit_log_survives_a_reboot_and_a_power_cut() -> Result<()> {
    let disk = tempfile::NamedTempFile::new()?;
    std::fs::write(disk.path(), config_disk(None)?)?;
    let spec = || Ok::<_, anyhow::Error>(spec()?.disk(keeps_configuration(disk.path())).reboots());
    let mut vm = boot(spec()?)?;
    vm.run("set system.hostname first")?.lacks("error")?;
    vm.run("set system.hostname !")?.contains("error")?;
    vm.run("save")?.contains("saved")?;
    vm.reboot()?;
    let audit = vm.run("show audit")?;
    audit.contains("console boot: start of isthmus")?.contains("console: reboot")?;
    audit.contains("console: set system.hostname first")?;
    audit.contains("console: set system.hostname: refused")?;
    // A completed action is on the disk after a second.
    vm.run("set system.hostname second")?.lacks("error")?;
    std::thread::sleep(Duration::from_secs(3));
    vm.kill();
    let mut vm = boot(spec()?)?;
    let audit = vm.run("show audit --json")?;
    audit
        .contains("\"what\":\"set system.hostname second\"")?
        .contains("\"result\":\"refused\"")?;
    Ok(())
}

#[test]
fn console_asks_for_a_user_whose_role_applies() -> Result<()> {
    let mut vm = boot(spec()?.config(USERS))?;
    vm.run("set console.login true")?.lacks("error")?;
    vm.wait_for("login: ")?;
    vm.serial.send(b"otto\roperator-token\r")?;
    vm.wait_for(launch::qemu::PROMPT)?;
    let refused = "error: needs the role admin; console otto has operate";
    vm.run("set system.hostname x")?.contains(refused)?;
    vm.run("show version")?.lacks("error")?;
    vm.serial.send(b"logout\r")?;
    vm.wait_for("login: ")?;
    vm.serial.send(b"ada\rwrong\r")?;
    vm.wait_for("wrong name or token")?;
    vm.serial.send(b"ada\radmin-token\r")?;
    vm.wait_for("too soon after a wrong try")?;
    std::thread::sleep(Duration::from_secs(2));
    vm.serial.send(b"ada\radmin-token\r")?;
    vm.wait_for(launch::qemu::PROMPT)?;
    let audit = vm.run("show audit")?;
    audit.contains("console otto: login")?.contains("console: login: refused")?;
    audit.lacks("admin-token")?;
    vm.run("set console.login false")?.lacks("error")?;
    vm.run("show version")?.lacks("error")?;
    Ok(())
}

#[test]
fn log_is_followed_over_http() -> Result<()> {
    use std::io::{BufRead as _, BufReader, Write as _};
    let (mut vm, server) = with_http(spec()?.config(USERS))?;
    let mut follower = std::net::TcpStream::connect(server)?;
    follower.set_read_timeout(Some(Duration::from_secs(10)))?;
    write!(
        follower,
        "GET /api/v1/log?follow&filter=audit HTTP/1.1\r\nHost: {server}\r\n\
         Authorization: Bearer reader-token\r\n\r\n"
    )?;
    let mut lines = BufReader::new(follower).lines();
    let mut wait_for = |text: &str| {
        lines.by_ref().find(|line| line.as_ref().map_or(true, |line| line.contains(text)))
    };
    wait_for("text/event-stream").context("the head")??;
    wait_for("retry: 3000").context("the first event")??;
    vm.run("set system.hostname followed")?.lacks("error")?;
    wait_for("set system.hostname followed").context("the message")??;
    let rita = Client(server, "reader-token");
    let log = rita.json("GET", "log?filter=audit", "", 200)?;
    ensure!(log.to_string().contains("set system.hostname followed"), "{log}");
    ensure!(rita.json("GET", "audit", "", 200)?.to_string().contains("known_by"), "the audit log");
    Ok(())
}

/// Whether a file contains these bytes.
fn has(path: &std::path::Path, bytes: &[u8]) -> Result<bool> {
    Ok(std::fs::read(path)?.windows(bytes.len()).any(|window| window == bytes))
}

#[test]
fn wiped_config_disk_keeps_nothing_and_an_unfinished_wipe_is_reported() -> Result<()> {
    let disk = tempfile::NamedTempFile::new()?;
    std::fs::write(disk.path(), config_disk(Some("[system]\nhostname = \"secretive\"\n"))?)?;
    let spec = || Ok::<_, anyhow::Error>(spec()?.disk(keeps_configuration(disk.path())).reboots());
    let mut vm = boot(spec()?)?;
    vm.run("set system.dns 10.0.2.3")?.lacks("error")?;
    vm.run("save")?.contains("saved")?;
    std::thread::sleep(Duration::from_secs(3));
    ensure!(has(disk.path(), b"secretive")? && has(disk.path(), b"set system.dns")?, "it is kept");
    vm.run("wipe")?.contains("confirm with `wipe --yes disk0`")?;
    vm.run("wipe --yes disk1")?.contains("confirm with `wipe --yes disk0`")?;
    vm.run("wipe disk0 --yes disk0")?.contains("is the config disk")?;
    vm.run("wipe --yes")?.contains("error: accepted: `wipe --yes NAME`")?;
    vm.run("wipe --yes disk0")?.contains("4088 sectors erased and read back as zeroes")?;
    for (text, what) in [("secretive", "a name"), ("set system", "audit"), ("ISTHM", "a slot")] {
        let bytes = std::fs::read(disk.path())?;
        let area = bytes.windows(16).position(|window| window == b"ISTHMUS CONFIG 1");
        let area = area.context("the area")?;
        let rest = [&bytes[..area], &bytes[area + 16..]].concat();
        ensure!(!rest.windows(text.len()).any(|window| window == text.as_bytes()), "{what}");
    }
    vm.run("show version")?.contains("secretive")?;
    vm.run("save")?.contains("the config disk was wiped: reboot first")?;
    vm.reboot()?;
    vm.run("show version")?.lacks("secretive")?;
    vm.run("show history")?.lacks("save")?;
    vm.run("set system.hostname second")?.lacks("error")?;
    vm.run("save")?.contains("saved")?;
    vm.kill();

    // The power failed while the disk was being erased.
    let mut bytes = std::fs::read(disk.path())?;
    let area = bytes.windows(16).position(|window| window == b"ISTHMUS CONFIG 1");
    let area = area.context("the area")?;
    bytes[area + 16..area + 32].copy_from_slice(b" WIPE UNFINISHED");
    std::fs::write(disk.path(), bytes)?;
    let mut vm = boot(spec()?)?;
    vm.run("show version")?.lacks(" second")?;
    vm.run("doctor")?
        .contains("fault")?
        .contains("wipe unfinished")?
        .contains("wipe --yes disk0")?;
    vm.run("save")?.contains("error: wipe unfinished")?;
    vm.run("wipe --yes disk0")?.contains("4088 sectors erased")?;
    ensure!(!has(disk.path(), b"second")?, "the rest is erased, too");
    vm.reboot()?;
    vm.run("doctor")?.lacks("wipe unfinished")?;
    vm.run("set system.hostname third")?.lacks("error")?;
    vm.run("save")?.contains("saved")?;
    Ok(())
}

#[test]
fn table_of_volumes_is_wiped_by_an_admin() -> Result<()> {
    let file = tempfile::NamedTempFile::new()?;
    file.as_file().set_len(16 << 20)?;
    let (mut vm, server) = with_http(spec()?.config(USERS).disk(Disk::new(file.path())))?;
    vm.run("wipe disk0")?.contains("confirm with `wipe disk0 --yes disk0`")?;
    vm.run("wipe disk0 --yes disk0")?.contains("is blank: there is no table of volumes to wipe")?;
    vm.run("wipe disk7 --yes disk7")?.contains("there is no disk disk7")?;
    vm.run("volume create kept disk=0 size=1MiB")?.contains("has 1MiB on disk 0")?;
    vm.run("wipe disk0 --yes disk1")?.contains("and with it volumes kept")?;
    let command = "{\"command\":\"wipe disk0 --yes disk0\"}";
    Client(server, "operator-token").json("POST", "commands", command, 403)?;
    let done = Client(server, "admin-token").json("POST", "commands", command, 200)?;
    ensure!(done.to_string().contains("2048 sectors erased and read back as zeroes"), "{done}");
    ensure!(!has(file.path(), b"ISTHMUS")? && !has(file.path(), b"kept")?, "nothing is left");
    vm.run("show volumes")?.lacks("kept")?;
    vm.run("volume create new disk=0 size=1MiB")?.contains("has 1MiB on disk 0")?;
    vm.run("show audit")?.contains("http ada from")?.contains("wipe disk0 --yes disk0")?;
    Ok(())
}
