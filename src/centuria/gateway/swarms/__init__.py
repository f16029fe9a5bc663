"""Swarms as a service: runs of the library, spawned, watched and steered over HTTP.

request.py    what a caller asks for, checked, and the job that it makes
policy.py     what a key's swarm may have: model, tools, money, limits
records.py    what outlives the process: a document for each swarm, a folder for each run
transport.py  a run's model calls, through the gateway's funnel
work.py       one swarm at work           service.py  all of them: spawn, resume, end
swarmjson.py  a swarm as JSON values      past.py     what its folder tells of it; archive.py beside the loop
events.py     its facts, over SSE         texts.py    the same without long texts
routes.py     the addresses
"""
