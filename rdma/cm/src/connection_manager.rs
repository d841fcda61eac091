//! The verbs of connections for any transport: those of its [`Manager`](super::Manager).

/// Implements [`verbs::ConnectionManager`] for a [`Transport`](crate::Transport) whose state is in its field `cm`. A
/// macro, because a blanket implementation of another crate's trait is not possible.
#[macro_export]
macro_rules! connection_manager {
    ($transport:ty) => {
        impl ::verbs::ConnectionManager for $transport {
            fn listen(&mut self, port: u16) -> Result<(), ::verbs::VerbsError> {
                self.cm.listen(port)
            }
            fn unlisten(&mut self, port: u16) {
                self.cm.unlisten(port);
            }
            fn connect(
                &mut self,
                qp: ::verbs::QpId,
                from: ::core::net::IpAddr,
                to: ::core::net::SocketAddr,
                parameters: &::verbs::ConnectionParameters,
                private_data: &[u8],
                now: ::drivers::hal::Instant,
                rng: &mut dyn ::rand_core::Rng,
            ) -> Result<::verbs::ConnectionId, ::verbs::VerbsError> {
                $crate::Manager::of(self).connect(qp, from, to, parameters, private_data, now, rng)
            }
            fn accept(
                &mut self,
                connection: ::verbs::ConnectionId,
                qp: ::verbs::QpId,
                parameters: &::verbs::ConnectionParameters,
                private_data: &[u8],
                now: ::drivers::hal::Instant,
            ) -> Result<(), ::verbs::VerbsError> {
                $crate::Manager::of(self).accept(connection, qp, parameters, private_data, now)
            }
            fn reject(
                &mut self,
                connection: ::verbs::ConnectionId,
                reason: ::verbs::RejectReason,
                private_data: &[u8],
            ) -> Result<(), ::verbs::VerbsError> {
                $crate::Manager::of(self).reject(connection, reason, private_data)
            }
            fn disconnect(
                &mut self,
                connection: ::verbs::ConnectionId,
                now: ::drivers::hal::Instant,
            ) -> Result<(), ::verbs::VerbsError> {
                $crate::Manager::of(self).disconnect(connection, now)
            }
            fn peer_id(&self, connection: ::verbs::ConnectionId) -> Option<u32> {
                self.cm.peer_id(connection)
            }
            #[inline]
            fn poll_connection_event(&mut self) -> Option<::verbs::ConnectionEvent> {
                // Events are rare.
                if self.cm.has_events() { $crate::Manager::of(self).next_event() } else { None }
            }
        }
    };
}
