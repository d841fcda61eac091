//! Two images that are both configured as the host of a network. In either boot order, the one with the lower ID
//! becomes an agent, and both reach each other.
use std::time::Instant;

use anyhow::{Result, ensure};
use launch::models::ModelServer;
use launch::qemu::{Nic, Vm, free_port};

use super::PATIENCE;
use super::pair::{Board, Client, network, ready, until, wait_for_log};

const LOWER: Board = Board { place: 0, role: "role = \"host\"\nid = 1" };
const HIGHER: Board = Board { place: 1, role: "role = \"host\"\nid = 9" };

/// The rule by which clients of the lower host reach the echo service of the higher.
const RULE: &str = "[[rule]]\nname = \"way\"\nlisten = 7000\nbackend = [\"rio_cm:9:7\"]\n";
const ECHO: &str = "services = [\"echo\"]\n";

fn start(model: &ModelServer, port: u16, is_lower: bool) -> Result<Vm> {
    let (board, more, forwards) = match is_lower {
        true => (LOWER, RULE, vec![("tcp", port, 7000)]),
        false => (HIGHER, ECHO, Vec::new()),
    };
    let document = board.document("10.0.2.15/24", "", more);
    ready(board.spec(model, Nic::User { forwards }, &document)?)
}

#[test]
fn lower_of_two_hosts_becomes_an_agent_in_either_boot_order() -> Result<()> {
    for lower_is_first in [true, false] {
        let (model, port) = (network()?, free_port()?);
        let mut first = start(&model, port, lower_is_first)?;
        until(&mut first, "rapidio", |shown| shown["state"] == "ready")?;
        let second = start(&model, port, !lower_is_first)?;
        let (mut low, mut high) = if lower_is_first { (first, second) } else { (second, first) };
        wait_for_log(&mut low, "rio0: another host enumerates this network")?;
        let is_host = |shown: &serde_json::Value| shown["state"] == "ready" && shown["id"] == 9;
        let shown = until(&mut high, "rapidio", is_host)?;
        ensure!(shown["role"] == "host", "{shown:#}");
        let is_agent =
            |shown: &serde_json::Value| shown["state"] == "ready" && shown["role"] == "agent";
        let shown = until(&mut low, "rapidio", is_agent)?;
        ensure!(shown["id"] != 9, "{shown:#}");
        // The lower host may have enumerated only half of the network at first, and scans again.
        let deadline = Instant::now() + PATIENCE;
        while let Err(why) = Client::connect(port)?.echo(&[0, 1, 1000, 4068]) {
            ensure!(Instant::now() < deadline, "the higher host is not reached: {why:#}");
        }
        for vm in [&mut low, &mut high] {
            vm.run("show log")?.lacks("panic")?;
            vm.kill();
        }
    }
    Ok(())
}
