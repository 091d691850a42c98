//! Messages: the question of a guest, and what it is told.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use forkd_types::network::DomainName;
use hickory_proto::op::{Edns, Message, MessageType, OpCode, Query, ResponseCode};
use hickory_proto::rr::rdata::opt::EdnsOption;
use hickory_proto::rr::rdata::{A, AAAA};
use hickory_proto::rr::{DNSClass, Name, RData, Record, RecordType};

use crate::limit::ANSWERS_MAX;

/// A message in a stream.
pub(crate) const MESSAGE_BYTES_MAX: usize = 65_535;
/// A datagram to a guest that does not say how much it takes.
const DATAGRAM_BYTES_DEFAULT: u16 = 512;
/// A datagram to a guest that says that it takes more: no fragments on any path.
const DATAGRAM_BYTES_MAX: u16 = 1232;
/// Names that stand for others, in one answer.
const ALIASES_MAX: usize = 16;
/// "Extended DNS errors", RFC 8914.
const EXTENDED_ERROR: u16 = 15;
/// "Blocked".
const BLOCKED: u16 = 15;

/// How a question came.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Transport {
    Datagram,
    Stream,
}

/// What a guest is told.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) message: Vec<u8>,
    /// The name and the addresses that it was given.
    pub(crate) pins: Vec<(DomainName, IpAddr)>,
    /// The name that was not resolved because of the policy.
    pub(super) blocked: Option<DomainName>,
}

/// A query with one question.
#[derive(Debug)]
pub(super) struct Question {
    message: Message,
    query: Query,
    name: Option<DomainName>,
    bytes_max: usize,
}

impl Question {
    /// Understands a message. None for what is no query, and an answer for a query that nobody can
    /// answer.
    pub(super) fn read(bytes: &[u8], transport: Transport) -> Option<Result<Self, Answer>> {
        let message = Message::from_vec(bytes).ok()?;
        if message.metadata.message_type != MessageType::Query {
            return None;
        }
        let payload = message.edns.as_ref().map_or(DATAGRAM_BYTES_DEFAULT, Edns::max_payload);
        let bytes_max = match transport {
            Transport::Stream => MESSAGE_BYTES_MAX,
            Transport::Datagram => {
                usize::from(payload.clamp(DATAGRAM_BYTES_DEFAULT, DATAGRAM_BYTES_MAX))
            }
        };
        let query = message.queries.first().cloned().unwrap_or_default();
        let only = message.queries.len() == 1;
        let name = query.name().to_ascii().parse().ok();
        let question = Self { message, query, name, bytes_max };
        let code = match question.message.metadata.op_code {
            OpCode::Query if !only => ResponseCode::FormErr,
            OpCode::Query if question.query.query_class() != DNSClass::IN => ResponseCode::Refused,
            OpCode::Query if question.is_transfer() => ResponseCode::Refused,
            OpCode::Query => return Some(Ok(question)),
            _ => ResponseCode::NotImp,
        };
        Some(Err(question.failed(code)))
    }

    fn is_transfer(&self) -> bool {
        matches!(self.kind(), RecordType::AXFR | RecordType::IXFR | RecordType::ANY)
    }

    /// None for a name that no policy can name.
    pub(super) fn name(&self) -> Option<&DomainName> {
        self.name.as_ref()
    }

    pub(super) fn kind(&self) -> RecordType {
        self.query.query_type()
    }

    /// The same question from the host: nothing of the guest's message but this.
    pub(super) fn to_server(&self) -> Message {
        let mut message = Message::query();
        message.metadata.recursion_desired = true;
        message.add_query(Query::query(self.query.name().clone(), self.kind()));
        let mut edns = Edns::new();
        edns.set_max_payload(DATAGRAM_BYTES_MAX);
        message.set_edns(edns);
        message
    }

    /// Whether this is the server's answer to [`Question::to_server`].
    pub(super) fn is_answered_by(&self, reply: &Message) -> bool {
        let asked = |query: &Query| {
            *query.name() == *self.query.name() && query.query_type() == self.kind()
        };
        reply.metadata.message_type == MessageType::Response && reply.queries.iter().all(asked)
    }

    fn reply(&self, code: ResponseCode) -> Message {
        let asked = &self.message.metadata;
        let mut reply = Message::response(asked.id, asked.op_code);
        reply.metadata.recursion_desired = asked.recursion_desired;
        reply.metadata.recursion_available = true;
        reply.metadata.response_code = code;
        if !self.message.queries.is_empty() {
            reply.add_query(self.query.clone());
        }
        if self.message.edns.is_some() {
            let mut edns = Edns::new();
            edns.set_max_payload(DATAGRAM_BYTES_MAX);
            reply.set_edns(edns);
        }
        reply
    }

    fn finish(&self, reply: &Message) -> Answer {
        let whole = reply.to_vec().ok().filter(|bytes| bytes.len() <= self.bytes_max);
        let message = whole.or_else(|| reply.truncate().to_vec().ok()).unwrap_or_default();
        Answer { message, pins: Vec::new(), blocked: None }
    }

    /// Says why there is no answer.
    pub(super) fn failed(&self, code: ResponseCode) -> Answer {
        self.finish(&self.reply(code))
    }

    /// Says that there is nothing of this kind.
    pub(super) fn empty(&self) -> Answer {
        self.failed(ResponseCode::NoError)
    }

    /// Tells who has this name here; without anybody, that the name does not exist. The guest does
    /// not keep the answer: members of networks come and go.
    pub(super) fn local(&self, addresses: &[(Ipv4Addr, Ipv6Addr)]) -> Answer {
        if addresses.is_empty() {
            return self.failed(ResponseCode::NXDomain);
        }
        let mut told = self.reply(ResponseCode::NoError);
        for &(ipv4, ipv6) in addresses.iter().take(ANSWERS_MAX) {
            let data = match self.kind() {
                RecordType::A => RData::A(A(ipv4)),
                RecordType::AAAA => RData::AAAA(AAAA(ipv6)),
                _ => continue,
            };
            told.add_answer(Record::from_rdata(self.query.name().clone(), 0, data));
        }
        self.finish(&told)
    }

    /// Says that the name does not exist, and that this is the policy's doing.
    pub(super) fn blocked(&self) -> Answer {
        let mut reply = self.reply(ResponseCode::NXDomain);
        explain(&mut reply);
        let blocked = self.name.clone();
        Answer { blocked, ..self.finish(&reply) }
    }

    /// What of a server's answer the guest is told.
    pub(super) fn answer(&self, reply: Message, allows: impl Fn(IpAddr) -> bool) -> Answer {
        let mut told = self.reply(reply.metadata.response_code);
        let mut pins = Vec::new();
        let mut withheld = false;
        let names = aliases(self.query.name(), &reply.answers);
        let mut addresses = 0;
        for record in reply.answers {
            let kind = record.record_type();
            let asked_for = kind == self.kind() || kind == RecordType::CNAME;
            if !asked_for || !names.contains(&record.name) || record.dns_class != DNSClass::IN {
                continue;
            }
            let address = match &record.data {
                RData::A(address) => Some(IpAddr::from(address.0)),
                RData::AAAA(address) => Some(IpAddr::from(address.0)),
                _ => None,
            };
            if let Some(address) = address {
                addresses += 1;
                if addresses > ANSWERS_MAX {
                    continue;
                }
                if !allows(address) {
                    withheld = true;
                    continue;
                }
                pins.extend(self.name.clone().map(|name| (name, address.to_canonical())));
            }
            told.add_answer(record);
        }
        if withheld && pins.is_empty() {
            explain(&mut told);
        }
        Answer { pins, ..self.finish(&told) }
    }
}

/// The name, and the names that it stands for.
fn aliases(name: &Name, records: &[Record]) -> Vec<Name> {
    let mut names = vec![name.clone()];
    while names.len() <= ALIASES_MAX {
        let next = records.iter().find_map(|record| match &record.data {
            RData::CNAME(target) if Some(&record.name) == names.last() => Some(target.0.clone()),
            _ => None,
        });
        match next {
            Some(next) if !names.contains(&next) => names.push(next),
            _ => break,
        }
    }
    names
}

/// Adds the reason "blocked".
fn explain(reply: &mut Message) {
    if let Some(edns) = &mut reply.edns {
        let reason = EdnsOption::Unknown(EXTENDED_ERROR, BLOCKED.to_be_bytes().to_vec());
        edns.options_mut().insert(reason);
    }
}

#[cfg(feature = "fuzzing")]
pub(super) fn check_message(input: &[u8]) {
    for transport in [Transport::Datagram, Transport::Stream] {
        let Some(question) = Question::read(input, transport) else { continue };
        let answer = match question {
            Err(answer) => answer,
            Ok(question) => {
                let reply = Message::from_vec(input).expect("it was read before");
                let answer = question.answer(reply, |_| false);
                assert!(answer.pins.is_empty(), "nothing that is not allowed is pinned");
                assert!(Message::from_vec(&question.blocked().message).is_ok());
                answer
            }
        };
        assert!(answer.message.len() <= MESSAGE_BYTES_MAX);
    }
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
