//! Malicious RTRS clients against the image, while a stock client works: they are refused with the right reason, do not
//! disturb the stock client, and leak no resources.
use std::time::{Duration, Instant};

use ::storage::rnbd::wire::{
    AccessMode, Close, Io, IoFlags, Open, OpenResponse, Operation, SessionInfo,
};
use anyhow::{Context, Result, anyhow, bail, ensure};
use interop_tests::host::HostLoop;
use interop_tests::rtrs_attacker::{ConnectOutcome, Fate, Request, Session, Stranger};
use interop_tests::{client_of, map, networked_gateway_spec, storage, unmap};
use launch::guest::{Guest, Wire};
use launch::qemu::Vm;
use rtrs::wire::{ConnectRequest, Descriptor, IoHeader, Uuid};
use rtrs::{Errno, Name};
use verbs::{RejectReason, Status};

/// The appliance between a stock client on one network and an attacker on another.
struct Site {
    gateway: Vm,
    client: Guest,
    stranger: Stranger,
    /// Free bytes of the appliance's arena after the stock client has mapped its volume.
    free: u64,
    _wire: Wire,
}

impl Site {
    /// Boots the machines, and starts fio in the client for this many seconds.
    fn boot(words: &str, seconds: u32) -> Result<Site> {
        let wire = Wire::new()?;
        let (first, second) = wire.datagrams();
        let mut stranger = Stranger::new(1)?;
        let words = format!("isthmus.rnbd.queue_depth=100 isthmus.rnbd.chunk_size=64KiB {words}");
        let gateway = networked_gateway_spec(2, 1500, &words)?.nic(first).nic(stranger.nic());
        let mut gateway = gateway.first_mac(1).start()?;
        gateway.wait_ready()?;
        let mut client = client_of(1500, |spec| spec.nic(second).first_mac(0x20))?;
        storage::map_ram0(&mut client)?;
        // The attacker's socket holds ten frames of the boot, which it takes first, because memory of frames to send is
        // not free.
        stranger.idle(Duration::from_secs(1));
        let free = free(&mut gateway)?;
        storage::start_fio(&mut client, "/dev/rnbd0", seconds, 1)?;
        Ok(Site { gateway, client, stranger, free, _wire: wire })
    }

    /// Checks that the stock client was not disturbed, and that the memory of the attacker's sessions is free.
    fn verify(mut self) -> Result<()> {
        storage::finish_fio(&mut self.client, Duration::from_secs(180))?;
        let reconnects =
            self.client.sh("cat /sys/class/rtrs-client/s1/paths/*/stats/reconnects")?;
        ensure!(reconnects.trim() == "0 0", "the stock client reconnected: {reconnects}");
        let deadline = Instant::now() + Duration::from_secs(90);
        loop {
            let now = free(&mut self.gateway)?;
            if now == self.free {
                break;
            }
            if Instant::now() > deadline {
                let log = self.gateway.run("show log")?.text;
                bail!("{now} bytes are free, {} were before\n{log}", self.free);
            }
            self.stranger.idle(Duration::from_secs(1));
        }
        unmap(&mut self.client, 0)
    }
}

/// Free bytes of the appliance's arena.
fn free(gateway: &mut Vm) -> Result<u64> {
    let memory = gateway.run("show memory --json")?.json()?;
    memory["arena_free"].as_u64().with_context(|| format!("no arena_free in {memory}"))
}

fn io(device: u32, operation: Operation, sector: u64, size: u32) -> [u8; Io::SIZE] {
    Io { device, sector, operation, flags: IoFlags::empty(), size, priority: 0 }.emit()
}

/// Makes a request of a session.
type Make<'a> = &'a dyn Fn(&Session) -> Request;
/// Makes a valid request invalid.
type Forge<'a> = &'a dyn Fn(&mut Request);

const GOOD: Fate = Fate::Answered(Ok(()));

const fn error(errno: Errno) -> Fate {
    Fate::Answered(Err(errno))
}

#[test]
fn connection_requests_are_refused_with_the_errno_of_linux() -> Result<()> {
    let mut site = Site::boot("", 10)?;
    let stranger = &mut site.stranger;
    let good = ConnectRequest {
        cid: 0,
        cid_num: 2,
        recon_cnt: 1,
        path: Uuid([1; 16]),
        session: Uuid([2; 16]),
        first: true,
    };
    let bytes = good.emit();
    let changed = |at: usize, with: u8| {
        let mut bytes = bytes;
        bytes[at] = with;
        bytes
    };
    let reset = ConnectOutcome::Refused(Errno::ECONNRESET);
    let refused = |stranger: &mut Stranger, bytes: &[u8], expected, what| {
        let (answer, _) = stranger.connect(1234, bytes)?;
        ensure!(answer == expected, "{what}: {answer:?}, not {expected:?}");
        Ok(())
    };
    refused(stranger, &changed(2, 0), reset, "magic")?;
    refused(stranger, &changed(5, 3), reset, "version 3.0")?;
    refused(stranger, &changed(5, 1), reset, "version 1.0")?;
    refused(stranger, &changed(6, 2), reset, "cid 2 of 2")?;
    refused(stranger, &changed(8, 0), reset, "cid_num 0")?;
    refused(stranger, &changed(9, 0x10), reset, "cid_num 4098")?;
    refused(stranger, &changed(9, 0xff), reset, "cid_num 65282")?;
    refused(stranger, &[], reset, "nothing")?;
    refused(stranger, &[0xff; 56], reset, "ones")?;
    let unknown = ConnectRequest { first: false, ..good };
    refused(
        stranger,
        &unknown.emit(),
        ConnectOutcome::Refused(Errno::ENXIO),
        "an unknown session",
    )?;
    let rejected = ConnectOutcome::Rejected(RejectReason::INVALID_SERVICE_ID);
    let (answer, _) = stranger.connect(1235, &bytes)?;
    ensure!(answer == rejected, "another port: {answer:?}");
    let refusals = site.gateway.run("show refused")?;
    refusals.contains("no_such_port")?.contains("port 1235")?.contains("rnbd.port")?;
    let stranger = &mut site.stranger;

    let (answer, connection) = stranger.connect(1234, &bytes)?;
    ensure!(answer == ConnectOutcome::Accepted, "{answer:?}");
    refused(stranger, &bytes, reset, "cid 0 twice")?;
    let other = ConnectRequest { cid: 1, cid_num: 3, ..good };
    refused(stranger, &other.emit(), reset, "another cid_num")?;
    let same = ConnectRequest { path: Uuid([3; 16]), ..good };
    refused(stranger, &same.emit(), ConnectOutcome::Refused(Errno::EEXIST), "the same addresses")?;
    // The client disconnects with one of its two connections established.
    stranger.disconnect(connection.context("a connection")?);
    site.verify()
}

/// Opens a session and `ram0` in it, and returns the device number.
fn opened(stranger: &mut Stranger, name: &str) -> Result<(Session, u32)> {
    let mut session = stranger.session(name.as_bytes())?.context("INFO was refused")?;
    let request = session.read(0, &SessionInfo { version: 2 }.emit(), SessionInfo::SIZE as u32);
    let fate = stranger.send(&mut session, &request)?;
    ensure!(fate == GOOD, "SESS_INFO: {fate:?}");
    let fate = open(stranger, &mut session, "ram0", Ok(AccessMode::ReadOnly))?;
    ensure!(fate == GOOD, "OPEN: {fate:?}");
    let mut answer = [0; OpenResponse::SIZE];
    session.data.0.read(0, &mut answer).ok().context("the answer to OPEN")?;
    let answer = OpenResponse::parse(&answer).map_err(|error| anyhow!("{error}"))?;
    Ok((session, answer.device))
}

fn open(
    stranger: &mut Stranger,
    session: &mut Session,
    name: &str,
    mode: Result<AccessMode, u8>,
) -> Result<Fate> {
    let name = Name::new(name).map_err(|_| anyhow!("{name:?} is too long"))?;
    let open = Open { mode, name }.emit();
    let request = session.read(1, &open, OpenResponse::SIZE as u32);
    stranger.send(session, &request)
}

fn invalid_requests(words: &str) -> Result<()> {
    let mut site = Site::boot(words, 20)?;
    let stranger = &mut site.stranger;
    for name in ["a/b", "a.b", "..", ""] {
        let session = stranger.session(name.as_bytes())?;
        ensure!(session.is_none(), "a session with the name {name:?} was accepted");
    }
    ensure!(stranger.session(&[b'x'; 255])?.is_none(), "a name without a terminator was accepted");
    ensure!(stranger.session(b"s1")?.is_none(), "the name of another session was accepted");

    let (mut session, device) = opened(stranger, "stranger")?;
    let fresh = |s: &Session| s.read(2, &io(device, Operation::Read, 0, 512), 512);
    let empty = io(device, Operation::Write, 0, 0);
    let user_len =
        |s: &Session, user_len| s.request(2, 0, &[&empty], IoHeader::Write { user_len }, 0);
    let into = |s: &Session, length| {
        let into = Some(Descriptor { length, ..s.data.1 });
        let header = IoHeader::Read { user_len: 32, need_invalidate: true, into };
        s.request(2, 0, &[&io(device, Operation::Read, 0, 512)], header, 0)
    };
    // Each is answered, and the session continues.
    let cases: [(&str, Fate, Make<'_>); 13] = [
        ("a valid read", GOOD, &fresh),
        ("an unknown device", error(Errno::ENOTCONN), &|s| {
            s.read(2, &io(device + 1, Operation::Read, 0, 512), 512)
        }),
        ("a size that differs from the data's", error(Errno::EINVAL), &|s| {
            s.read(2, &io(device, Operation::Read, 0, 1024), 512)
        }),
        ("sectors past the end", error(Errno::EIO), &|s| {
            s.read(2, &io(device, Operation::Read, u64::MAX, 512), 512)
        }),
        ("an unknown operation", error(Errno::EINVAL), &|s| {
            let mut user = io(device, Operation::Read, 0, 512);
            user[16] = 99;
            s.read(2, &user, 512)
        }),
        ("a usr_len beyond the message", error(Errno::EINVAL), &|s| user_len(s, 33)),
        ("the largest usr_len", error(Errno::EINVAL), &|s| user_len(s, u16::MAX)),
        ("a usr_len of 0", error(Errno::EINVAL), &|s| user_len(s, 0)),
        ("a usr_len too short for a request", error(Errno::EINVAL), &|s| user_len(s, 8)),
        ("an answer of no bytes", error(Errno::EINVAL), &|s| into(s, 0)),
        ("an answer larger than a chunk", error(Errno::EINVAL), &|s| into(s, u32::MAX)),
        ("a write to a device that is open for reading", error(Errno::EROFS), &|s| {
            s.write(2, &io(device, Operation::Write, 0, 512), &[7; 512])
        }),
        ("a valid read afterwards", GOOD, &fresh),
    ];
    for (what, expected, forge) in cases {
        let request = forge(&session);
        let fate = stranger.send(&mut session, &request).context(what)?;
        ensure!(fate == expected, "{what}: {fate:?}, not {expected:?}");
    }
    for (name, mode, errno) in [
        ("../ram0", Ok(AccessMode::ReadOnly), Errno::EINVAL),
        ("ram0/..", Ok(AccessMode::ReadOnly), Errno::EINVAL),
        ("..", Ok(AccessMode::ReadOnly), Errno::EINVAL),
        ("none", Ok(AccessMode::ReadOnly), Errno::ENOENT),
        ("", Ok(AccessMode::ReadOnly), Errno::ENOENT),
        ("ram0", Err(7), Errno::EINVAL),
    ] {
        let fate = open(stranger, &mut session, name, mode)?;
        ensure!(fate == error(errno), "OPEN {name:?} {mode:?}: {fate:?}");
    }
    // After a CLOSE the device is gone.
    let close = session.write(3, &Close { device }.emit(), &[]);
    ensure!(stranger.send(&mut session, &close)? == GOOD, "CLOSE");
    let request = fresh(&session);
    let fate = stranger.send(&mut session, &request)?;
    ensure!(fate == error(Errno::ENOTCONN), "a read after CLOSE: {fate:?}");
    stranger.leave(session);
    site.verify()
}

#[test]
fn invalid_requests_are_answered_with_an_errno() -> Result<()> {
    invalid_requests("")
}

#[test]
fn invalid_requests_are_answered_with_an_errno_with_fixed_keys() -> Result<()> {
    invalid_requests("isthmus.rnbd.always_invalidate=false")
}

/// Of all operations that are sent as an RTRS READ, only a volume's read returns data. Other operations leave the
/// client's buffer unchanged.
#[test]
fn only_reads_return_data() -> Result<()> {
    for words in ["", "isthmus.rnbd.always_invalidate=false", "isthmus.rnbd.oversubscribe=4"] {
        let mut site = Site::boot(words, 10)?;
        let stranger = &mut site.stranger;
        let (mut session, device) = opened(stranger, "stranger")?;
        let operations = [
            (Operation::Flush, GOOD),
            (Operation::Discard, error(Errno::EROFS)),
            (Operation::SecureErase, error(Errno::EROFS)),
            (Operation::WriteZeroes, error(Errno::EROFS)),
            (Operation::Write, error(Errno::EROFS)),
        ];
        // In used and in unused chunks.
        for (chunk, (operation, expected)) in (0..10).zip(operations.into_iter().cycle()) {
            let memory = session.data.0;
            memory.fill(0xa5);
            let request = session.read(chunk, &io(device, operation, 0, 8192), 8192);
            let fate = stranger.send(&mut session, &request)?;
            ensure!(fate == expected, "{words} {operation:?} sent as READ: {fate:?}");
            let mut seen = [0; 8192];
            memory.read(0, &mut seen).ok().context("the read buffer")?;
            ensure!(seen == [0xa5; 8192], "{words} {operation:?} returned {:02x?}", &seen[..32]);
        }
        let request = session.read(20, &Close { device }.emit(), 8192);
        session.data.0.fill(0xa5);
        ensure!(stranger.send(&mut session, &request)? == GOOD, "CLOSE sent as READ");
        let mut seen = [0; 8192];
        session.data.0.read(0, &mut seen).ok().context("the read buffer")?;
        ensure!(seen == [0xa5; 8192], "{words} CLOSE returned {:02x?}", &seen[..32]);
        stranger.leave(session);
        site.verify()?;
    }
    Ok(())
}

/// A malformed request ends its own path, and no other.
#[test]
fn malformed_requests_end_their_path() -> Result<()> {
    let mut site = Site::boot("", 30)?;
    let stranger = &mut site.stranger;
    let (bystander, _) = opened(stranger, "bystander")?;
    // A chunk of another session.
    let foreign = bystander.chunks[5];
    let access = Fate::Nak(Status::RemoteAccess);
    let cases: [(&str, Fate, Forge<'_>); 9] = [
        ("an offset beyond the chunk", Fate::Closed, &|r| r.offset = 70_000),
        ("an offset at the chunk's end", Fate::Closed, &|r| r.offset = 65_536),
        ("a chunk beyond the queue depth", Fate::Closed, &|r| r.chunk = 100),
        ("the last chunk number of 7 bits", Fate::Closed, &|r| r.chunk = 127),
        ("a header of an unknown type", Fate::Closed, &|r| r.bytes[32] = 9),
        ("bytes beyond the chunk", access, &|r| r.address += 65_536 - 500),
        ("address 0", access, &|r| r.address = 0),
        ("an unknown key", access, &|r| r.key ^= 1),
        ("another session's chunk", access, &|r| {
            (r.address, r.key) = (foreign.address, foreign.key);
        }),
    ];
    for (what, expected, forge) in cases {
        let (mut session, device) = opened(stranger, "stranger").context(what)?;
        let mut request = session.read(2, &io(device, Operation::Read, 0, 512), 512);
        forge(&mut request);
        let fate = stranger.send(&mut session, &request).context(what)?;
        ensure!(fate == expected, "{what}: {fate:?}, not {expected:?}");
        stranger.leave(session);
    }
    // A key is invalid after its use.
    let (mut session, device) = opened(stranger, "stranger")?;
    let request = session.read(2, &io(device, Operation::Read, 0, 512), 512);
    ensure!(stranger.send(&mut session, &request)? == GOOD, "the first time");
    let fate = stranger.send(&mut session, &request)?;
    ensure!(fate == access, "a stale key: {fate:?}");
    stranger.leave(session);
    stranger.leave(bystander);
    site.verify()
}

#[test]
fn ten_thousand_half_open_connects_time_out() -> Result<()> {
    let mut site = Site::boot("", 60)?;
    for n in 0..4 {
        site.stranger.half_open(2_500)?;
        // The stock client keeps working, and can open another session.
        map(&mut site.client, &format!("beside{n}"), storage::PATH, "ram0", "access_mode=ro")?;
        unmap(&mut site.client, 1)?;
    }
    // Once they have timed out, their own host can connect again.
    let deadline = Instant::now() + Duration::from_secs(90);
    while let Err(error) = opened(&mut site.stranger, "late").map(|(session, _)| {
        site.stranger.leave(session);
    }) {
        ensure!(Instant::now() < deadline, "no session is accepted afterwards: {error:#}");
        site.stranger.idle(Duration::from_secs(2));
    }
    site.verify()
}
