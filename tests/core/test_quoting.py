"""The nearest right name beside a wrong one: one piece of code for all that people and models mistype."""

from __future__ import annotations

from pathlib import Path

import centuria
from centuria.core.quoting import did_you_mean, meant, nearest, quoted

SOURCE = Path(centuria.__file__).parent


def test_the_nearest_right_name_is_named_and_where_none_is_near_all_that_there_are() -> None:
    assert did_you_mean("promt", ["prompt", "rows"]) == "Did you mean `prompt`?"
    assert did_you_mean("xyz", ["prompt", "rows"]) == "There is: prompt, rows."
    assert did_you_mean("xyz", []) == ""
    assert meant("promt", ["prompt"]) == " Did you mean prompt?"
    assert meant("promt", ["prompt"], quoted) == " Did you mean `prompt`?"
    assert meant("xyz", ["prompt"]) == ""


def test_a_text_that_is_no_slip_of_the_pen_is_compared_with_nothing() -> None:
    assert nearest("a" * 201, ["a" * 200]) == ""
    assert nearest("a" * 200, ["a" * 199]) == "a" * 199


def test_nearness_is_judged_in_one_place_beside_the_built_in_servers_which_import_nothing_of_the_house() -> None:
    judges = [path for path in SOURCE.rglob("*.py") if "get_close_matches" in path.read_text()]
    assert [str(path.relative_to(SOURCE)) for path in sorted(judges)] == ["core/quoting.py", "tools/serving.py"]
