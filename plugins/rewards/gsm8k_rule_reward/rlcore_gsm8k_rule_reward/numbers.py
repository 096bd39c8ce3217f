"""Numbers in text, found in linear time and compared by exact value.

A number is kept as text in one canonical form ("-5", "18", "0.25"): no float can blur it, no limit on digits applies,
and equal values are equal strings.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

_DASHES = "-\u2212\u2013"  # hyphen-minus (first, so that it makes no range in a set), minus sign, en dash
_MINUS = f"[{_DASHES}]"
_CURRENCY = "$€£¥₹"
_COMMA = r"(?: ,(?:\\!)? | \{,\} )"  # LaTeX also has 1,\!234 and 1{,}234
_COMMAS = re.compile(_COMMA, re.VERBOSE)
_NUMBER = re.compile(
    rf"""
    (?P<minus> (?<![\w)\]}}%]) {_MINUS} )?   # after an operand it is a subtraction, a range or a hyphen
    (?: \\? [{_CURRENCY}] [ ]? (?P<inner>{_MINUS})? )?
    (?: (?P<run> [0-9]+ (?: {_COMMA}[0-9]+ )* ) (?P<fraction> \.[0-9]+ )?
      | (?<![\w.]) (?P<bare> \.[0-9]+ ) )
    """,
    re.VERBOSE | re.ASCII,
)
_TAIL = re.compile(rf"[0-9][{_DASHES}{_CURRENCY}0-9.,{{}}\\! ]*")
"""In reversed text: the last digit and all before it that a number may consist of. Nothing else need be searched."""
_THOUSANDS = re.compile(r"[1-9][0-9]{0,2}(?:,[0-9]{3})+")
_AFTER_GOLD = re.compile(r"\.?\s*%?\s*")


def first_number(text: str) -> str | None:
    """The first number of the text in canonical form, or None."""
    match = _NUMBER.search(text)
    return next(_numbers(match)) if match else None


def last_number(text: str) -> str | None:
    """The last number of the text in canonical form, or None."""
    tail = _TAIL.search(text[::-1])
    if not tail:
        return None
    start, end = len(text) - tail.end(), len(text) - tail.start()
    matches = deque(_NUMBER.finditer(text, start, end), maxlen=1)
    return list(_numbers(matches[0]))[-1]


def number(value: Any) -> str | None:
    """A ground truth in canonical form, or None if it is no number.

    It may be an int, a float (as it is printed), a Decimal, text that holds one number and nothing else but a currency
    or percent sign, or a list or array of one of these.
    """
    if hasattr(value, "tolist"):  # numpy scalars and arrays
        value = value.tolist()
    if isinstance(value, list | tuple) and len(value) == 1:
        value = value[0]
    if isinstance(value, int | float | Decimal) and not isinstance(value, bool):
        exact = Decimal(repr(value)) if isinstance(value, float) else Decimal(value)
        value = format(exact, "f") if exact.is_finite() else None
    if not isinstance(value, str):
        return None
    text = value.strip()
    match = _NUMBER.match(text)
    if not match or not _AFTER_GOLD.fullmatch(text, match.end()):
        return None
    found = list(_numbers(match))
    return found[0] if len(found) == 1 else None


def _numbers(match: re.Match[str]) -> Iterator[str]:
    """The numbers of one match: several where commas don't part the digits into thousands."""
    minus = bool(match["minus"] or match["inner"])
    whole, fraction = match["run"] or "", match["fraction"] or match["bare"] or ""
    whole = _COMMAS.sub(",", whole)
    parts = [whole.replace(",", "")] if _THOUSANDS.fullmatch(whole) else whole.split(",")
    for i, part in enumerate(parts):
        yield _canonical(minus and i == 0, part, fraction if i == len(parts) - 1 else "")


def _canonical(minus: bool, whole: str, fraction: str) -> str:
    value = (whole.lstrip("0") or "0") + fraction.rstrip("0").rstrip(".")
    return f"-{value}" if minus and value != "0" else value
