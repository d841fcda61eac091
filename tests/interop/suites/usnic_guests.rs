//! usNIC with stock Linux as the faulty network (netem) between the stock `btl/usnic` of Open MPI and the image, and as
//! the SMC-R server of a rule for that peer.

use std::net::Ipv4Addr;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use interop_tests::smc::{prepare, serve};
use interop_tests::{Site, image_spec, system};
use launch::guest::{Guest, Wire as Cable};
use launch::qemu::Vm;
use serde_json::Value;
use usnic::wire::modex::Modex;
use usnic_tests::stock::{self, Stock};
use usnic_tests::wire::{APPLIANCE, PORTS, Wire};

const PEER: Ipv4Addr = Ipv4Addr::new(10, 9, 0, 2);
const PATIENCE: Duration = Duration::from_secs(180);

/// A stock peer at the wire, and its modex for the appliance's configuration.
fn peer(wire: &Wire) -> Result<(Stock, Modex)> {
    let options = stock::Options { eager_limit: Some(1 << 20), ..Default::default() };
    let stock = Stock::start(&options)?;
    let modex = wire.join(&stock.modex, PEER);
    Ok((stock, modex))
}

fn ask(stock: &mut Stock, order: &str, answer: &str) -> Result<String> {
    stock.tell(order)?;
    let line = stock.wait(answer, PATIENCE, || std::thread::sleep(Duration::from_millis(1)));
    line.with_context(|| format!("after {order:?}"))
}

/// Gives the stock peer the appliance's modex.
fn introduce(stock: &mut Stock, wire: &Wire, vm: &mut Vm) -> Result<()> {
    let reply = vm.run("show usnic")?;
    let line = reply.text.lines().find_map(|line| line.split_once("modex ").map(|(_, hex)| hex));
    let modex: Modex = line.context("`show usnic` has no modex")?.trim().parse()?;
    ask(stock, &format!("peer {} 1 0", wire.translated(&modex)), "peer ok")?;
    Ok(())
}

/// Sends messages, lets the peer check every byte of the echoes, and returns the total number of messages.
fn echo(stock: &mut Stock, sizes: &[(usize, usize)], before: usize) -> Result<usize> {
    let mut all = before;
    for (count, size) in sizes {
        let line = ask(stock, &format!("send {count} {size}"), "sent")?;
        ensure!(line.contains(&format!("done {count} acknowledged 1")), "{size} bytes: {line}");
        all += count;
        let line = ask(stock, &format!("recv {all} 100"), "received")?;
        ensure!(line.starts_with(&format!("received {all} bad 0")), "{size} bytes: {line}");
    }
    Ok(all)
}

/// A guest that routes packets transparently between the stock peer (eth0) and the image (eth1).
fn router(wire: &Wire, cable: launch::qemu::Nic) -> Result<Guest> {
    let spec = system()?.spec("router", &[], 1500).nic(wire.nic()).nic(cable);
    let mut guest = Guest::start("router", spec)?;
    guest.wait_up()?;
    guest.sh(&format!(
        "for i in 0 1; do ip link set eth$i up && ip addr add 10.9.0.20$i/32 dev eth$i || exit 1; done
         ip route add {PEER}/32 dev eth0 && ip route add {APPLIANCE}/32 dev eth1
         sysctl -w net.ipv4.ip_forward=1 net.ipv4.conf.all.proxy_arp=1
         sysctl -w net.ipv4.neigh.eth0.proxy_delay=0 net.ipv4.neigh.eth1.proxy_delay=0"
    ))?;
    Ok(guest)
}

/// Loss, reordering, duplicates and corruption by Linux's netem in both directions: each message is echoed once and
/// intact.
#[test]
fn stock_btl_and_the_image_survive_netem() -> Result<()> {
    let (wire, cable) = (Wire::new()?, Cable::new()?);
    let (ours, theirs) = cable.datagrams();
    let mut guest = router(&wire, theirs)?;
    let (mut stock, modex) = peer(&wire)?;
    let [priority, data, ping] = PORTS;
    let text = format!(
        "[[net]]\naddress = \"{APPLIANCE}/24\"\n[[usnic]]\nname = \"mpi\"\nnet = 0\naddress = \"{APPLIANCE}\"\n\
         data_port = {data}\npriority_port = {priority}\nping_port = {ping}\nsender = \"1.0\"\n\
         services = [\"echo\"]\ntag = 65\n[[usnic.peer]]\nname = \"node-1\"\nsender = \"1.1\"\nmodex = \"{modex}\"\n"
    );
    let mut vm = image_spec()?.nic(ours).config(&text).start()?;
    vm.wait_ready()?;
    introduce(&mut stock, &wire, &mut vm)?;
    vm.run("usnic ping node-1")?.contains("large PING answered")?;
    let mut all = echo(&mut stock, &[(10, 100), (10, 3000)], 0)?;
    let usnic = |vm: &mut Vm| -> Result<Value> { vm.run("show usnic --json")?.json() };
    for netem in [
        "loss 0.1%",
        "loss 1%",
        "loss 5%",
        "delay 1ms reorder 75%",
        "duplicate 5%",
        "corrupt 2%",
        "delay 500us reorder 80% loss 1% duplicate 1% corrupt 1%",
    ] {
        for device in ["eth0", "eth1"] {
            guest.sh(&format!("tc qdisc replace dev {device} root netem limit 10000 {netem}"))?;
        }
        all = echo(&mut stock, &[(200, 300), (100, 3000), (20, 65_536)], all)?;
        let report = usnic(&mut vm)?;
        let peer = &report[0]["peers"][0];
        let counts = guest.sh("tc -s qdisc show dev eth1 | grep -A1 netem | grep Sent")?;
        println!(
            "{netem}: {} retransmitted, {} duplicates;{}",
            peer["num_resends"],
            peer["num_dup_recvs"],
            counts.trim_end()
        );
        ensure!(peer["state"] == "open" && peer["messages"] == all, "{netem}: {report}");
    }
    let report = usnic(&mut vm)?;
    let peer = &report[0]["peers"][0];
    ensure!(peer["num_resends"].as_u64() > Some(0), "no retransmission: {report}");
    ensure!(peer["num_dup_recvs"].as_u64() > Some(0), "no duplicate: {report}");
    ensure!(peer["malformed"] == 0, "a corrupted datagram passed the checksum: {report}");
    Ok(())
}

/// A rule relays messages of the stock peer to a stock server over SMC-R, and the server's replies back to the peer.
#[test]
fn a_rule_joins_the_stock_btl_and_a_server_over_smcr() -> Result<()> {
    let (wire, cable) = (Wire::new()?, Cable::new()?);
    let (mut stock, modex) = peer(&wire)?;
    let [priority, data, ping] = PORTS;
    let words = format!(
        "isthmus.smc.ueid.0=LAB.SMC.EID isthmus.net.1.address={APPLIANCE}/24 isthmus.usnic.0.name=mpi \
         isthmus.usnic.0.net=1 isthmus.usnic.0.address={APPLIANCE} isthmus.usnic.0.data_port={data} \
         isthmus.usnic.0.priority_port={priority} isthmus.usnic.0.ping_port={ping} isthmus.usnic.0.sender=1.0 \
         isthmus.usnic.0.tag=65 isthmus.usnic.0.peer.0.name=node-1 isthmus.usnic.0.peer.0.sender=1.1 \
         isthmus.usnic.0.peer.0.modex={modex} isthmus.rule.0.name=up isthmus.rule.0.listen=usnic:mpi/node-1 \
         isthmus.rule.0.backend=10.0.0.2:7777 isthmus.rule.0.backend_smc=true isthmus.rule.0.max_message=1MiB"
    );
    let nics = vec![cable.datagrams()];
    let mut site =
        Site::between(nics, (1500, 1500), &words, |spec| spec.nic(wire.nic()), |spec| spec)?;
    prepare(&mut site.client)?;
    serve(&mut site.client, 7777, "")?;
    introduce(&mut stock, &wire, &mut site.gateway)?;
    let sizes = [(1, 1), (1, 8), (200, 300), (50, 5000), (10, 65_536), (1, 1 << 20)];
    let all = echo(&mut stock, &sizes, 0).with_context(|| {
        let report = ["show smc rules", "show smc stats", "show usnic", "show log"]
            .map(|line| site.gateway.run(line).map(|reply| reply.text).unwrap_or_default());
        report.join("\n")
    })?;
    let sockets = site.client.sh("smc sockets")?;
    ensure!(sockets.lines().any(|line| line.starts_with("ACTIVE SMCR ")), "{sockets}");
    let rules = site.gateway.run("show smc rules --json")?.json()?;
    ensure!(rules[0]["message_clients"] == 1 && rules[0]["messages_lost"] == 0, "{rules}");
    println!("{all} messages; {rules}");
    wire.counts()?;
    Ok(())
}
