//! Writes the seeds of every target to `FOLDER/<target>/seeds/`.

use std::path::PathBuf;
use std::{env, fs, io};

fn main() -> io::Result<()> {
    let folder = env::args_os().nth(1).map(PathBuf::from);
    let folder = folder.ok_or_else(|| io::Error::other("name the folder to write to"))?;
    for target in forkd_fuzz::TARGETS {
        let seeds = folder.join(target.name).join("seeds");
        fs::create_dir_all(&seeds)?;
        for (number, seed) in (target.seeds)().iter().enumerate() {
            fs::write(seeds.join(number.to_string()), seed)?;
        }
    }
    Ok(())
}
