//! Alerts that fire and clear in Prometheus, while the appliances have what they are about.

use anyhow::Result;
use serde_json::json;

use super::appliances::{Appliance, Origin};
use super::prometheus::Prometheus;

#[test]
fn prometheus_sees_alerts_fire_and_clear() -> Result<()> {
    let mut fleet =
        [Appliance::start("one", Origin::FwCfg)?, Appliance::start("two", Origin::FwCfg)?];
    for one in &mut fleet {
        one.wait_for_http()?;
    }
    let [one, two] = &mut fleet;
    for line in [
        "volume create first size=1MiB",
        "volume create second size=1MiB",
        "mirror create safe first second force",
        "save",
    ] {
        one.run(line)?;
    }
    let targets = [&*one, &*two].map(|one| (one.name.clone(), one.port));
    let prometheus = Prometheus::start(&targets)?;

    // An appliance that stands still does not answer.
    two.vm.qmp.execute("stop", json!({}))?;
    prometheus.wait("IsthmusUnreachable", "two", true)?;
    two.vm.qmp.execute("cont", json!({}))?;
    prometheus.wait("IsthmusUnreachable", "two", false)?;

    one.run("mirror detach safe second force")?;
    prometheus.wait("IsthmusMirrorDegraded", "one", true)?;
    one.run("mirror attach safe second")?;
    prometheus.wait("IsthmusMirrorDegraded", "one", false)?;

    one.run("set system.hostname changed")?;
    prometheus.wait("IsthmusUnsaved", "one", true)?;
    one.run("save")?;
    prometheus.wait("IsthmusUnsaved", "one", false)?;

    two.run("configure set system.hostname tried")?;
    two.run("commit confirmed 5")?;
    prometheus.wait("IsthmusCommitOnTrial", "two", true)?;
    two.run("confirm")?;
    prometheus.wait("IsthmusCommitOnTrial", "two", false)?;

    // No link, and with it no service.
    one.vm.qmp.execute("set_link", json!({"name": "net0", "up": false}))?;
    prometheus.wait("IsthmusUnreachable", "one", true)?;
    one.vm.qmp.execute("set_link", json!({"name": "net0", "up": true}))?;
    prometheus.wait("IsthmusUnreachable", "one", false)?;
    Ok(())
}
