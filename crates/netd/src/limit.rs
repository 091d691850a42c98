//! What one sandbox may take of the gateway. Beyond a limit there is a refusal and a line in the
//! log, never a wait.

use std::time::Duration;

use forkd_types::network::LINK_MTU;

/// TCP connections, in and out.
pub(crate) const TCP_FLOWS_MAX: usize = 1024;
/// Connections that are being made at once; more wait their turn.
pub(crate) const DIALS_MAX: usize = 64;
/// Connections that are being made or wait.
pub(crate) const HALF_OPEN_MAX: usize = 256;
/// Connections that the guest may believe in and that are not: its own and those that it inherits.
pub(crate) const STALE_MAX: usize = 2 * TCP_FLOWS_MAX;
/// Outgoing connections a second, and at once after a rest.
pub(crate) const FLOWS_PER_SECOND: u32 = 200;
/// For the other end to take a connection.
pub(crate) const DIAL_DEADLINE: Duration = Duration::from_secs(15);
/// For the guest to take a connection: below what a client waits.
pub(crate) const INBOUND_DEADLINE: Duration = Duration::from_secs(5);

/// Members that want to connect and whom a link has not heard yet; more wait their turn.
pub(crate) const KNOCKS_QUEUED: usize = 64;

/// Pairs of addresses that exchange datagrams.
pub(crate) const DATAGRAM_FLOWS_MAX: usize = 256;
/// Until such a pair is forgotten.
pub(crate) const DATAGRAM_IDLE: Duration = Duration::from_secs(30);

/// Queries to the resolver a second, and at once after a rest.
pub(crate) const QUERIES_PER_SECOND: u32 = 100;
/// Queries that are not answered yet.
pub(crate) const QUERIES_MAX: usize = 64;
/// For one of the host's resolvers to answer.
pub(crate) const RESOLVER_DEADLINE: Duration = Duration::from_secs(2);
/// Of the host's resolvers, as in the C library.
pub(crate) const RESOLVERS_MAX: usize = 3;
/// Addresses of one answer that reach the guest.
pub(crate) const ANSWERS_MAX: usize = 64;
/// Addresses whose names are remembered; the least used go first.
pub(crate) const PINS_MAX: usize = 4096;
/// Names of one address.
pub(crate) const NAMES_PER_PIN_MAX: usize = 16;

/// First bytes of a connection that are held until they are understood.
pub(crate) const HELD_BYTES_MAX: usize = 64 << 10;

/// Connections to hosts with header rules.
pub(crate) const PROXIES_MAX: usize = 128;
/// For a TLS handshake, of either side.
pub(crate) const HANDSHAKE_DEADLINE: Duration = Duration::from_secs(15);
/// The head of a request or an answer.
pub(crate) const HEAD_BYTES_MAX: usize = 64 << 10;
/// For the head of a request. A connection may rest for as long before the next one.
pub(crate) const HEAD_DEADLINE: Duration = Duration::from_secs(300);
/// What a guest may still send when its connection has ended, and how long it may take.
pub(crate) const LINGER_BYTES_MAX: u64 = 16 << 20;
pub(crate) const LINGER_DEADLINE: Duration = Duration::from_secs(5);
/// Requests at once on a connection of HTTP/2.
pub(crate) const STREAMS_MAX: u32 = 64;
/// Bytes of a body that one of them may hold.
pub(crate) const STREAM_WINDOW_BYTES: u32 = 256 << 10;
/// Certificates that are kept, of all sandboxes.
pub(crate) const CERTIFICATES_MAX: usize = 1024;

/// A hold ends by itself after this.
pub(crate) const HOLD_MAX: Duration = Duration::from_millis(50);
/// Frames that wait until the VMM takes them. With more, the guest is not read.
pub(crate) const FRAMES_QUEUED_MAX: usize = 1024;
/// Frames, and flows, that are looked at before another link gets the thread.
pub(crate) const WORK_PER_TURN: usize = 32;
/// How long each of them may take together. One of the largest frames is written within 50 us, but
/// takes milliseconds where the processors are busy.
pub(crate) const TURN_MAX: Duration = Duration::from_micros(500);
/// Bytes that one flow may pass on before the next one gets its turn.
pub(crate) const BYTES_PER_TURN: usize = 512 << 10;

/// Kinds of refusals that are counted instead of being repeated in the log.
pub(crate) const REFUSALS_COUNTED_MAX: usize = 256;
/// How long a refusal that is repeated is only counted.
pub(crate) const REFUSALS_COUNTED_FOR: Duration = Duration::from_secs(10);

/// Bytes that a connection may hold in each direction. Few connections get much; a guest that opens
/// all it may open cannot take more than 80 MiB of the gateway with them.
pub(crate) const fn buffer_bytes(flows: usize) -> usize {
    match flows {
        0..32 => 256 << 10,
        32..256 => 64 << 10,
        _ => 16 << 10,
    }
}

const _: () = assert!(
    2 * (32 * buffer_bytes(0) + 224 * buffer_bytes(32) + 768 * buffer_bytes(256)) <= 80 << 20
);
const _: () = assert!(DIALS_MAX < HALF_OPEN_MAX && HALF_OPEN_MAX < TCP_FLOWS_MAX);
const _: () = assert!(HELD_BYTES_MAX <= 2 * LINK_MTU);

/// Permits events at a rate, and as many at once as in one second.
#[derive(Debug)]
pub(crate) struct Rate {
    per_second: u32,
    left: f64,
    counted: std::time::Instant,
}

impl Rate {
    /// A rate that has rested.
    pub(crate) fn new(per_second: u32, now: std::time::Instant) -> Self {
        Self { per_second, left: f64::from(per_second), counted: now }
    }

    /// Whether one more event is permitted now.
    pub(crate) fn permits(&mut self, now: std::time::Instant) -> bool {
        let rested = now.saturating_duration_since(self.counted).as_secs_f64();
        let most = f64::from(self.per_second);
        self.left = (self.left + rested * most).min(most);
        self.counted = now;
        let permitted = self.left >= 1.0;
        if permitted {
            self.left -= 1.0;
        }
        permitted
    }
}

/// What is left of one kind of work in a turn: [`WORK_PER_TURN`] pieces, within [`TURN_MAX`].
#[derive(Debug)]
pub(crate) struct TurnShare {
    pieces: usize,
    until: std::time::Instant,
}

impl TurnShare {
    /// Of a turn that begins.
    pub(crate) fn new(now: std::time::Instant) -> Self {
        Self { pieces: 0, until: now + TURN_MAX }
    }

    /// Whether another piece may be begun. The first one always may, so that every turn gets on.
    pub(crate) fn permits(&mut self, now: std::time::Instant) -> bool {
        let permitted = self.pieces == 0 || (self.pieces < WORK_PER_TURN && now < self.until);
        self.pieces += usize::from(permitted);
        permitted
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_turn_is_bounded_by_pieces_and_by_time_and_does_one_piece_at_least() {
        let start = std::time::Instant::now();
        let mut quick = TurnShare::new(start);
        assert_eq!((0..99).filter(|_| quick.permits(start)).count(), WORK_PER_TURN);
        let mut slow = TurnShare::new(start);
        let piece = TURN_MAX / 4;
        assert_eq!((0..99).filter(|done| slow.permits(start + piece * *done)).count(), 4);
        let mut late = TurnShare::new(start);
        assert_eq!((0..99).filter(|_| late.permits(start + 2 * TURN_MAX)).count(), 1);
    }

    #[test]
    fn a_rate_permits_a_burst_and_then_its_pace() {
        let start = std::time::Instant::now();
        let mut rate = Rate::new(10, start);
        assert_eq!((0..20).filter(|_| rate.permits(start)).count(), 10);
        let later = start + Duration::from_millis(250);
        assert_eq!((0..20).filter(|_| rate.permits(later)).count(), 2);
        let much_later = start + Duration::from_secs(60);
        assert_eq!((0..20).filter(|_| rate.permits(much_later)).count(), 10);
    }
}
