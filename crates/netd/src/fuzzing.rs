//! What must hold of the parsers for any input. Each function panics when it does not.

#![expect(clippy::missing_panics_doc, reason = "a check fails by panicking")]

pub use crate::dns::check_message;

use crate::gate::{Decision, Ended, Gate, Mode};
use crate::limit::HELD_BYTES_MAX;
use crate::wire::{self, Packet};
use forkd_types::network::DomainName;

/// A frame of a guest: whatever it is, its answers are well formed.
pub fn check_frame(input: &[u8]) {
    match wire::parse(input) {
        Some(Packet::Udp { packet, remote, guest_port, payload }) => {
            let refusal = wire::unreachable(packet).expect("a whole packet can be refused");
            assert!(refusal.len() > wire::ETHERNET_BYTES);
            let answer = wire::udp(remote, guest_port, payload);
            assert!(answer.len() >= wire::ETHERNET_BYTES + payload.len());
        }
        Some(Packet::Echo(echo)) => assert!(wire::echo_reply(echo).len() > echo.data.len()),
        Some(Packet::Tcp(segment)) => assert!(!(segment.opens && segment.resets)),
        Some(Packet::WhoHas(answer)) => assert!(answer.len() > wire::ETHERNET_BYTES),
        None => {}
    }
}

/// The first bytes of a connection: pieces change nothing, and little is held. Where names decide
/// nothing, everything passes. The first byte of the input says how long the pieces are.
pub fn check_first_bytes(input: &[u8]) {
    let Some((&piece, stream)) = input.split_first() else { return };
    for mode in [Mode::Names, Mode::Rules] {
        let whole = passed(mode, stream, HELD_BYTES_MAX);
        let pieces = passed(mode, stream, usize::from(piece) + 1);
        assert_eq!(whole, pieces, "pieces change what passes");
        let Some((whole, ended)) = whole else {
            assert_eq!(mode, Mode::Names, "nothing is refused");
            continue;
        };
        assert!(stream.starts_with(&whole), "something else passes");
        assert!(mode == Mode::Names || stream == whole, "something is kept");
        assert!(ended.is_none_or(|ended| ended.name.as_str() == "ruled.example"));
    }
}

/// What passes where `good.example` is allowed and `ruled.example` has rules, and what the gateway
/// ends; none for a stream that is refused.
fn passed(mode: Mode, stream: &[u8], piece: usize) -> Option<(Vec<u8>, Option<Ended>)> {
    let mut gate = Gate::new(mode);
    let (mut passed, mut ended) = (Vec::new(), None);
    let mut take = |gate: &mut Gate| {
        passed.extend_from_slice(gate.passed());
        gate.consume(gate.passed().len());
        assert!(gate.room() <= HELD_BYTES_MAX);
    };
    let decide = |name: &DomainName| match name.as_str() {
        "good.example" => Decision::Passes,
        "ruled.example" => Decision::Ends,
        _ => Decision::Refused,
    };
    for bytes in stream.chunks(piece) {
        gate.feed(bytes, decide).ok()?;
        ended = ended.or_else(|| gate.take_ended());
        take(&mut gate);
    }
    gate.finish().ok()?;
    take(&mut gate);
    Some((passed, ended))
}
