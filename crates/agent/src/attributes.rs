//! Extended attributes of files: setting them, and telling those whose names begin as wanted.
//!
//! Guarantees: what is told is text, and within a limit, whatever programs have attached.

use std::ffi::CStr;
use std::io;
use std::os::fd::AsFd;
use std::path::Path;

use forkd_protocol::{ATTRIBUTES_BYTES_MAX, Attributes};
use rustix::fs::{XattrFlags, fsetxattr, lgetxattr, llistxattr, llistxattr_query};
use rustix::io::Errno;

/// Sets them all on an open file.
pub(crate) fn set(file: impl AsFd, attributes: &Attributes) -> io::Result<()> {
    for (name, value) in attributes {
        fsetxattr(&file, name, value.as_bytes(), XattrFlags::empty()).map_err(|errno| {
            let problem = match errno {
                Errno::NOTSUP => "this file system keeps no extended attributes".to_owned(),
                _ => io::Error::from(errno).to_string(),
            };
            io::Error::other(format!("set its attribute {name}: {problem}"))
        })?;
    }
    Ok(())
}

/// Those whose names begin with `prefix`, of a symbolic link the link's own. What is not text is
/// left out, and so is what no longer fits.
pub(crate) fn get(path: &Path, prefix: &str) -> Attributes {
    let mut told = Attributes::new();
    // Most files have none, and where there can be none, there are none.
    let length = llistxattr_query(path).unwrap_or(0);
    if length == 0 {
        return told;
    }
    let mut names = vec![0; length];
    // If there are more by now, somebody changes them just now, and none are told.
    let length = llistxattr(path, &mut names[..]).unwrap_or(0);
    let mut value = vec![0; ATTRIBUTES_BYTES_MAX];
    let mut left = ATTRIBUTES_BYTES_MAX;
    for name in names[..length].split_inclusive(|byte| *byte == 0) {
        let name = CStr::from_bytes_with_nul(name).ok().and_then(|name| name.to_str().ok());
        let Some(name) = name.filter(|name| name.starts_with(prefix)) else { continue };
        let Ok(length) = lgetxattr(path, name, &mut value[..]) else { continue };
        let Ok(text) = std::str::from_utf8(&value[..length]) else { continue };
        let Some(rest) = left.checked_sub(name.len() + text.len()) else { continue };
        left = rest;
        told.insert(name.to_owned(), text.to_owned());
    }
    told
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use super::*;

    fn attributes(all: &[(&str, &str)]) -> Attributes {
        all.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }

    #[test]
    fn those_that_begin_as_wanted_are_told_if_they_are_text_and_fit() {
        let folder = tempfile::tempdir_in("/var/tmp").unwrap();
        let path = folder.path().join("file");
        let file = File::create(&path).unwrap();
        let wanted = attributes(&[("user.a.one", "1"), ("user.a.none", "")]);
        set(&file, &wanted).unwrap();
        set(&file, &attributes(&[("user.b.two", "2")])).unwrap();
        fsetxattr(&file, "user.a.bytes", &[0xff], XattrFlags::empty()).unwrap();
        assert_eq!(get(&path, "user.a."), wanted);
        assert_eq!(get(&folder.path().join("none"), "user.a."), Attributes::new());
    }

    #[test]
    fn no_more_is_told_than_the_limit() {
        // It takes values of any length.
        let folder = tempfile::tempdir_in("/dev/shm").unwrap();
        let path = folder.path().join("file");
        let file = File::create(&path).unwrap();
        let long = "x".repeat(ATTRIBUTES_BYTES_MAX / 3);
        let names = ["user.a", "user.b", "user.c", "user.d"];
        let all = names.map(|name| (name, &*long));
        if let Err(error) = set(&file, &attributes(&all)) {
            eprintln!("not run: {error}");
            return;
        }
        let told = get(&path, "user.");
        assert_eq!(told.len(), 2, "{:?}", told.keys());
    }
}
