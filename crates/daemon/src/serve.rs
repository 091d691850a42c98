//! Life of the daemon: take the directories, open the engine, listen, and go in order.

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::{Router, middleware};
use forkd_engine::{Engine, EngineError, private_directory};
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;

use crate::access::{self, AuditError, AuditLog, Gate, Policy, TlsError, TokenFileError, Tokens};
use crate::app::Shared;
use crate::connection::{self, Listener};
use crate::e2b::{self, Books, Environment};
use crate::lock::{DirectoryLock, LockError};
use crate::metrics::Metrics;
use crate::{E2bConfig, PreviewConfig, PreviewUrl, ServeConfig, preview, router, socket};

/// For requests under way to be answered after all sandboxes have been let go.
const DRAIN_DEADLINE: Duration = Duration::from_secs(5);

/// Why the daemon did not start, or did not end in order.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// A directory or socket path is too long for sockets.
    #[error("{0}")]
    PathTooLong(String),
    /// The address can be reached from other machines.
    #[error(
        "{0} is not a loopback address: without a token file the daemon listens on 127.0.0.1 or \
         ::1 only; give one with --token-file"
    )]
    NotLoopback(SocketAddr),
    /// Every process of this machine could do everything, whoever's it is.
    #[error(
        "{0} would be open to every process and user of this machine: give tokens with \
         --token-file, or say --insecure-no-token if that is meant"
    )]
    NoToken(SocketAddr),
    /// An option for TCP without an address.
    #[error("{0} is for requests over TCP: give an address with --listen")]
    NoListener(&'static str),
    /// The address for E2B's clients can be reached from other machines.
    #[error(
        "{0} is not a loopback address: without TLS E2B's clients are listened for on 127.0.0.1 \
         or ::1 only; give --tls-cert and --tls-key"
    )]
    E2bNotLoopback(SocketAddr),
    /// What E2B's clients need cannot be kept.
    #[error("prepare for E2B's clients")]
    E2b(#[source] io::Error),
    /// The token file cannot be used.
    #[error(transparent)]
    Tokens(#[from] TokenFileError),
    /// TLS cannot be set up.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// The audit log cannot be opened.
    #[error(transparent)]
    Audit(#[from] AuditError),
    /// Another daemon is there.
    #[error(transparent)]
    Lock(#[from] LockError),
    /// The engine does not start.
    #[error("start the engine")]
    Engine(#[from] EngineError),
    /// The daemon cannot listen.
    #[error("listen on {address}")]
    Listen {
        /// Where.
        address: String,
        /// The system's word.
        #[source]
        source: io::Error,
    },
    /// Signals cannot be received.
    #[error("receive signals")]
    Signal(#[source] io::Error),
}

/// Runs the daemon until SIGTERM or SIGINT, then ends it in order: sandboxes are let go, or removed
/// if so configured, requests under way answered, the socket removed.
///
/// # Errors
/// See [`ServeError`]; nothing is left behind of a daemon that did not start.
pub async fn serve(config: ServeConfig) -> Result<(), ServeError> {
    check(&config)?;
    // Whatever this process and its children create is for this user alone.
    rustix::process::umask(rustix::fs::Mode::RWXG | rustix::fs::Mode::RWXO);
    // Before anything else, so that a signal during the start ends it in order too.
    let stop = stop_signal()?;
    let access = Access::prepare(&config)?;
    let _locks = take_directories(&config)?;
    let engine = Engine::open(config.engine()).await?;
    let app = Shared::new(engine.clone(), Arc::new(Metrics::new()));
    let counting = {
        let (metrics, events) = (Arc::clone(&app.metrics), engine.events(None));
        tokio::spawn(async move { metrics.follow(events).await })
    };
    let served = listen_and_serve(&config, access, app, stop).await;
    engine.shut_down(config.at_shut_down()).await;
    // It ends with the engine's events.
    if counting.await.is_err() {
        tracing::warn!("the metrics have died");
    }
    let (mut servers, _socket_file) = served?;
    // Requests that wait for a sandbox have failed by now; the rest gets its answer.
    let drained = tokio::time::timeout(DRAIN_DEADLINE, async {
        while servers.join_next().await.is_some() {}
    });
    if drained.await.is_err() {
        tracing::warn!(deadline = ?DRAIN_DEADLINE, "clients hold connections; they are cut off");
    }
    tracing::info!("stopped");
    Ok(())
}

fn check(config: &ServeConfig) -> Result<(), ServeError> {
    socket::check_path(&config.socket).map_err(ServeError::PathTooLong)?;
    socket::check_run_dir(&config.run_dir).map_err(ServeError::PathTooLong)?;
    let e2b = config.e2b.as_ref().map(|e2b| e2b.listen);
    if let Some(address) = e2b.filter(|address| !address.ip().is_loopback())
        && config.tls.is_none()
    {
        return Err(ServeError::E2bNotLoopback(address));
    }
    if config.listen.is_none() && e2b.is_some() {
        return match config.insecure_no_token {
            true => Err(ServeError::NoListener("--insecure-no-token")),
            false => Ok(()),
        };
    }
    match (config.listen, &config.token_file, &config.tls) {
        (Some(address), None, _) if !address.ip().is_loopback() => {
            Err(ServeError::NotLoopback(address))
        }
        (Some(address), None, _) if !config.insecure_no_token => Err(ServeError::NoToken(address)),
        (None, Some(_), _) => Err(ServeError::NoListener("a token file")),
        (None, _, _) if config.insecure_no_token => {
            Err(ServeError::NoListener("--insecure-no-token"))
        }
        (None, _, Some(_)) => Err(ServeError::NoListener("TLS")),
        _ => Ok(()),
    }
}

/// Who may ask on which listener.
struct Access {
    socket: Gate,
    tcp: Gate,
    tls: Option<TlsAcceptor>,
    tokens: Option<Arc<Tokens>>,
}

impl Access {
    fn prepare(config: &ServeConfig) -> Result<Self, ServeError> {
        let audit = config.audit_log.as_deref().map(AuditLog::open).transpose()?;
        let policy = match &config.token_file {
            Some(path) => Policy::Token(Arc::new(Tokens::read(path)?)),
            None => Policy::Loopback,
        };
        let tokens = match &policy {
            Policy::Token(tokens) => Some(Arc::clone(tokens)),
            Policy::Users { .. } | Policy::Loopback => None,
        };
        let tls = config.tls.as_ref();
        if let (Policy::Token(_), None, Some(address)) = (&policy, tls, config.listen)
            && !address.ip().is_loopback()
        {
            tracing::warn!(%address, "tokens cross the network unencrypted: give --tls-cert");
        }
        let tls = tls.map(|files| access::acceptor(&files.certificate, &files.key)).transpose()?;
        let daemon = rustix::process::geteuid().as_raw();
        let others = config.socket_mode.admits_others();
        let policy_of_socket = Policy::Users { daemon, others };
        let socket = Gate { policy: policy_of_socket, audit: audit.clone() };
        Ok(Self { socket, tcp: Gate { policy, audit }, tls, tokens })
    }
}

fn take_directories(config: &ServeConfig) -> Result<Vec<DirectoryLock>, ServeError> {
    let paths = [&config.state_dir, &config.run_dir, &config.hot_dir];
    let mut locks = Vec::new();
    for (index, path) in paths.iter().enumerate() {
        if paths[..index].contains(path) {
            continue;
        }
        private_directory(path).map_err(EngineError::from)?;
        locks.push(DirectoryLock::take(path)?);
    }
    Ok(locks)
}

/// Serves until `stop`, then stops accepting. Gives back what still has to be drained.
async fn listen_and_serve(
    config: &ServeConfig,
    access: Access,
    app: Shared,
    stop: impl Future<Output = &'static str>,
) -> Result<(JoinSet<()>, socket::SocketFile), ServeError> {
    let stopping = CancellationToken::new();
    let mut servers = JoinSet::new();
    let app = match &config.previews {
        Some(previews) => {
            let (listener, url) = listen_for_previews(previews).await?;
            tracing::info!(address = %previews.listen, %url, "showing ports of sandboxes");
            let router = preview::router(app.clone(), url.clone());
            servers.spawn(connection::serve(listener, router, stopping.clone()));
            app.with_previews(url)
        }
        None => app,
    };
    let environment = match &config.e2b {
        Some(e2b) => {
            let (listener, router, environment) =
                listen_for_e2b(e2b, config, &access, &app).await?;
            servers.spawn(connection::serve(listener, router, stopping.clone()));
            Some(environment)
        }
        None => None,
    };
    // TCP first: once the Unix socket answers, the daemon is complete.
    if let Some(address) = config.listen {
        let failed = |source| ServeError::Listen { address: address.to_string(), source };
        let listener = TcpListener::bind(address).await.map_err(failed)?;
        tracing::info!(%address, tls = access.tls.is_some(), "listening");
        let listener = Listener::Tcp(listener, access.tls);
        let router = router::router(app.clone(), access.tcp);
        servers.spawn(connection::serve(listener, router, stopping.clone()));
    }
    let (listener, file) =
        socket::listen(&config.socket, config.socket_mode).await.map_err(|source| {
            ServeError::Listen { address: format!("`{}`", config.socket.display()), source }
        })?;
    tracing::info!(
        socket = %config.socket.display(),
        accelerator = app.accelerator().name(),
        "listening"
    );
    let router = router::router(app, access.socket);
    servers.spawn(connection::serve(Listener::Unix(listener), router, stopping.clone()));
    let signal = stop.await;
    tracing::info!(signal, "stopping");
    drop(environment);
    stopping.cancel();
    Ok((servers, file))
}

async fn listen_for_previews(config: &PreviewConfig) -> Result<(Listener, PreviewUrl), ServeError> {
    let PreviewConfig { listen, url, tls } = config;
    let failed = |source| ServeError::Listen { address: listen.to_string(), source };
    let tls = tls.as_ref().map(|files| access::acceptor(&files.certificate, &files.key));
    let tls = tls.transpose()?;
    let listener = TcpListener::bind(listen).await.map_err(failed)?;
    let port = listener.local_addr().map_err(failed)?.port();
    let url = url.clone().unwrap_or_else(|| PreviewUrl::local(port));
    if !listen.ip().is_loopback() && !url.is_https() {
        tracing::warn!(%url, "tokens cross the network unencrypted: give --preview-tls-cert");
    }
    Ok((Listener::Tcp(listener, tls), url))
}

async fn listen_for_e2b(
    e2b: &E2bConfig,
    config: &ServeConfig,
    access: &Access,
    app: &Shared,
) -> Result<(Listener, Router, Environment), ServeError> {
    let failed = |source| ServeError::Listen { address: e2b.listen.to_string(), source };
    let listener = TcpListener::bind(e2b.listen).await.map_err(failed)?;
    let address = listener.local_addr().map_err(failed)?;
    let tls = access.tls.is_some();
    let place = e2b::Place { address, tls, domain: e2b.domain.clone() };
    let (engine, tokens) = (app.engine().clone(), access.tokens.clone());
    let opened = e2b::open(e2b, &place, &config.state_dir, engine, tokens);
    let opened = opened.map_err(ServeError::E2b)?;
    let environment = Environment::write(&config.state_dir, &place, &opened.api_key());
    let environment = environment.map_err(ServeError::E2b)?;
    tracing::info!(%address, tls, "listening for clients of E2B");
    let books = Books { metrics: Arc::clone(&app.metrics), audit: access.tcp.audit.clone() };
    let router = opened.router().layer(middleware::from_fn_with_state(books, e2b::write_down));
    Ok((Listener::Tcp(listener, access.tls.clone()), router, environment))
}

/// Resolves with the name of the signal that asks the daemon to end.
fn stop_signal() -> Result<impl Future<Output = &'static str>, ServeError> {
    let mut terminate = signal(SignalKind::terminate()).map_err(ServeError::Signal)?;
    let mut interrupt = signal(SignalKind::interrupt()).map_err(ServeError::Signal)?;
    Ok(async move {
        tokio::select! {
            _ = terminate.recv() => "SIGTERM",
            _ = interrupt.recv() => "SIGINT",
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::SocketMode;
    use forkd_engine::AcceleratorChoice;

    fn config(listen: &str) -> ServeConfig {
        ServeConfig {
            state_dir: "/s".into(),
            hot_budget: None,
            hot_dir: "/h".into(),
            run_dir: "/r".into(),
            socket: "/r/forkd.sock".into(),
            socket_mode: SocketMode::default(),
            image_dir: "/i".into(),
            shim: "/shim.so".into(),
            launcher: "/launcher".into(),
            gateway: "/nonexistent".into(),
            network: Default::default(),
            upstream_ca: None,
            isolation: forkd_engine::IsolationPolicy::None,
            accelerator: AcceleratorChoice::Auto,
            qemu: None,
            limits: forkd_engine::Limits::default(),
            listen: Some(listen.parse().unwrap()),
            token_file: None,
            insecure_no_token: true,
            tls: None,
            previews: None,
            e2b: None,
            audit_log: None,
            stop_sandboxes: false,
        }
    }

    #[test]
    fn without_tokens_only_loopback_is_listened_on_and_only_if_that_is_said() {
        assert!(check(&config("127.0.0.1:8889")).is_ok());
        assert!(check(&config("[::1]:8889")).is_ok());
        for outside in ["0.0.0.0:8889", "192.168.0.1:80", "[::]:1"] {
            let refused = check(&config(outside)).unwrap_err();
            assert!(refused.to_string().contains("not a loopback address"), "{refused}");
            let mut guarded = config(outside);
            guarded.token_file = Some("/tokens".into());
            assert!(check(&guarded).is_ok(), "with a token file");
        }
        let mut open = config("127.0.0.1:8889");
        open.insecure_no_token = false;
        let refused = check(&open).unwrap_err().to_string();
        assert!(refused.contains("--insecure-no-token"), "{refused}");
        open.token_file = Some("/tokens".into());
        assert!(check(&open).is_ok());
        let mut nowhere = config("127.0.0.1:1");
        nowhere.listen = None;
        nowhere.token_file = Some("/tokens".into());
        assert!(check(&nowhere).unwrap_err().to_string().contains("--listen"));
    }

    #[test]
    fn a_second_daemon_on_any_of_the_directories_is_refused() {
        let root = tempfile::tempdir().unwrap();
        let mut first = config("127.0.0.1:1");
        first.state_dir = root.path().join("state");
        first.run_dir = root.path().join("run");
        first.hot_dir = root.path().join("run");
        let locks = take_directories(&first).unwrap();
        assert_eq!(locks.len(), 2, "one directory with two uses is locked once");
        let mut second = first.clone();
        second.state_dir = root.path().join("other");
        assert!(matches!(take_directories(&second), Err(ServeError::Lock(_))));
    }
}
