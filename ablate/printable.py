r"""Foreign text, such as that of another's record or experiment, made safe to print.

A control character is shown, not sent: escape becomes ``\x1b``, so that no text can move a
terminal's cursor, hide what stands beside it or change its title.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
"""Control characters but tab and newline, marks that reverse the direction of text, and halves of
characters, which no encoding can write."""

SCHEMA = 1
"""The version of the JSON of commands; it grows when a key goes or means something else."""


def printable(text: str) -> str:
    r"""Return a text with every control character as an escape sequence of Python, as ``\x1b``."""
    return CONTROL.sub(lambda match: escaped(match[0]), text)


def escaped(character: str) -> str:
    r"""Return a character as ``\x1b`` or ``\u202e``."""
    code = ord(character)
    return f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}"


def printable_content(content: Any) -> Any:
    """Return plain data with every text and every key `printable`."""
    if isinstance(content, str):
        return printable(content)
    if isinstance(content, Mapping):
        return {printable_content(key): printable_content(each) for key, each in content.items()}
    if isinstance(content, list):
        return [printable_content(each) for each in content]
    return content


def json_text(content: Any) -> str:
    """Return plain data as JSON, with control characters as escape sequences of JSON."""
    text = json.dumps(content, indent=2, ensure_ascii=False)
    return CONTROL.sub(lambda match: f"\\u{ord(match[0]):04x}", text)
