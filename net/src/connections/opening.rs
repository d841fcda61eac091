//! Opens and removes connections, and dispatches received segments to them.

use super::*;

impl Connections {
    /// Starts to connect to a peer. The search for a free local port starts at `port`, which is advanced. None without
    /// a free place, local port or route.
    pub fn connect(
        &mut self,
        owner: Owner,
        peer: SocketAddr,
        port: &mut u16,
        smc: bool,
        context: &mut Context<'_>,
    ) -> Option<Name> {
        if self.is_full(owner) || peer.port() == 0 {
            return None;
        }
        context.routes.next_hop(peer.ip())?;
        let local: IpAddr = context.stack.get_source_address(&peer.ip().into())?.into();
        let local_port = self.free_port(port)?;
        let (remote, remote_port) = (peer.ip(), peer.port());
        let ends = Ends { local_port, remote_port, remote, local };
        let mut socket = self.spare_socket(owner.0)?;
        // Set before the socket is open: otherwise smoltcp would send the first keep-alive at once.
        socket.set_keep_alive(Some(self.keep_alive()));
        let number = self.secret.number(ends, context.now);
        let mut stack = self.stack_of(number, local, context);
        socket.connect(stack.context(), (remote, remote_port), (local, local_port)).ok()?;
        let numbers = Numbers::opening(number);
        let name = self.insert(ends, owner.0, alone(socket), numbers, context.now);
        self.connections[name.key].smc = smc && local.is_ipv4();
        self.schedule(name.key);
        Some(name)
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

    /// A smoltcp interface with one address, whose first connection has the initial sequence number `number`.
    pub(super) fn stack_of(
        &mut self,
        number: u32,
        local: IpAddr,
        context: &Context<'_>,
    ) -> Interface {
        let mut config = Config::new(HardwareAddress::Ip);
        config.random_seed = isn::seed(number);
        let mut link = self.discarding_link(None, context);
        let mut stack = Interface::new(config, &mut link, to_smoltcp(context.now));
        let prefix = if local.is_ipv4() { 32 } else { 128 };
        stack.update_ip_addrs(|list| list.extend([IpCidr::new(local.into(), prefix)]));
        stack
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
        context: &mut Context<'_>,
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
                return self.refuse(packet, from, context);
            }
        }
        let key = key.or_else(|| self.admit(packet, segment, from, context));
        let Some(key) = key else { return };
        match self.judge(key, segment) {
            Verdict::Take => self.deliver(key, packet, segment, context),
            Verdict::Challenge => self.challenge(key, context),
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
    fn challenge(&mut self, key: usize, context: &mut Context<'_>) {
        let (now, secret) = (context.now, self.secret);
        let Some(connection) = self.connections.get_mut(key) else { return };
        if !connection.challenges.allow(now, CHALLENGES)
            || !self.challenges.allow(now, secret.varied(CHALLENGES_OF_ALL, now))
        {
            return;
        }
        let mut packet = [0; 100];
        let length = connection.numbers.stale_segment(connection.ends, &mut packet);
        Self::take_in(connection, &packet[..length], &mut self.discarded, context);
    }

    /// Passes a packet for a connection to smoltcp.
    fn take_in(
        connection: &mut Connection,
        packet: &[u8],
        discarded: &mut Queue,
        context: &mut Context<'_>,
    ) {
        // Without the peer's MAC address an immediate answer is discarded: the segment's sender may be forged.
        let known = connection.path.map(|path| path.mac);
        let to = known.or_else(|| context.next_hop_mac(connection.ends.remote));
        let (own, smc) = (context.local.mac, connection.smc);
        let framing = Framing::Ip { from: own, to: to.unwrap_or_default(), smc };
        let queue = if to.is_some() { &mut *context.queue } else { &mut *discarded };
        let mtu = context.mtu;
        let mut link = Link { received: Some(packet), queue, mtu, framing };
        let at = to_smoltcp(context.now);
        context.stack.poll_ingress_single(at, &mut link, &mut connection.sockets);
        discarded.clear();
    }

    /// Passes a segment of a connection to smoltcp, and queues the resulting event.
    pub(super) fn deliver(
        &mut self,
        key: usize,
        packet: &[u8],
        segment: &Segment<'_>,
        context: &mut Context<'_>,
    ) {
        let Some(connection) = self.connections.get_mut(key) else { return };
        let before = connection.seen();
        if connection.numbers.acknowledges(segment) {
            connection.silence.received(context.now);
        }
        Self::take_in(connection, packet, &mut self.discarded, context);
        let after = connection.seen();
        if connection.numbers.record_processed(segment, &before, &after) > 0 {
            connection.has_acknowledged(context.paths, context.now);
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
        context: &mut Context<'_>,
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
                if self.has_room(entry.owner, context.now) {
                    // Without a route back, it would only occupy a place.
                    context.routes.next_hop(ends.remote)?;
                    let (to, now) = (context.next_hop_mac(ends.remote), context.now);
                    let mtu = context.mtu_to(ends.remote);
                    let mut listener = context.for_listener(mtu);
                    if self.listening.answer(entry, segment, to, &mut listener, now) {
                        context.resolve_hop(ends.remote);
                    }
                    return None;
                }
                self.turn_away(entry.owner, ends.remote);
            } else if let Some(handshake) = self.listening.complete(segment, context.now) {
                if !self.has_room(entry.owner, context.now) {
                    self.turn_away(entry.owner, ends.remote);
                } else if let Some(key) = self.open(ends, entry.owner, &handshake, context) {
                    return Some(key);
                }
            } else if self.listening.expects(segment) {
                // The handshake's ACK was lost. The peer retransmits it together with this segment.
                return None;
            }
        }
        self.refuse(packet, from, context);
        None
    }

    /// Answers a segment with a reset.
    pub(super) fn refuse(&mut self, packet: &[u8], from: [u8; 6], context: &mut Context<'_>) {
        let framing = Framing::Ip { from: context.local.mac, to: from, smc: false };
        let (queue, mtu) = (&mut *context.queue, context.mtu);
        let mut link = Link { received: Some(packet), queue, mtu, framing };
        let at = to_smoltcp(context.now);
        context.stack.poll_ingress_single(at, &mut link, &mut self.no_sockets);
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
        context: &mut Context<'_>,
    ) -> Option<usize> {
        let mut socket = self.spare_socket(owner)?;
        socket.set_keep_alive(Some(self.keep_alive()));
        let (mut sockets, handle) = alone(socket);
        self.replay_opening(&mut sockets, handle, ends, handshake, context).then_some(())?;
        let numbers = Numbers::opened(handshake.ours, handshake.theirs);
        let name = self.insert(ends, owner, (sockets, handle), numbers, context.now);
        let connection = &mut self.connections[name.key];
        connection.smc = handshake.offer.smc;
        connection.smc_peer = handshake.offer.smc;
        if let Some(state) = self.owners.get_mut(owner) {
            state.to_accept.push_back(name);
        }
        self.mark_ready(owner);
        Some(name.key)
    }

    /// Replays a handshake on a new socket: passes it the peer's SYN, and lets it write the SYN-ACK, which is
    /// discarded. False if the SYN-ACK has another sequence number than the one that was sent.
    pub(super) fn replay_opening(
        &mut self,
        sockets: &mut SocketSet<'static>,
        handle: SocketHandle,
        ends: Ends,
        handshake: &Handshake,
        context: &Context<'_>,
    ) -> bool {
        let socket = sockets.get_mut::<tcp::Socket<'_>>(handle);
        if socket.listen((ends.local, ends.local_port)).is_err() {
            return false;
        }
        let mut stack = self.stack_of(handshake.ours, ends.local, context);
        let mut packet = [0; 100];
        let length = listen_table::build_syn(ends, handshake, &mut packet);
        let at = to_smoltcp(context.now);
        let mut link = self.discarding_link(Some(&packet[..length]), context);
        stack.poll_ingress_single(at, &mut link, sockets);
        stack.poll_egress(at, &mut link, sockets);
        let numbers = listen_table::numbers(self.discarded.front());
        self.discarded.clear();
        numbers.is_some_and(|(sequence, _)| sequence == handshake.ours)
    }

    /// A device that passes a packet to smoltcp and discards the frames that smoltcp writes.
    pub(super) fn discarding_link<'a>(
        &'a mut self,
        received: Option<&'a [u8]>,
        context: &Context<'_>,
    ) -> Link<'a> {
        let framing = Framing::Ip { from: [0; 6], to: [0; 6], smc: false };
        Link { received, queue: &mut self.discarded, mtu: context.mtu, framing }
    }
}

/// A socket set with one socket.
pub(super) fn alone(socket: tcp::Socket<'static>) -> (SocketSet<'static>, SocketHandle) {
    let mut sockets = SocketSet::new(Vec::with_capacity(1));
    let handle = sockets.add(socket);
    (sockets, handle)
}
