"""The command `centuria`.

main.py      the parser and the way out: errors to one clear sentence, exit codes
running.py   run, map, resume: what starts work and shows it
comparing.py compare: one job on several models, side by side
looking.py   show, runs, watch: what looks at runs, also from another process
steering.py  cancel, pause, go-on, retry, priority, approve, limit: what tells a run what to do while it works
checking.py  doctor, tools, schema: what looks at settings before a run
login.py     login, logout: what tool servers know us by
keys.py      keys add, list, budget, revoke: who may use a gateway, and key_flags.py; usage.py   usage: what they used
torturing.py torture: what tries a server
"""

from centuria.cli.main import main

__all__ = ["main"]
