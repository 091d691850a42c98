//! The server name of a ClientHello.

use std::io;

use forkd_types::network::DomainName;
use rustls::server::Acceptor;

use super::refusal::Refusal;

/// Reads a ClientHello that comes in any pieces.
#[derive(Default)]
pub(super) struct Hello {
    acceptor: Acceptor,
    seen: usize,
}

impl Hello {
    /// Looks at the bytes of the connection so far. None until the hello is whole.
    pub(super) fn look(&mut self, bytes: &[u8]) -> Result<Option<DomainName>, Refusal> {
        let unclear = |_| Refusal::Unclear("it begins like TLS, but is none");
        let mut rest = &bytes[self.seen..];
        while !rest.is_empty() {
            let before = rest.len();
            self.acceptor.read_tls(&mut rest as &mut dyn io::Read).map_err(unclear)?;
            self.seen += before - rest.len();
            let accepted = self
                .acceptor
                .accept()
                .map_err(|_| Refusal::Unclear("it begins like TLS, but is none"))?;
            if let Some(accepted) = accepted {
                let hello = accepted.client_hello();
                let name = hello.server_name().ok_or(Refusal::Unclear("it names no server"))?;
                let name = name.parse().map_err(|_| Refusal::Unclear("it names no server"))?;
                return Ok(Some(name));
            }
        }
        Ok(None)
    }
}
