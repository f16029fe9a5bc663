TOOL_SEMAPHORES = {
    "web_search": asyncio.Semaphore(20),
    "code_exec": asyncio.Semaphore(5),
    "file_read": asyncio.Semaphore(30),
}

async def throttled_tool_call(tool_name: str, payload: dict):
    async with TOOL_SEMAPHORES[tool_name]:
        async with aiohttp.ClientSession() as session:
            headers = {"Authorization": f"Bearer {HOLYSHEEP_API_KEY}"}
            async with session.post(
                f"{HOLYSHEEP_BASE_URL}/mcp/tools/{tool_name}/invoke",
                json=payload,
                headers=headers,
                timeout=aiohttp.ClientTimeout(total=30),
            ) as resp:
                if resp.status == 429:
                    retry_after = int(resp.headers.get("Retry-After", 1))
                    await asyncio.sleep(retry_after)
                    return await throttled_tool_call(tool_name, payload)
                resp.raise_for_status()
                return await resp.json()
