"""What the end of a test closes."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from centuria.model.replay import Recording, ReplayTransport

Replay = Callable[..., ReplayTransport]


@pytest.fixture
def replay() -> Iterator[Replay]:
    """Opens a recording for a replay."""
    opened: list[ReplayTransport] = []

    def make(path: Path, *, paced: bool = False) -> ReplayTransport:
        opened.append(ReplayTransport(Recording(path), paced=paced))
        return opened[-1]

    yield make
    for transport in opened:
        transport.close()
