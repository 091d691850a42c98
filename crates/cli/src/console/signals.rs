//! Signals that would end this program, as values: whoever waits for them ends it in order.

use std::future::Future;
use std::io;
use std::process::ExitCode;

use forkd_api::SignalName;
use tokio::signal::unix::{Signal, SignalKind, signal};

/// A signal that was sent to this program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Caught {
    Hangup,
    Interrupt,
    Quit,
    Terminate,
}

impl Caught {
    const fn number(self) -> u8 {
        match self {
            Self::Hangup => 1,
            Self::Interrupt => 2,
            Self::Quit => 3,
            Self::Terminate => 15,
        }
    }

    /// The same signal for a program in a sandbox.
    pub(crate) fn for_guest(self) -> SignalName {
        SignalName::Number(self.number().into())
    }

    /// How a program ends that dies of it.
    pub(crate) fn exit(self) -> ExitCode {
        ExitCode::from(128 + self.number())
    }
}

/// From its creation on these signals do nothing by themselves.
pub(crate) struct Signals {
    hangup: Signal,
    interrupt: Signal,
    quit: Signal,
    terminate: Signal,
}

impl Signals {
    pub(crate) fn catch() -> io::Result<Self> {
        Ok(Self {
            hangup: signal(SignalKind::hangup())?,
            interrupt: signal(SignalKind::interrupt())?,
            quit: signal(SignalKind::quit())?,
            terminate: signal(SignalKind::terminate())?,
        })
    }

    /// Catches nothing that other tests of the same process send.
    #[cfg(test)]
    pub(crate) fn deaf() -> Self {
        let other = || signal(SignalKind::user_defined1()).unwrap();
        Self { hangup: other(), interrupt: other(), quit: other(), terminate: other() }
    }

    /// The next one. Safe to cancel.
    pub(crate) async fn next(&mut self) -> Caught {
        tokio::select! {
            _ = self.hangup.recv() => Caught::Hangup,
            _ = self.interrupt.recv() => Caught::Interrupt,
            _ = self.quit.recv() => Caught::Quit,
            _ = self.terminate.recv() => Caught::Terminate,
        }
    }

    /// What `work` gives, unless a signal comes first: then it is dropped.
    pub(crate) async fn or<T>(&mut self, work: impl Future<Output = T>) -> Result<T, Caught> {
        tokio::select! {
            done = work => Ok(done),
            caught = self.next() => Err(caught),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signal_is_the_same_one_in_the_guest() {
        for (caught, name) in [
            (Caught::Hangup, "HUP"),
            (Caught::Interrupt, "INT"),
            (Caught::Quit, "QUIT"),
            (Caught::Terminate, "TERM"),
        ] {
            let by_name = SignalName::Name(name.to_owned());
            let number = |signal| forkd_api::SignalRequest { signal }.check().unwrap();
            assert_eq!(number(caught.for_guest()), number(by_name), "{name}");
        }
    }

    #[tokio::test]
    async fn a_signal_that_comes_first_ends_the_work() {
        let mut signals = Signals::catch().unwrap();
        assert_eq!(signals.or(async { 7 }).await, Ok(7));
        let own = rustix::process::getpid();
        rustix::process::kill_process(own, rustix::process::Signal::HUP).unwrap();
        assert_eq!(signals.or(std::future::pending::<()>()).await, Err(Caught::Hangup));
    }
}
