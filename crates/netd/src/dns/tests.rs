//! Questions and answers as messages.

use super::*;
use hickory_proto::rr::rdata::{A, CNAME};
use std::net::Ipv4Addr;

fn name(text: &str) -> Name {
    Name::from_ascii(text).unwrap()
}

fn query(text: &str, kind: RecordType) -> Message {
    let mut message = Message::query();
    message.metadata.id = 4711;
    message.metadata.recursion_desired = true;
    message.add_query(Query::query(name(text), kind));
    message.set_edns(Edns::new());
    message
}

fn question(message: &Message) -> Question {
    Question::read(&message.to_vec().unwrap(), Transport::Datagram).unwrap().unwrap()
}

fn address(owner: &str, last: u8) -> Record {
    Record::from_rdata(name(owner), 60, RData::A(A(Ipv4Addr::new(203, 0, 113, last))))
}

fn alias(owner: &str, target: &str) -> Record {
    Record::from_rdata(name(owner), 60, RData::CNAME(CNAME(name(target))))
}

fn reply(asked: &Question, records: Vec<Record>) -> Message {
    let mut reply = asked.to_server().into_response();
    reply.add_answers(records);
    reply
}

#[test]
fn a_blocked_name_does_not_exist_and_the_reason_is_told() {
    let asked = question(&query("Secret.Example.", RecordType::A));
    assert_eq!(asked.name().unwrap().as_str(), "secret.example");
    let told = Message::from_vec(&asked.blocked().message).unwrap();
    assert_eq!(told.metadata.response_code, ResponseCode::NXDomain);
    assert_eq!(told.metadata.id, 4711);
    let reason = told.edns.as_ref().unwrap().option(EXTENDED_ERROR.into()).cloned();
    assert_eq!(reason, Some(EdnsOption::Unknown(15, vec![0, 15])));
}

#[test]
fn nothing_of_the_guests_message_but_the_question_goes_out() {
    let mut message = query("a.example.", RecordType::A);
    let secret = EdnsOption::Unknown(65_001, b"secret".to_vec());
    message.edns.as_mut().unwrap().options_mut().insert(secret);
    message.add_additional(address("secret.example.", 1));
    let out = question(&message).to_server().to_vec().unwrap();
    assert!(!out.windows(6).any(|part| part == b"secret"));
}

#[test]
fn only_what_was_asked_for_is_told_and_pinned() {
    let asked = question(&query("a.example.", RecordType::A));
    let records = vec![
        alias("a.example.", "b.example."),
        alias("b.example.", "c.example."),
        address("c.example.", 7),
        address("c.example.", 66),
        address("other.example.", 8),
    ];
    let denied = IpAddr::from([203, 0, 113, 66]);
    let answer = asked.answer(reply(&asked, records), |address| address != denied);
    let told = Message::from_vec(&answer.message).unwrap();
    let records: Vec<String> =
        told.answers.iter().map(|r| format!("{} {}", r.name, r.data)).collect();
    assert_eq!(
        records,
        ["a.example. b.example.", "b.example. c.example.", "c.example. 203.0.113.7"]
    );
    assert_eq!(answer.pins, [("a.example".parse().unwrap(), [203, 0, 113, 7].into())]);
}

#[test]
fn an_answer_without_an_allowed_address_says_why() {
    let asked = question(&query("a.example.", RecordType::A));
    let answer = asked.answer(reply(&asked, vec![address("a.example.", 1)]), |_| false);
    let told = Message::from_vec(&answer.message).unwrap();
    assert!(told.answers.is_empty() && answer.pins.is_empty());
    assert!(told.edns.unwrap().option(EXTENDED_ERROR.into()).is_some());
}

#[test]
fn aliases_that_lead_in_a_circle_end() {
    let asked = question(&query("a.example.", RecordType::A));
    let records = vec![alias("a.example.", "b.example."), alias("b.example.", "a.example.")];
    let answer = asked.answer(reply(&asked, records), |_| true);
    assert!(answer.pins.is_empty());
}

#[test]
fn a_long_answer_is_cut_for_datagrams_and_whole_in_streams() {
    let message = query("a.example.", RecordType::A);
    let records: Vec<Record> = (0..255).map(|last| address("a.example.", last)).collect();
    let asked = question(&message);
    let cut = Message::from_vec(&asked.answer(reply(&asked, records.clone()), |_| true).message);
    let cut = cut.unwrap();
    assert!(cut.metadata.truncation && cut.answers.is_empty());
    let asked = Question::read(&message.to_vec().unwrap(), Transport::Stream).unwrap().unwrap();
    let answer = asked.answer(reply(&asked, records), |_| true);
    assert_eq!(Message::from_vec(&answer.message).unwrap().answers.len(), ANSWERS_MAX);
    assert_eq!(answer.pins.len(), ANSWERS_MAX);
}

#[test]
fn what_nobody_can_answer_is_refused() {
    let code = |message: &Message| {
        let read = Question::read(&message.to_vec().unwrap(), Transport::Stream)?;
        let answer = read.err()?;
        Some(Message::from_vec(&answer.message).unwrap().metadata.response_code)
    };
    assert_eq!(code(&query("a.example.", RecordType::ANY)), Some(ResponseCode::Refused));
    assert_eq!(code(&query("a.example.", RecordType::AXFR)), Some(ResponseCode::Refused));
    let mut two = query("a.example.", RecordType::A);
    two.add_query(Query::query(name("b.example."), RecordType::A));
    assert_eq!(code(&two), Some(ResponseCode::FormErr));
    let mut update = query("a.example.", RecordType::A);
    update.metadata.op_code = OpCode::Update;
    assert_eq!(code(&update), Some(ResponseCode::NotImp));
    let response = query("a.example.", RecordType::A).into_response();
    assert!(Question::read(&response.to_vec().unwrap(), Transport::Stream).is_none());
}

#[test]
fn a_name_that_is_no_host_name_cannot_be_allowed() {
    let asked = question(&query(".", RecordType::NS));
    assert!(asked.name().is_none());
}
