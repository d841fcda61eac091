//! Rules over channels of rio_cm between two images. A protocol above the channels adds TCP's guarantees: flow control
//! for slow readers, closes that report whether all data arrived, and detection of dead boards.
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};

use super::PATIENCE;
use super::pair::{Pair, until, wait_for_log};

/// Bytes that exceed all buffers on the path.
const FLOOD: usize = 32 << 20;

fn byte(at: usize) -> u8 {
    (at * 7 + at / 251) as u8
}

/// Boots two images that relay from clients of the near board, over a channel, to a server at this port of this host.
fn start(server: u16) -> Result<Pair> {
    let rule = |listen: &str, backend: &str| {
        format!(
            "[[rule]]\nname = \"way\"\nlisten = {listen}\nbackend = [\"{backend}\"]\nframing = \"none\"\n\
             connect_timeout_ms = 20000\n"
        )
    };
    let near = rule("7000", "rio_cm:0:40");
    let far = rule("\"rio_cm:0:40\"", &format!("10.0.2.2:{server}"));
    let mut pair = Pair::start([near, far])?;
    for vm in &mut pair.boards {
        until(vm, "rapidio", |shown| shown["state"] == "ready")?;
    }
    // The far rule is retried until the board has its ID.
    wait_for_log(&mut pair.boards[0], "rio0: id 1")?;
    Ok(pair)
}

/// Opens a connection through both images. Returns its client end and its server end.
fn connect(pair: &Pair, listener: &TcpListener) -> Result<(TcpStream, TcpStream)> {
    let deadline = Instant::now() + PATIENCE;
    listener.set_nonblocking(true)?;
    let mut client = TcpStream::connect(("127.0.0.1", pair.ports[0]))?;
    loop {
        match listener.accept() {
            Ok((served, _)) => {
                served.set_nonblocking(false)?;
                for stream in [&client, &served] {
                    stream.set_read_timeout(Some(PATIENCE))?;
                }
                return Ok((client, served));
            }
            Err(_) => ensure!(Instant::now() < deadline, "no connection reaches the server"),
        }
        client.set_read_timeout(Some(Duration::from_millis(100)))?;
        // The connection was refused, because the far board did not listen yet.
        if matches!(client.read(&mut [0]), Ok(0)) {
            client = TcpStream::connect(("127.0.0.1", pair.ports[0]))?;
        }
    }
}

#[test]
fn channels_between_two_images_have_credits_closes_and_keepalives() -> Result<()> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let mut pair = start(listener.local_addr()?.port())?;
    let (mut client, mut served) = connect(&pair, &listener)?;
    // The server does not read: the client is blocked, and no data are lost.
    client.set_write_timeout(Some(Duration::from_secs(3)))?;
    let all: Vec<u8> = (0..FLOOD).map(byte).collect();
    let mut written = 0;
    while let Ok(count) = client.write(&all[written..]) {
        written += count;
        ensure!(written < FLOOD, "all data were accepted although the server does not read");
    }
    let rule = until(&mut pair.boards[1], "smc rules", |_| true)?;
    ensure!(rule["messages_lost"] == 0 && rule["connections"] == 1, "{rule:#}");
    // The other direction is not blocked.
    served.write_all(b"first")?;
    let mut five = [0; 5];
    client.read_exact(&mut five)?;
    ensure!(&five == b"first", "{five:?}");
    // Then the server reads all data and the close.
    let writer = client.try_clone()?;
    writer.set_write_timeout(Some(PATIENCE))?;
    let rest = std::thread::spawn(move || -> Result<()> {
        (&writer).write_all(&all[written..])?;
        Ok(writer.shutdown(Shutdown::Write)?)
    });
    let mut got = Vec::new();
    served.read_to_end(&mut got)?;
    rest.join().expect("no panic")?;
    ensure!(got.len() == FLOOD, "{} of {FLOOD} bytes arrived", got.len());
    ensure!(got.iter().enumerate().all(|(at, is)| *is == byte(at)), "a byte differs");
    // After its half-close, the client still receives the reply and the server's close.
    served.write_all(&got[..300_000])?;
    drop(served);
    let mut answer = Vec::new();
    client.read_to_end(&mut answer)?;
    ensure!(answer == got[..300_000], "{} bytes of the reply arrived", answer.len());
    for vm in &mut pair.boards {
        let rule = until(vm, "smc rules", |rule| rule["connections"] == 0)?;
        ensure!(rule["messages_lost"] == 0 && rule["aborted"] == 0, "{rule:#}");
    }
    // An idle connection stays open.
    let (mut client, mut served) = connect(&pair, &listener)?;
    std::thread::sleep(Duration::from_secs(13));
    client.write_all(b"still")?;
    served.read_exact(&mut five)?;
    ensure!(&five == b"still", "{five:?}");
    // The far board is killed: the waiting client's connection ends, and the log reports it.
    pair.boards[1].kill();
    let ended = client.read(&mut five);
    ensure!(!matches!(ended, Ok(1..)), "{ended:?}");
    let rule = until(&mut pair.boards[0], "smc rules", |rule| rule["connections"] == 0)?;
    ensure!(rule["aborted"] == 1, "{rule:#}");
    wait_for_log(&mut pair.boards[0], "rule way: connections ended: 1")?;
    // After its restart, the rule works again.
    pair.restart(1)?;
    until(&mut pair.boards[1], "rapidio", |shown| shown["state"] == "ready")?;
    let (mut client, mut served) = connect(&pair, &listener)?;
    client.write_all(b"again")?;
    served.read_exact(&mut five)?;
    ensure!(&five == b"again", "{five:?}");
    // An orderly power-off closes connections at once.
    let before = Instant::now();
    pair.boards[1].run("poweroff").ok();
    let ended = client.read(&mut five);
    ensure!(!matches!(ended, Ok(1..)), "{ended:?}");
    ensure!(before.elapsed() < Duration::from_secs(8), "the close took {:?}", before.elapsed());
    pair.boards[0].run("show log")?.lacks("panic")?;
    Ok(())
}
