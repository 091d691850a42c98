//! Images that Docker has saved, and a Docker daemon that saves them.

use std::io::{Read as _, Write as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use forkd_oci::{Cache, Digest, OciError, Pulled};
use serde_json::json;

use crate::image::{Layer, Nobody, pull};

/// What `docker save` writes of an image with one file, called `app:v1`.
fn saved() -> Vec<u8> {
    let layer = Layer::new().file("hello", "from docker").finish();
    let config = json!({"architecture": "amd64", "os": "linux", "config": {"Env": ["A=1"]},
        "rootfs": {"type": "layers", "diff_ids": [Digest::of(&layer).to_string()]}});
    let manifest = json!([{"Config": "config.json", "RepoTags": ["app:v1"],
        "Layers": ["one/layer.tar"]}]);
    Layer::new()
        .file("config.json", config.to_string())
        .file("one/layer.tar", layer)
        .file("manifest.json", manifest.to_string())
        .finish()
}

/// A daemon that has `app:v1`, and notes what it is asked for.
struct Daemon {
    folder: tempfile::TempDir,
    asked: Arc<Mutex<Vec<String>>>,
}

impl Daemon {
    /// Says `bytes` of the archive and ends.
    fn with(bytes: usize) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let listener = UnixListener::bind(folder.path().join("docker.sock")).unwrap();
        let asked = Arc::new(Mutex::new(Vec::new()));
        let noted = Arc::clone(&asked);
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                answer(stream.unwrap(), bytes, &noted);
            }
        });
        Self { folder, asked }
    }

    fn socket(&self) -> PathBuf {
        self.folder.path().join("docker.sock")
    }

    fn pull(&self, reference: &str) -> Result<Pulled, OciError> {
        pull_at(&self.socket(), reference, &self.cache())
    }

    fn cache(&self) -> PathBuf {
        self.folder.path().join("cache")
    }
}

fn pull_at(socket: &Path, reference: &str, cache: &Path) -> Result<Pulled, OciError> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    let cache = Cache::new(cache.to_owned()).with_docker_at(socket.to_owned());
    runtime.block_on(cache.pull(&reference.parse()?, &Nobody))
}

fn answer(mut stream: UnixStream, bytes: usize, asked: &Mutex<Vec<String>>) {
    let mut head = Vec::new();
    let mut byte = [0];
    while !head.ends_with(b"\r\n\r\n") && stream.read(&mut byte).is_ok_and(|count| count == 1) {
        head.push(byte[0]);
    }
    let head = String::from_utf8(head).unwrap();
    let path = head.split(' ').nth(1).unwrap_or_default().to_owned();
    let archive = saved();
    let (status, body, length) = match path.as_str() {
        "/images/app:v1/json" => {
            let text = json!({"Id": "sha256:x", "Size": archive.len()}).to_string();
            ("200 OK", text.clone().into_bytes(), text.len())
        }
        "/images/app:v1/get" => {
            ("200 OK", archive[..bytes.min(archive.len())].to_vec(), archive.len())
        }
        "/images/broken:latest/json" => {
            let text = r#"{"message":"driver failed"}"#;
            ("500 Internal Server Error", text.into(), text.len())
        }
        _ => {
            let text = r#"{"message":"No such image"}"#;
            ("404 Not Found", text.into(), text.len())
        }
    };
    asked.lock().unwrap().push(path);
    let head =
        format!("HTTP/1.1 {status}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n");
    // Whoever does not want the rest has gone.
    stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(&body)).ok();
}

/// What is left where archives are kept while they are read.
fn left(cache: &Path) -> usize {
    std::fs::read_dir(cache.join("partial")).unwrap().count()
}

#[test]
fn an_image_of_docker_is_the_one_that_it_saves_and_no_archive_is_left() {
    let daemon = Daemon::with(usize::MAX);
    let image = daemon.pull("docker-daemon:app:v1").unwrap();
    assert_eq!(image.name, "docker-daemon:app:v1");
    assert_eq!(image.config.program.env, ["A=1"]);
    assert_eq!(*daemon.asked.lock().unwrap(), ["/images/app:v1/json", "/images/app:v1/get"]);
    assert_eq!(left(&daemon.cache()), 0);
    // The same image by another way is the same.
    let file = daemon.folder.path().join("saved.tar");
    std::fs::write(&file, saved()).unwrap();
    let reference = format!("docker-archive:{}:app:v1", file.display());
    assert_eq!(pull(&reference, &daemon.cache()).unwrap().id, image.id);
    let error = pull(&format!("{reference}x"), &daemon.cache()).unwrap_err().to_string();
    assert!(error.contains("name one of its images: app:v1"), "{error}");
}

#[test]
fn what_docker_does_not_have_or_cannot_give_is_named() {
    let daemon = Daemon::with(2000);
    for (reference, words) in [
        ("docker-daemon:missing", "missing:latest in Docker; `docker image ls`"),
        ("docker-daemon:broken", "500 Internal Server Error: driver failed"),
        ("docker-daemon:app:v1", "ask Docker at"),
    ] {
        let error = daemon.pull(reference).unwrap_err().to_string();
        assert!(error.contains(words), "{reference}: {error}");
        assert_eq!(left(&daemon.cache()), 0, "{reference}");
    }
    let nowhere = daemon.folder.path().join("nowhere");
    let error = pull_at(&nowhere, "docker-daemon:app", &daemon.cache()).unwrap_err().to_string();
    let words = [nowhere.to_str().unwrap(), "is Docker running"];
    assert!(words.iter().all(|words| error.contains(words)), "{error}");
}
