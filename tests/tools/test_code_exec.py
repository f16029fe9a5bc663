"""`code_exec` over real stdio: it computes, and it can neither read, connect, linger nor fill the machine."""

from __future__ import annotations

import json
import os
import signal
import statistics
import tempfile
import time
from ast import literal_eval
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from centuria.tools.code_exec import MODULES, shown
from centuria.tools.statistics_module import MAX_VALUES, NAMES, Statistics
from tests.tools.stdio import Session, session, text

T = TypeVar("T")


@pytest.fixture(scope="module")
def server() -> Iterator[Session]:
    with session("code_exec", "--seconds", "2", "--memory-mb", "64") as opened:
        yield opened


def run(server: Session, code: str) -> str:
    result = server.call("code_exec", code=code)
    assert not result.is_error, text(result)
    return text(result)


def fails(server: Session, code: str) -> str:
    result = server.call("code_exec", code=code)
    assert result.is_error, text(result)
    return text(result)


# -- what it answers -------------------------------------------------------------------------------------------------


def test_it_gives_what_was_printed_or_else_the_last_value(server: Session) -> None:
    assert run(server, "print('a', 2)\n3") == "a 2\n"
    assert run(server, "x = 20\nx + 1") == "21"
    assert run(server, "'text'") == "'text'"
    assert run(server, "x = 1") == "(no output)"
    assert server.call("code_exec", code="print(1)\n{'a': (2,)}").structured_content == {
        "output": "1\n",
        "result": "{'a': (2,)}",
    }


def test_an_error_is_a_traceback_with_what_was_printed_before(server: Session) -> None:
    message = fails(server, "def f(x):\n    return 1 / x\nprint('so far')\nf(0)")
    assert "line 2, in f" in message
    assert "ZeroDivisionError: division by zero" in message
    assert message.endswith("Printed before that:\nso far\n")
    assert "SyntaxError" in fails(server, "x ===")


def test_nothing_is_kept_between_calls(server: Session) -> None:
    run(server, "kept = 1")
    assert "NameError" in fails(server, "kept")


def test_its_description_names_what_there_is(server: Session) -> None:
    (tool,) = server.tools()
    assert tool.name == "code_exec"
    assert tool.annotations is not None
    assert tool.annotations.read_only_hint
    assert tool.description is not None
    for name in (*MODULES, *NAMES, "class inheritance", "2 s", "64 MB"):
        assert name in tool.description


@pytest.mark.parametrize("module", MODULES)
def test_every_module_of_the_description_can_be_imported(server: Session, module: str) -> None:
    run(server, f"import {module}")


def test_the_language_of_the_description_works(server: Session) -> None:
    code = """
from collections import Counter, defaultdict, deque, namedtuple
from dataclasses import dataclass
import csv, json, re
from datetime import date, timedelta

@dataclass
class Point:
    x: int
    def twice(self):
        return self.x * 2

def describe(value, *rest, sep=", ", **more):
    match value:
        case [a, b]:
            return f"{a:>4}|{b:,.2f}"
        case _:
            return sep.join(str(r) for r in rest)

try:
    {}["missing"]
except KeyError as error:
    caught = type(error).__name__
rows = list(csv.DictReader(["a,b", '1,"x, y"']))
print(json.dumps([Point(3).twice(), describe([1, 2345.678]), describe(0, 1, 2), caught, rows[0]["b"],
    sorted([{"k": 2}, {"k": 1}], key=lambda r: r["k"])[0]["k"], Counter("aab").most_common(1)[0][1],
    {k: v for k, v in zip("ab", range(2))}, re.findall("[0-9]+", "a1b22"),
    str(date(2026, 2, 27) + timedelta(days=3))]))
"""
    expected = [
        6,
        "   1|2,345.68",
        "1, 2",
        "KeyError",
        "x, y",
        1,
        2,
        {"a": 0, "b": 1},
        ["1", "22"],
        "2026-03-02",
    ]
    assert json.loads(run(server, code)) == expected


@pytest.mark.parametrize(
    "code",
    [
        "class A:\n    x = 1\nclass B(A):\n    y = 2",
        "def g():\n    yield 1\nlist(g())",
        "a = [1]\ndel a[0]",
        "import io",
    ],
)
def test_what_the_description_says_is_missing_is_missing(server: Session, code: str) -> None:
    """When one of these begins to work, the description should say so."""
    fails(server, code)


#: A file that the sandbox is asked to write, where everyone may write.
MARK = Path(tempfile.gettempdir()) / "centuria-was-here"

# -- what it cannot do -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "code",
    [
        "open('/etc/passwd').read()",
        "from pathlib import Path\nPath('/etc/passwd').read_text()",
        "from pathlib import Path\nlist(Path('/').iterdir())",
        "import os\nos.listdir('.')",
        "import os\nos.environ['HOME']",
        "import os\nos.getenv('HOME')",
        "import os\nos.system('id')",
        f"open({str(MARK)!r}, 'w').write('x')",
        "import socket",
        "import urllib.request",
        "import subprocess",
        "import ctypes",
        "__import__('os').system('id')",
        "().__class__.__base__.__subclasses__()",
        "input()",
    ],
)
def test_it_reads_no_file_opens_no_connection_and_starts_no_process(server: Session, code: str) -> None:
    message = fails(server, code)
    assert "root:" not in message
    assert not MARK.exists()


def test_an_endless_loop_ends_at_the_limit(server: Session) -> None:
    assert "time limit exceeded" in fails(server, "while True:\n    pass")
    assert run(server, "1") == "1"


def test_sleeping_takes_no_time(server: Session) -> None:
    run(server, "import time\ntime.sleep(3600)")


@pytest.mark.parametrize(
    "code",
    ["x = []\nwhile True:\n    x.append('a' * 10000)", "'a' * 10**11", "2 ** 10**10", "f'{1:>{10**10}}'"],
)
def test_memory_is_limited(server: Session, code: str) -> None:
    assert "memory" in fails(server, code).lower()
    assert run(server, "1") == "1"


def test_endless_recursion_is_an_error(server: Session) -> None:
    assert "RecursionError" in fails(server, "def f():\n    return f()\nf()")


def test_long_output_is_cut_and_said(server: Session) -> None:
    answer = run(server, "print('x' * 30_000)")
    assert answer.startswith("x" * 20_000 + "\n[10,001 more characters")


@pytest.mark.parametrize("code", ["while True:\n    print('x' * 1000)", "print('x' * 30_000_000)"])
def test_a_flood_of_output_stops_the_program(server: Session, code: str) -> None:
    message = fails(server, code)
    assert message.startswith("The program was stopped: it printed more than 1,000,000 characters.")
    assert len(message) < 21_000
    assert run(server, "1") == "1"


def test_a_huge_value_is_cut(server: Session) -> None:
    assert len(run(server, "list(range(100_000))")) < 21_000
    assert len(run(server, "'x' * 1_000_000")) < 21_000
    assert "bits" in run(server, "1 << 100_000")


def test_code_that_is_too_long_is_refused(server: Session) -> None:
    assert "at most 200,000 are run" in fails(server, "#" * 200_001)


def test_wrong_arguments_are_answered_with_the_right_ones(server: Session) -> None:
    assert 'Did you mean "code"?' in text(server.call("code_exec", codes="1"))
    assert 'The argument "code" is missing.' in text(server.call("code_exec"))
    assert "must be string, not int" in text(server.call("code_exec", code=1))
    assert 'Did you mean "code_exec"?' in text(server.call("code_exe", code="1"))


def test_a_crashed_worker_fails_its_call_alone() -> None:
    before = set(children(os.getpid()))
    with session("code_exec") as opened, ThreadPoolExecutor(1) as pool:
        (server_pid,) = set(children(os.getpid())) - before
        running = pool.submit(opened.call, "code_exec", code="print('so far', flush=True)\nwhile True:\n    pass")
        (worker,) = wait_for(lambda: [pid for pid in children(server_pid) if is_busy(pid)])
        os.kill(worker, signal.SIGKILL)
        assert "The sandbox crashed" in text(running.result(60))
        assert run(opened, "40 + 2") == "42"


def test_five_calls_run_at_once() -> None:
    before = set(children(os.getpid()))
    with session("code_exec", "--seconds", "2") as opened, ThreadPoolExecutor(1) as pool:
        (server_pid,) = set(children(os.getpid())) - before
        running = pool.submit(opened.calls, "code_exec", [{"code": "while True:\n    pass"}] * 6)
        wait_for(lambda: len([pid for pid in children(server_pid) if is_busy(pid)]) == 5)
        assert all("time limit exceeded" in text(result) for result in running.result(60))


def wait_for(what: Callable[[], T]) -> T:
    deadline = time.monotonic() + 30
    while not (found := what()):
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.01)
    return found


def children(pid: int) -> list[int]:
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        found += map(int, (task / "children").read_text().split())
    return found


def is_busy(pid: int) -> bool:
    """Whether a thread of the process runs, or would if there were a core for it."""
    try:
        stats = [(task / "stat").read_text() for task in Path(f"/proc/{pid}/task").iterdir()]
    except OSError:
        return False
    return any(stat.rpartition(")")[2].split()[0] == "R" for stat in stats)


def test_two_hundred_calls_at_once_all_get_their_own_answer(server: Session) -> None:
    results = server.calls("code_exec", [{"code": f"print({number})"} for number in range(200)])
    assert [text(result) for result in results] == [f"{number}\n" for number in range(200)]


# -- statistics ------------------------------------------------------------------------------------------------------


@settings(max_examples=30, deadline=None)
@given(values=st.lists(st.floats(-1e12, 1e12, allow_nan=False), min_size=2, max_size=20))
def test_statistics_in_the_sandbox_equals_the_standard_library(server: Session, values: list[float]) -> None:
    code = f"""
import statistics
from statistics import median
v = {values!r}
print([statistics.mean(v), median(v), statistics.median_low(v), statistics.median_high(v), statistics.fmean(v),
    statistics.stdev(v), statistics.pstdev(v), statistics.variance(v), statistics.mode(v), statistics.quantiles(v)])
"""
    names = ["mean", "median", "median_low", "median_high", "fmean", "stdev", "pstdev", "variance", "mode"]
    names.append("quantiles")
    # Of two shortest ways to write a float, the sandbox may take the other one.
    said = repr(literal_eval(run(server, code).strip()))
    assert said == repr([getattr(statistics, name)(values) for name in names])


def test_errors_of_statistics_are_errors_of_the_program(server: Session) -> None:
    code = "import statistics\ntry:\n    statistics.median([])\nexcept ValueError as error:\n    print(error)"
    assert run(server, code) == "no median for empty data\n"
    assert "make one with list(...)" in fails(server, "import statistics\nstatistics.mean({1: 2}.values())")
    assert "convert with float" in fails(server, "import statistics\nstatistics.mean(['1'])")


def test_statistics_is_fenced_in(server: Session) -> None:
    functions = Statistics().functions()
    with pytest.raises(ValueError, match="at most 100,000 values"):
        functions["mean"]([0] * (MAX_VALUES + 1))
    with pytest.raises(ValueError, match="n must be"):
        functions["quantiles"]([1, 2], n=10**9)
    with pytest.raises(ValueError, match="bits"):
        functions["mean"]([1 << 100_000, 1])
    assert "decimals up to" in fails(
        server,
        "import statistics\nfrom decimal import Decimal\nstatistics.mean([Decimal('1e99999'), Decimal(1)])",
    )
    with pytest.raises(TypeError):
        functions["mode"]([object()])


def test_statistics_may_take_a_few_seconds_of_a_call_and_no_more() -> None:
    ticks = iter(range(100))
    functions = Statistics(clock=lambda: next(ticks)).functions()
    for _ in range(4):
        functions["mean"]([1])
    with pytest.raises(TimeoutError):
        functions["mean"]([1])


# -- values ----------------------------------------------------------------------------------------------------------

plain = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**30), 10**30)
    | st.floats()
    | st.text(max_size=5)
    | st.binary(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text(max_size=3), inner, max_size=3)
        | st.tuples(inner, inner)
        | st.tuples(inner)
    ),
    max_leaves=10,
)


@settings(max_examples=100, deadline=None)
@given(value=plain, limit=st.integers(1, 100))
def test_a_value_is_shown_as_python_shows_it_up_to_the_limit(value: object, limit: int) -> None:
    whole = repr(value)
    assert shown(value, 10**6) == whole
    cut = shown(value, limit)
    assert cut == whole or (cut.endswith(" [...]") and len(cut) <= limit + 6)
