//! SMC-R between the image and stock Linux, each at functions of models that do RoCE: over one card, and over two with
//! failover.

use interop_tests::smc::{prepare, serve};

use super::*;

/// The image is the server of port 7, and relays port 7001 to a server in the guest.
const WORDS: &str = "isthmus.smc.services=true isthmus.smc.ueid.0=LAB.SMC.EID \
    isthmus.rule.0.name=smc isthmus.rule.0.listen=7001 isthmus.rule.0.backend=10.1.0.1:7777 \
    isthmus.rule.0.backend_smc=true isthmus.rule.0.connect_timeout_ms=20000";
const PORTS: [u16; 2] = [7, 7001];
/// SMC-R sockets of the guest for one connection to each of the ports.
const SOCKETS: [usize; 2] = [1, 2];
const GONE: &str = "killall smc; n=0; rmmod smc_diag
    until rmmod smc 2>/dev/null; do sleep 0.5; n=$((n+1)); [ $n -lt 60 ] || exit 1; done";
/// Packets that the image may send to destroyed queue pairs: `rmmod smc` sends DELETE_LINK for each of the two link
/// groups, and destroys its queue pair without waiting for the DELETE_LINK response (`smc_lgr_cleanup`). The image
/// keeps its queue pair for 250 ms, which is less than the retransmission timeout, so it does not send the response
/// again.
const LATE: u64 = 2;

/// Runs an echo, and checks while it is open that all of the guest's sockets use SMC-R.
fn echoes(linux: &mut Linux, port: u16, words: &str, sockets: usize) -> Result<()> {
    linux.sh(&format!("timeout 110 smc echo {THERE} {port} {words} hold=4 > /tmp/held 2>&1 &"))?;
    let open = format!("[ $(smc sockets | grep -c 'ACTIVE SMCR') = {sockets} ]");
    let waited = linux.guest.wait_until(&open, Duration::from_secs(60));
    let output = linux.sh("smc sockets; cat /tmp/held")?;
    waited.with_context(|| format!("port {port}:\n{output}"))?;
    ensure!(!output.contains("ACTIVE TCP"), "{output}");
    linux.guest.wait_until("grep fine /tmp/held", Duration::from_secs(60))
}

#[test]
fn cards_of_the_image_and_linux_speak_smc() -> Result<()> {
    let mut cards = Cards::boot(&[], WORDS)?;
    prepare(&mut cards.linux.guest)?;
    serve(&mut cards.linux.guest, 7777, "")?;
    for (port, sockets) in PORTS.into_iter().zip(SOCKETS) {
        for (words, connections) in [("64 100 1", 1), ("1000000 2 4", 4)] {
            echoes(&mut cards.linux, port, words, sockets * connections)?;
        }
    }
    cards.vm.run("show smc links --json")?.contains("LINK_ACTIVE")?;
    let counters = cards.linux.model.counters_so_far()?;
    for function in ["function0", "function1"] {
        ensure!(counter(&counters, &format!("{function}.roce_dropped"))? == 0, "{counters}");
    }
    cards.linux.sh(GONE)?;
    cards.end_with_late_packets(LATE)
}

/// Options of a second model: the other card of both machines.
const SECOND: [&str; 2] = ["--number", "9"];

#[test]
fn links_over_two_cards_fail_over() -> Result<()> {
    let words = format!(
        "{WORDS} isthmus.net.0.pnetid=LAB isthmus.net.1.pnetid=LAB \
         isthmus.net.1.address=10.1.0.12/24"
    );
    let models = [model(2, &[])?, model(2, &SECOND)?];
    let spec = image_spec()?.machine(Machine::Q35).program(Program::with_vfio_user()?);
    let spec = models.iter().fold(spec, |spec, model| spec.vfio_user(&model.socket_of(1)));
    let address = format!("isthmus.net.0.address={THERE}/24");
    let mut vm = spec.append(&address).append(&words).start()?;
    vm.wait_ready()?;
    let [first, mut second] = models;
    let mut linux = Linux::with(first, 1, Some(&second))?;
    linux.load()?;
    linux.guest.wait_until("[ -e /sys/class/net/eth1 ]", LIMIT)?;
    for (name, address) in [("eth0", HERE), ("eth1", "10.1.0.11")] {
        linux.sh(&format!("ip link set {name} up && ip addr add {address}/24 dev {name}"))?;
        let up = format!("[ $(cat /sys/class/net/{name}/operstate) = up ]");
        linux.guest.wait_until(&up, LIMIT)?;
    }
    linux.sh("modprobe -a mlx5_ib && sleep 1")?;
    linux.sh(&format!("ping -c 3 -W 5 {THERE}"))?;
    prepare(&mut linux.guest)?;
    linux.sh(&format!("smc echo {THERE} 7 20000 1000000 2 time seconds=60 > /tmp/good 2>&1 &"))?;
    have_links(&mut vm, 2).context("at first")?;
    // The cable of each card in turn is unplugged at both ends under load, and plugged in again.
    for card in 0..2 {
        for (up, links) in [(false, 1), (true, 2)] {
            let model = if card == 0 { &mut linux.model } else { &mut second };
            for function in 0..2 {
                model.order(function, if up { "link-up" } else { "link-down" })?;
            }
            if let Err(why) = have_links(&mut vm, links) {
                let log = vm.run("show log")?.text;
                return linux.fail(&format!("card {card}, up {up}: {why:#}\n{log}"));
            }
        }
    }
    let done = linux.guest.wait_until("grep fine /tmp/good", Duration::from_secs(120));
    let output = linux.sh("cat /tmp/good; smc sockets")?;
    done.with_context(|| output.clone())?;
    let stats = linux.sh(&format!("wget -q -O - http://{THERE}/api/smc/stats"))?;
    let stats: serde_json::Value = serde_json::from_str(&stats)?;
    ensure!(stats["failovers"].as_u64() >= Some(2), "{stats:#}");
    vm.run("show log")?.lacks("ERROR")?;
    Ok(())
}

/// Waits until the link group with the guest has this many active links.
fn have_links(vm: &mut Vm, count: usize) -> Result<()> {
    let end = Instant::now() + Duration::from_secs(60);
    loop {
        let all = vm.run("show smc links --json")?.json()?;
        let links = all.as_array().context("a list")?;
        let active = links.iter().filter(|link| link["link_state"] == "LINK_ACTIVE").count();
        if active == count {
            return Ok(());
        }
        ensure!(Instant::now() < end, "not {count} links: {all:#}");
        std::thread::sleep(Duration::from_millis(200));
    }
}
