"""Addresses of previews."""

from __future__ import annotations

from .. import models
from .._codes import NoPreviewsError


def preview_url(sandbox: models.Sandbox, port: int) -> str:
    """The address of a preview of a port, without a token."""
    if sandbox.preview_url is None:
        raise NoPreviewsError(
            "the daemon was started without previews",
            hint="start it with `forkd serve --preview-listen 127.0.0.1:8890`",
        )
    return sandbox.preview_url.replace("{port}", str(port))
