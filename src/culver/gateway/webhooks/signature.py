"""Signatures of webhook calls, by the Standard Webhooks scheme: receivers check them with its libraries.

    webhook-id:         the same at every try of the same records, so that a receiver can tell a repetition
    webhook-timestamp:  seconds since 1970, of this try
    webhook-signature:  v1,BASE64 of HMAC-SHA256 over "id.timestamp.body", once for each secret

A secret is written whsec_BASE64. Several secrets at a time are for changing them: while the receiver may know either,
calls carry a signature with each.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import secrets
from collections.abc import Sequence

PREFIX = "whsec_"
# What the scheme allows.
KEY_BYTES_MIN = 24
KEY_BYTES_MAX = 64
_NEW_KEY_BYTES = 32
_SHOWN_CHARACTERS = 4


def new_secret() -> str:
    """A secret from the system's randomness."""
    return PREFIX + base64.b64encode(secrets.token_bytes(_NEW_KEY_BYTES)).decode()


def key_of(secret: str) -> bytes:
    """The key that a secret stands for. ValueError says what is wrong with it, without repeating it."""
    if not secret.startswith(PREFIX):
        raise ValueError(f"a secret begins with {PREFIX}")
    try:
        key = base64.b64decode(secret.removeprefix(PREFIX), validate=True)
    except (binascii.Error, ValueError):
        raise ValueError(f"what follows {PREFIX} in a secret is base64") from None
    if not KEY_BYTES_MIN <= len(key) <= KEY_BYTES_MAX:
        raise ValueError(
            f"a secret is of {KEY_BYTES_MIN} to {KEY_BYTES_MAX} bytes; this one has {len(key)} when decoded"
        )
    return key


def masked(secret: str) -> str:
    """Enough of a secret to tell it from others, and too little to use it."""
    return f"{PREFIX}…{secret[-_SHOWN_CHARACTERS:]}"


def signature_headers(keys: Sequence[bytes], call_id: str, timestamp_s: int, body: bytes) -> dict[str, str]:
    """The three headers of a call."""
    signed = f"{call_id}.{timestamp_s}.".encode() + body
    signatures = [base64.b64encode(hmac.digest(key, signed, hashlib.sha256)).decode() for key in keys]
    return {
        "webhook-id": call_id,
        "webhook-timestamp": str(timestamp_s),
        "webhook-signature": " ".join(f"v1,{each}" for each in signatures),
    }
