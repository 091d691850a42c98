//! The host's resolvers.

use std::fs;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;

use hickory_proto::op::Message;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpStream, UdpSocket};
use tokio::time::timeout;

use super::answer::{MESSAGE_BYTES_MAX, Question};
use crate::limit::{RESOLVER_DEADLINE, RESOLVERS_MAX};
use crate::policy::DNS_PORT;

/// The servers in a `resolv.conf`.
pub(super) fn servers(resolv_conf: &Path) -> Vec<SocketAddr> {
    let text = fs::read_to_string(resolv_conf).unwrap_or_default();
    let server = |line: &str| {
        let mut words = line.split_ascii_whitespace();
        let address = words.next().filter(|&word| word == "nameserver").and(words.next())?;
        Some(SocketAddr::new(address.parse::<IpAddr>().ok()?, DNS_PORT))
    };
    text.lines().filter_map(server).take(RESOLVERS_MAX).collect()
}

/// Asks one server after the other until one answers.
pub(super) async fn ask(servers: &[SocketAddr], question: &Question) -> Option<Message> {
    for &server in servers {
        match timeout(RESOLVER_DEADLINE, ask_one(server, question)).await {
            Ok(Ok(reply)) => return Some(reply),
            Ok(Err(error)) => tracing::debug!(%server, %error, "a resolver failed"),
            Err(_) => tracing::debug!(%server, "a resolver is silent"),
        }
    }
    None
}

async fn ask_one(server: SocketAddr, question: &Question) -> io::Result<Message> {
    let any: SocketAddr = if server.is_ipv4() { ([0; 4], 0).into() } else { ([0u16; 8], 0).into() };
    // Connected: the kernel drops what comes from elsewhere.
    let socket = UdpSocket::bind(any).await?;
    socket.connect(server).await?;
    let query = question.to_server();
    let bytes = query.to_vec().map_err(io::Error::other)?;
    socket.send(&bytes).await?;
    let mut buffer = vec![0; MESSAGE_BYTES_MAX];
    loop {
        let received = socket.recv(&mut buffer).await?;
        let Ok(reply) = Message::from_vec(&buffer[..received]) else { continue };
        if reply.metadata.id != query.metadata.id || !question.is_answered_by(&reply) {
            continue;
        }
        if reply.metadata.truncation {
            return ask_in_stream(server, &bytes, &query, question).await;
        }
        return Ok(reply);
    }
}

async fn ask_in_stream(
    server: SocketAddr,
    bytes: &[u8],
    query: &Message,
    question: &Question,
) -> io::Result<Message> {
    let mut stream = TcpStream::connect(server).await?;
    let length = u16::try_from(bytes.len()).map_err(io::Error::other)?;
    let mut framed = length.to_be_bytes().to_vec();
    framed.extend_from_slice(bytes);
    stream.write_all(&framed).await?;
    let mut reply = vec![0; usize::from(stream.read_u16().await?)];
    stream.read_exact(&mut reply).await?;
    let reply = Message::from_vec(&reply).map_err(io::Error::other)?;
    let fits = reply.metadata.id == query.metadata.id && question.is_answered_by(&reply);
    fits.then_some(reply).ok_or_else(|| io::Error::other("it answered another question"))
}
