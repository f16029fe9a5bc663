"""All rows of the torture table."""

from centuria.testing.torture.row import Row
from centuria.testing.torture.rows.answers import answers
from centuria.testing.torture.rows.statuses import KEY, statuses
from centuria.testing.torture.rows.tool_calls import tool_calls
from centuria.testing.torture.rows.transport import transport

ROWS: tuple[Row, ...] = (*statuses(), *transport(), *tool_calls(), *answers())

__all__ = ["KEY", "ROWS"]
