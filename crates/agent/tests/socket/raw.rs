//! One end of a conversation, spoken by hand: a host or an agent that breaks the rules.

use forkd_engine::guest::GuestAgent;
use forkd_protocol::{
    DELIMITER, FrameDecoder, Keep, Reply, Request, decode_reply, decode_request, encode_reply,
    encode_request,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;

use crate::support::SOON;

/// One side of a conversation, byte by byte.
pub(crate) struct Raw {
    pub(crate) stream: UnixStream,
    decoder: FrameDecoder,
    arrived: std::collections::VecDeque<(u64, Vec<u8>)>,
}

impl Raw {
    pub(crate) fn new(stream: UnixStream) -> Self {
        let decoder = FrameDecoder::new();
        Self { stream, decoder, arrived: std::collections::VecDeque::new() }
    }

    pub(crate) async fn frame(&mut self) -> (u64, Vec<u8>) {
        loop {
            if let Some(frame) = self.arrived.pop_front() {
                return frame;
            }
            let mut buffer = vec![0; 65536];
            let read = self.stream.read(&mut buffer);
            let count = tokio::time::timeout(SOON, read).await.unwrap().unwrap();
            assert!(count > 0, "the other side closed");
            let arrived = &mut self.arrived;
            self.decoder.feed(&buffer[..count], |event| {
                if let Ok(frame) = event {
                    arrived.push_back((frame.request_id, frame.message.to_vec()));
                }
            });
        }
    }

    pub(crate) async fn reply(&mut self) -> (u64, Reply) {
        let (id, message) = self.frame().await;
        (id, decode_reply(&message).unwrap())
    }

    pub(crate) async fn request(&mut self) -> (u64, Request) {
        let (id, message) = self.frame().await;
        (id, decode_request(&message).unwrap())
    }

    pub(crate) async fn ask(&mut self, id: u64, request: &Request) {
        let mut wire = Vec::new();
        encode_request(id, request, &mut wire).unwrap();
        self.stream.write_all(&wire).await.unwrap();
    }

    pub(crate) async fn answer(&mut self, id: u64, reply: &Reply) {
        let mut wire = Vec::new();
        encode_reply(id, reply, &mut wire).unwrap();
        self.stream.write_all(&wire).await.unwrap();
    }

    pub(crate) async fn hello(&mut self, id: u64) {
        self.stream.write_all(&[DELIMITER]).await.unwrap();
        self.ask(id, &Request::Hello { protocol_min: 1, protocol_max: 9, nonce: id }).await;
        loop {
            if let (answered, Reply::Welcome { nonce, .. }) = self.reply().await {
                assert_eq!((answered, nonce), (id, id));
                return;
            }
        }
    }

    /// As an agent: gives the same large reply, as often as there is credit for it, until the host
    /// has had enough.
    pub(crate) async fn flood(&mut self, id: u64, reply: &Reply) {
        // Enough for the next credit.
        let mut replies = Vec::new();
        for _ in 0..5 {
            encode_reply(id, reply, &mut replies).unwrap();
        }
        loop {
            self.stream.write_all(&replies).await.unwrap();
            match self.request().await {
                (_, Request::Credit { .. }) => {}
                (_, Request::Cancel {}) => return,
                other => panic!("{other:?}"),
            }
        }
    }

    /// As an agent: takes a hello and welcomes.
    pub(crate) async fn welcome(&mut self) {
        let (id, Request::Hello { nonce, .. }) = self.request().await else { panic!() };
        self.answer(id, &welcome(nonce)).await;
    }
}

/// To run a program, with plenty of credit and without input.
pub(crate) fn run(args: &[&str], keep: Option<Keep>) -> Request {
    Request::Exec {
        args: args.iter().map(|&arg| arg.to_owned()).collect(),
        env: Vec::new(),
        cwd: None,
        user: None,
        stdin_follows: false,
        timeout_ms: None,
        output_credit: 1 << 20,
        keep,
    }
}

pub(crate) fn welcome(nonce: u64) -> Reply {
    Reply::Welcome {
        protocol: 1,
        nonce,
        agent_version: "0".to_owned(),
        kernel_release: "6".to_owned(),
        boot_id: "b".to_owned(),
        has_root_disk: true,
        python: false,
        is_init: true,
        epoch: 1,
        users: true,
        contexts: true,
        kept: Some(0),
    }
}

/// A client that has greeted, and the raw end on which to play its agent.
pub(crate) async fn client_of_raw_agent() -> (GuestAgent, Raw) {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let agent = GuestAgent::connect(ours).unwrap();
    let mut raw = Raw::new(theirs);
    let (facts, ()) = tokio::join!(agent.hello(SOON), raw.welcome());
    facts.unwrap();
    (agent, raw)
}
