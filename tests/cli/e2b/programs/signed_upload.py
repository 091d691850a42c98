"""Secured files: who has a signed address may put or get that one file, as long as it says."""

import time
import urllib.error
import urllib.request

from e2b import Sandbox

FORM = (
    b"--edge\r\n"
    b'Content-Disposition: form-data; name="file"; filename="report.txt"\r\n\r\n'
    b"of a client without a key\r\n--edge--\r\n"
)


def outcome(address, data=None):
    """What a client gets that has nothing but the address."""
    kind = {"Content-Type": "multipart/form-data; boundary=edge"}
    try:
        with urllib.request.urlopen(urllib.request.Request(address, data, kind)) as answer:
            return answer.read().decode()
    except urllib.error.HTTPError:
        return "refused"


with Sandbox.create() as sandbox:
    put = sandbox.upload_url("/srv/report.txt", use_signature_expiration=60)
    outcome(put, FORM)
    print("in the sandbox:", sandbox.files.read("/srv/report.txt"))
    get = sandbox.download_url("/srv/report.txt", use_signature_expiration=60)
    print("downloaded:", outcome(get))
    print("another file:", outcome(get.replace("report.txt", "other.txt")))
    print("without signature:", outcome(get.partition("&signature")[0]))
    brief = sandbox.download_url("/srv/report.txt", use_signature_expiration=1)
    time.sleep(2.5)
    print("too late:", outcome(brief))
