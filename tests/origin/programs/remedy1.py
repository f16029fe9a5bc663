import asyncio
import aiohttp
from tenacity import retry, stop_after_attempt, wait_exponential

HOLYSHEEP_BASE_URL = "https://api.holysheep.ai/v1"
HOLYSHEEP_API_KEY = "YOUR_HOLYSHEEP_API_KEY"

@retry(
    stop=stop_after_attempt(3),
    wait=wait_exponential(multiplier=1, min=1, max=8),
)
async def safe_subagent_call(session, payload):
    headers = {
        "Authorization": f"Bearer {HOLYSHEEP_API_KEY}",
        "Content-Type": "application/json",
    }
    async with session.post(
        f"{HOLYSHEEP_BASE_URL}/chat/completions",
        json=payload,
        headers=headers,
        timeout=aiohttp.ClientTimeout(total=60),
    ) as resp:
        if resp.status == 429:
            await asyncio.sleep(int(resp.headers.get("Retry-After", 2)))
            raise aiohttp.ClientError("Rate limited, retrying")
        resp.raise_for_status()
        return await resp.json()
