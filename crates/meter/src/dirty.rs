//! `dirty`: holds pages that were written, and writes one word of each again when it is asked to,
//! so that all are dirty since that instant.

use std::num::NonZeroU64;
use std::time::Instant;

use forkd_meter_protocol::{Dirtied, Order, Question, Touch};

use crate::area::Area;
use crate::control::{self, After};
use crate::say::say;

/// Holds so many MiB, for as long as the guest lives.
pub(crate) fn run(mib: NonZeroU64) -> Result<(), String> {
    let socket = control::socket("dirty");
    let listener = control::listen(&socket)?;
    let begun = Instant::now();
    let mut area = Area::filled(mib)?;
    say(&dirtied(&area, begun))?;
    control::serve(&listener, &socket, |question| {
        (question == Question::DirtyAgain).then(|| {
            let begun = Instant::now();
            area.write(area.pages(), Order::Sequential, Touch::Word);
            (dirtied(&area, begun), After::Continue)
        })
    });
    Ok(())
}

fn dirtied(area: &Area, begun: Instant) -> Dirtied {
    let took_us = u64::try_from(begun.elapsed().as_micros()).unwrap_or(u64::MAX);
    Dirtied { pages: area.pages() as u64, took_us }
}
