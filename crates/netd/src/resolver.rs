//! Queries of a guest that are on their way.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use forkd_netd_protocol::InheritedQuery;
use forkd_types::FlowOutcome;
use forkd_types::network::Protocol;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::UnixStream;
use tokio::time::timeout;

use crate::context::{Event, Shared, permits_query};
use crate::dns::{self, Answer, Way};
use crate::host::Stream;
use crate::journal::Entry;
use crate::limit::QUERIES_MAX;
use crate::policy::{DNS_PORT, Rule};
use crate::wire;

/// Until a stream without queries is closed.
const STREAM_IDLE: Duration = Duration::from_secs(30);
/// An answer may be on its way to the guest for so long.
const ON_ITS_WAY: Duration = Duration::from_secs(1);
/// Such answers; queries of clients are no longer than this.
const ON_THEIR_WAY_MAX: usize = 16;
const QUERY_BYTES: usize = 512;

/// The queries of one link that came by datagram.
#[derive(Default)]
pub(crate) struct Resolver {
    pending: HashMap<u64, InheritedQuery>,
    asked: u64,
    answered: VecDeque<(Instant, InheritedQuery)>,
}

impl Resolver {
    /// Takes a query. The answer comes from the address that was asked.
    pub(crate) fn ask(&mut self, shared: &mut Shared, query: InheritedQuery) {
        let repeated = self.pending.values().any(|pending| *pending == query);
        if repeated {
            return;
        }
        if self.pending.len() >= QUERIES_MAX || !permits_query(&shared.queries) {
            let remote = SocketAddr::new(query.remote, DNS_PORT);
            shared.log_refusal(Protocol::Udp, remote, &Rule::Limit("queries"));
            if let Some(message) = dns::refuse(&query.message, Way::Datagram) {
                shared.port.send(&wire::udp(remote, query.guest_port, &message));
            }
            return;
        }
        self.asked += 1;
        let (number, message) = (self.asked, query.message.clone());
        self.pending.insert(number, query);
        let (events, source) = (shared.events.clone(), shared.source());
        tokio::spawn(async move {
            let answer = dns::resolve(message, Way::Datagram, source).await;
            events.send(Event::Answered { query: Some(number), answer }).ok();
        });
    }

    /// Passes an answer on.
    pub(crate) fn answered(
        &mut self,
        shared: &mut Shared,
        query: Option<u64>,
        answer: Option<Answer>,
    ) {
        let asked = query.and_then(|query| self.pending.remove(&query));
        let Some(answer) = answer else { return };
        for (name, address) in &answer.pins {
            shared.pins.add(name, *address);
        }
        if let Some(name) = dns::blocked_name(&answer) {
            shared.journal.add(&Entry {
                outcome: FlowOutcome::Refused,
                protocol: Protocol::Udp,
                remote: None,
                name: Some(name.as_str()),
                reason: &Rule::Name.to_string(),
                traffic: None,
            });
        }
        if let Some(asked) = asked {
            let remote = SocketAddr::new(asked.remote, DNS_PORT);
            shared.port.send(&wire::udp(remote, asked.guest_port, &answer.message));
            if asked.message.len() <= QUERY_BYTES {
                self.answered.truncate(ON_THEIR_WAY_MAX - 1);
                self.answered.push_front((Instant::now(), asked));
            }
        }
    }

    /// What the guest may wait for. Whoever has its answer already ignores another one.
    pub(crate) fn list(&self) -> impl Iterator<Item = InheritedQuery> {
        let answered = self.answered.iter().take_while(|(at, _)| at.elapsed() < ON_ITS_WAY);
        self.pending.values().chain(answered.map(|(_, query)| query)).cloned()
    }
}

/// The resolver as the other end of a connection.
pub(crate) fn stream(shared: &Shared) -> io::Result<Stream> {
    let (ours, theirs) = UnixStream::pair()?;
    let (events, source) = (shared.events.clone(), shared.source());
    let queries = shared.queries.clone();
    tokio::spawn(async move {
        let mut stream = theirs;
        // Ends with the stream, or with the link.
        while let Ok(Ok(message)) = timeout(STREAM_IDLE, read_message(&mut stream)).await {
            let reply = if permits_query(&queries) {
                let answer = dns::resolve(message, Way::Stream, source.clone()).await;
                let reply = answer.as_ref().map(|answer| answer.message.clone());
                // Before the guest can use it.
                events.send(Event::Answered { query: None, answer }).ok();
                reply
            } else {
                dns::refuse(&message, Way::Stream)
            };
            let Some(reply) = reply else { break };
            if write_message(&mut stream, &reply).await.is_err() {
                break;
            }
        }
    });
    Ok(Stream::Unix(ours))
}

async fn read_message(stream: &mut UnixStream) -> io::Result<Vec<u8>> {
    let mut message = vec![0; usize::from(stream.read_u16().await?)];
    stream.read_exact(&mut message).await?;
    Ok(message)
}

async fn write_message(stream: &mut UnixStream, message: &[u8]) -> io::Result<()> {
    let length = u16::try_from(message.len()).map_err(io::Error::other)?;
    let mut framed = length.to_be_bytes().to_vec();
    framed.extend_from_slice(message);
    stream.write_all(&framed).await
}
