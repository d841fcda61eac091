//! Cost of a round of `ib_write_lat` at the server, compared with a Linux server.
//!
//! Linux's server is the tool itself, which spins on its memory until the client's WRITE arrives. The spinning is part
//! of its cost.

use std::time::Duration;

use anyhow::{Result, ensure};
use interop_tests::smc::wait_listening;
use launch::progress;

use crate::instructions::Plugin;
use crate::site::{Appliance, LINUX, Site, network};

const APPLIANCE: usize = 1;
/// Rounds of two runs. The difference of their costs excludes connecting and starting the tool.
const ROUNDS: [u32; 2] = [500, 2500];

/// Instructions per round, of the appliance and of Linux.
pub fn measure(plugin: &Plugin) -> Result<[f64; 2]> {
    let mut site = Site::boot(plugin, &[Appliance::halting("isthmus.roce.services=true")])?;
    site.count_idle()?;
    let step = progress::step("ib_write_lat, 64 bytes");
    let mut per_round = |number| {
        let [few, many] = ROUNDS.map(|rounds| run(&mut site, number, rounds));
        Ok::<_, anyhow::Error>((many? - few?) / f64::from(ROUNDS[1] - ROUNDS[0]))
    };
    let (ours, linux) = (per_round(APPLIANCE)?, per_round(LINUX)?);
    step.done(&format!("{ours:.0} instructions per round, Linux {linux:.0}"));
    Ok([ours, linux])
}

/// Instructions of server `number` for one run of the tool.
fn run(site: &mut Site, number: usize, rounds: u32) -> Result<f64> {
    let (_, counted) = site.count(number, |site| {
        if number == LINUX {
            let tool = format!("ib_write_lat -d rxe0 -F -s 64 -n {rounds}");
            site.linux.sh(&format!("{tool} >/dev/null 2>&1 </dev/null &"))?;
            wait_listening(&mut site.linux, 18515)?;
        }
        let address = format!("{}.1", network(number));
        let tool = format!("ib_write_lat -d rxe{number} -F -s 64 -n {rounds} {address}");
        let (status, output) = site.client.try_sh(&tool, Duration::from_secs(120))?;
        ensure!(status == 0, "`{tool}` ended with status {status}:\n{output}");
        Ok(())
    })?;
    Ok(counted)
}
