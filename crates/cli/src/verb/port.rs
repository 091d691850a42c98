//! `forkd port`: a port of a sandbox as a port of this machine.

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::num::NonZeroU16;
use std::sync::Arc;
use std::time::Duration;

use anyhow::anyhow;
use forkd_api::CreatePortToken;
use forkd_client::{Client, ClientError};
use rustix::net::sockopt::set_socket_linger;
use serde_json::json;
use tokio::io::copy_bidirectional_with_sizes;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;

use crate::console::{output, report};
use crate::daemon::connect;
use crate::options::Global;

/// What one direction of a connection holds.
const BUFFER_BYTES: usize = 64 << 10;
/// Pause after a failed accept: mostly this program has too many files open.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Forward a local port to a port of a sandbox
///
/// Prints the local address, and forwards every connection to it until you end it with Ctrl-C. It
/// reaches servers that are bound to a loopback address too, and it does not matter what the
/// sandbox itself may reach. If nothing listens in the sandbox, the connection is reset.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    forkd port sb-0123456789ab 8080\n  \
    forkd port sb-0123456789ab 5432 --local 0\n  \
    forkd port sb-0123456789ab 8080 --preview --ttl 12h")]
pub(crate) struct Options {
    /// The sandbox
    sandbox: String,
    /// The port in the sandbox
    port: NonZeroU16,
    /// The local port; 0 takes a free one [default: the same as in the sandbox]
    #[arg(long, value_name = "PORT")]
    local: Option<u16>,
    /// The local address to listen on; others than loopback let other machines in
    #[arg(long, value_name = "ADDRESS", default_value_t = IpAddr::V4(Ipv4Addr::LOCALHOST))]
    listen: IpAddr,
    /// Print an address of the port for browsers, and end. It has a token unless the port is
    /// public. The daemon must have been started with --preview-listen
    #[arg(long, conflicts_with_all = ["local", "listen"])]
    preview: bool,
    /// With --preview: how long the token is valid, such as 30m, 12h or 7d
    #[arg(long, value_name = "TIME", default_value = "1h", requires = "preview")]
    #[arg(value_parser = humantime::parse_duration)]
    ttl: Duration,
    /// Make all addresses that --preview has printed for the port worthless, and end
    #[arg(long, conflicts_with_all = ["local", "listen", "preview"])]
    revoke: bool,
}

pub(crate) async fn run(global: &Global, options: Options) -> anyhow::Result<()> {
    let client = connect::client(global).await?;
    if options.revoke {
        return Ok(client.revoke_port_tokens(&options.sandbox, options.port.get()).await?);
    }
    if options.preview {
        return print_preview(global, &client, &options).await;
    }
    let Options { sandbox, port, local, listen, .. } = options;
    // A sandbox that is not there is told at once, not to the first connection.
    client.sandbox(&sandbox).await?;
    let wanted = SocketAddr::new(listen, local.unwrap_or(port.get()));
    let listener = TcpListener::bind(wanted).await.map_err(|error| refused(wanted, &error))?;
    let own = listener.local_addr()?;
    if global.json {
        output::json(&json!({ "sandbox": sandbox, "port": port, "local": own.to_string() }))?;
    } else {
        output::line(&own.to_string())?;
    }
    let forward = Arc::new(Forward { client, sandbox, port: port.get() });
    let (ended, mut end) = mpsc::channel(1);
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            Some(error) = end.recv() => return Err(error),
        };
        match accepted {
            Ok((local, _)) => {
                let (forward, ended) = (Arc::clone(&forward), ended.clone());
                tokio::spawn(async move {
                    if let Err(error) = forward.serve(local).await {
                        // The first one ends the program.
                        ended.try_send(error).ok();
                    }
                });
            }
            Err(error) => {
                report::note(&format!("cannot accept a connection: {error}"));
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

async fn print_preview(global: &Global, client: &Client, options: &Options) -> anyhow::Result<()> {
    let sandbox = client.sandbox(&options.sandbox).await?;
    let is_public = sandbox.network.check().is_ok_and(|policy| policy.is_public(options.port));
    if let Some(template) = sandbox.preview_url.filter(|_| is_public) {
        let url = template.replace("{port}", &options.port.to_string());
        return if global.json { output::json(&json!({ "url": url })) } else { output::line(&url) };
    }
    let body = CreatePortToken { ttl_secs: Some(options.ttl.as_secs()) };
    let token = client.issue_port_token(&options.sandbox, options.port.get(), &body).await?;
    if global.json { output::json(&token) } else { output::line(&token.url) }
}

fn refused(address: SocketAddr, error: &io::Error) -> anyhow::Error {
    let message = format!("cannot listen on {address}: {error}");
    match error.kind() {
        io::ErrorKind::AddrInUse | io::ErrorKind::PermissionDenied => {
            report::Hinted::new(message, "choose another local port; `--local 0` takes a free one")
                .into()
        }
        _ => anyhow!(message),
    }
}

/// Where connections go.
struct Forward {
    client: Client,
    sandbox: String,
    port: u16,
}

impl Forward {
    /// Serves one connection to its end. Fails when the sandbox is no more: then none can be
    /// served.
    async fn serve(&self, mut local: TcpStream) -> anyhow::Result<()> {
        local.set_nodelay(true).ok();
        let passed = match self.client.connect_port(&self.sandbox, self.port).await {
            Ok(mut stream) => {
                let (up, down) = (BUFFER_BYTES, BUFFER_BYTES);
                copy_bidirectional_with_sizes(&mut local, &mut stream, up, down).await.is_ok()
            }
            Err(ClientError::Api(failure)) if failure.code == "sandbox_not_found" => {
                reset(&local);
                return Err(ClientError::Api(failure).into());
            }
            Err(error) => {
                let text = format!("{:#}", anyhow::Error::new(error));
                report::note(&report::printable_line(&text));
                false
            }
        };
        if !passed {
            reset(&local);
        }
        Ok(())
    }
}

/// Makes the close a reset, so that nobody takes what has come for the whole.
fn reset(stream: &TcpStream) {
    set_socket_linger(stream, Some(Duration::ZERO)).ok();
}
