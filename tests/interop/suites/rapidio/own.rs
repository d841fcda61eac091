//! Rules over channels of rio_cm from one image to another: what the channels' own protocol does not have stands above
//! them, so that they behave as TCP does: nothing is lost to who does not read, ends say whether all has arrived, and a
//! board that dies is noticed.
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};

use super::PATIENCE;
use super::pair::{Pair, tells, until};

/// More than all buffers on the way hold.
const FLOOD: usize = 32 << 20;

fn byte(at: usize) -> u8 {
    (at * 7 + at / 251) as u8
}

/// From a client of the near board, by a channel, to a server at this port of this host.
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
    // The far rule is tried again until the board has its id.
    tells(&mut pair.boards[0], "rio0: id 1")?;
    Ok(pair)
}

/// A connection through both, and its other end at the server.
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
            Err(_) => ensure!(Instant::now() < deadline, "nobody reaches the server"),
        }
        client.set_read_timeout(Some(Duration::from_millis(100)))?;
        // It was refused, as the far board was not listening yet.
        if matches!(client.read(&mut [0]), Ok(0)) {
            client = TcpStream::connect(("127.0.0.1", pair.ports[0]))?;
        }
    }
}

#[test]
fn channels_between_two_images_have_credits_ends_and_signs_of_life() -> Result<()> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let mut pair = start(listener.local_addr()?.port())?;
    let (mut client, mut served) = connect(&pair, &listener)?;
    // Nobody reads: the client is held up, and nothing is lost.
    client.set_write_timeout(Some(Duration::from_secs(3)))?;
    let all: Vec<u8> = (0..FLOOD).map(byte).collect();
    let mut written = 0;
    while let Ok(count) = client.write(&all[written..]) {
        written += count;
        ensure!(written < FLOOD, "nobody reads, and all of it was taken");
    }
    let rule = until(&mut pair.boards[1], "smc rules", |_| true)?;
    ensure!(rule["messages_lost"] == 0 && rule["connections"] == 1, "{rule:#}");
    // The other direction is not held up by that.
    served.write_all(b"first")?;
    let mut five = [0; 5];
    client.read_exact(&mut five)?;
    ensure!(&five == b"first", "{five:?}");
    // Then it is read; all of it, and the end behind it.
    let writer = client.try_clone()?;
    writer.set_write_timeout(Some(PATIENCE))?;
    let rest = std::thread::spawn(move || -> Result<()> {
        (&writer).write_all(&all[written..])?;
        Ok(writer.shutdown(Shutdown::Write)?)
    });
    let mut got = Vec::new();
    served.read_to_end(&mut got)?;
    rest.join().expect("no panic")?;
    ensure!(got.len() == FLOOD, "{} of {FLOOD} bytes came", got.len());
    ensure!(got.iter().enumerate().all(|(at, is)| *is == byte(at)), "a byte is another one");
    // Who has said everything still hears the answer, and its end.
    served.write_all(&got[..300_000])?;
    drop(served);
    let mut answer = Vec::new();
    client.read_to_end(&mut answer)?;
    ensure!(answer == got[..300_000], "{} bytes of the answer came", answer.len());
    for vm in &mut pair.boards {
        let rule = until(vm, "smc rules", |rule| rule["connections"] == 0)?;
        ensure!(rule["messages_lost"] == 0 && rule["aborted"] == 0, "{rule:#}");
    }
    // One that says nothing for long is there still.
    let (mut client, mut served) = connect(&pair, &listener)?;
    std::thread::sleep(Duration::from_secs(13));
    client.write_all(b"still")?;
    served.read_exact(&mut five)?;
    ensure!(&five == b"still", "{five:?}");
    // The far board dies: who waits for it is told, and so is the log.
    pair.boards[1].kill();
    let ended = client.read(&mut five);
    ensure!(!matches!(ended, Ok(1..)), "{ended:?}");
    let rule = until(&mut pair.boards[0], "smc rules", |rule| rule["connections"] == 0)?;
    ensure!(rule["aborted"] == 1, "{rule:#}");
    tells(&mut pair.boards[0], "rule way: connections ended: 1")?;
    // It comes back, and so does the way.
    pair.restart(1)?;
    until(&mut pair.boards[1], "rapidio", |shown| shown["state"] == "ready")?;
    let (mut client, mut served) = connect(&pair, &listener)?;
    client.write_all(b"again")?;
    served.read_exact(&mut five)?;
    ensure!(&five == b"again", "{five:?}");
    // One that is told to end says so at once.
    let before = Instant::now();
    pair.boards[1].run("poweroff").ok();
    let ended = client.read(&mut five);
    ensure!(!matches!(ended, Ok(1..)), "{ended:?}");
    ensure!(before.elapsed() < Duration::from_secs(8), "it took {:?}", before.elapsed());
    pair.boards[0].run("show log")?.lacks("panic")?;
    Ok(())
}
