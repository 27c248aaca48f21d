"""TLS to the server: files that cannot be used, and a certificate that this side refuses.

Neither heals by waiting, so a program that starts ends on them with the cure; one that has run for
a while goes on trying, for a certificate may be renewed.
"""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from typing import Any

from lmpoold.protocol.errors import ConfigError

REFUSED = "CERTIFICATE_VERIFY_FAILED"
"""In what OpenSSL says; errors of Sentinel and Cluster clients carry its words alone."""


def tls_cure(error: BaseException) -> str:
    """Return what to do if this side refused the server's certificate, "" for other errors."""
    if REFUSED not in str(error):
        return ""
    return (
        f"this side does not accept the server's certificate ({error}); give the CA that signed it "
        "as rediss://host:6379/0?ssl_ca_certs=/path/to/ca.pem, and reach the server by a name that "
        "its certificate holds"
    )


def check_tls_files(options: Mapping[str, Any]) -> None:
    """Read the files that a URL names, as a connection will.

    Args:
        options: of a connection, as redis-py has them.
    Raises: ConfigError: one cannot be read, or is none of its kind.
    """
    name, file = "ssl_ca_certs", options.get("ssl_ca_certs")
    try:
        if file:
            ssl.create_default_context(cafile=file)
        if options.get("ssl_certfile"):
            name, file = "ssl_certfile with ssl_keyfile", options["ssl_certfile"]
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            context.load_cert_chain(file, options.get("ssl_keyfile"), options.get("ssl_password"))
    except OSError as error:  # ssl.SSLError is one
        raise ConfigError(
            f"{name} of the Redis URL, {file}, cannot be used: {error}; "
            "name a PEM file that this user can read"
        ) from None
