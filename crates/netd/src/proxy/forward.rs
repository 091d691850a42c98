//! Requests of one connection, passed on over another.

use std::error::Error;
use std::future::Future;
use std::sync::{Arc, Mutex, PoisonError};

use forkd_types::network::DomainName;
use http_body_util::{Either, Full};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::{http1, http2};
use hyper::upgrade::OnUpgrade;
use hyper::{Request, Response, StatusCode};

use super::context::Context;
use super::request::{Refused, transform};

/// What the guest gets: what the server sends, or a word of the gateway.
pub(super) type Body = Either<Incoming, Full<Bytes>>;
pub(super) type Problem = Box<dyn Error + Send + Sync>;

/// The server's side.
#[derive(Clone)]
pub(super) enum Server {
    Http1(Arc<tokio::sync::Mutex<http1::SendRequest<Incoming>>>),
    Http2(http2::SendRequest<Incoming>),
    /// There is none; every request gets this answer.
    None(Refused),
}

/// Both ends of a connection that has changed its protocol.
pub(super) type Upgrade = (OnUpgrade, OnUpgrade);

/// Passes requests on.
pub(super) struct Forward {
    pub(super) host: DomainName,
    pub(super) context: Context,
    pub(super) server: Server,
    pub(super) upgrade: Mutex<Option<Upgrade>>,
    /// The last refusal that somebody heard of.
    told: Mutex<Option<Refused>>,
}

impl Forward {
    pub(super) fn new(host: DomainName, context: Context, server: Server) -> Arc<Self> {
        let (upgrade, told) = (Mutex::default(), Mutex::default());
        Arc::new(Self { host, context, server, upgrade, told })
    }

    /// Answers one request. An error ends the connection, as that of the server has ended.
    pub(super) fn answer(
        self: &Arc<Self>,
        request: Request<Incoming>,
    ) -> impl Future<Output = Result<Response<Body>, Problem>> + Send + use<> {
        let this = Arc::clone(self);
        async move { this.pass_on(request).await }
    }

    async fn pass_on(&self, mut request: Request<Incoming>) -> Result<Response<Body>, Problem> {
        let checked = match &self.server {
            Server::None(refused) => Err(refused.clone()),
            _ => transform(&mut request, &self.host, &self.context),
        };
        if let Err(refused) = checked {
            self.tell(&refused);
            return Ok(refused.answer().map(Either::Right));
        }
        let guest = hyper::upgrade::on(&mut request);
        let mut response = match self.server.clone() {
            Server::Http1(server) => {
                let mut server = server.lock().await;
                server.ready().await?;
                server.send_request(request).await?
            }
            Server::Http2(mut server) => {
                server.ready().await?;
                server.send_request(request).await?
            }
            Server::None(refused) => return Ok(refused.answer().map(Either::Right)),
        };
        if response.status() == StatusCode::SWITCHING_PROTOCOLS {
            let upgrade = (guest, hyper::upgrade::on(&mut response));
            *self.upgrade.lock().unwrap_or_else(PoisonError::into_inner) = Some(upgrade);
        }
        Ok(response.map(Either::Left))
    }

    /// A guest decides how often it is refused, so what is repeated is not told.
    fn tell(&self, refused: &Refused) {
        let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        if told.as_ref() != Some(refused) {
            (self.context.refused)(refused.to_string());
            *told = Some(refused.clone());
        }
    }
}
