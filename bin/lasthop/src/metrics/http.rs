//! `GET /metrics`, for scrapers that anybody may run. What they can take is bounded: connections at a time, the time until a request is
//! there, and how often an instance is asked. A connection that says nothing keeps nobody out (`places`).

mod places;

use super::{ask, text};
use crate::client::CliError;
use http_body_util::Full;
use hyper::body::Bytes;
use hyper::header::CONTENT_TYPE;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use places::{Places, Stage};
use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, UnixListener};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::Mutex;

/// How long a request may take to be there. All of a connection, one request and its answer, may take four times that: an instance may
/// take long to answer when it is replacing a process.
const PATIENCE: Duration = Duration::from_secs(5);
/// Who asks again within this time gets the answer that another got.
const FRESH: Duration = Duration::from_millis(500);
const OPENMETRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Where it listens.
#[derive(Clone, Debug)]
pub enum Listen {
    Tcp(SocketAddr),
    Unix(PathBuf),
}

impl FromStr for Listen {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.strip_prefix("unix:") {
            Some("") => Err("the path is missing; write unix:/run/lasthop/metrics.sock".into()),
            Some(path) => Ok(Self::Unix(path.into())),
            None => text.parse().map(Self::Tcp).map_err(|_| {
                format!("{text:?} is no address and port; write one such as 127.0.0.1:9477 or [::1]:9477, or unix:PATH")
            }),
        }
    }
}

/// What was told last, and when.
type Last = Option<(Instant, Bytes)>;

#[derive(Debug)]
struct Server {
    run_dir: PathBuf,
    /// Held from a question to an instance until its answer, so that there is one at a time.
    last: Arc<Mutex<Last>>,
    places: Arc<Places>,
}

/// Until SIGINT or SIGTERM.
pub fn serve(listen: &Listen, run_dir: &Path) -> Result<(), CliError> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|e| CliError::new(format!("cannot start: {e}")))?;
    let server = Arc::new(Server { run_dir: run_dir.to_owned(), last: Arc::default(), places: Arc::default() });
    runtime.block_on(async {
        let heard = |kind| signal(kind).map_err(|e| CliError::new(format!("signals: {e}")));
        let (mut interrupt, mut terminate) = (heard(SignalKind::interrupt())?, heard(SignalKind::terminate())?);
        tokio::select! {
            ended = accept(listen, &server) => ended,
            _ = interrupt.recv() => Ok(()),
            _ = terminate.recv() => Ok(()),
        }
    })?;
    if let Listen::Unix(path) = listen {
        let _ = std::fs::remove_file(path);
    }
    Ok(())
}

async fn accept(listen: &Listen, server: &Arc<Server>) -> Result<(), CliError> {
    match listen {
        Listen::Tcp(address) => {
            let failed = |e| CliError::new(format!("{address}: {e}; choose another address or port with --listen"));
            let listener = TcpListener::bind(address).await.map_err(failed)?;
            eprintln!("ready: http://{}/metrics", listener.local_addr().unwrap_or(*address));
            loop {
                turn(server, listener.accept().await.map(|(stream, _)| stream)).await;
            }
        }
        Listen::Unix(path) => {
            let failed = |e: io::Error| {
                let is_socket = || std::fs::symlink_metadata(path).is_ok_and(|meta| meta.file_type().is_socket());
                let todo = match e.kind() {
                    io::ErrorKind::AddrInUse if is_socket() => "if nobody listens there any more, remove that file",
                    io::ErrorKind::AddrInUse => "something else is there; name a path where nothing is",
                    io::ErrorKind::NotFound => "make the directory, or name another",
                    _ => "name another path",
                };
                CliError::new(format!("{}: {e}; {todo}", path.display()))
            };
            let listener = UnixListener::bind(path).map_err(failed)?;
            eprintln!("ready: {}", path.display());
            loop {
                turn(server, listener.accept().await.map(|(stream, _)| stream)).await;
            }
        }
    }
}

/// A connection that was made, or was not: then there may be no descriptors for it, and they come back when others are over.
async fn turn<S: AsyncRead + AsyncWrite + Unpin + Send + 'static>(server: &Arc<Server>, stream: io::Result<S>) {
    let Ok(stream) = stream else { return tokio::time::sleep(Duration::from_millis(100)).await };
    let place = Arc::new(server.places.take().await);
    let server = server.clone();
    tokio::spawn(async move {
        let asking = place.clone();
        let answer = service_fn(move |request| {
            let (server, place) = (server.clone(), asking.clone());
            async move {
                place.reached(Stage::Asked);
                let answer = server.answer(&request).await;
                place.reached(Stage::Answered);
                Ok::<_, Infallible>(answer)
            }
        });
        let mut protocol = http1::Builder::new();
        protocol.timer(TokioTimer::new()).header_read_timeout(PATIENCE).keep_alive(false).max_buf_size(1 << 14);
        let connection = protocol.serve_connection(TokioIo::new(stream), answer);
        // Whoever breaks off, or says what is no HTTP, gets no more of us.
        tokio::select! {
            _ = tokio::time::timeout(4 * PATIENCE, connection) => {}
            () = place.given_away() => {}
        }
    });
}

impl Server {
    async fn answer<B>(&self, request: &Request<B>) -> Response<Full<Bytes>> {
        let is_asked = [Method::GET, Method::HEAD].contains(request.method());
        let (status, kind, body) = match request.uri().path() {
            _ if !is_asked => {
                (StatusCode::METHOD_NOT_ALLOWED, "text/plain", Bytes::from_static(b"only GET is answered\n"))
            }
            "/metrics" => (StatusCode::OK, OPENMETRICS, self.told().await),
            _ => (StatusCode::NOT_FOUND, "text/plain", Bytes::from_static(b"lasthop metrics: see /metrics\n")),
        };
        let mut response = Response::new(Full::new(body));
        *response.status_mut() = status;
        response.headers_mut().insert(CONTENT_TYPE, hyper::header::HeaderValue::from_static(kind));
        response
    }

    async fn told(&self) -> Bytes {
        let mut last = self.last.clone().lock_owned().await;
        if let Some((_, text)) = last.as_ref().filter(|(at, _)| at.elapsed() < FRESH) {
            return text.clone();
        }
        let run_dir = self.run_dir.clone();
        // A task of its own: when the connection breaks off, the question to the instance goes on, and the next one waits for it. So there
        // is never more than one thread that asks.
        let asking = tokio::spawn(async move {
            // That none answers is told, too, so that an alarm can be made of it.
            let text = tokio::task::spawn_blocking(move || text::write(ask(&run_dir).ok().as_ref())).await;
            let text = Bytes::from(text.unwrap_or_default());
            *last = Some((Instant::now(), text.clone()));
            text
        });
        asking.await.unwrap_or_default()
    }
}
