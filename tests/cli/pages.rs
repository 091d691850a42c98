//! A page that Python serves in a guest.

/// Defines `Page`, which answers each request with what its `text` gives.
pub(crate) const PAGE: &str = r"
import http.server, threading
class Page(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        body = self.text().encode()
        self.send_response(200)
        self.send_header('content-length', str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def log_message(self, *_):
        pass
";
