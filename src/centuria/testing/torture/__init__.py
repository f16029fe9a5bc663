"""Torture for clients of OpenAI-compatible servers: a table of faults, and what a right client does in each.

    verdicts = asyncio.run(torture(MyClient))        # MyClient: `chat` and `aclose`, see `Client`
    print(as_text(verdicts))

`ROWS` is the table. Centuria's own client, `CenturiaClient`, does right in every row.
"""

from centuria.testing.torture.centuria_client import CenturiaClient
from centuria.testing.torture.clients import LONGEST_WAIT, MAX_TOKENS, PATIENCE, Client, ClientResult, ErrorKind
from centuria.testing.torture.row import KINDS, Forbidden, Mode, Row, Want, describe
from centuria.testing.torture.rows import KEY, ROWS
from centuria.testing.torture.runner import Verdict, torture, try_row
from centuria.testing.torture.seeded import recoverable, seeded
from centuria.testing.torture.table import as_json, as_markdown, as_text, results

__all__ = [
    "KEY",
    "KINDS",
    "LONGEST_WAIT",
    "MAX_TOKENS",
    "PATIENCE",
    "ROWS",
    "CenturiaClient",
    "Client",
    "ClientResult",
    "ErrorKind",
    "Forbidden",
    "Mode",
    "Row",
    "Verdict",
    "Want",
    "as_json",
    "as_markdown",
    "as_text",
    "describe",
    "recoverable",
    "results",
    "seeded",
    "torture",
    "try_row",
]
