//! The resolver that guests ask: whatever address they ask, on port 53, by datagram or stream.
//!
//! Guarantees: a name that the policy does not resolve is answered with NXDOMAIN and the reason
//! "blocked" (EDE 15), and no query leaves the host for it. Answers lose the addresses that the
//! policy denies always, and private ones that it does not open. Only what was asked for is passed
//! on: records of the name, and of the names that it stands for. The guest's own host name and
//! names of members of private networks are answered here, whatever the policy, and no query leaves
//! the host for them.
//!
//! Does not do: caching, DNSSEC, the host's `/etc/hosts`, search domains.

mod answer;
mod upstream;

pub(crate) use answer::Answer;

use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;

use answer::{Question, Transport};
use forkd_types::SandboxId;
use forkd_types::network::{DomainName, GUEST_IPV4, GUEST_IPV6};
use hickory_proto::op::ResponseCode;
use hickory_proto::rr::RecordType;

use crate::host;
use crate::members::Members;
use crate::policy::Rules;

/// How a guest asks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Way {
    /// By datagrams.
    Datagram,
    /// In a stream.
    Stream,
}

/// What is answered from.
#[derive(Debug, Clone)]
pub(crate) struct Source {
    pub(crate) rules: Arc<Rules>,
    /// What the guest calls itself.
    pub(crate) host_name: SandboxId,
    pub(crate) members: Members,
    /// Which resolvers the host asks.
    pub(crate) resolv_conf: Arc<Path>,
}

/// Answers one message of a guest; none for what is no query.
pub(crate) async fn resolve(message: Vec<u8>, way: Way, source: Source) -> Option<Answer> {
    let Source { rules, host_name, members, resolv_conf } = source;
    let transport = if way == Way::Stream { Transport::Stream } else { Transport::Datagram };
    let question = match Question::read(&message, transport)? {
        Ok(question) => question,
        Err(answer) => return Some(answer),
    };
    if question.name().is_some_and(|name| name.as_str() == host_name.as_str()) {
        return Some(question.local(&[(GUEST_IPV4, GUEST_IPV6)]));
    }
    if let Some(aliases) = question.name().and_then(|name| members.resolve(name)) {
        let pairs: Vec<_> = aliases.iter().map(|alias| (alias.ipv4(), alias.ipv6())).collect();
        return Some(question.local(&pairs));
    }
    if !question.name().is_some_and(|name| rules.resolves(name)) {
        return Some(question.blocked());
    }
    let withheld = match question.kind() {
        // They may hold keys that hide the server's name, and addresses.
        RecordType::HTTPS | RecordType::SVCB => true,
        RecordType::AAAA => !host::reaches_ipv6(),
        _ => false,
    };
    if withheld {
        return Some(question.empty());
    }
    let servers = upstream::servers(&resolv_conf);
    match upstream::ask(&servers, &question).await {
        Some(reply) => Some(question.answer(reply, |address| may_answer(&rules, address))),
        None => Some(question.failed(ResponseCode::ServFail)),
    }
}

fn may_answer(rules: &Rules, address: IpAddr) -> bool {
    rules.may_answer(address) && !host::is_own(address)
}

/// Answers that there are too many queries.
pub(crate) fn refuse(message: &[u8], way: Way) -> Option<Vec<u8>> {
    let transport = if way == Way::Stream { Transport::Stream } else { Transport::Datagram };
    let answer = match Question::read(message, transport)? {
        Ok(question) => question.failed(ResponseCode::Refused),
        Err(answer) => answer,
    };
    Some(answer.message)
}

/// What a guest is told, for the log: a name that was not resolved.
pub(crate) fn blocked_name(answer: &Answer) -> Option<&DomainName> {
    answer.blocked.as_ref()
}

/// What must hold of any message that a guest or a server sends.
///
/// # Panics
/// When it does not.
#[cfg(feature = "fuzzing")]
pub fn check_message(input: &[u8]) {
    answer::check_message(input);
}
