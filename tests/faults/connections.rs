//! Connections of a guest to a server of this program, which end when somebody tells their ends so.

use std::net::TcpListener;
use std::sync::OnceLock;
use std::time::Instant;

use forkd_testkit::{Guest, Lab, SOON};
use forkd_types::network::NetworkPolicy;

/// In the guest. Addresses are those of the gateway, which leads to the host's loopback address.
const TOOLS: &str = "
import errno, socket
def dial():
    connection = socket.create_connection(('10.42.0.1', PORT), 120)
    connection.settimeout(120)
    return connection
def ends(connection):
    try: return connection.recv(1)
    except OSError as error: return errno.errorcode.get(error.errno, type(error).__name__)
def echoes(connection):
    try:
        connection.sendall(b'hi')
        return connection.recv(2)
    except OSError as error: return type(error).__name__
def works():
    try:
        with dial() as connection: return echoes(connection)
    except OSError as error: return type(error).__name__
";

/// A port of the host's loopback address that sends back what it gets.
pub(crate) fn serve() -> u16 {
    static PORT: OnceLock<u16> = OnceLock::new();
    *PORT.get_or_init(|| {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                std::thread::spawn(move || {
                    let mut writer = stream.try_clone().unwrap();
                    std::io::copy(&mut &stream, &mut writer).ok();
                });
            }
        });
        port
    })
}

/// Lets `guest` reach that port of the host and gives it the words for it: `dial()`, `ends()` and
/// `echoes()` of a connection, `works()`. The daemon must leave any address.
pub(crate) async fn allow(lab: &Lab, guest: &Guest<'_>, port: u16) {
    let allow_out = vec![format!("host:{port}").parse().unwrap()];
    let policy = NetworkPolicy { allow_out, ..NetworkPolicy::default() };
    lab.engine.set_network(&guest.id, policy, None).await.unwrap();
    guest.eval(&TOOLS.replace("PORT", &port.to_string())).await;
    assert_eq!(guest.eval("works()").await, "b'hi'");
}

pub(crate) async fn wait_until_they_work(guest: &Guest<'_>, cell: &str) {
    let begun = Instant::now();
    loop {
        let got = guest.eval("works()").await;
        if got == "b'hi'" {
            return;
        }
        assert!(begun.elapsed() < SOON, "{cell}: new connections end with {got}");
    }
}
