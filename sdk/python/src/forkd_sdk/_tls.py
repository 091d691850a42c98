"""Whom to believe that it is the daemon."""

from __future__ import annotations

import ssl

from ._core.failure import ForkdError
from ._core.target import Target


def trust(target: Target, ca_cert: str | None) -> ssl.SSLContext | bool:
    """What the system trusts, and this issuer; nothing is read unless the target is `https`."""
    if target.url is None or not target.url.startswith("https://"):
        return True
    context = ssl.create_default_context()
    if ca_cert is not None:
        try:
            context.load_verify_locations(ca_cert)
        except OSError as error:
            raise ForkdError(
                f"the certificate `{ca_cert}` cannot be used: {error}",
                hint="FORKD_CA_CERT names a file with the issuer's certificate in PEM",
            ) from error
    return context
