//! Console latency while stock Linux keeps a card of the image busy, and the image's loop halts between requests.

use super::*;

const COMMANDS: usize = 100;
/// Attempts, because other load on the host delays commands as well.
const TRIES: usize = 3;
/// Limit of the 95th percentile of command latency, as a multiple of the median. Input that arrives together with a
/// completion of the card must not wait until the console's next periodic poll.
const LATE: u32 = 5;

/// Rounds of the image's loop that served only the card.
fn brief_rounds(linux: &mut Linux) -> Result<u64> {
    let count = linux.sh(&format!(
        "wget -q -O - http://{THERE}/metrics | sed -n 's/^isthmus_loop_brief_rounds_total{{.*}} //p'"
    ))?;
    count.trim().parse().with_context(|| count)
}

/// Latencies of commands, sorted.
fn commands(vm: &mut Vm) -> Result<Vec<Duration>> {
    let mut all = Vec::with_capacity(COMMANDS);
    for _ in 0..COMMANDS {
        let begun = Instant::now();
        vm.run("show version")?.contains("isthmus")?;
        all.push(begun.elapsed());
    }
    all.sort();
    Ok(all)
}

#[test]
fn console_answers_while_a_card_is_busy() -> Result<()> {
    let words = "isthmus.volume.0.size=32MiB isthmus.system.idle_after_us=0";
    let mut cards = Cards::boot(&[], words)?;
    cards.linux.sh("modprobe rnbd-client")?;
    map(&mut cards.linux.guest, "s1", &format!("ip:{HERE}@ip:{THERE}"), "ram0", "")?;
    cards.linux.sh("(while [ ! -e /tmp/stop ]; do
             dd if=/dev/rnbd0 of=/dev/null bs=4k count=2000 iflag=direct 2>/dev/null
         done; touch /tmp/stopped) >/dev/null 2>&1 </dev/null & sleep 1")?;
    let mut tries = Vec::new();
    while tries.len() < TRIES {
        let before = brief_rounds(&mut cards.linux)?;
        let all = commands(&mut cards.vm)?;
        let brief = brief_rounds(&mut cards.linux)? - before;
        ensure!(brief > COMMANDS as u64, "the card is not busy: {brief} brief rounds");
        let (usual, late) = (all[COMMANDS / 2], all[COMMANDS * 19 / 20]);
        tries.push((usual, late));
        if late < LATE * usual {
            break;
        }
    }
    ensure!(tries.iter().any(|&(usual, late)| late < LATE * usual), "{tries:?}");
    cards.linux.sh("touch /tmp/stop; until [ -e /tmp/stopped ]; do sleep 0.1; done")?;
    unmap(&mut cards.linux.guest, 0)
}
