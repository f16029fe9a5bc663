async def run_with_deadlock_guard(coro, timeout_seconds=45):
    try:
        return await asyncio.wait_for(coro, timeout=timeout_seconds)
    except asyncio.TimeoutError:
        return {"status": "partial", "reason": "deadlock_timeout"}
