//! A rule of the messaging gateway: a stock Linux client over SMC-R, then over TCP, to a TCP service.

use anyhow::{Result, ensure};

use super::stage::Stage;
use crate::guest::programs;
use crate::progress;

/// Port 7000 of the gateway leads to an echo service of the host, over TCP.
const RULE: &str = "isthmus.smc.ueid.0=LAB.SMC.EID isthmus.rule.0.name=echo isthmus.rule.0.listen=7000 \
    isthmus.rule.0.backend=10.0.0.2:7777";

pub fn show(stage: &Stage) -> Result<Vec<String>> {
    let mut pair = stage.pair(RULE, |gateway| gateway)?;
    let (gateway, host) = (&mut pair.gateway, &mut pair.host);
    let step = progress::step("loading AF_SMC on the Linux host, starting a TCP echo service");
    programs::install(host, "smc")?;
    host.sh("modprobe -a smc smc_diag && smc eid LAB.SMC.EID")?;
    host.sh("smc serve 7777 tcp >/dev/null 2>&1 &")?;
    host.wait_until("netstat -ltn | grep -q ':7777 '", std::time::Duration::from_secs(30))?;
    step.done("port 7777 listens");

    for (transport, word) in [("SMC-R", ""), ("TCP", "tcp")] {
        let step = progress::step(format!(
            "10 echoes of 300,000 bytes through the rule, over {transport}"
        ));
        let reply = host.sh(&format!("timeout 100 smc echo 10.0.0.1 7000 300000 10 1 {word}"))?;
        ensure!(reply.trim() == "fine", "the client reports: {reply}");
        step.done("every byte came back");
    }
    let rules = gateway.run("show smc rules")?.text;
    let stats =
        host.sh("wget -q -O - http://10.0.0.1/metrics | grep -E '^isthmus_rule_clients_total'")?;
    println!("\nThe gateway's console, `show smc rules`:\n{}", rules.trim_end());
    let over_smc =
        stats.lines().find(|line| line.contains("smcr")).and_then(|line| line.rsplit(' ').next());
    ensure!(over_smc == Some("1"), "the client did not come over SMC-R:\n{stats}");
    Ok(vec![
        "Port 7000 of the gateway is a rule whose server is 10.0.0.2:7777, plain TCP.".into(),
        format!(
            "A program of a stock Debian kernel ({}) opened an AF_SMC socket to it:",
            stage.system.release
        ),
        "the kernel negotiated SMC-R over RoCEv2 with the gateway, which relayed to TCP.".into(),
        "The same program over TCP reached the same service through the same rule.".into(),
    ])
}
