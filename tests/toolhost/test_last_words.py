"""The reason in the census is the line that says most, not the one that happens to stand last."""

from __future__ import annotations

import pytest

from centuria.toolhost.last_words import most_telling

NODE = """node:internal/modules/cjs/loader:1520
  throw err;
  ^

Error: Cannot find module '/srv/server.js'
    at Module._resolveFilename (node:internal/modules/cjs/loader:1517:15)
    at node:internal/main/run_main_module:33:47 {
  code: 'MODULE_NOT_FOUND',
  requireStack: []
}

Node.js v24.19.0
"""
NPM = """npm error code E404
npm error 404 Not Found - GET https://example.org/no-such-server - Not found
npm error 404
npm error 404  The requested resource 'no-such-server@*' could not be found.
npm error 404
npm error 404 Note that you can also install from a
npm error A complete log of this run can be found in: /home/ann/.npm/_logs/debug-0.log
"""
PYTHON = """Traceback (most recent call last):
  File "server.py", line 1, in <module>
    import nonsense
ModuleNotFoundError: No module named 'nonsense'
"""


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        (NODE, "Error: Cannot find module '/srv/server.js'"),
        (NPM, "npm error 404  The requested resource 'no-such-server@*' could not be found."),
        (PYTHON, "ModuleNotFoundError: No module named 'nonsense'"),
        ("listening\nusage: server [--port N]\n\n", "usage: server [--port N]"),
        ("Error: long ago\n" + "working\n" * 20, "working"),
        ("\n \n", ""),
        ("", ""),
    ],
)
def test_the_most_telling_line_is_found(said: str, reason: str) -> None:
    assert most_telling(said.splitlines()) == reason
