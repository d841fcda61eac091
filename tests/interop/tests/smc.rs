//! Stock AF_SMC clients against the image, and against the appliance's engines in this process.

use anyhow::{Context, Result, ensure};
use interop_tests::Site;
use interop_tests::engines::Setup;
use interop_tests::smc::{echo, prepare, serve, speaks_smc, tell};

#[test]
fn a_stock_client_gets_its_echo_from_the_image() -> Result<()> {
    let words = "isthmus.smc.services=true isthmus.smc.ueid.0=LAB.SMC.EID";
    let mut site = Site::boot(1500, words)?;
    let guest = &mut site.client;
    prepare(guest)?;
    let mut story = || {
        echo(guest, "64 10 1")?;
        speaks_smc(guest, 1)?;
        echo(guest, "4096 4 8")?;
        echo(guest, "200000 2 1")?;
        echo(guest, "64 1 4 early")?;
        echo(guest, "64 1 1 linger0")?;
        echo(guest, "3000 2 2 tcp")?;
        speaks_smc(guest, 8)
    };
    let told = story();
    let log = site.gateway.run("show log")?.text;
    told.with_context(|| format!("the appliance's log:\n{log}"))?;
    ensure!(log.contains("link group with 10.0.0.2") && !log.contains("declined"), "{log}");
    Ok(())
}

#[test]
fn a_stock_client_gets_its_echo_over_smc_r() -> Result<()> {
    let report = tell(Setup::default(), |guest| {
        echo(guest, "64 10 1")?;
        speaks_smc(guest, 1)?;
        // Reuse, in parallel; data that wraps; a close without a half-close, and one with linger 0.
        echo(guest, "4096 4 8")?;
        echo(guest, "200000 2 1")?;
        echo(guest, "64 1 4 early")?;
        echo(guest, "64 1 1 linger0")?;
        speaks_smc(guest, 8)
    })?;
    ensure!(report.contains("fallbacks: {}"), "{report}");
    ensure!(report.contains("client: 0, server: 24, first_contacts: 1"), "{report}");
    Ok(())
}

#[test]
fn tcp_where_smc_cannot_be() -> Result<()> {
    let report = tell(Setup::default(), |guest| {
        // A client that does not offer SMC, then one of another enterprise.
        echo(guest, "100000 2 3 tcp")?;
        guest.sh("rmmod smc_diag smc && modprobe -a smc smc_diag && smc eid OTHER")?;
        echo(guest, "100000 2 1")
    })?;
    ensure!(report.contains("fallbacks: {Reason(50528256): 1}"), "{report}");
    Ok(())
}

#[test]
fn the_engines_are_clients_of_a_stock_server() -> Result<()> {
    let dial = Some("10.0.0.2:7777".parse()?);
    let report = tell(Setup { dial, ..Setup::default() }, |guest| serve(guest, 7777, ""))?;
    ensure!(report.contains("dialer: fine"), "{report}");
    ensure!(report.contains("client: 1, server: 0, first_contacts: 1, fallbacks: {}"), "{report}");
    Ok(())
}
