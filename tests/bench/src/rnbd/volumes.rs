//! The client's block devices: /dev/rnbdN is a RAM disk of server N.

use std::time::Duration;

use anyhow::Result;
use interop_tests::map;

use super::fio::{self, Job, Run};
use crate::site::{LINUX, Site, network};

/// Serves a RAM disk from the Linux server.
pub fn serve(site: &mut Site) -> Result<()> {
    site.linux.sh("modprobe brd rd_nr=1 rd_size=65536 && modprobe -a rtrs-server rnbd-server")?;
    site.client.sh("modprobe rnbd-client")?;
    site.watch_checksums()
}

/// Maps the RAM disk of server `number`, and writes to all of it, so that the server has allocated it.
pub fn map_and_fill(site: &mut Site, number: usize) -> Result<()> {
    let network = network(number);
    let path = format!("ip:{network}.2@ip:{network}.1");
    let volume = if number == LINUX { "/dev/ram0" } else { "ram0" };
    map(&mut site.client, &format!("s{number}"), &path, volume, "")?;
    site.client.sh(&format!(
        "dd if=/dev/zero of=/dev/rnbd{number} bs=64k count=1024 oflag=direct 2>/dev/null"
    ))?;
    Ok(())
}

/// Repetitions of a job whose session Linux breaks.
const REPETITIONS: usize = 5;

/// Runs a job on the RAM disk of server `number`.
///
/// On a busy host a session with rdma_rxe at both ends sometimes breaks, because rdma_rxe does not survive a
/// retransmission. The job is then repeated after Linux has reconnected, which takes half a minute. A job on an
/// appliance is not repeated.
pub fn run(site: &mut Site, number: usize, job: &Job) -> Result<Run> {
    let mut repetitions = if number == LINUX { REPETITIONS } else { 0 };
    loop {
        match run_once(site, number, job) {
            Err(error) if repetitions == 0 => return Err(error),
            Err(_) => eprintln!("{}: Linux broke its session; repeating the job", job.name),
            done => return done,
        }
        repetitions -= 1;
        let read = format!("dd if=/dev/rnbd{number} of=/dev/null bs=4k count=1 iflag=direct");
        site.client.wait_until(&read, Duration::from_secs(120))?;
    }
}

fn run_once(site: &mut Site, number: usize, job: &Job) -> Result<Run> {
    let before = site.frames(number)?;
    let checksums_before = site.checksums()?;
    let device = format!("/dev/rnbd{number}");
    let (iops, instructions) =
        site.count(number, |site| fio::run(&mut site.client, &device, job))?;
    let frames = site.frames(number)? - before;
    let ios = f64::from(job.ios);
    let checksums = (site.checksums()? - checksums_before) / ios;
    Ok(Run { instructions: instructions / ios, checksums, packets: frames / ios, iops })
}
