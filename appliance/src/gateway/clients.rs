//! What is ordered about clients of the storage server: by management, of any core.

use super::plane::DataPlane;
use super::worker::Worker;
use management::clients::{exported_name, live_paths, path_name, session_name};
use management::orders::{ClientOrder, PathOrder};
use verbs::EngineContext;

/// Has an order carried out by this loop, and by those of others at `places`. An error if nobody has what it is about,
/// or a loop takes no orders.
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
        if !worker.tell(move |plane| _ = plane.order_about_clients(&order)) {
            return Err(format!("core {} is busy; try again", worker.core));
        }
    }
    if found || !places.is_empty() {
        return Ok(());
    }
    Err(match order {
        ClientOrder::EndSession(name) => format!("there is no session {name:?}"),
        ClientOrder::Path { path, .. } => {
            format!("there is no path {path:?}; `path list` shows what there is")
        }
        ClientOrder::Close { device, .. } | ClientOrder::CloseExported { device, .. } => {
            format!("no session has {device:?} open; `device list` shows what is open")
        }
    })
}

impl DataPlane {
    /// Carries an order out; false if it is about nobody here.
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

    /// Does something with the paths that are meant, by the names of their session and their own.
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
                    // One that is gone meanwhile is as good as ended.
                    _ = transport
                        .disconnect(path, &mut EngineContext { provider, arena, now, rng });
                }
            }
        }
        !meant.is_empty()
    }

    /// Closes devices by force: those that are meant by the name of their session, their own, and that of the export.
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
