//! Connections come and go: segments find theirs, peers and users open new ones.

use super::*;

impl Connections {
    /// Begins to connect to a peer; `port` is where the search for a local one begins, and the next from
    /// then on. None if there is no room or no way.
    pub fn connect(
        &mut self,
        owner: Owner,
        peer: SocketAddr,
        port: &mut u16,
        smc: bool,
        outside: &mut Outside<'_>,
    ) -> Option<Name> {
        if self.is_full(owner) || peer.port() == 0 {
            return None;
        }
        outside.routes.next_hop(peer.ip())?;
        let local: IpAddr = outside.stack.get_source_address(&peer.ip().into())?.into();
        let local_port = self.free_port(port)?;
        let (remote, remote_port) = (peer.ip(), peer.port());
        let ends = Ends { local_port, remote_port, remote, local };
        let mut socket = self.spare_socket(owner.0)?;
        // Before it is open: set later, the first question would be asked at once.
        socket.set_keep_alive(Some(self.keep_alive()));
        let number = self.secret.number(ends, outside.now);
        let mut stack = self.stack_of(number, local, outside);
        socket.connect(stack.context(), (remote, remote_port), (local, local_port)).ok()?;
        let numbers = Numbers::opening(number);
        let name = self.insert(ends, owner.0, alone(socket), numbers, outside.now);
        self.connections[name.key].smc = smc && local.is_ipv4();
        self.look_after(name.key);
        Some(name)
    }

    /// How often the next connection asks a silent peer: up to 8 s less often than others, so that those which were
    /// opened together do not ask together for ever.
    fn keep_alive(&self) -> smoltcp::time::Duration {
        let spread = self.turn.wrapping_mul(0x9e37_79b9) >> 19;
        KEEP_ALIVE + smoltcp::time::Duration::from_millis(spread.into())
    }

    /// A local port that no connection has.
    pub(super) fn free_port(&self, next: &mut u16) -> Option<u16> {
        for _ in PORTS {
            let port = *next;
            *next = if port >= *PORTS.end() { *PORTS.start() } else { port + 1 };
            let nobody = IpAddr::from([0; 4]);
            let first = Ends { local_port: port, remote_port: 0, remote: nobody, local: nobody };
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

    /// A smoltcp interface for one address, whose first connection begins with this sequence number.
    pub(super) fn stack_of(
        &mut self,
        number: u32,
        local: IpAddr,
        outside: &Outside<'_>,
    ) -> Interface {
        let mut config = Config::new(HardwareAddress::Ip);
        config.random_seed = isn::seed(number);
        let mut link = self.unheard(None, outside);
        let mut stack = Interface::new(config, &mut link, to_smoltcp(outside.now));
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
            life: Life::Used,
            path: None,
            waits: false,
            silent: None,
            armed: None,
            wants: false,
            news: false,
            smc: false,
            smc_peer: false,
            idles: false,
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
        if state.over && state.connections == 0 {
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

    /// Takes in a segment. Its frame came from the MAC address `from`.
    pub fn handle_segment(
        &mut self,
        frame: &[u8],
        segment: &Segment<'_>,
        from: [u8; 6],
        outside: &mut Outside<'_>,
    ) {
        let Some(packet) = frame.get(ETHERNET_HEADER..segment.end) else { return };
        let mut key = self.find(segment.ends);
        // One that is over and has only its reset to send: the peer is told by the answer to this.
        let over = |connection: &Connection| {
            connection.life != Life::Used && connection.socket().state() == State::Closed
        };
        if let Some(old) = key.filter(|&key| self.connections.get(key).is_some_and(over)) {
            self.remove(old);
            key = None;
            if !segment.opens() {
                return self.refuse(packet, from, outside);
            }
        }
        let key = key.or_else(|| self.admit(packet, segment, from, outside));
        let Some(key) = key else { return };
        match self.judge(key, segment) {
            Verdict::Take => self.deliver(key, packet, segment, outside),
            Verdict::Challenge => self.challenge(key, outside),
            Verdict::Drop => {}
        }
    }

    /// What is to become of a segment of a connection.
    fn judge(&self, key: usize, segment: &Segment<'_>) -> Verdict {
        let Some(connection) = self.connections.get(key) else { return Verdict::Drop };
        let socket = connection.socket();
        let window = socket.recv_capacity() - socket.recv_queue();
        connection.numbers.judge(segment, socket.state(), window)
    }

    /// Tells the sender of a segment that may be forged which numbers a connection has. An honest peer that wants to
    /// reset it does so with the right number then.
    #[cold]
    fn challenge(&mut self, key: usize, outside: &mut Outside<'_>) {
        let (now, secret) = (outside.now, self.secret);
        let Some(connection) = self.connections.get_mut(key) else { return };
        if !connection.challenges.allow(now, CHALLENGES)
            || !self.challenges.allow(now, secret.varied(CHALLENGES_OF_ALL, now))
        {
            return;
        }
        let mut packet = [0; 100];
        let length = connection.numbers.question(connection.ends, &mut packet);
        Self::take_in(connection, &packet[..length], &mut self.unsaid, outside);
    }

    /// Has smoltcp take in a packet for a connection.
    fn take_in(
        connection: &mut Connection,
        packet: &[u8],
        unsaid: &mut Queue,
        outside: &mut Outside<'_>,
    ) {
        // Where the peer is not known, an answer that cannot wait is lost: the sender may be anybody.
        let known = connection.path.map(|path| path.mac);
        let to = known.or_else(|| outside.station(connection.ends.remote));
        let (own, smc) = (outside.local.mac, connection.smc);
        let framing = Framing::Ip { from: own, to: to.unwrap_or_default(), smc };
        let queue = if to.is_some() { &mut *outside.queue } else { &mut *unsaid };
        let mtu = outside.mtu;
        let mut link = Link { received: Some(packet), queue, mtu, framing };
        let at = to_smoltcp(outside.now);
        outside.stack.poll_ingress_single(at, &mut link, &mut connection.sockets);
        unsaid.clear();
    }

    /// Has smoltcp take in a segment of a connection.
    pub(super) fn deliver(
        &mut self,
        key: usize,
        packet: &[u8],
        segment: &Segment<'_>,
        outside: &mut Outside<'_>,
    ) {
        let Some(connection) = self.connections.get_mut(key) else { return };
        let before = connection.seen();
        if connection.numbers.acknowledges(segment) {
            connection.silence.heard(outside.now);
        }
        Self::take_in(connection, packet, &mut self.unsaid, outside);
        let after = connection.seen();
        if connection.numbers.takes(segment, &before, &after) > 0 {
            connection.has_acknowledged(outside.paths, outside.now);
        }
        if before.0 == State::SynSent && after.0 == State::Established {
            connection.smc_peer = smc_option::offers(segment.options);
        }
        self.note(key, &before);
        self.look_after(key);
    }

    /// A segment that is of no connection: it may open one, or complete that; all else is told that there
    /// is nobody.
    pub(super) fn admit(
        &mut self,
        packet: &[u8],
        segment: &Segment<'_>,
        from: [u8; 6],
        outside: &mut Outside<'_>,
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
                if self.has_room(entry.owner, outside.now) {
                    // Without a way back, it would only take a place.
                    outside.routes.next_hop(ends.remote)?;
                    let (to, now) = (outside.station(ends.remote), outside.now);
                    let mtu = outside.mtu_to(ends.remote);
                    let mut listener = outside.for_listener(mtu);
                    if self.listening.answer(entry, segment, to, &mut listener, now) {
                        outside.ask_for(ends.remote);
                    }
                    return None;
                }
                self.turn_away(entry.owner, ends.remote);
            } else if let Some(call) = self.listening.complete(segment, outside.now) {
                if !self.has_room(entry.owner, outside.now) {
                    self.turn_away(entry.owner, ends.remote);
                } else if let Some(key) = self.open(ends, entry.owner, &call, outside) {
                    return Some(key);
                }
            } else if self.listening.expects(segment) {
                // What was sent ahead of it is missing; the peer will send both again.
                return None;
            }
        }
        self.refuse(packet, from, outside);
        None
    }

    /// Tells the sender of a segment that there is nobody.
    pub(super) fn refuse(&mut self, packet: &[u8], from: [u8; 6], outside: &mut Outside<'_>) {
        let framing = Framing::Ip { from: outside.local.mac, to: from, smc: false };
        let (queue, mtu) = (&mut *outside.queue, outside.mtu);
        let mut link = Link { received: Some(packet), queue, mtu, framing };
        let at = to_smoltcp(outside.now);
        outside.stack.poll_ingress_single(at, &mut link, &mut self.nobody);
    }

    /// Whether an owner has a place for another connection, be it that of one which is being closed.
    pub(super) fn has_room(&mut self, owner: usize, now: Instant) -> bool {
        let Some(state) = self.owners.get(owner).filter(|state| !state.over) else { return false };
        if state.connections < state.limits.connections {
            return true;
        }
        let mut slowest = None;
        for &name in state.leaving.iter().take(LOOKED_AT) {
            let Some(connection) = self.get(name) else { continue };
            let Life::Leaving { since, .. } = connection.life else { continue };
            // Only the peer has something to say still, or we have a reset that waits for the neighbour.
            if matches!(connection.socket().state(), State::FinWait2 | State::Closed) {
                slowest = Some(name.key);
                break;
            }
            if since + FAREWELL <= now && slowest.is_none() {
                slowest = Some(name.key);
            }
        }
        // It has something to say still, and no place to say it from.
        slowest.is_some_and(|key| {
            self.remove(key);
            true
        })
    }

    /// Makes the connection whose opening a segment completes, as far as the SYN-ACK that was said.
    pub(super) fn open(
        &mut self,
        ends: Ends,
        owner: usize,
        call: &Call,
        outside: &mut Outside<'_>,
    ) -> Option<usize> {
        let mut socket = self.spare_socket(owner)?;
        socket.set_keep_alive(Some(self.keep_alive()));
        let (mut sockets, handle) = alone(socket);
        self.replay_opening(&mut sockets, handle, ends, call, outside).then_some(())?;
        let numbers = Numbers::opened(call.ours, call.theirs);
        let name = self.insert(ends, owner, (sockets, handle), numbers, outside.now);
        let connection = &mut self.connections[name.key];
        connection.smc = call.offer.smc;
        connection.smc_peer = call.offer.smc;
        if let Some(state) = self.owners.get_mut(owner) {
            state.arrived.push_back(name);
        }
        self.tell(owner);
        Some(name.key)
    }

    /// Has a socket take in the SYN of a peer as if it came now, and say the SYN-ACK that was said; false if it
    /// says another one. Nothing of this leaves the machine.
    pub(super) fn replay_opening(
        &mut self,
        sockets: &mut SocketSet<'static>,
        handle: SocketHandle,
        ends: Ends,
        call: &Call,
        outside: &Outside<'_>,
    ) -> bool {
        let socket = sockets.get_mut::<tcp::Socket<'_>>(handle);
        if socket.listen((ends.local, ends.local_port)).is_err() {
            return false;
        }
        let mut stack = self.stack_of(call.ours, ends.local, outside);
        let mut packet = [0; 100];
        let length = listen_table::call_again(ends, call, &mut packet);
        let at = to_smoltcp(outside.now);
        let mut link = self.unheard(Some(&packet[..length]), outside);
        stack.poll_ingress_single(at, &mut link, sockets);
        stack.poll_egress(at, &mut link, sockets);
        let numbers = listen_table::numbers(self.unsaid.front());
        self.unsaid.clear();
        numbers.is_some_and(|(sequence, _)| sequence == call.ours)
    }

    /// A device on which smoltcp is given a packet, and says what nobody is to hear.
    pub(super) fn unheard<'a>(
        &'a mut self,
        received: Option<&'a [u8]>,
        outside: &Outside<'_>,
    ) -> Link<'a> {
        let framing = Framing::Ip { from: [0; 6], to: [0; 6], smc: false };
        Link { received, queue: &mut self.unsaid, mtu: outside.mtu, framing }
    }
}

/// A set of sockets that smoltcp looks at for one connection.
pub(super) fn alone(socket: tcp::Socket<'static>) -> (SocketSet<'static>, SocketHandle) {
    let mut sockets = SocketSet::new(Vec::with_capacity(1));
    let handle = sockets.add(socket);
    (sockets, handle)
}
