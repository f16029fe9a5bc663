"""The parser and the way out. Only the standard library is imported here, so that `--help` is quick."""

from __future__ import annotations

import argparse
import io
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from textwrap import dedent
from typing import TYPE_CHECKING, TextIO

from centuria import __version__
from centuria.cli.key_flags import add_keys_and_usage
from centuria.cli.mistyped import Parser, refuse_flags
from centuria.errors import CenturiaError, ConfigurationError, GraphError

if TYPE_CHECKING:
    Commands = argparse._SubParsersAction[argparse.ArgumentParser]

#: Commands to a run that works: name, function, help, example.
_STEERING = (
    ("pause", "pause", "let a run, or one branch of it, make no further request", "last b1"),
    ("go-on", "go_on", "end a pause", "last b1"),
    ("retry", "retry", "run a task again that did not end well, while its run works", "last b1"),
    ("priority", "priority", "serve one branch of a run sooner or later", "last b1 0"),
)
OK, NOT_OK, USAGE, BUDGET, INTERRUPTED = 0, 1, 2, 3, 130

_PROVIDERS = "moonshot, openai, anthropic, gemini, deepseek, openrouter, holysheep, ollama or custom"
_REHEARSE = "a scripted model instead: expected time and cost, nothing paid"
_RUN_EXAMPLES = """centuria run job.toml --budget 2 --yes
  centuria run "Compare the 20 largest banks" --tools mcp.json --model openai:gpt-4.1
  centuria run job.toml --base-url http://127.0.0.1:8000/v1 --model my-model --budget none

the key is read from the environment (MOONSHOT_API_KEY, OPENAI_API_KEY, ...); without one the run is a rehearsal"""

_EPILOG = dedent("""\
    examples:
      centuria run examples/market-reports/job.toml          a job file; without a key, a rehearsal
      centuria run "Compare the 20 largest banks" --tools mcp.json --budget 2
      centuria map "Write a report on {Name}." companies.csv --id Symbol --out lunch/
      centuria resume last                                   only what had not finished
      centuria compare job.toml --models kimi-k2.6,gpt-4.1   side by side: time, cost, tool-call accuracy
      centuria serve                                         the gateway and its page, at http://127.0.0.1:8080
      centuria doctor job.toml                               what is wrong, and the remedy

    keys are read from the environment: MOONSHOT_API_KEY, OPENAI_API_KEY, ANTHROPIC_API_KEY, ... (see: centuria doctor)
    exit codes: 0 all ok, 1 some not ok, 2 usage or configuration, 3 budget, 130 interrupted
    """)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command. Returns its exit code; only `--help`, `--version` and usage errors raise `SystemExit`."""
    _ready_streams()
    options, unknown = parser().parse_known_args(arguments)
    if unknown:
        refuse_flags(options.parser, unknown)
    try:
        return _command(options.does)(options)
    except (ConfigurationError, GraphError) as error:
        return _say(error, USAGE)
    except CenturiaError as error:
        return _say(error, NOT_OK)
    except KeyboardInterrupt:
        print("centuria: interrupted", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        silence(sys.stdout)  # the reader of our output has gone
        return OK


def _ready_streams() -> None:
    """Whoever started us may have closed them, and any encoding may be theirs: neither must stop the work.

    A closed one leads nowhere then, rather than into the next file that is opened and gets its number.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            handle = os.open(os.devnull, os.O_RDWR)
            os.set_inheritable(handle, True)
            setattr(sys, name, os.fdopen(handle, mode, encoding="utf-8", errors="replace"))
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors == "strict":
        sys.stdout.reconfigure(errors="replace")


def silence(stream: TextIO) -> None:
    """What is left of an output goes nowhere, so that the last flush cannot fail."""
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _say(error: CenturiaError, code: int) -> int:
    print(f"centuria: {error.message}", file=sys.stderr)
    if error.remedy:
        print(f"  {error.remedy}", file=sys.stderr)
    return code


def _command(does: str) -> Callable[[argparse.Namespace], int]:
    module, _, name = does.partition(":")
    command: Callable[[argparse.Namespace], int] = getattr(import_module(f"centuria.cli.{module}"), name)
    return command


def parser() -> argparse.ArgumentParser:
    """The whole command line."""
    top: argparse.ArgumentParser = Parser(
        prog="centuria",
        description="A hundred agents, one job: fan-out, MCP tools, one budget, an honest census, and resume.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    top.add_argument("--version", action="version", version=f"centuria {__version__}")
    commands = top.add_subparsers(metavar="COMMAND", required=True)
    _add_running(commands)
    _add_compare(commands)
    _add_looking(commands)
    _add_checking(commands)
    _add_gateway(commands)
    add_keys_and_usage(commands, _add, _budget)
    return top


def _add(commands: Commands, name: str, does: str, text: str, example: str) -> argparse.ArgumentParser:
    command: argparse.ArgumentParser = commands.add_parser(
        name,
        help=text,
        description=text[0].upper() + text[1:] + ".",
        epilog=f"example:\n  {example}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    command.set_defaults(does=does, parser=command)
    return command


def _run_argument(command: argparse.ArgumentParser, *, must: bool = False) -> None:
    """Which run; the last one where it need not be said."""
    if must:
        command.add_argument("run", metavar="RUN", help="an id, its start, a folder, or last")
    else:
        text = "an id, its start, a folder, or last (default)"
        command.add_argument("run", metavar="RUN", nargs="?", default="last", help=text)


def _add_running(commands: Commands) -> None:
    run = _add(commands, "run", "running:run", "run a job file, or one goal", _RUN_EXAMPLES)
    run.add_argument("job", metavar="JOB", help="a job file (TOML), or a goal in words")
    _job_flags(run)
    spread = _add(
        commands,
        "map",
        "running:map_rows",
        "run one subagent for each row of a file",
        'centuria map "Write a one-page report on {Name}." companies.csv --id Symbol --out lunch/',
    )
    spread.add_argument("template", metavar="TEMPLATE", help="the prompt; {Column} is replaced by the row's value")
    spread.add_argument("rows", metavar="ROWS", type=Path, help="a CSV (with a header) or JSONL file")
    spread.add_argument("--id", metavar="COLUMN", help="the column that names each task (default: a hash of the row)")
    spread.add_argument("--label", metavar="TEMPLATE", help="what a task is called in views, such as {Name}")
    spread.add_argument("--limit", metavar="N", type=int, help="only the first N rows")
    spread.add_argument("--schema", metavar="FILE", type=Path, help="a JSON Schema of each answer: makes a table")
    _job_flags(spread)
    resume = _add(
        commands,
        "resume",
        "running:resume",
        "go on with a run: only what had not finished",
        "centuria resume last --only failed,budget --budget 10",
    )
    _run_argument(resume)
    resume.add_argument("--only", metavar="STATUS,..", help="only what ended so: failed,timeout,budget,...")
    resume.add_argument("--job", metavar="FILE", type=Path, help="an edited job file: unchanged tasks are reused")
    _model_flags(resume)
    _limit_flags(resume, again=True)
    _tape_flags(resume)
    _view_flags(resume)


def _add_compare(commands: Commands) -> None:
    compare = _add(
        commands,
        "compare",
        "comparing:compare",
        "run one job on several models at once, within one budget, and set them side by side",
        "centuria compare job.toml --models kimi-k2.6,openai:gpt-4.1,http://127.0.0.1:8000/v1#qwen3 --limit 20\n"
        "  centuria compare job.toml --models kimi-k2.6,kimi-k2.6       how far a model agrees with itself\n"
        "  centuria compare --resume runs/compare-20260131-142501-reports-3f9c",
    )
    compare.add_argument("job", metavar="JOB", nargs="?", help="a job file (TOML), or a goal in words")
    compare.add_argument(
        "--models",
        metavar="A,B,..",
        action="append",
        help="each NAME, PROVIDER:NAME, URL#NAME, or a name of the job's [compare.models] (default: all of those)",
    )
    compare.add_argument(
        "--reference", metavar="A", help="whose tool calls the others' are held against (default: the first's)"
    )
    compare.add_argument("--limit", metavar="N", type=int, help="only the first N rows")
    compare.add_argument("--tools", metavar="FILE", type=Path, help="MCP servers: the mcpServers JSON of any host")
    _limit_flags(compare)
    compare.add_argument("--in-turn", action="store_true", help="one model after the other, as on one machine or key")
    compare.add_argument("--out", metavar="DIR", type=Path, help="the folder, a new one (default: runs/compare-ID)")
    compare.add_argument(
        "--rehearse", action="store_true", help="a scripted model instead: expected time and cost, nothing paid"
    )
    compare.add_argument("--resume", metavar="DIR", type=Path, help="go on with a comparison that was broken off")
    compare.add_argument("--table", metavar="DIR", type=Path, help="make its table again; runs nothing")
    _end_flags(compare)


def _job_flags(command: argparse.ArgumentParser) -> None:
    _model_flags(command)
    _limit_flags(command)
    command.add_argument("--out", metavar="DIR", type=Path, help="this run's folder, a new one (default: runs/ID)")
    command.add_argument(
        "--rehearse", action="store_true", help="a scripted model instead: expected time and cost, nothing paid"
    )
    _tape_flags(command)
    _view_flags(command)


def _model_flags(command: argparse.ArgumentParser) -> None:
    command.add_argument("--model", metavar="NAME", help="the model, such as kimi-k2.5 or openai:gpt-4.1")
    command.add_argument(
        "--provider",
        metavar="NAME",
        help=_PROVIDERS,
    )
    command.add_argument(
        "--base-url", metavar="URL", help="any OpenAI-compatible server, such as http://127.0.0.1:8000/v1"
    )
    command.add_argument("--tools", metavar="FILE", type=Path, help="MCP servers: the mcpServers JSON of any host")


def _limit_flags(command: argparse.ArgumentParser, *, again: bool = False) -> None:
    """`again`: what is not said stays as the run has it."""
    budget, agents, calls = "5", "100", "up to 100, as the provider takes them"
    if again:
        budget = agents = calls = "as before"
    command.add_argument(
        "--budget", metavar="DOLLARS", type=_budget, help=f"cap in dollars, or none (default: {budget})"
    )
    command.add_argument("--agents", metavar="N", type=int, help=f"subagents at once (default: {agents})")
    command.add_argument("--concurrency", metavar="N", type=int, help=f"model calls at once (default: {calls})")


def _tape_flags(command: argparse.ArgumentParser) -> None:
    command.add_argument("--record", metavar="FILE", type=Path, help="keep the model exchanges in a new file, no keys")
    command.add_argument("--replay", metavar="FILE", type=Path, help="answer from such a file: no key, no network")
    command.add_argument("--paced", action="store_true", help="replay as slowly as it was recorded")


def _view_flags(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--stream", action="store_true", help="every fact and piece of text as JSON lines, then the result"
    )
    _end_flags(command)


def _end_flags(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--yes", action="store_true", help="do not ask before money is spent (only a terminal is asked)"
    )
    command.add_argument("--json", action="store_true", help="the result as JSON on standard output")
    command.add_argument("--quiet", action="store_true", help="no live view; the summary stays")


def _budget(text: str) -> float | bool:
    """Dollars, or False for no cap."""
    if text.lower() in ("none", "off", "no"):
        return False
    try:
        return float(text.removeprefix("$"))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not an amount: give dollars, such as 2.50, or none") from None


def _add_looking(commands: Commands) -> None:
    show = _add(commands, "show", "looking:show", "show a run: census, cost, tools, tasks", "centuria show last NVDA")
    _run_argument(show)
    show.add_argument("task", metavar="AGENT", nargs="?", help="one task: its outcome and every call of it")
    show.add_argument("--json", action="store_true", help="as JSON")
    runs = _add(
        commands, "runs", "looking:runs", "list the runs below runs/ (or $CENTURIA_RUNS)", "centuria runs --json"
    )
    runs.add_argument("--json", action="store_true", help="as JSON lines")
    watch = _add(commands, "watch", "looking:watch", "watch a run that another process works on", "centuria watch last")
    _run_argument(watch)
    cancel = _add(commands, "cancel", "steering:cancel", "stop a run, or one agent of it", "centuria cancel last NVDA")
    _run_argument(cancel)
    cancel.add_argument("task", metavar="AGENT", nargs="?", help="only this task; its partial text is kept")
    _add_steering(commands)


def _add_steering(commands: Commands) -> None:
    for name, does, text, example in _STEERING:
        command = _add(commands, name, f"steering:{does}", text, f"centuria {name} {example}")
        _run_argument(command, must=True)
        one = None if name in ("retry", "priority") else "?"
        command.add_argument("task", metavar="AGENT", nargs=one, help="this task and all that it assigned")
        if name == "priority":
            command.add_argument("number", metavar="N", type=int, help="0 (first) to 9")
    approve = _add(
        commands,
        "approve",
        "steering:approve",
        "say yes, or no, to tool calls that ask first",
        "centuria approve last goal/0/2/1",
    )
    _run_argument(approve, must=True)
    approve.add_argument("call", metavar="CALL", nargs="?", help="only this call (see: centuria show); else all")
    approve.add_argument("--no", action="store_true", help="refuse instead")
    limit = _add(
        commands,
        "limit",
        "steering:limit",
        "change how many calls or agents a run has at once, while it works",
        "centuria limit last server:web 5",
    )
    _run_argument(limit, must=True)
    limit.add_argument(
        "resource", metavar="RESOURCE", help="server:SLUG, tool:NAME, lease:SLUG or agents (see them: centuria show)"
    )
    limit.add_argument("number", metavar="N", type=int, help="how many at once from now on; 0 is a pause")


def _add_checking(commands: Commands) -> None:
    doctor = _add(
        commands,
        "doctor",
        "checking:doctor",
        "check key, base URL, model, price, and each MCP server",
        "centuria doctor job.toml",
    )
    doctor.add_argument("job", metavar="JOB", nargs="?", help="a job file (default: only what the flags say)")
    _model_flags(doctor)
    doctor.add_argument("--offline", action="store_true", help="send nothing to the model's provider")
    doctor.add_argument("--json", action="store_true", help="as JSON lines")
    tools = _add(
        commands,
        "tools",
        "checking:tools",
        "list the tools of a job or of an mcp.json",
        "centuria tools --tools mcp.json",
    )
    tools.add_argument("job", metavar="JOB", nargs="?", help="a job file")
    tools.add_argument("--tools", metavar="FILE", type=Path, help="MCP servers: the mcpServers JSON of any host")
    tools.add_argument("--json", action="store_true", help="as JSON lines")
    _add(
        commands,
        "schema",
        "checking:schema",
        "print the JSON schema of the job file",
        "centuria schema > job.schema.json",
    )
    _add_logins(commands)
    _add_torture(commands)


def _add_logins(commands: Commands) -> None:
    login = _add(
        commands,
        "login",
        "login:login",
        "log in to a tool server, for the runs to come",
        "centuria login github --tools mcp.json\n  centuria login --url https://mcp.example.com/mcp --no-browser",
    )
    _login_flags(login)
    login.add_argument("--scopes", metavar="SCOPES", help="what to ask for (default: all that the server offers)")
    login.add_argument("--no-browser", action="store_true", help="print the URL, open nothing")
    login.add_argument(
        "--timeout", metavar="SECONDS", type=float, default=300.0, help="how long to wait for you (default: 300)"
    )
    logout = _add(commands, "logout", "login:logout", "forget a login", "centuria logout github --tools mcp.json")
    _login_flags(logout)


def _login_flags(command: argparse.ArgumentParser) -> None:
    command.add_argument("server", metavar="SERVER", nargs="?", help="its name in the file (default: the only one)")
    where = command.add_mutually_exclusive_group()
    where.add_argument("--tools", metavar="FILE", type=Path, help="MCP servers: the mcpServers JSON of any host")
    where.add_argument("--job", metavar="FILE", type=Path, help="a job file")
    where.add_argument("--url", metavar="URL", help="a server that is in no file")
    command.add_argument("--json", action="store_true", help="as JSON")


def _add_torture(commands: Commands) -> None:
    torture = _add(
        commands,
        "torture",
        "torturing:torture",
        "try what an OpenAI-compatible server gets right: about 70 requests",
        "centuria torture --base-url http://127.0.0.1:8000/v1 --model my-model --yes",
    )
    torture.add_argument(
        "--base-url", metavar="URL", required=True, help="the server, such as http://127.0.0.1:8000/v1"
    )
    torture.add_argument("--model", metavar="NAME", help="the model, such as kimi-k2.5")
    torture.add_argument("--provider", metavar="NAME", help=_PROVIDERS)
    torture.add_argument("--key-env", metavar="NAME", help="the variable that holds the key")
    torture.add_argument(
        "--context", metavar="TOKENS", type=int, help="the model's context, for the prompt that is too long"
    )
    torture.add_argument("--skip", metavar="WORD,..", help="leave out the rows whose names hold one of these words")
    torture.add_argument("--yes", action="store_true", help="do not ask before it starts")
    torture.add_argument("--json", action="store_true", help="as JSON")


def _add_gateway(commands: Commands) -> None:
    serve = _add(
        commands,
        "serve",
        "serving:serve",
        "serve the gateway: one key and one URL for models, tools and swarms, and a page to watch them",
        "centuria serve --config gateway.toml\n"
        "  centuria serve                                     the model that the environment names, for this machine",
    )
    serve.add_argument("--config", metavar="FILE", type=Path, help="gateway.toml (see docs/gateway.md)")
    serve.add_argument("--host", metavar="ADDRESS", help="where to listen (default: 127.0.0.1)")
    serve.add_argument("--port", metavar="N", type=int, help="the port to listen at (default: 8080); 0: any")
    serve.add_argument("--store", metavar="FILE", help="a SQLite file, or postgresql://... (default: gateway.db)")
    serve.add_argument("--model", metavar="NAME", help="without a file: the model, such as kimi-k2.5")
    serve.add_argument("--base-url", metavar="URL", help="without a file: any OpenAI-compatible server")
    serve.add_argument("--rehearse", action="store_true", help="a scripted model instead: no key, no cost")
