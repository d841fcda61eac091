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
        // Only this loop's ports are captured, by their places.
        let own = state.ports.iter().filter(|slot| slot.uplink.is_none());
        let names = own.map(|slot| slot.name.clone()).collect();
        let reader = state.plane.capture.reader(names, state.epoch);
        let id = state.next_download;
        state.next_download += 1;
        state.downloads.push(Download { id, reader, piece: Vec::new(), at: 0, more: true });
        Response::stream("application/x-pcapng", id, None)
    }
}

/// A path without its percent-encoding (RFC 3986, section 2.1); what is none stands for itself.
fn decoded(path: &str) -> String {
    let mut bytes = Vec::with_capacity(path.len());
    let mut rest = path.as_bytes();
    while let Some((&first, after)) = rest.split_first() {
        let digit = |at: usize| char::from(*after.get(at)?).to_digit(16);
        let escaped = match (first, digit(0), digit(1)) {
            (b'%', Some(high), Some(low)) => Some((high << 4 | low) as u8),
            _ => None,
        };
        bytes.push(escaped.unwrap_or(first));
        rest = if escaped.is_some() { &after[2..] } else { after };
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

impl Handler for Web<'_> {
    fn handle(&mut self, request: &Request<'_>) -> Response {
        if let Some(path) = request.path.strip_prefix("/api") {
            return self.object(&decoded(path), request);
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
        let Some(d) = self.state.downloads.iter_mut().find(|d| d.id == stream) else {
            return Read::End;
        };
        if d.at == d.piece.len() {
            if !d.more {
                return Read::End;
            }
            d.piece.clear();
            d.at = 0;
            d.more = self.state.plane.capture.read(&mut d.reader, &mut d.piece, PIECE);
        }
        let count = into.len().min(d.piece.len() - d.at);
        if count == 0 {
            return Read::End;
        }
        into[..count].copy_from_slice(&d.piece[d.at..d.at + count]);
        d.at += count;
        Read::Bytes(count)
    }

    fn close(&mut self, stream: u64) {
        self.state.downloads.retain(|d| d.id != stream);
    }
}

#[cfg(test)]
mod tests {
    use super::decoded;

    #[test]
    fn names_in_paths_may_be_encoded() {
        assert_eq!(decoded("/s%201/ip%3A10.0.0.2%40x"), "/s 1/ip:10.0.0.2@x");
        assert_eq!(decoded("/%C3%bc"), "/ü");
        assert_eq!(decoded("/%SESSNAME%!a%2/%"), "/%SESSNAME%!a%2/%");
    }
}
