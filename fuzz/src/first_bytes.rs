//! The first bytes of connections that only a name allows, or that may be for a host with header
//! rules: pieces change nothing, and nothing passes that did not come.

pub use forkd_netd::fuzzing::check_first_bytes as check;

/// Requests, whole and in chunks, and other protocols.
#[must_use]
pub fn seeds() -> Vec<Vec<u8>> {
    [
        "GET / HTTP/1.1\r\nHost: good.example\r\n\r\n",
        "POST / HTTP/1.1\r\nHost: good.example\r\nContent-Length: 5\r\n\r\nhelloGET / HTTP/1.1\r\n",
        "POST / HTTP/1.1\r\nHost: good.example\r\nTransfer-Encoding: chunked\r\n\r\n\
         5;x\r\nhello\r\n0\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: good.example\r\nUpgrade: websocket\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: ruled.example\r\n\r\n",
        "SSH-2.0-x\r\nand more",
        "\x16\x03\x01\x00\x05\x01\x00\x00\x01\x03",
    ]
    .iter()
    .map(|stream| [b"\x03", stream.as_bytes()].concat())
    .collect()
}
