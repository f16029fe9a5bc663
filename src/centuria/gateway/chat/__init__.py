"""Chat completions: the one funnel through which every request of the gateway reaches a model.

checking.py   what a caller sent, checked and bounded      lane.py       one deployment: governor, queue, breaker
calls.py      a call, a deployment, and their terms        rates.py      a key's requests and tokens a minute
funnel.py     admit, attempt, settle, again elsewhere      choosing.py   which deployment is next
attempt.py    one request to one deployment                hedging.py    two attempts, of which the quicker counts
relay.py      the upstream's bytes to the caller's         telling.py    what a caller is told of an upstream's trouble
deadlines.py  the time-outs of many waits with one timer   routes.py     /v1/chat/completions and /v1/models
"""
