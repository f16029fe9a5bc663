"""Chat completions: the one funnel through which every request of the gateway reaches a model.

checking.py   what a caller sent, checked and bounded      lane.py     one deployment: governor, queue, breaker
funnel.py     reserve, place, attempt, settle, again       relay.py    the upstream's bytes to the caller's
routes.py     /v1/chat/completions and /v1/models
"""
