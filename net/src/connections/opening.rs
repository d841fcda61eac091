//! Opens and removes connections, and dispatches received segments to them.

use super::*;
use crate::foreign::ForeignFrame;
use alloc::format;

impl Connections {
    /// Starts to connect to a peer. The search for a free local port starts at `port`, which is advanced. None without
    /// a free place, local port or route.
    pub fn connect(
        &mut self,
        owner: Owner,
        peer: SocketAddr,
        port: &mut u16,
        smc: bool,
        ctx: &mut Ctx<'_>,
    ) -> Option<Name> {
        if self.is_full(owner) || peer.port() == 0 {
            return None;
        }
        ctx.routes.next_hop(peer.ip())?;
        let local: IpAddr = ctx.stack.get_source_address(&peer.ip().into())?.into();
        let local_port = self.free_port(port)?;
        let (remote, remote_port) = (peer.ip(), peer.port());
        let ends = Ends { local_port, remote_port, remote, local };
        let mut socket = self.spare_socket(owner.0)?;
        // Set before the socket is open: otherwise smoltcp would send the first keep-alive at once.
        socket.set_keep_alive(Some(self.keep_alive()));
        let number = self.secret.number(ends, ctx.now);
        let mut stack = self.replay(ctx).stack(number, local);
        socket.connect(stack.context(), (remote, remote_port), (local, local_port)).ok()?;
        let numbers = Numbers::opening(number);
        let name = self.insert(ends, owner.0, alone(socket), numbers, ctx.now);
        self.connections[name.key].smc = smc && local.is_ipv4();
        self.schedule(name.key);
        Some(name)
    }

    /// A replay whose frames are discarded.
    fn replay(&mut self, ctx: &Ctx<'_>) -> Replay<'_> {
        Replay { discarded: &mut self.discarded, mtu: ctx.mtu, now: ctx.now }
    }

    /// Keep-alive interval of the next connection: up to 8 s longer than the minimum, so that connections opened
    /// together do not send keep-alives together for ever.
    fn keep_alive(&self) -> smoltcp::time::Duration {
        let spread = self.turn.wrapping_mul(0x9e37_79b9) >> 19;
        KEEP_ALIVE + smoltcp::time::Duration::from_millis(spread.into())
    }

    /// A local port that no connection or listener uses.
    pub(super) fn free_port(&self, next: &mut u16) -> Option<u16> {
        for _ in PORTS {
            let port = *next;
            *next = if port >= *PORTS.end() { *PORTS.start() } else { port + 1 };
            let lowest = IpAddr::from([0; 4]);
            let first = Ends { local_port: port, remote_port: 0, remote: lowest, local: lowest };
            let taken =
                self.by_ends.range(first..).next().is_some_and(|(e, _)| e.local_port == port);
            if !taken && self.listening.get(port).is_none() {
                return Some(port);
            }
        }
        None
    }

    /// A socket for a new connection of an owner.
    pub(super) fn spare_socket(&mut self, owner: usize) -> Option<tcp::Socket<'static>> {
        let state = self.owners.get_mut(owner)?;
        let mut socket = state.spare.pop().unwrap_or_else(|| {
            let buffer = |size| tcp::SocketBuffer::new(vec![0; size]);
            tcp::Socket::new(buffer(state.limits.receive), buffer(state.limits.transmit))
        });
        socket.set_nagle_enabled(false);
        Some(socket)
    }

    pub(super) fn insert(
        &mut self,
        ends: Ends,
        owner: usize,
        (sockets, handle): (SocketSet<'static>, SocketHandle),
        numbers: Numbers,
        now: Instant,
    ) -> Name {
        self.turn = self.turn.wrapping_add(1);
        let turn = self.turn;
        let key = self.connections.insert(Connection {
            sockets,
            handle,
            ends,
            owner,
            turn,
            life: Life::InUse,
            path: None,
            awaits_neighbour: false,
            unresolved_since: None,
            armed: None,
            is_scheduled: false,
            has_event: false,
            smc: false,
            smc_peer: false,
            releases_buffers: false,
            numbers,
            silence: Silence::new(now),
            probe: Probe::new(now),
            challenges: Challenges::default(),
        });
        self.by_ends.insert(ends, key);
        if let Some(state) = self.owners.get_mut(owner) {
            state.connections += 1;
        }
        Name { key, turn }
    }

    pub(super) fn remove(&mut self, key: usize) {
        let Some(mut connection) = self.connections.try_remove(key) else { return };
        self.by_ends.remove(&connection.ends);
        if let Some(armed) = connection.armed {
            self.timers.remove(&(armed, key));
        }
        let Some(state) = self.owners.get_mut(connection.owner) else { return };
        state.connections -= 1;
        if state.ended && state.connections == 0 {
            self.owners.remove(connection.owner);
        } else {
            state.keep(&mut connection.sockets, connection.handle);
        }
    }

    /// The connection between two ends.
    pub(super) fn find(&mut self, ends: Ends) -> Option<usize> {
        let ports = u32::from(ends.local_port) << 16 | u32::from(ends.remote_port);
        let hash = (ports.wrapping_mul(0x9e37_79b9) >> 16) as usize % HASHES;
        let key = self.by_hash[hash];
        if self.connections.get(key).is_some_and(|connection| connection.ends == ends) {
            return Some(key);
        }
        let key = *self.by_ends.get(&ends)?;
        self.by_hash[hash] = key;
        Some(key)
    }

    /// Handles a received segment. `from` is the source MAC address of its frame.
    pub fn handle_segment(
        &mut self,
        frame: &[u8],
        segment: &Segment<'_>,
        from: [u8; 6],
        ctx: &mut Ctx<'_>,
    ) {
        let Some(packet) = frame.get(ETHERNET_HEADER..segment.end) else { return };
        let mut key = self.find(segment.ends);
        // A connection with only its reset left to send: the answer to this segment is a reset as well.
        let is_over = |connection: &Connection| {
            connection.life != Life::InUse && connection.socket().state() == State::Closed
        };
        if let Some(old) = key.filter(|&key| self.connections.get(key).is_some_and(is_over)) {
            self.remove(old);
            key = None;
            if !segment.opens() {
                return self.refuse(packet, from, ctx);
            }
        }
        let key = key.or_else(|| self.admit(packet, segment, from, ctx));
        let Some(key) = key else { return };
        match self.judge(key, segment) {
            Verdict::Take => self.deliver(key, packet, segment, ctx),
            Verdict::Challenge => self.challenge(key, ctx),
            Verdict::Drop => {}
        }
    }

    /// Judges a segment of a connection.
    fn judge(&self, key: usize, segment: &Segment<'_>) -> Verdict {
        let Some(connection) = self.connections.get(key) else { return Verdict::Drop };
        let socket = connection.socket();
        let window = socket.recv_capacity() - socket.recv_queue();
        connection.numbers.judge(segment, socket.state(), window)
    }

    /// Sends a challenge ACK (RFC 5961): an honest peer answers it with a reset that has the right number.
    #[cold]
    fn challenge(&mut self, key: usize, ctx: &mut Ctx<'_>) {
        let (now, secret) = (ctx.now, self.secret);
        let Some(connection) = self.connections.get_mut(key) else { return };
        if !connection.challenges.allow(now, CHALLENGES)
            || !self.challenges.allow(now, secret.varied(CHALLENGES_OF_ALL, now))
        {
            return;
        }
        let mut packet = [0; 100];
        let length = connection.numbers.stale_segment(connection.ends, &mut packet);
        Self::take_in(connection, &packet[..length], &mut self.discarded, ctx);
    }

    /// Passes a packet for a connection to smoltcp.
    fn take_in(
        connection: &mut Connection,
        packet: &[u8],
        discarded: &mut Queue,
        ctx: &mut Ctx<'_>,
    ) {
        // Without the peer's MAC address an immediate answer is discarded: the segment's sender may be forged.
        let known = connection.path.map(|path| path.mac);
        let to = known.or_else(|| ctx.next_hop_mac(connection.ends.remote));
        let (own, smc) = (ctx.local.mac, connection.smc);
        let framing = Framing::Ip { from: own, to: to.unwrap_or_default(), smc };
        let queue = if to.is_some() { &mut *ctx.queue } else { &mut *discarded };
        let mtu = ctx.mtu;
        let mut link = Link { received: Some(packet), queue, mtu, framing };
        let at = to_smoltcp(ctx.now);
        ctx.stack.poll_ingress_single(at, &mut link, &mut connection.sockets);
        discarded.clear();
    }

    /// Passes a segment of a connection to smoltcp, and queues the resulting event.
    pub(super) fn deliver(
        &mut self,
        key: usize,
        packet: &[u8],
        segment: &Segment<'_>,
        ctx: &mut Ctx<'_>,
    ) {
        let Some(connection) = self.connections.get_mut(key) else { return };
        let before = connection.seen();
        if connection.numbers.acknowledges(segment) {
            connection.silence.received(ctx.now);
        }
        Self::take_in(connection, packet, &mut self.discarded, ctx);
        let after = connection.seen();
        if connection.numbers.record_processed(segment, &before, &after) > 0 {
            connection.has_acknowledged(ctx.paths, ctx.now);
        }
        if before.0 == State::SynSent && after.0 == State::Established {
            connection.smc_peer = smc_option::offers(segment.options);
        }
        self.notify_user(key, &before);
        self.schedule(key);
    }

    /// Handles a segment without a connection: a SYN is answered with a cookie, and an ACK with a valid cookie opens
    /// the connection, whose key is returned. Other segments get a reset.
    pub(super) fn admit(
        &mut self,
        packet: &[u8],
        segment: &Segment<'_>,
        from: [u8; 6],
        ctx: &mut Ctx<'_>,
    ) -> Option<usize> {
        let ends = segment.ends;
        if segment.flags & RST != 0 {
            self.listening.forget(ends);
            return None;
        }
        let entry = self.listening.get(ends.local_port);
        if let Some(entry) = entry
            && (segment.opens() || segment.flags & (ACK | SYN) == ACK)
        {
            if segment.opens() {
                if self.has_room(entry.owner, ctx.now) {
                    // Without a route back, it would only occupy a place.
                    ctx.routes.next_hop(ends.remote)?;
                    let (to, now) = (ctx.next_hop_mac(ends.remote), ctx.now);
                    let mtu = ctx.mtu_to(ends.remote);
                    let mut listener = ctx.for_listener(mtu);
                    if self.listening.answer(entry, segment, (from, to), &mut listener, now) {
                        ctx.resolve_hop(ends.remote);
                    }
                    if let Some(to) = to {
                        self.note_source(&ends, [from, to], ctx);
                    }
                    return None;
                }
                self.turn_away(entry.owner, ends.remote);
            } else if let Some(handshake) = self.listening.complete(segment, ctx.now) {
                if !self.has_room(entry.owner, ctx.now) {
                    self.turn_away(entry.owner, ends.remote);
                } else if let Some(key) = self.open(ends, entry.owner, &handshake, ctx) {
                    return Some(key);
                }
            } else if self.listening.expects(segment) {
                // The handshake's ACK was lost. The peer retransmits it together with this segment.
                return None;
            }
        }
        self.refuse(packet, from, ctx);
        None
    }

    /// Counts and reports a SYN from another station: of `macs`, the first is that of the SYN, the second that of its
    /// host by the neighbour table, to which the answer goes. Through a router any station may send.
    pub(super) fn note_source(&mut self, ends: &Ends, macs: [[u8; 6]; 2], ctx: &Ctx<'_>) {
        let [is, says] = macs;
        if is == says || ctx.routes.next_hop(ends.remote) != Some(ends.remote) {
            return;
        }
        self.foreign_syns += 1;
        let asked = format!("port {}", ends.local_port);
        let frame =
            ForeignFrame { what: "tcp_connection", asked, host: (0, ends.remote), is, says };
        frame.note(&mut self.refusals, &mut self.reported, ctx.now);
    }

    /// Answers a segment with a reset.
    pub(super) fn refuse(&mut self, packet: &[u8], from: [u8; 6], ctx: &mut Ctx<'_>) {
        let framing = Framing::Ip { from: ctx.local.mac, to: from, smc: false };
        let (queue, mtu) = (&mut *ctx.queue, ctx.mtu);
        let mut link = Link { received: Some(packet), queue, mtu, framing };
        let at = to_smoltcp(ctx.now);
        ctx.stack.poll_ingress_single(at, &mut link, &mut self.no_sockets);
    }

    /// Whether an owner has a place for another connection. Evicts a closing connection if that frees one.
    pub(super) fn has_room(&mut self, owner: usize, now: Instant) -> bool {
        let Some(state) = self.owners.get(owner).filter(|state| !state.ended) else { return false };
        if state.connections < state.limits.connections {
            return true;
        }
        let mut slowest = None;
        for &name in state.closing.iter().take(EVICTION_SCAN) {
            let Some(connection) = self.get(name) else { continue };
            let Life::Closing { since, .. } = connection.life else { continue };
            // Only the peer's FIN is missing, or a reset waits for the neighbour's resolution.
            if matches!(connection.socket().state(), State::FinWait2 | State::Closed) {
                slowest = Some(name.key);
                break;
            }
            if since + FIN_TIMEOUT <= now && slowest.is_none() {
                slowest = Some(name.key);
            }
        }
        // Its unsent data is lost.
        slowest.is_some_and(|key| {
            self.remove(key);
            true
        })
    }

    /// Makes the connection of a completed handshake, in the state after its SYN-ACK: the caller delivers the ACK.
    pub(super) fn open(
        &mut self,
        ends: Ends,
        owner: usize,
        handshake: &Handshake,
        ctx: &mut Ctx<'_>,
    ) -> Option<usize> {
        let mut socket = self.spare_socket(owner)?;
        socket.set_keep_alive(Some(self.keep_alive()));
        let (mut sockets, handle) = alone(socket);
        self.replay(ctx).open(&mut sockets, handle, ends, handshake).then_some(())?;
        let numbers = Numbers::opened(handshake.ours, handshake.theirs);
        let name = self.insert(ends, owner, (sockets, handle), numbers, ctx.now);
        let connection = &mut self.connections[name.key];
        connection.smc = handshake.offer.smc;
        connection.smc_peer = handshake.offer.smc;
        if let Some(state) = self.owners.get_mut(owner) {
            state.to_accept.push_back(name);
        }
        self.mark_ready(owner);
        Some(name.key)
    }
}
