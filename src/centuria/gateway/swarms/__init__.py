"""Swarms as a service: runs of the library, spawned, watched and steered over HTTP.

wanted.py    what a caller asks for, checked, and the job that it makes
kept.py      what outlives the process: a document for each swarm, a folder for each run
transport.py a run's model calls, through the gateway's funnel
work.py      one swarm at work          service.py  all of them: spawn, resume, end
told.py      what is told of a swarm    events.py   its facts as they happen, over SSE
routes.py    the addresses
"""
