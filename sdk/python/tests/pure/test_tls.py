"""Over `https` the system's issuers are trusted, and one that is named."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest

from forkd_sdk import Client, ForkdError
from forkd_sdk._core.target import parse
from forkd_sdk._tls import trust


def test_certificates_are_looked_at_over_https_only(tmp_path: Path) -> None:
    missing = str(tmp_path / "none.pem")
    assert trust(parse("unix:/s"), missing) is True
    assert trust(parse("http://h"), missing) is True
    context = trust(parse("https://h"), None)
    assert isinstance(context, ssl.SSLContext)
    assert (context.verify_mode, context.check_hostname) == (ssl.CERT_REQUIRED, True)


@pytest.mark.parametrize("content", [None, "no certificate"])
def test_an_issuer_that_cannot_be_used_is_named(
    tmp_path: Path, content: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "ca.pem"
    if content is not None:
        file.write_text(content)
    monkeypatch.setenv("FORKD_CA_CERT", str(file))
    with pytest.raises(ForkdError, match=r"ca\.pem.*FORKD_CA_CERT"):
        Client("https://127.0.0.1:1").health()
