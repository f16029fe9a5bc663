"""Calls that were made under an `Idempotency-Key`: each runs once, and is answered with the same words again.

Two documents of the caller's own for each: what was asked and how far it came (`call`), and the answer (`answer`).

    insert the call -> run -> keep the answer -> the call is done
    there already:  done -> its answer · running here -> wait for it · else nobody knows what became of it
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import secrets
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

from centuria.gateway.headers import digest_of_asked
from centuria.gateway.ports import Document, Store
from centuria.gateway.problems import Problem, conflict, idempotency_key_reused
from centuria.gateway.web import Reply
from centuria.toolanswers import MAY_HAVE_HAPPENED

CALL, ANSWER = "call", "answer"
#: Answers that are kept for one key, and for how many seconds; how many calls lie between two looks at that.
KEPT, SECONDS, EVERY = 1_000, 86_400.0, 100
#: Bytes of an answer that can be kept.
LARGEST = 256 * 1024
#: Statuses that say that surely nothing ran: the next one under this key may.
_NOT_RUN = frozenset({400, 404, 409, 413, 422, 429, 503})


class Answered:
    """`wall` gives seconds since 1970."""

    def __init__(self, store: Store, *, wall: Callable[[], float] = time.time) -> None:
        self._store = store
        self._wall = wall
        #: Tells the calls of this process from those of one that ended.
        self._me = secrets.token_hex(8)
        self._running: dict[tuple[str, str], asyncio.Future[None]] = {}
        self._made: Counter[str] = Counter()

    async def once(
        self, owner: str, given: str, asked: Any, run: Callable[[], Awaitable[Reply]], *, rerun: bool
    ) -> Reply:
        """The answer of the one run of this call. `given` is the caller's key for it, `asked` all that it asked for.

        Raises `Problem`: 422 where something else was asked under this key, 409 where nobody knows whether it ran;
        with `rerun`, which says that it is safe, it runs again then.
        """
        id = hashlib.sha256(given.encode()).hexdigest()
        digest = digest_of_asked(asked)
        call = Document(id, json.dumps({"asked": digest, "by": self._me, "done": False}), self._wall())
        while not await self._store.insert(CALL, owner, call):
            known = await self._store.get(CALL, owner, id)
            if known is None:
                continue  # it was taken away in this very moment: nothing ran
            said = json.loads(known.body)
            if said["asked"] != digest:
                raise idempotency_key_reused()
            if said["done"]:
                return await self._told(owner, id)
            running = self._running.get((owner, id))
            if running is not None:
                await asyncio.wait({running})
                continue
            if not rerun:
                raise _unknown()
            await self._store.put(CALL, owner, call)
            break
        return await self._run(owner, id, digest, run)

    async def _run(self, owner: str, id: str, digest: str, run: Callable[[], Awaitable[Reply]]) -> Reply:
        ended = self._running[owner, id] = asyncio.get_running_loop().create_future()
        try:
            try:
                reply = await run()
            except Problem as problem:
                if problem.status in _NOT_RUN:
                    await self._store.delete(CALL, owner, id)
                raise
            kept = {"status": reply.status, "body": reply.body.decode()}
            if len(reply.body) > LARGEST:
                kept = {"status": 409, "body": _too_large().body().decode()}
            now = self._wall()
            await self._store.put(ANSWER, owner, Document(id, json.dumps(kept), now))
            await self._store.put(CALL, owner, Document(id, json.dumps({"asked": digest, "done": True}), now))
        finally:
            del self._running[owner, id]
            ended.set_result(None)
        await self._prune(owner)
        return reply

    async def _told(self, owner: str, id: str) -> Reply:
        answer = await self._store.get(ANSWER, owner, id)
        if answer is None:
            raise _unknown()
        said = json.loads(answer.body)
        return Reply(said["body"].encode(), said["status"], {"idempotency-replayed": "true"})

    async def _prune(self, owner: str) -> None:
        """Take away what is old, and what is too much."""
        self._made[owner] += 1
        if self._made[owner] < EVERY:
            return
        del self._made[owner]
        oldest = self._wall() - SECONDS
        found = await self._store.find(CALL, owner, limit=KEPT + 10 * EVERY)
        for place, (_, document) in enumerate(found):
            if (place >= KEPT or document.at < oldest) and (owner, document.id) not in self._running:
                await self._store.delete(ANSWER, owner, document.id)
                await self._store.delete(CALL, owner, document.id)


def _unknown() -> Problem:
    return conflict(
        f"The outcome of the call under this Idempotency-Key is unknown. {MAY_HAVE_HAPPENED}",
        code="outcome_unknown",
        param="Idempotency-Key",
    )


def _too_large() -> Problem:
    return conflict(
        f"The call was made; its answer, of more than {LARGEST:,} bytes, was given once and not kept.",
        code="answer_not_kept",
        param="Idempotency-Key",
    )
