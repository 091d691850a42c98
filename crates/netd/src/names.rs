//! What the names in the first bytes of a connection mean to one sandbox.

use std::sync::Arc;

use forkd_types::network::DomainName;
use tokio::net::UnixStream;
use tokio::sync::mpsc::UnboundedSender;

use crate::context::Event;
use crate::flow::{FlowKey, Names};
use crate::gate::{Decision, Ended, Refusal};
use crate::host::Stream;
use crate::limit::PROXIES_MAX;
use crate::pins::Pins;
use crate::policy::{Rule, Rules};
use crate::proxy::{Context, Proxies, Proxy};

/// Decides about the names of one connection.
pub(crate) struct NameCheck<'a> {
    pub(crate) rules: &'a Rules,
    pub(crate) pins: &'a Pins,
    pub(crate) proxies: &'a Proxies,
    pub(crate) events: &'a UnboundedSender<Event>,
    pub(crate) key: FlowKey,
    /// Only names allow the connection.
    pub(crate) by_name: bool,
    /// The name that was asked about last.
    pub(crate) named: Option<DomainName>,
}

impl Names for NameCheck<'_> {
    fn decide(&mut self, name: &DomainName) -> Decision {
        self.named = Some(name.clone());
        let FlowKey { remote, .. } = self.key;
        let allowed = || {
            let pinned = self.pins.has(remote.ip().to_canonical(), name);
            self.rules.allows_name(name, remote.port()) && pinned
        };
        if self.by_name && !allowed() {
            return Decision::Refused;
        }
        match self.rules.headers().of(name) {
            Some(_) => Decision::Ends,
            None => Decision::Passes,
        }
    }

    fn end(
        &mut self,
        ended: Ended,
        guest: UnixStream,
        server: Stream,
    ) -> Result<(Proxy, Rule), Refusal> {
        let Proxies { rules, owner, credentials, counted } = self.proxies;
        if Arc::strong_count(counted) > PROXIES_MAX {
            return Err(Refusal::Unclear("limit: connections to hosts with header rules"));
        }
        let Stream::Tcp(server) = server else {
            return Err(Refusal::Unclear("the other end is not a server"));
        };
        let host = self.rules.headers().of(&ended.name).map(|(host, _)| host.to_string());
        let (events, key, name) = (self.events.clone(), self.key, ended.name.clone());
        let context = Context {
            credentials: credentials.clone(),
            owner: owner.clone(),
            rules: rules.subscribe(),
            refused: Box::new(move |reason| {
                // The link may be gone.
                events.send(Event::Denied { key, name: name.clone(), reason }).ok();
            }),
        };
        let proxy = Proxy::begin(ended, guest, server, context, counted.clone());
        Ok((proxy, Rule::Headers(host.unwrap_or_default())))
    }
}
