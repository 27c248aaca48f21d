"""API keys: who may ask, and the cache salt each may be given. Pure.

Keys are kept as digests and compared in constant time; nothing here prints one.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable

from lmpoold.gateway.faults import unauthorized
from lmpoold.protocol.errors import ConfigError

MIN_KEY = 8
_SALT_TAG = b"lmpool cache salt\0"
_KEY_TAG = b"lmpool api key\0"


def read_keys(text: str) -> list[str]:
    """Return the keys of a key file: one a line, `#` begins a comment line.

    Raises: ConfigError: a key is too short, or holds blanks; the message names the line, not the
    key.
    """
    keys = []
    for number, line in enumerate(text.splitlines(), 1):
        key = line.strip()
        if not key or key.startswith("#"):
            continue
        if len(key) < MIN_KEY or not key.isascii() or len(key.split()) != 1:
            raise ConfigError(
                f"line {number} of the API keys must be one word of at least {MIN_KEY} ASCII "
                "characters"
            )
        keys.append(key)
    return keys


class KeyRing:
    """The keys that open the gateway; without any, it is open."""

    def __init__(self, keys: Iterable[str], *, salted: bool = False) -> None:
        """Keep the digests of `keys`.

        Args:
            keys: as callers send them.
            salted: whether each key gets a salt of its own, so that callers share no cached blocks
                and cannot probe one another's prompts by time.
        """
        self._salts = {
            _digest(_KEY_TAG, key): _digest(_SALT_TAG, key).hex() if salted else "" for key in keys
        }

    def __repr__(self) -> str:
        """Say how many keys there are, and no more."""
        return f"KeyRing({len(self._salts)} keys)"

    def admit(self, authorization: str) -> str:
        """Return the salt of the caller whose `Authorization` header this is, "" for none.

        Raises: Fault: 401.
        """
        if not self._salts:
            return ""
        scheme, _, key = authorization.partition(" ")
        if scheme.lower() != "bearer" or not key.strip():
            raise unauthorized("no API key: send the header `Authorization: Bearer <key>`")
        digest = _digest(_KEY_TAG, key.strip())
        found = None
        for known, salt in self._salts.items():  # all of them, so that time tells nothing
            if hmac.compare_digest(known, digest):
                found = salt
        if found is None:
            raise unauthorized("incorrect API key")
        return found


def _digest(tag: bytes, key: str) -> bytes:
    return hashlib.sha256(tag + key.encode("utf-8", "surrogateescape")).digest()
