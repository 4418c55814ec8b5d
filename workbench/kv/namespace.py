"""Namespaces: keys and values may be met again only by a request for which they would be computed the same.

What they depend on besides the tokens: the weights, the number formats, the layout of a block, the rotary settings. A
tenant's salt belongs here too: who does not know it meets none of the blocks, and cannot find out that they are there.
"""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import sha256

_DOMAIN = b"workbench kv namespace 1"
_FIELD, _SALT = b"f", b"s"


def namespace(fields: Mapping[str, str], salt: str = "") -> bytes:
    """32 bytes that stand for all fields and the salt; another value of any of them gives other bytes.

    Every part carries its length, so parts cannot run together, and its kind, so a salt is never taken for a field.
    The order of the fields does not matter. An empty salt is none.
    """
    digest = sha256(_DOMAIN)
    for name, value in sorted(fields.items()):
        digest.update(_FIELD + _told(name) + _told(value))
    if salt:
        digest.update(_SALT + _told(salt))
    return digest.digest()


def _told(text: str) -> bytes:
    raw = text.encode()
    return len(raw).to_bytes(8, "little") + raw
