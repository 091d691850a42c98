"""The daemon is looked for where the command line looks for it."""

from __future__ import annotations

import pytest

from forkd_sdk._core.target import Target, of_environment, parse
from forkd_sdk.errors import ForkdError


@pytest.mark.parametrize(
    ("text", "target"),
    [
        ("http://127.0.0.1:8889/", Target(url="http://127.0.0.1:8889")),
        ("https://h", Target(url="https://h")),
        ("unix:/run/s", Target(socket="/run/s")),
        ("unix:///run/s", Target(socket="/run/s")),
    ],
)
def test_addresses(text: str, target: Target) -> None:
    assert parse(text) == target


@pytest.mark.parametrize("text", ["", "127.0.0.1:8889", "unix:relative", "ftp://h"])
def test_other_text_is_refused_with_a_remedy(text: str) -> None:
    with pytest.raises(ForkdError) as refused:
        parse(text)
    assert "unix:" in refused.value.hint


@pytest.mark.parametrize(
    ("environment", "uid", "found"),
    [
        ({"FORKD_URL": "http://h:1", "FORKD_SOCKET": "/s"}, 0, "http://h:1"),
        ({"FORKD_SOCKET": "/s", "FORKD_HOME": "/h"}, 0, "/s"),
        ({"FORKD_HOME": "/h"}, 0, "/h/run/forkd.sock"),
        ({}, 0, "/run/forkd/forkd.sock"),
        ({"XDG_RUNTIME_DIR": "/run/user/5"}, 5, "/run/user/5/forkd/forkd.sock"),
        ({"XDG_RUNTIME_DIR": "relative"}, 5, "/tmp/forkd-5/forkd.sock"),
        ({}, 5, "/tmp/forkd-5/forkd.sock"),
    ],
)
def test_the_environment_decides(environment: dict[str, str], uid: int, found: str) -> None:
    assert str(of_environment(environment, uid)) == found
