"""What upstreams say of their limits, in headers and words; whatever they say, nothing breaks."""

from __future__ import annotations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from centuria.core.governor import Governor
from centuria.core.ratelimits import Refusal, Stated, read_duration, read_headers, read_refusal
from centuria.core.rates import RateLimits
from centuria.core.warmup import WarmUp
from centuria.errors import ModelUnavailable
from centuria.events import PrefixSet, fold

NOW = 1_790_000_000.0


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("6m0s", 360.0),
        ("1s", 1.0),
        ("250ms", 0.25),
        ("1h2m3.5s", 3723.5),
        ("20", 20.0),
        ("1.5", 1.5),
        ("0", 0.0),
        ("1 seconds", 1.0),
        ("2 minutes", 120.0),
        ("7.66s", 7.66),
        ("2m59.56s", 179.56),
        ("1d", 86_400.0),
        (str(int(NOW) + 30), 30.0),
        (str((int(NOW) + 30) * 1000), 30.0),
        (str(int(NOW) - 30), 0.0),
        ("999999999999999999999", None),
        ("", None),
        ("-1", None),
        ("-1s", None),
        ("soon", None),
        ("1e9", None),
        ("NaN", None),
        ("s", None),
        ("1s garbage", None),
        ("1m2", None),
        ("١s", None),
        ("2026-11-05T00:00:00Z", None),
    ],
)
def test_durations(text: str, seconds: float | None) -> None:
    assert read_duration(text, NOW) == (None if seconds is None else pytest.approx(seconds))


def test_openais_headers() -> None:
    headers = {
        "x-ratelimit-limit-requests": "60",
        "X-RateLimit-Limit-Tokens": "150000",
        "x-ratelimit-remaining-requests": "59",
        "x-ratelimit-remaining-tokens": "149984",
        "x-ratelimit-reset-requests": "1s",
        "x-ratelimit-reset-tokens": "6m0s",
        "content-type": "application/json",
    }
    assert read_headers(headers, NOW) == Stated(60, 59, 150_000, 149_984)


@pytest.mark.parametrize("x", ["X-", "x-", ""])
def test_moonshots_headers_and_those_of_the_ietf_draft(x: str) -> None:
    headers = {f"{x}RateLimit-Limit": "100, 100;w=60", f"{x}RateLimit-Remaining": "3", f"{x}RateLimit-Reset": "12"}
    assert read_headers(headers, NOW) == Stated(window_left=3, reset=12.0)


@pytest.mark.parametrize("value", ["", "-1", "0x10", "many", "1e5", "9" * 30, "١", "NaN", "inf", " ", "0"])
def test_garbage_in_headers_counts_as_not_said(value: str) -> None:
    assert read_headers({"x-ratelimit-limit-requests": value, "x-ratelimit-limit-tokens": value}, NOW) == Stated()


def test_of_a_list_in_a_header_the_first_number_counts() -> None:
    assert read_headers({"x-ratelimit-limit-requests": "5;w=60"}, NOW) == Stated(requests=5)


def test_headers_that_contradict_each_other_are_not_believed() -> None:
    headers = {"x-ratelimit-limit-requests": "1", "x-ratelimit-remaining-requests": "499"}
    assert not read_headers(headers, NOW)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        # MoonshotAI/Kimi-K2#34, kimi-cc#16
        (
            "request reached organization max RPM: 3, please try again after 1 seconds",
            Refusal("requests", 3, None, 1.0),
        ),
        (
            "Your account org-e664b178<ak-f3t8> request reached max organization concurrency: 1, please try again "
            "after 1 seconds",
            Refusal("concurrency", 1, None, 1.0),
        ),
        # kimi-cc#41
        (
            "request reached project TPM rate limit, current: 1410, limit: 100, see https://platform.moonshot.cn",
            Refusal("tokens", 100, 0, None),
        ),
        # MoneyPrinterTurbo#208
        (
            "max request per minute reached: 3, please try again after 1 seconds",
            Refusal("requests", 3, None, 1.0),
        ),
        ("Organization Rate limit exceeded, please try again after 1 seconds", Refusal("", None, None, 1.0)),
        # micro-agent#86
        (
            "Rate limit reached for gpt-4o in organization org-uO on tokens per min (TPM): Limit 30000, Used 29937, "
            "Requested 385. Please try again in 644ms.",
            Refusal("tokens", 30_000, 63, 0.644),
        ),
        (
            "on tokens per day (TPD): Limit 1,500,000. Try again in 1h2m3s.",
            Refusal("daily_tokens", 1_500_000, None, 3723.0),
        ),
        ("on requests per day (RPD): Limit 200", Refusal("daily_requests", 200, None, None)),
        ("TPM limit: 0", Refusal("tokens", None, None, None)),
        ("Too Many Requests", Refusal()),
        ("", Refusal()),
    ],
)
def test_the_words_of_refusals(text: str, said: Refusal) -> None:
    assert read_refusal(text) == said


@settings(max_examples=150, deadline=None)
@given(st.text(max_size=300), st.dictionaries(st.text(max_size=30), st.text(max_size=30), max_size=3))
def test_no_text_breaks_the_readers(text: str, more: dict[str, str]) -> None:
    read_refusal(text)
    read_duration(text, NOW)
    names = ["limit", "remaining", "reset", "limit-requests", "remaining-requests", "limit-tokens", "remaining-tokens"]
    read_headers({**more, **{f"x-ratelimit-{name}": text for name in names}}, NOW)


def test_a_hostile_text_is_read_in_no_time() -> None:
    for text in ("try again in " + "1" * 100_000, "limit " * 50_000, "1m" * 50_000, "retry after " + "1 " * 50_000):
        read_refusal(text)
        read_duration(text)


tricky = st.sampled_from(["", "0", "1", "-1", "5", "1000000000000", "9" * 40, "nonsense", "0.0", "6m0s", "1e3"])


@settings(max_examples=60, deadline=None)
@example([("", "", "", "5"), ("", "", "", "1"), ("", "", "", "")])
@example([("", "0", "", "1000000000000"), ("", "", "", "1")])
@given(st.lists(st.tuples(tricky, tricky, tricky, tricky), min_size=1, max_size=8))
def test_whatever_the_headers_say_the_next_request_goes_within_a_minute(said: list[tuple[str, str, str, str]]) -> None:
    governor = Governor("m", most=10, known=RateLimits(10))
    governor.begin(now=0.0)
    now = 0.0
    for ticket, (limit, left, reset, tokens) in enumerate(said):
        headers = {
            "x-ratelimit-limit-requests": limit,
            "x-ratelimit-remaining-requests": left,
            "x-ratelimit-limit-tokens": tokens,
            "x-ratelimit-remaining-tokens": left,
            "x-ratelimit-limit": limit,
            "x-ratelimit-remaining": left,
            "x-ratelimit-reset": reset,
        }
        delay = governor.delay(1000, now)
        assert delay is None or delay.seconds <= 121
        now += 0.0 if delay is None else delay.seconds
        governor.admit(ticket, 1000, now=now)
        if not governor.is_admitted(ticket):  # rounding
            now += 0.001
            governor.admit(ticket, 1000, now=now)
        assert governor.is_admitted(ticket)
        governor.succeeded(ticket, 500, read_headers(headers, NOW + now), now=now)
    assert governor.denial(1000, now) is None


def test_a_refusal_that_lies_about_its_limit_stalls_nobody() -> None:
    governor = Governor("m", most=10)
    governor.begin(now=0.0)
    governor.admit(1, 16_000, now=0.0)
    error = ModelUnavailable("TPM limit: 1, try again in 1s", status=429, served=False)
    governor.refused(1, error, Stated(), now=0.0, dice=0.0)
    now = 0.0
    for ticket in range(2, 8):
        for _ in range(4):
            governor.admit(ticket, 16_000, now=now)
            if governor.is_admitted(ticket):
                break
            delay = governor.delay(16_000, now)
            assert delay is not None and delay.seconds <= 121
            now += delay.seconds + 0.001
        governor.succeeded(ticket, None, Stated(), now=now)
    assert now < 8 * 121


# -- warm first ----------------------------------------------------------------------------------------------------


def test_one_call_goes_ahead_and_the_others_wait_for_a_bounded_time() -> None:
    warmup = WarmUp("m", patience=20.0)
    [fact] = warmup.ask("p", "a", now=0.0)
    assert fact == PrefixSet("m", "p", "warming", "a", 0.0, 20.0)
    assert warmup.ask("p", "b", now=1.0) == []
    assert warmup.wait("p", "a", now=1.0) == 0
    assert warmup.wait("p", "b", now=1.0) == 19.0
    assert warmup.wait("p", "b", now=20.0) == 0
    assert warmup.ask("p", "c", now=25.0) == [], "nobody waits for a second one"


def test_when_it_is_answered_all_go_until_the_cache_forgets() -> None:
    warmup = WarmUp("m", ttl=240.0)
    warmup.ask("p", "a", now=0.0)
    warmup.warmed("p", now=2.0)
    assert warmup.wait("p", "b", now=2.0) == 0 and warmup.ask("p", "b", now=2.0) == []
    assert warmup.warmed("p", now=100.0) == []  # no event for each call
    assert warmup.warmed("p", now=200.0) != []
    assert warmup.ask("p", "c", now=430.0) == []
    assert warmup.ask("p", "c", now=440.0) != []


def test_when_it_fails_the_next_one_goes_ahead() -> None:
    warmup = WarmUp("m")
    warmup.ask("p", "a", now=0.0)
    assert warmup.gave_up("p", "b", now=1.0) == []
    assert warmup.gave_up("p", "a", now=1.0) != []
    [fact] = warmup.ask("p", "b", now=1.0)
    assert isinstance(fact, PrefixSet) and fact.by == "b"
    assert warmup.gave_up("p", "a", now=2.0) == []


def test_prefixes_are_strangers_and_bounded_in_number() -> None:
    warmup = WarmUp("m")
    facts = [fact for number in range(1500) for fact in warmup.ask(f"p{number}", "a", now=0.0)]
    assert len(warmup._prefixes) == 1000
    again = WarmUp("m")
    fold(again, facts)
    assert again == warmup
