//! `dirty`: holds pages that were written.
//!
//! It knows two words: `again` writes one word of each page, so that all are dirty since that
//! instant; `stop` gives the memory back.

use std::time::Instant;

use crate::area::Area;
use crate::args::{DirtyOptions, Order, Touch};
use crate::control::{self, After};
use crate::output::say;

/// Holds the memory until told to stop.
pub(crate) fn run(options: DirtyOptions) -> Result<(), String> {
    let socket = control::socket("dirty");
    let listener = control::listen(&socket)?;
    let begun = Instant::now();
    let mut area = Area::filled(options.mib)?;
    say(&written(&area, begun))?;
    control::serve(&listener, &socket, |word| match word {
        "again" => {
            let begun = Instant::now();
            area.write(area.pages(), Order::Sequential, Touch::Word);
            Some((written(&area, begun), After::Continue))
        }
        "stop" => Some(("{}".to_owned(), After::Stop)),
        _ => None,
    });
    Ok(())
}

fn written(area: &Area, begun: Instant) -> String {
    format!(r#"{{"pages":{},"took_us":{}}}"#, area.pages(), begun.elapsed().as_micros())
}
