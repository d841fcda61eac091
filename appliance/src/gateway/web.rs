//! The pages of the HTTP server: metrics, health, status, the object tree, captures.

use super::state::{Download, State};
use super::{metrics, objects, show};
use net::http::{Handler, Method, Read, Request, Response, Status};

/// Bytes of a capture that are made ready at a time.
const PIECE: usize = 16 << 10;
/// Downloads of the capture at a time.
const MAX_DOWNLOADS: usize = 4;

/// The routes, over all that reports are made of.
pub(super) struct Web<'a> {
    pub state: &'a mut State,
}

impl Web<'_> {
    fn object(&mut self, path: &str, request: &Request<'_>) -> Response {
        let result = match request.method {
            Method::Get => objects::read(self.state, path).map(|value| value.to_json() + "\n"),
            Method::Put | Method::Post => match core::str::from_utf8(request.body) {
                Ok(value) => {
                    objects::write(self.state, path, value.trim()).map(|()| "{}\n".to_string())
                }
                Err(_) => Err("the body is not UTF-8".into()),
            },
            _ => return Response::method_not_allowed("GET, HEAD, PUT, POST"),
        };
        let mut exists = || objects::read(self.state, path).is_ok();
        match result {
            Ok(body) => Response::new(Status::OK, Response::JSON, body),
            Err(why) => {
                let status = if exists() { Status::BAD_REQUEST } else { Status::NOT_FOUND };
                let why = crate::report::Value::object([("error", why.into())]);
                Response::new(status, Response::JSON, why.to_json() + "\n")
            }
        }
    }

    fn capture(&mut self) -> Response {
        let state = &mut *self.state;
        if state.downloads.len() >= MAX_DOWNLOADS {
            return Response::error(Status::UNAVAILABLE);
        }
        // The first loop's section is there also if it is empty: the file has to begin somehow.
        let frames = state.each_plane(|plane| plane.capture.counts().0).into_iter();
        let cores = frames.filter(|(core, frames)| *core == 0 || frames.is_some_and(|n| n > 0));
        let cores = cores.map(|(core, _)| core).collect();
        let id = state.next_download;
        state.next_download += 1;
        state.downloads.push(Download { id, cores, reader: None, piece: Vec::new(), at: 0 });
        Response::stream("application/x-pcapng", id, None)
    }
}

impl Handler for Web<'_> {
    fn handle(&mut self, request: &Request<'_>) -> Response {
        if let Some(path) = request.path.strip_prefix("/api") {
            return self.object(path, request);
        }
        let page: fn(&mut Self) -> Response = match request.path {
            "/metrics" => |web| {
                Response::new(Status::OK, net::metrics::CONTENT_TYPE, metrics::write(web.state))
            },
            "/healthz" => |_| Response::new(Status::OK, Response::TEXT, "ok\n"),
            "/status" => |web| {
                Response::new(Status::OK, Response::JSON, show::status(web.state).to_json() + "\n")
            },
            "/capture.pcapng" => Web::capture,
            _ => {
                let pages = "no such page; there are /metrics, /healthz, /status, \
                     /capture.pcapng and /api/…\n";
                return Response::new(Status::NOT_FOUND, Response::TEXT, pages);
            }
        };
        match request.method {
            Method::Get => page(self),
            _ => Response::method_not_allowed("GET, HEAD"),
        }
    }

    fn read(&mut self, stream: u64, into: &mut [u8]) -> Read {
        let Some(place) = self.state.downloads.iter().position(|d| d.id == stream) else {
            return Read::End;
        };
        let mut d = self.state.downloads.swap_remove(place);
        while d.at == d.piece.len() && self.state.next_piece(&mut d, PIECE) {}
        let count = into.len().min(d.piece.len() - d.at);
        into[..count].copy_from_slice(&d.piece[d.at..d.at + count]);
        d.at += count;
        self.state.downloads.push(d);
        if count == 0 { Read::End } else { Read::Bytes(count) }
    }

    fn close(&mut self, stream: u64) {
        self.state.downloads.retain(|d| d.id != stream);
    }
}
