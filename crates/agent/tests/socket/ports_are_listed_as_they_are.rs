//! Goal: a port that is listened on is told with its address and the program that listens, and what
//! an agent makes up cannot mislead or grow the daemon. Method: the real agent beside a server of
//! the test, and one that breaks the rules.

use std::net::TcpListener;

use crate::raw::client_of_raw_agent;
use crate::support::{LocalAgent, SOON};
use forkd_engine::guest::{GuestError, ListeningPort, OUTPUT_BYTES_MAX};
use forkd_protocol::{Reply, Request};

#[tokio::test]
async fn a_port_is_told_while_it_is_listened_on() {
    let local = LocalAgent::start();
    let agent = local.greet().await;
    let server = TcpListener::bind("127.0.0.1:0").unwrap();
    let own = server.local_addr().unwrap();
    let told = async || {
        let ports = agent.list_ports(SOON).await.unwrap();
        assert!(ports.is_sorted());
        ports.into_iter().find(|found| found.port == own.port() && found.address == own.ip())
    };
    let program = std::fs::read_to_string("/proc/self/comm").unwrap().trim_end().to_owned();
    let expected = ListeningPort {
        port: own.port(),
        address: own.ip(),
        pid: Some(std::process::id()),
        program: Some(program),
    };
    assert_eq!(told().await, Some(expected));
    drop(server);
    assert_eq!(told().await, None);
}

#[tokio::test]
async fn an_agent_cannot_make_up_addresses_steer_a_terminal_or_list_without_end() {
    let port = |address: &str, program: &str| Reply::Port {
        address: address.to_owned(),
        port: 80,
        pid: Some(0),
        program: Some(program.to_owned()),
    };
    for (reply, is_fine) in [
        (port("::1", "\u{1b}[2J\n"), true),
        (port("::1", &"x".repeat(60_000)), true),
        (port("", "x"), false),
        (port("localhost", "x"), false),
        (port("127.0.0.1:80", "x"), false),
        (Reply::PortOpened { port: 1 }, false),
    ] {
        let (agent, mut raw) = client_of_raw_agent().await;
        let answer = async {
            let (id, Request::ListPorts { .. }) = raw.request().await else { panic!() };
            raw.answer(id, &reply).await;
            raw.answer(id, &Reply::Done {}).await;
        };
        let (ports, ()) = tokio::join!(agent.list_ports(SOON), answer);
        match ports {
            Ok(ports) => {
                let program = ports[0].program.as_ref().unwrap();
                assert!(is_fine && program.len() <= 64, "{program}");
                assert!(!program.contains(char::is_control), "{program:?}");
            }
            Err(error) => {
                assert!(!is_fine && matches!(error, GuestError::Protocol { .. }), "{error}");
            }
        }
    }
    let (agent, mut raw) = client_of_raw_agent().await;
    let flood = async {
        let (id, Request::ListPorts { .. }) = raw.request().await else { panic!() };
        raw.flood(id, &port("::1", &"x".repeat(60_000))).await;
    };
    let (ports, ()) = tokio::join!(agent.list_ports(SOON * 5), flood);
    assert_eq!(ports.unwrap_err(), GuestError::OutputTooLarge { limit: OUTPUT_BYTES_MAX });
}
