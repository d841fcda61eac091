//! Executes management orders for clients of the storage server, on any core.

use super::plane::DataPlane;
use super::worker::Worker;
use management::clients::{exported_name, live_paths, path_name, session_name};
use management::orders::{ClientOrder, PathOrder};
use verbs::Ctx;

/// Executes an order on this loop, and on the workers at `places`. An error if no loop has the session, path or device,
/// or a worker's ring is full.
#[cold]
pub(super) fn carry_out(
    order: &ClientOrder,
    plane: &mut DataPlane,
    workers: &mut [Worker],
    places: &[usize],
) -> Result<(), String> {
    let found = plane.order_about_clients(order);
    for &place in places {
        let (worker, order) = (&mut workers[place], order.clone());
        if !worker.send_order(move |plane| _ = plane.order_about_clients(&order)) {
            return Err(format!("core {} is busy; try again", worker.core));
        }
    }
    if found || !places.is_empty() {
        return Ok(());
    }
    Err(match order {
        ClientOrder::EndSession(name) => format!("there is no session {name:?}"),
        ClientOrder::Path { path, .. } => {
            format!("there is no path {path:?}; `path list` shows all paths")
        }
        ClientOrder::Close { device, .. } | ClientOrder::CloseExported { device, .. } => {
            format!("no session has {device:?} open; `device list` shows what is open")
        }
    })
}

impl DataPlane {
    /// Executes an order. False if no client of this loop matches.
    #[cold]
    fn order_about_clients(&mut self, order: &ClientOrder) -> bool {
        match order {
            ClientOrder::EndSession(name) => {
                let server = self.storage.server.as_ref();
                let is_there = server.is_some_and(|server| {
                    server.transport().sessions().any(|session| session.name.as_str() == name)
                });
                self.order_paths(PathOrder::Disconnect, |session, _| session == name) || is_there
            }
            ClientOrder::Path { session, path, what } => self.order_paths(*what, |of, name| {
                name == path && session.as_ref().is_none_or(|session| session == of)
            }),
            ClientOrder::Close { device, session } => self.close(|of, name, _| {
                name == device && session.as_ref().is_none_or(|session| session == of)
            }),
            ClientOrder::CloseExported { device, session } => {
                self.close(|of, _, exported| of == session && exported() == *device)
            }
        }
    }

    /// Executes `what` on the paths that `is_meant` selects by session name and path name.
    fn order_paths(&mut self, what: PathOrder, is_meant: impl Fn(&str, &str) -> bool) -> bool {
        let Some(server) = &mut self.storage.server else { return false };
        let meant = live_paths(server)
            .filter(|path| is_meant(&session_name(server, path.session), &path_name(path)));
        let meant: Vec<_> = meant.map(|path| path.id).collect();
        let (transport, arena, now) = (server.transport_mut(), &mut self.arena, self.now);
        for &path in &meant {
            match what {
                PathOrder::Reset => _ = transport.reset_stats(path),
                PathOrder::ResetRdma => _ = transport.reset_rdma_stats(path),
                PathOrder::Disconnect => {
                    let Some(rdma_stack) = &mut self.rdma_stack else { return false };
                    let (provider, rng) = (&mut rdma_stack.providers, &mut *self.rng);
                    // An error means that the path has ended meanwhile.
                    _ = transport.disconnect(path, &mut Ctx { provider, arena, now, rng });
                }
            }
        }
        !meant.is_empty()
    }

    /// Force-closes the devices that `is_meant` selects by session name, device name and export name.
    fn close(&mut self, is_meant: impl Fn(&str, &str, &dyn Fn() -> String) -> bool) -> bool {
        let Some(server) = &mut self.storage.server else { return false };
        let meant = server.devices().filter(|one| {
            let exported = || exported_name(server, one);
            is_meant(&session_name(server, one.session), one.name.as_str(), &exported)
        });
        let meant: Vec<_> = meant.map(|one| (one.session, one.id)).collect();
        for &(session, id) in &meant {
            server.force_close(session, id);
        }
        !meant.is_empty()
    }
}
