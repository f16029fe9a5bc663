"""The public kit for tests: real second implementations of the ports, a fake provider, virtual time.

clock.py      an event loop whose time jumps from timer to timer
scripted.py   a model that answers from a script
upstream.py   a provider on loopback with faults on demand; replies.py says what it can answer
tools.py      plain functions as a tool host
journal.py    a journal in memory that can hold back and fail
torture/      a table of what upstreams do wrong, and what any client makes of it
"""
