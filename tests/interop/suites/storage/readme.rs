//! The commands of README.md, run as a new user types them.

use std::fs;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use interop_tests::{address, boot_client, system, unmap};
use launch::pages;
use launch::qemu::Nic;
use launch::workspace;
use usnic_tests::namespace::{alone, ip};

use super::run::Run;

const CLIENT_TAP: &str = "client";

/// "First use": the document, the bridge, `./isthmus run`, and the client's commands.
#[test]
fn first_use_ends_with_a_file_system() -> Result<()> {
    let page = fs::read_to_string(workspace::root().join("README.md"))?;
    let blocks = pages::blocks(&pages::section(&page, "## First use")?);
    let [document, gateway, client, ..] = &blocks[..] else {
        anyhow::bail!("a block is missing in First use: {blocks:?}")
    };
    let directory = tempfile::tempdir()?;
    let config = directory.path().join("gateway.toml");
    fs::write(&config, document.text())?;
    let config = config.to_str().context("the path is not UTF-8")?;
    let gateway = gateway.typed("# ");
    let (run, prepare) = gateway.split_last().context("no command in First use")?;
    let run =
        run.strip_prefix("./isthmus run ").context("the last command is not `./isthmus run`")?;
    let run = run.replace("gateway.toml", config);
    alone(|| {
        for line in prepare {
            let status = Command::new("sh").args(["-ec", line]).status()?;
            ensure!(status.success(), "`{line}`: {status}");
        }
        ip(&format!("tuntap add dev {CLIENT_TAP} mode tap"))?;
        ip(&format!("link set {CLIENT_TAP} master br0 up"))?;
        let mut run = Run::start(&run.split(' ').collect::<Vec<_>>())?;
        run.wait_for_line("10.0.0.1/24")?;
        let spec = system()?.spec(CLIENT_TAP, &[&address(0, 2)], 1500);
        let mut host = boot_client(spec.nic(Nic::Tap { name: CLIENT_TAP.into() }).first_mac(0x22))?;
        let typed = client.typed("# ");
        ensure!(typed.len() > 1, "the client types {typed:?}");
        for line in typed {
            host.sh(&line).with_context(|| format!("the client types `{line}`"))?;
        }
        unmap(&mut host, 0)?;
        run.end()
    })
}
