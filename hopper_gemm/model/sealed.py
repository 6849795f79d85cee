"""Files that carry the SHA-256 of all that they say, and are read only while it holds.

A text is a JSON object whose first key is the sum of everything behind it, order and spaces included; so a value that
was changed, an entry that is gone and two that changed places are all noticed. A library carries the sum behind its
last byte, where no loader looks.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from typing import Any

SUM = "sha256"

_START = re.compile(rf'\{{\n "{SUM}": "([0-9a-f]{{64}})",')
_BYTES = 32
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


class SumError(ValueError):
    """A file carries no sum, or one of another content; the message says which, and the fix."""


def sha256(content: str | bytes) -> str:
    """Return the SHA-256 of a text or of bytes, in hexadecimal digits."""
    return hashlib.sha256(content.encode() if isinstance(content, str) else content).hexdigest()


def sealed(value: Mapping[str, Any]) -> str:
    """Return an object as JSON that carries its sum; raise a ValueError where a number in it is not finite."""
    body = json.dumps({name: part for name, part in value.items() if name != SUM}, indent=1, allow_nan=False)[1:] + "\n"
    return f'{{\n "{SUM}": "{sha256(body)}",{body}'


def parsed(text: str) -> Any:
    """Return the value of a JSON text with finite numbers; raise a ValueError or RecursionError where it is none."""
    return json.loads(text, parse_constant=_refuse)


def _refuse(word: str) -> None:
    raise ValueError(f"numbers must be finite but got {word}")


def check_sum(text: str, path: object = "it") -> None:
    """Refuse the text of a file that carries no sum, or that of another text, by a SumError."""
    start = _START.match(text)
    if start is None:
        raise SumError(f"{path} carries no sum; restore it, or if it is right: hopper-gemm seal {path}")
    if sha256(text[start.end() :]) != start[1]:
        raise SumError(f"{path} was changed since it was written; restore it")


def unsealed(text: str, path: object = "it") -> dict[str, Any]:
    """Return the object of a :func:`sealed` text, without the sum; raise as :func:`check_sum` and :func:`parsed`."""
    check_sum(text, path)
    value: dict[str, Any] = parsed(text)
    del value[SUM]
    return value


def with_sum(library: bytes) -> bytes:
    """Return a library with its sum behind it."""
    return library + hashlib.sha256(library).digest()


def is_whole(library: bytes) -> bool:
    """Return True if a library carries its sum."""
    return hashlib.sha256(library[:-_BYTES]).digest() == library[-_BYTES:]


def printable(text: str) -> str:
    """Return a text whose control characters are shown, as ``\\x1b``; line breaks and tabs stay. A terminal obeys such
    characters, and some turn the direction of writing."""
    return _CONTROL.sub(lambda match: match[0].encode("unicode_escape").decode(), text)
