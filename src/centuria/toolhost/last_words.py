"""What a server said last on stderr, in one line. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable

#: Lines from the end, noise left out, among which one that names an error counts as the reason.
_NEAR = 20
#: What Node.js and npm say after the error itself.
_NOISE = re.compile(
    r"\s*$|Node\.js v\d|\s+at |npm (?:error|ERR!) (?:A complete log|code |errno |\d+ Note that |\d*\s*$)"
)
_ERROR = re.compile(r"Error\b|Exception\b|ERROR|error:|^npm (?:error|ERR!)")


def most_telling(lines: Iterable[str]) -> str:
    """The last line that names an error, of the last few lines; else the last one that says anything ("" for none)."""
    said = [line for line in lines if not _NOISE.match(line)][-_NEAR:]
    errors = [line for line in said if _ERROR.search(line)]
    return next(reversed(errors or said), "").strip()
