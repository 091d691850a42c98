//! The thread that reads the streams of all VMMs into their rings.
//!
//! It waits until one has something, reads one chunk of each that does, and rests in proportion to
//! the processor time that this took. So all streams together cost a bounded share of a processor;
//! whoever writes more than that waits. Idle streams cost nothing.
//!
//! The rests are short, because a guest's serial port writes byte by byte, and a socket holds less
//! than 300 writes, however small.

use std::collections::HashMap;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::buffer::spare_capacity;
use rustix::event::epoll;
use rustix::io::Errno;

use super::ring::{CHUNK_BYTES, Ring};

/// At least so long between two reads of a stream: a serial port gets rid of 250 KB/s.
const REST_MIN: Duration = Duration::from_millis(1);
/// Rest for each unit of processor time: reading takes a tenth of a processor at most.
const REST_FOR_WORK: u32 = 9;
/// Streams that are read between two rests; the others have their turn after the next.
const STREAMS_AT_ONCE: usize = 32;
/// Chunks that a stream can hold when its VMM has ended: a socket's buffer and a pipe's.
const CHUNKS_LEFT_MAX: usize = 16;

/// One stream, read until this is dropped or it ends.
#[derive(Debug)]
pub(super) struct Stream {
    drain: Arc<Drain>,
    number: u64,
    source: Arc<Source>,
}

#[derive(Debug)]
struct Source {
    end: OwnedFd,
    /// Held while reading, so that chunks are written in their order.
    ring: Mutex<Ring>,
}

impl Source {
    /// Reads one chunk into the ring. The end of the stream is [`Errno::PIPE`].
    fn read_chunk(&self) -> Result<(), Errno> {
        let mut ring = self.ring.lock().unwrap_or_else(PoisonError::into_inner);
        let mut chunk = Vec::with_capacity(CHUNK_BYTES);
        match rustix::io::read(&self.end, spare_capacity(&mut chunk))? {
            0 => Err(Errno::PIPE),
            _ => {
                if let Err(error) = ring.append(&chunk) {
                    tracing::debug!(%error, "output of a VMM is lost");
                }
                Ok(())
            }
        }
    }
}

impl Stream {
    /// Reads `end`, which does not block, into `ring` from now on.
    pub(super) fn begin(end: OwnedFd, ring: Ring) -> io::Result<Self> {
        let drain = Drain::of_this_process()?;
        let source = Arc::new(Source { end, ring: Mutex::new(ring) });
        let number = drain.add(&source)?;
        Ok(Self { drain, number, source })
    }

    /// Reads what is there.
    pub(super) fn catch_up(&self) {
        for _ in 0..CHUNKS_LEFT_MAX {
            if self.source.read_chunk().is_err() {
                return;
            }
        }
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.drain.remove(self.number);
        self.catch_up();
    }
}

/// All streams of this process, and the means to wait for them.
#[derive(Debug)]
struct Drain {
    epoll: OwnedFd,
    sources: Mutex<Sources>,
}

#[derive(Debug, Default)]
struct Sources {
    next: u64,
    all: HashMap<u64, Arc<Source>>,
}

impl Drain {
    /// The drain, with its thread. It lives as long as the process: one for all VMMs costs less
    /// than one for each, and an idle one nothing.
    fn of_this_process() -> io::Result<Arc<Self>> {
        static DRAIN: Mutex<Option<Arc<Drain>>> = Mutex::new(None);
        let mut known = DRAIN.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(drain) = known.as_ref() {
            return Ok(Arc::clone(drain));
        }
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let drain = Arc::new(Self { epoll, sources: Mutex::default() });
        let theirs = Arc::clone(&drain);
        std::thread::Builder::new().name("forkd-output".into()).spawn(move || theirs.run())?;
        Ok(Arc::clone(known.insert(drain)))
    }

    fn lock(&self) -> MutexGuard<'_, Sources> {
        self.sources.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn add(&self, source: &Arc<Source>) -> io::Result<u64> {
        let mut sources = self.lock();
        let number = sources.next;
        let data = epoll::EventData::new_u64(number);
        epoll::add(&self.epoll, &source.end, data, epoll::EventFlags::IN)?;
        sources.next += 1;
        sources.all.insert(number, Arc::clone(source));
        Ok(number)
    }

    /// Reads a stream no more. It may have ended before.
    fn remove(&self, number: u64) {
        if let Some(source) = self.lock().all.remove(&number)
            && let Err(error) = epoll::delete(&self.epoll, &source.end)
        {
            tracing::error!(%error, "cannot leave the output of a VMM alone");
        }
    }

    fn run(&self) {
        let mut ready = Vec::with_capacity(STREAMS_AT_ONCE);
        let mut worked = thread_time();
        loop {
            ready.clear();
            match epoll::wait(&self.epoll, spare_capacity(&mut ready), None) {
                Ok(_) => {}
                Err(Errno::INTR) => continue,
                Err(error) => {
                    tracing::error!(%error, "the output of VMMs is not read any more");
                    return;
                }
            }
            for event in &ready {
                let number = event.data.u64();
                let source = self.lock().all.get(&number).cloned();
                let Some(source) = source else { continue };
                match source.read_chunk() {
                    Ok(()) | Err(Errno::INTR | Errno::AGAIN) => {}
                    // The VMM has ended.
                    Err(_) => self.remove(number),
                }
            }
            let now = thread_time();
            std::thread::sleep((now.saturating_sub(worked) * REST_FOR_WORK).max(REST_MIN));
            worked = now;
        }
    }
}

/// Processor time that this thread has had.
fn thread_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::try_from(time).unwrap_or_default()
}
