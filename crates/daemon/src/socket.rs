//! The daemon's Unix socket: reachable by those it is for, never stolen from a living daemon.

use std::fs;
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, FileTypeExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use tokio::net::UnixListener;

use crate::SocketMode;

/// Longest path of a Unix socket: `sun_path` without its final zero.
const SOCKET_PATH_BYTES_MAX: usize = 107;

/// Room that the engine needs below the run directory for its own sockets.
const SOCKET_NAME_BYTES: usize = "/sb-0123456789ab/qmp-resume.sock".len();

/// Refuses a path that no socket can have.
pub(crate) fn check_path(path: &Path) -> Result<(), String> {
    let bytes = path.as_os_str().len();
    if bytes > SOCKET_PATH_BYTES_MAX {
        return Err(format!(
            "the socket path `{}` has {bytes} bytes, the kernel allows {SOCKET_PATH_BYTES_MAX}",
            path.display()
        ));
    }
    Ok(())
}

/// Refuses a run directory below which VMs' sockets would not fit.
pub(crate) fn check_run_dir(directory: &Path) -> Result<(), String> {
    let bytes_max = SOCKET_PATH_BYTES_MAX - SOCKET_NAME_BYTES;
    let bytes = directory.as_os_str().len();
    if bytes > bytes_max {
        return Err(format!(
            "the run directory `{}` has {bytes} bytes; {bytes_max} are possible, because the \
             sockets below it must fit into {SOCKET_PATH_BYTES_MAX}",
            directory.display()
        ));
    }
    Ok(())
}

/// Creates `directory` and what is missing above it, for its owner only.
pub(crate) fn create_private(directory: &Path) -> io::Result<()> {
    fs::DirBuilder::new().recursive(true).mode(0o700).create(directory)
}

/// A listening socket's file; removed when dropped.
#[derive(Debug)]
pub(crate) struct SocketFile(PathBuf);

impl Drop for SocketFile {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_file(&self.0) {
            tracing::warn!(path = %self.0.display(), %error, "the socket was not removed");
        }
    }
}

/// Listens at `path`. What a dead daemon left there is replaced; a living one is not.
pub(crate) async fn listen(
    path: &Path,
    mode: SocketMode,
) -> io::Result<(UnixListener, SocketFile)> {
    if let Some(directory) = path.parent() {
        create_private(directory)?;
    }
    match fs::symlink_metadata(path) {
        Ok(metadata) if !metadata.file_type().is_socket() => {
            return Err(io::Error::new(io::ErrorKind::AlreadyExists, "it is not a socket"));
        }
        Ok(_) if tokio::net::UnixStream::connect(path).await.is_ok() => {
            let problem = "another daemon listens there";
            return Err(io::Error::new(io::ErrorKind::AddrInUse, problem));
        }
        Ok(_) => fs::remove_file(path)?,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(error),
    }
    // Under another name until it has its permissions: there is no moment in between.
    let temporary = path.with_extension("new");
    if fs::symlink_metadata(&temporary).is_ok() {
        fs::remove_file(&temporary)?;
    }
    let listener = UnixListener::bind(&temporary)?;
    fs::set_permissions(&temporary, fs::Permissions::from_mode(mode.bits()))?;
    fs::rename(&temporary, path)?;
    Ok((listener, SocketFile(path.to_owned())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_stale_socket_is_replaced_and_a_living_one_is_not() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("run").join("s.sock");
        let (listener, file) = listen(&path, SocketMode::default()).await.unwrap();
        let mode = fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        let above = fs::metadata(path.parent().unwrap()).unwrap().permissions().mode();
        assert_eq!(above & 0o777, 0o700);
        assert_eq!(
            listen(&path, SocketMode::default()).await.unwrap_err().kind(),
            io::ErrorKind::AddrInUse
        );
        drop(listener);
        std::mem::forget(file);
        let (_listener, file) = listen(&path, SocketMode::default()).await.unwrap();
        drop(file);
        assert!(!path.exists());
    }

    #[tokio::test]
    async fn a_file_that_is_no_socket_is_left_alone() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("notes");
        fs::write(&path, "mine").unwrap();
        assert!(listen(&path, SocketMode::default()).await.is_err());
        assert_eq!(fs::read_to_string(&path).unwrap(), "mine");
    }

    #[test]
    fn paths_that_no_socket_can_have_are_refused_with_the_limit() {
        let long = PathBuf::from(format!("/{}", "x".repeat(107)));
        assert!(check_path(&long).unwrap_err().contains("107"));
        assert!(check_run_dir(Path::new("/run/forkd")).is_ok());
        assert!(check_run_dir(&long).is_err());
    }
}
