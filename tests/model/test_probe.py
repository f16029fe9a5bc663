"""One look at an endpoint tells what is wrong with it."""

import pytest

from centuria.model.http import HttpTransport
from centuria.model.probe import Probe, probe
from centuria.settings import Endpoint, Secret
from centuria.testing.upstream import FakeUpstream
from tests.model.kit import KEY
from tests.model.taping import Pieces


async def look(base_url: str, model: str, key: str) -> Probe:
    transport = HttpTransport()
    try:
        return await probe(Endpoint("fake", base_url, model, Secret(key)), transport)
    finally:
        await transport.aclose()


async def test_a_probe_tells_reachable_accepted_and_listed_apart() -> None:
    async with FakeUpstream(key=KEY, models=("kimi-k2.5", "kimi-k2")) as upstream:
        good = await look(upstream.base_url, "kimi-k2.5", KEY)
        assert (good.reachable, good.accepted, good.listed, good.problem) == (True, True, True, "")
        unlisted = await look(upstream.base_url, "gpt-9", KEY)
        assert (unlisted.accepted, unlisted.listed) == (True, False) and "kimi-k2" in unlisted.remedy
        denied = await look(upstream.base_url, "kimi-k2.5", "a wrong one")
        assert (denied.reachable, denied.accepted) == (True, False) and "key" in denied.remedy
    gone = await look("http://127.0.0.1:1/v1", "m", KEY)
    assert not gone.reachable and "127.0.0.1" in gone.problem and gone.remedy


@pytest.mark.parametrize("body", [b"<html>Welcome</html>", b"{}", b'{"data": {}}', b"[" * 100_000, b"", b"7"])
async def test_what_is_no_list_of_models_is_said_to_be_none(body: bytes) -> None:
    found = await probe(Endpoint("fake", "http://upstream.test", "m"), Pieces(body))
    assert (found.reachable, found.accepted, found.listed) == (True, None, None)
    assert "not with a list of models" in found.problem and "/v1" in found.remedy


async def test_a_listing_of_any_size_and_shape_is_read_as_far_as_it_goes() -> None:
    entries = b",".join([b"7", b"{}", b'{"id": 7}', *(b'{"id": "m%d"}' % number for number in range(3000))])
    found = await probe(Endpoint("fake", "http://upstream.test", "m2"), Pieces(b"[" + entries + b"]"))
    assert found.listed and len(found.models) == 1000
