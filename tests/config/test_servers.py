"""Tool servers: `[tools.NAME]` of a job file and the `mcpServers` file that MCP hosts share."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from centuria.config import load_job, read_mcp_json
from centuria.config.reading import without_comments
from centuria.errors import JobError
from centuria.settings import Job, ToolServer

TASK = '[[task]]\nid = "a"\nprompt = "x"\n'


def tools(folder: Path, text: str, env: Mapping[str, str] | None = None) -> dict[str, ToolServer]:
    (folder / "job.toml").write_text(text + TASK)
    return {server.name: server for server in load_job(folder / "job.toml", env=env or {}).job.servers}


def mcp(folder: Path, value: Any, env: Mapping[str, str] | None = None) -> dict[str, ToolServer]:
    path = folder / "mcp.json"
    path.write_text(value if isinstance(value, str) else json.dumps(value))
    return {server.name: server for server in read_mcp_json(path, env or {})}


def test_every_setting_of_a_server_is_read(tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    found = tools(
        tmp_path,
        """
[tools.db]
command = "./server"
args = ["--url", "${DB:-local}"]
env = { TOKEN = "${TOKEN}" }
cwd = "docs"
limit = 4
tool_limits = { query = 2 }
required = true
allow = ["query", "drop"]
ask = ["drop"]
trusted = ["query"]
timeout = 12.5
slug = "mydb"
[tools.remote]
url = "https://${HOST}/mcp"
headers = { Authorization = "Bearer ${TOKEN}" }
[tools.docs]
builtin = "file_read"
roots = ["docs"]
[tools.python]
builtin = "code_exec"
seconds = 2
memory_mb = 64
output_chars = 500
[tools.pages]
builtin = "web_search"
folder = "docs"
""",
        {"TOKEN": "t0", "HOST": "h.example"},
    )
    assert found["db"] == ToolServer(
        slug="mydb",
        name="db",
        command=str(tmp_path / "server"),
        args=("--url", "local"),
        env={"TOKEN": "t0"},
        cwd=tmp_path / "docs",
        limit=4,
        tool_limits={"query": 2},
        required=True,
        allow=frozenset({"query", "drop"}),
        ask=frozenset({"drop"}),
        trusted=frozenset({"query"}),
        timeout=12.5,
    )
    assert found["remote"].url == "https://h.example/mcp"
    assert found["remote"].headers == {"Authorization": "Bearer t0"}
    assert {name: server.slug for name, server in found.items() if server.builtin} == {
        "docs": "file",
        "python": "code",
        "pages": "web",
    }
    assert found["docs"].options == {"roots": [str(tmp_path / "docs")]}
    assert found["python"].options == {"seconds": 2, "memory_mb": 64, "output_chars": 500}
    assert found["pages"].options == {"folder": str(tmp_path / "docs")}


def test_a_server_starts_beside_the_file_that_names_it(tmp_path: Path) -> None:
    found = tools(tmp_path, '[tools.x]\ncommand = "npx"\n')
    assert (found["x"].command, found["x"].cwd) == ("npx", tmp_path)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("[tools.x]\nlimit = 3\n", "[tools.x] has no `builtin`, `command` or `url`."),
        ('[tools.x]\ncommand = "a"\nurl = "https://b"\n', "[tools.x] has `command` and `url`."),
        ('[tools.x]\ncommand = "a"\nroots = ["."]\n', '`roots`, which belongs to a server with builtin = "file_read".'),
        ('[tools.x]\nbuiltin = "code_exec"\nargs = ["a"]\n', "`args`, which belongs to a server with a `command`."),
        ('[tools.x]\ncommand = "a"\nheaders = { A = "b" }\n', "`headers`, which belongs to a server with a `url`."),
        ('[tools.x]\nbuiltin = "file_read"\nroots = ["no"]\n', "roots names `no`, which is not a folder."),
        ('[tools.x]\nbuiltin = "web_search"\nfolder = "."\nsearxng = "http://x"\n', "has `folder` and `searxng`."),
        ('[tools.x]\nbuiltin = "web_search"\n', "[tools.x] has nothing to search with."),
        ('[tools.x]\nbuiltin = "web_search"\nsearxng = "x"\n', "searxng is not an http(s) URL."),
        ('[tools.x]\nbuiltin = "files"\n', "[tools.x] builtin must be one of"),
        ('[tools.x]\nurl = "ftp://b"\n', "[tools.x] url is not an http(s) URL."),
        ('[tools.x]\nurl = "https://b:99999"\n', "[tools.x] url is not an http(s) URL."),
        ('[tools.x]\nurl = "https://b"\nheaders = { A = "b\\nc" }\n', "headers `A` is not a header of one line."),
        ('[tools.x]\ncommand = "${NO}"\n', "[tools.x] command asks for the variable NO, which is not set."),
        ('[tools.x]\ncommand = "a"\nargs = ["${input:k}"]\n', "which only an editor can fill in."),
        ('[tools.x]\ncommand = "a"\nargs = ["\\u0000"]\n', "args, item 1, holds a NUL character."),
        ('[tools.x]\ncommand = "a"\nenv = { "A=B" = "c" }\n', "env has the name `A=B`, which is none."),
        ('[tools.x]\ncommand = "a"\ncwd = "no"\n', "cwd names `no`, which is not a folder."),
        ('[tools.x]\ncommand = "a"\nslug = "Big"\n', "[tools.x] slug is not valid"),
        ('[tools.x]\ncommand = "a"\nslug = "s"\n[tools.y]\ncommand = "a"\nslug = "s"\n', "has the slug `s` of `x`."),
        ('[job]\ntools_file = "no.json"\n', "The tools file no.json does not exist."),
    ],
)
def test_a_server_that_cannot_work_is_refused_by_table_and_key(tmp_path: Path, text: str, sentence: str) -> None:
    with pytest.raises(JobError) as caught:
        tools(tmp_path, text)
    assert sentence in str(caught.value)


def test_all_broken_servers_are_told_at_once(tmp_path: Path) -> None:
    with pytest.raises(JobError) as caught:
        tools(tmp_path, '[tools.x]\ncommand = "${A}"\n[tools.y]\ncommand = "${B}"\n')
    assert "variable A" in caught.value.message
    assert "variable B" in caught.value.remedy


NAMES = ("brave_search", "GitHub", "chrome-devtools-mcp", "sequential-thinking", "Web Search", "файлы", "1st")


def test_any_name_that_hosts_allow_gets_a_legal_slug_of_its_own(tmp_path: Path) -> None:
    found = mcp(tmp_path, {"mcpServers": {name: {"command": "x"} for name in NAMES}})
    slugs = {name: server.slug for name, server in found.items()}
    assert list(found) == list(NAMES)
    assert (slugs["brave_search"], slugs["GitHub"]) == ("brave-search", "github")
    assert len(set(slugs.values())) == len(NAMES)
    for slug in slugs.values():
        assert slug[0].isalpha()
        assert len(slug) <= 16
        assert slug.isascii()
        assert slug == slug.lower()


def test_the_built_in_servers_keep_their_slugs_and_others_of_that_name_step_aside(tmp_path: Path) -> None:
    (tmp_path / "mcp.json").write_text('{"mcpServers": {"web": {"command": "x"}}}')
    found = tools(tmp_path, '[job]\ntools_file = "mcp.json"\n[tools.search]\nbuiltin = "web_search"\nfolder = "."\n')
    assert found["search"].slug == "web"
    assert found["web"].slug.startswith("web-")


@pytest.mark.parametrize(
    ("entry", "command", "url"),
    [
        ({"command": "npx", "args": ["-y", "m"], "alwaysAllow": ["a"], "autoApprove": [], "timeout": 60}, "npx", None),
        ({"type": "stdio", "command": "uvx"}, "uvx", None),
        ({"transport": "stdio", "command": "uvx"}, "uvx", None),
        ({"type": "local", "command": "uvx", "tools": ["*"]}, "uvx", None),
        ({"url": "https://x.example/mcp"}, None, "https://x.example/mcp"),
        ({"type": "http", "url": "https://x.example/mcp?k=v"}, None, "https://x.example/mcp?k=v"),
        ({"type": "streamable-http", "url": "https://x.example"}, None, "https://x.example"),
        ({"transport": {"type": "streamableHttp"}, "url": "https://x.example"}, None, "https://x.example"),
        ({"httpUrl": "https://x.example/mcp"}, None, "https://x.example/mcp"),
        ({"type": "sse", "url": "https://x.example/sse"}, None, "https://x.example/sse"),
        ({"transport": "streamable_http", "url": "https://x.example/mcp"}, None, "https://x.example/mcp"),
        ({"serverUrl": "https://x.example/mcp"}, None, "https://x.example/mcp"),
    ],
)
def test_what_other_hosts_write_is_understood(
    tmp_path: Path, entry: dict[str, Any], command: str | None, url: str | None
) -> None:
    server = mcp(tmp_path, {"mcpServers": {"x": entry}})["x"]
    assert (server.command, server.url) == (command, url)


VS_CODE = """
{
  // What VS Code asks for when a server first starts.
  "inputs": [
    {"type": "promptString", "id": "perplexity-key", "description": "API key", "password": true},
    {"type": "pickString", "id": "region", "options": ["eu", "us"], "default": "eu"},
  ],
  /* "servers", not
     "mcpServers" */
  "servers": {
    "perplexity": {
      "type": "stdio",
      "command": "npx", // "quotes" in a comment
      "args": ["-y", "server-perplexity", "--url=https://x.example/,]"],
      "env": {"KEY": "${input:perplexity-key}", "REGION": "${input:region}"},
      "envFile": "${workspaceFolder}/.env",
      "dev": {"watch": "**/*.ts",},
    },
  },
}
"""


def test_a_file_of_vs_code_is_read_with_its_comments_and_its_inputs_are_variables(tmp_path: Path) -> None:
    (tmp_path / ".vscode").mkdir()
    file = tmp_path / ".vscode" / "mcp.json"
    file.write_text(VS_CODE)
    (tmp_path / ".env").write_text("# keys\nexport A='1'\nREGION=no\nB = \"x # y\"\n\nnonsense\n")
    (server,) = read_mcp_json(file, {"PERPLEXITY_KEY": "${k}"})
    assert server.args == ("-y", "server-perplexity", "--url=https://x.example/,]")
    assert server.env == {"A": "1", "B": "x # y", "KEY": "${k}", "REGION": "eu"}
    assert server.cwd == tmp_path, "the workspace, not the editor's folder in it"
    assert dict(read_mcp_json(file, {"PERPLEXITY_KEY": "k", "REGION": "us"})[0].env)["REGION"] == "us"


def test_an_input_that_nobody_answered_is_asked_for_by_its_variable(tmp_path: Path) -> None:
    (tmp_path / "mcp.json").write_text(VS_CODE)
    (tmp_path / ".env").touch()
    with pytest.raises(JobError) as caught:
        read_mcp_json(tmp_path / "mcp.json", {})
    assert "`perplexity` env KEY asks for `${input:perplexity-key}`" in caught.value.message
    assert caught.value.remedy == "Set the variable PERPLEXITY_KEY."


@pytest.mark.parametrize(
    "text", ['{"mcpServers": {"x": // "y"}}', "{/* }", '{"mcpServers": {"x": {"command": "a" /* }}}']
)
def test_comments_that_do_not_end_are_no_json(tmp_path: Path, text: str) -> None:
    (tmp_path / "mcp.json").write_text(text)
    with pytest.raises(JobError, match="is not JSON"):
        read_mcp_json(tmp_path / "mcp.json", {})


@given(
    st.recursive(
        st.none() | st.text() | st.integers(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)
    )
)
def test_what_is_json_already_means_the_same_without_comments(value: Any) -> None:
    text = json.dumps(value)
    assert without_comments(text) == text
    assert json.loads(without_comments(json.dumps(value, indent=1).replace("\n", " // , }\n"))) == value


def test_a_disabled_server_is_left_out_whatever_else_is_wrong_with_it(tmp_path: Path) -> None:
    found = mcp(tmp_path, {"mcpServers": {"a": {"disabled": True}, "b": {"enabled": False}, "c": {"command": "x"}}})
    assert list(found) == ["c"]


def test_variables_are_filled_as_hosts_fill_them(tmp_path: Path) -> None:
    entry = {
        "command": "${BIN:-npx}",
        "args": ["${workspaceFolder}/a", "${env:A}", "$A ${not a var}", "${EMPTY:-d}", "${userHome}"],
        "env": {"N": 3, "T": True},
    }
    env = {"A": "1", "EMPTY": "", "HOME": "/home/x"}
    server = mcp(tmp_path, {"mcpServers": {"x": entry}}, env)["x"]
    assert server.command == "npx"
    assert server.args == (f"{tmp_path}/a", "1", "$A ${not a var}", "d", "/home/x")
    assert server.env == {"N": "3", "T": "true"}


def test_what_a_variable_holds_is_not_expanded_again(tmp_path: Path) -> None:
    entry = {"command": "x", "args": ["${A}"]}
    assert mcp(tmp_path, {"mcpServers": {"x": entry}}, {"A": "${B}", "B": "no"})["x"].args == ("${B}",)


@pytest.mark.parametrize(
    ("value", "sentence"),
    [
        ("{", "mcp.json is not JSON: "),
        ([], "mcp.json has no `mcpServers`."),
        ({"mcpservers": {}}, "mcp.json has no `mcpServers`."),
        ({"mcpServers": {"x": 3}}, "mcp.json: the server `x` is not an object."),
        ({"mcpServers": {"x": {}}}, "the server `x` has neither `command` nor `url`."),
        ({"mcpServers": {"x": {"type": "ws", "url": "https://a"}}}, "`x` uses the transport `ws`, which is not known."),
        ({"mcpServers": {"x": {"command": "a", "url": "https://a"}}}, "`x` has a `command` and a `url`."),
        ({"mcpServers": {"x": {"type": "http", "command": "a"}}}, "`x` needs `url` as text."),
        ({"mcpServers": {"x": {"command": ["a"]}}}, "`x` needs `command` as text."),
        ({"mcpServers": {"x": {"command": "a", "args": "b"}}}, "`x` needs `args` as a list of texts."),
        ({"mcpServers": {"x": {"command": "a", "env": ["A=b"]}}}, "`x` needs `env` as an object."),
        ({"mcpServers": {"x": {"command": "a", "env": {"A": None}}}}, "`x` needs `env` `A` as text."),
        ({"mcpServers": {"x": {"url": "file:///etc"}}}, "`x` url is not an http(s) URL."),
        ({"mcpServers": {"x": {"command": "a", "envFile": "no.env"}}}, "`x` envFile: The file no.env does not exist."),
        ({"mcpServers": {"": {"command": "a"}}}, "has a server without a name"),
        ({"mcpServers": {str(n): {"command": "a"} for n in range(501)}}, "has more than 500 servers."),
    ],
)
def test_a_tools_file_that_cannot_work_is_refused_by_server(tmp_path: Path, value: Any, sentence: str) -> None:
    with pytest.raises(JobError) as caught:
        mcp(tmp_path, value)
    assert sentence in caught.value.message
    assert caught.value.remedy


def test_a_table_without_a_command_tunes_the_server_of_the_tools_file(tmp_path: Path) -> None:
    (tmp_path / "mcp.json").write_text('{"mcpServers": {"db": {"command": "x"}, "b": {"command": "y"}}}')
    text = '[job]\ntools_file = "mcp.json"\n[tools.db]\nlimit = 4\nask = ["drop"]\nslug = "d"\n'
    found = tools(tmp_path, text)
    assert (found["db"].command, found["db"].limit, found["db"].ask) == ("x", 4, frozenset({"drop"}))
    assert (found["db"].slug, found["b"].slug) == ("d", "b")
    with pytest.raises(JobError, match=r"\[tools.db\] is in the tools file too."):
        tools(tmp_path, '[job]\ntools_file = "mcp.json"\n[tools.db]\ncommand = "z"\n')
    with pytest.raises(JobError, match="Did you mean `db`"):
        tools(tmp_path, '[job]\ntools_file = "mcp.json"\n[tools.dbb]\nlimit = 2\n')


def test_the_environment_and_headers_of_a_server_are_not_in_its_repr(tmp_path: Path) -> None:
    server = mcp(tmp_path, {"mcpServers": {"x": {"command": "a", "env": {"K": "hunter2"}}}})["x"]
    assert "hunter2" not in repr(server)


WEB = '[tools.web]\nurl = "https://tools.example.com/mcp"\nagent_headers = { X-User = "{User}" }\n'
ROWS = '[job]\nprompt = "Go {Name}"\nrows = "r.csv"\nid = "Name"\n'


def loaded(tmp_path: Path, text: str, rows: str = "Name,User\nAnn,a1\nBob,b2\n") -> Job:
    (tmp_path / "r.csv").write_text(rows)
    (tmp_path / "job.toml").write_text(text)
    return load_job(tmp_path / "job.toml", env={}).job


def test_headers_of_agents_are_templates_of_their_rows(tmp_path: Path) -> None:
    [server] = loaded(tmp_path, ROWS + WEB).servers
    assert server.agent_headers == {"X-User": "{User}"}
    assert "{User}" not in repr(server)


def test_an_agent_may_have_its_own_authorization_and_cookie(tmp_path: Path) -> None:
    [server] = loaded(tmp_path, ROWS + WEB.replace("X-User =", 'Cookie = "u={User}", Authorization =')).servers
    assert set(server.agent_headers) == {"Cookie", "Authorization"}


@pytest.mark.parametrize(
    ("text", "rows", "message"),
    [
        (ROWS + '[tools.x]\ncommand = "x"\nagent_headers = { A = "b" }\n', None, "belongs to a server with a `url`"),
        (ROWS + '[tools.x]\nbuiltin = "file_read"\nagent_headers = { A = "b" }\n', None, "a server with a `url`"),
        (ROWS + WEB.replace("{User}", "{Usr}"), None, "agent_headers `X-User` cannot be made for the task `Ann`"),
        (ROWS + WEB, "Name,User\nAnn,\n", "of the task `Ann` would be empty"),
        (ROWS + WEB, "Name,User\nAnn,Ä\n", "or no line of plain characters"),
        (ROWS + WEB.replace("X-User", '"X:User"'), None, "agent_headers `X:User` is not a header"),
        (ROWS + WEB.replace("X-User", "Mcp-Session-Id"), None, "`Mcp-Session-Id` belongs to the connection"),
        (ROWS + WEB.replace("X-User", "mcp-protocol-version"), None, "belongs to the connection that all agents share"),
        (ROWS + WEB.replace("X-User", "Content-Length"), None, "`Content-Length` belongs to the connection"),
        (ROWS + WEB.replace("X-User", '" HOST"'), None, "belongs to the connection"),
        ('[job]\nprompt = "Go"\n' + WEB, None, "It has no row: take the server out of its `tools`."),
    ],
)
def test_headers_of_agents_that_cannot_be_sent_are_refused_before_anything_runs(
    tmp_path: Path, text: str, rows: str | None, message: str
) -> None:
    with pytest.raises(JobError) as error:
        loaded(tmp_path, text, *([rows] if rows else []))
    assert message in str(error.value)


def test_a_task_that_does_not_see_the_server_needs_no_name_there(tmp_path: Path) -> None:
    job = loaded(tmp_path, ROWS + WEB + '[[task]]\nid = "sum"\nprompt = "x"\ntools = []\n')
    assert [task.id for task in job.tasks] == ["Ann", "Bob", "sum"]


def test_modes_and_replicas_are_read_from_both_files(tmp_path: Path) -> None:
    found = tools(
        tmp_path,
        """
[tools.db]
command = "x"
mode = "pool"
replicas = 3
[tools.browser]
command = "x"
mode = "leased"
replicas = 5
idle_timeout = 60
""",
    )
    assert (found["db"].mode, found["db"].replicas) == ("pool", 3)
    browser = found["browser"]
    assert (browser.mode, browser.replicas, browser.idle_timeout) == ("leased", 5, 60)
    ours = {"mode": "leased", "replicas": 2, "limit": 4, "trusted": ["*"]}
    entries = {"a": {"command": "x", "centuria": ours}, "b": {"command": "x", "mode": "a field of another host"}}
    read = mcp(tmp_path, {"mcpServers": entries})
    assert (read["a"].mode, read["a"].replicas, read["a"].limit, read["a"].trusted) == ("leased", 2, 4, {"*"})
    assert (read["b"].mode, read["b"].replicas) == ("shared", 1)
    (tmp_path / "mcp.json").write_text(json.dumps({"mcpServers": entries}))
    tuned = tools(tmp_path, '[job]\ntools_file = "mcp.json"\n[tools.a]\nreplicas = 7\n')
    assert (tuned["a"].mode, tuned["a"].replicas) == ("leased", 7)


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ("replicas = 4", 'mode = "pool"'),
        ('mode = "pool"', "Add how many sessions"),
        ('mode = "poool"\nreplicas = 4', "Did you mean `pool`?"),
        ('mode = "pool"\nreplica = 4', "Did you mean `replicas`?"),
        ('mode = "pool"\nreplicas = 0', "at least 1"),
        ('mode = "pool"\nreplicas = 4\nidle_timeout = 5', "leased"),
    ],
)
def test_a_mode_that_is_not_whole_is_refused_with_what_to_write(tmp_path: Path, written: str, said: str) -> None:
    with pytest.raises(JobError) as caught:
        tools(tmp_path, f'[tools.db]\ncommand = "x"\n{written}\n')
    assert said in str(caught.value)
    assert "[tools.db]" in str(caught.value)


@pytest.mark.parametrize(
    ("ours", "said"),
    [
        ({"replica": 2}, "Did you mean `replicas`?"),
        ({"mode": "pol", "replicas": 2}, "Did you mean `pool`?"),
        ({"replicas": 2}, 'mode = "pool"'),
        ({"command": "y"}, "no key `command`"),
        (4, "as an object"),
    ],
)
def test_our_own_object_in_an_mcp_file_is_checked_as_a_table_of_a_job(tmp_path: Path, ours: Any, said: str) -> None:
    with pytest.raises(JobError) as caught:
        mcp(tmp_path, {"mcpServers": {"a": {"command": "x", "centuria": ours}}})
    assert said in str(caught.value)
    assert "`a`" in str(caught.value)


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ({"mcpServers": {"x": {"comand": "npx", "args": []}}}, "Did you mean `command` by `comand`?"),
        ({"mcpServers": {"x": {"type": "", "ulr": "http://127.0.0.1:1/mcp"}}}, "Did you mean `url` by `ulr`?"),
        ({"mcpServers": {"x": {"builtin": "file_read", "roots": ["."]}}}, "belong in a job file, as [tools.NAME]"),
        ({"mcpServer": {"x": {"command": "npx"}}}, "Did you mean `mcpServers` by `mcpServer`?"),
        ({"mcpServers": {"x": {"args": ["a"]}}}, "Add one of them."),
    ],
)
def test_a_slip_in_an_mcp_file_and_a_built_in_tool_in_it_are_told_with_what_was_meant(
    tmp_path: Path, written: Any, said: str
) -> None:
    with pytest.raises(JobError) as caught:
        mcp(tmp_path, written)
    assert said in caught.value.remedy
