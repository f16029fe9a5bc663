import asyncio
from dataclasses import dataclass, field
from typing import Any, Optional
import heapq

HOLYSHEEP_BASE_URL = "https://api.holysheep.ai/v1"
HOLYSHEEP_API_KEY = "YOUR_HOLYSHEEP_API_KEY"

@dataclass(order=True)
class PrioritizedToolRequest:
    priority: int
    agent_id: str = field(compare=False)
    tool_name: str = field(compare=False)
    payload: Any = field(compare=False)
    future: asyncio.Future = field(compare=False, repr=False)

class MCPToolScheduler:
    """MCP 도구 호출의 우선순위 기반 직렬화 스케줄러"""

    def __init__(self, max_concurrent_per_tool: int = 10):
        self.tool_limits = {}
        self.tool_queues = {}
        self.active_counts = {}
        self.max_concurrent_per_tool = max_concurrent_per_tool

    async def request_tool(
        self,
        agent_id: str,
        tool_name: str,
        payload: dict,
        priority: int = 5,
    ) -> dict:
        if tool_name not in self.tool_queues:
            self.tool_queues[tool_name] = []
            self.active_counts[tool_name] = 0
        loop = asyncio.get_event_loop()
        future = loop.create_future()
        request = PrioritizedToolRequest(
            priority=priority,
            agent_id=agent_id,
            tool_name=tool_name,
            payload=payload,
            future=future,
        )
        heapq.heappush(self.tool_queues[tool_name], request)
        if self.active_counts[tool_name] < self.max_concurrent_per_tool:
            self._dispatch(tool_name)
        return await future

    def _dispatch(self, tool_name: str):
        while (
            self.tool_queues[tool_name]
            and self.active_counts[tool_name] < self.max_concurrent_per_tool
        ):
            req = heapq.heappop(self.tool_queues[tool_name])
            if req.future.done():
                continue
            self.active_counts[tool_name] += 1
            asyncio.create_task(self._execute_tool(req))

    async def _execute_tool(self, req: PrioritizedToolRequest):
        try:
            import aiohttp
            async with aiohttp.ClientSession() as session:
                headers = {"Authorization": f"Bearer {HOLYSHEEP_API_KEY}"}
                async with session.post(
                    f"{HOLYSHEEP_BASE_URL}/mcp/tools/{req.tool_name}/invoke",
                    json=req.payload,
                    headers=headers,
                    timeout=aiohttp.ClientTimeout(total=30),
                ) as resp:
                    result = await resp.json()
                    req.future.set_result(result)
        except Exception as exc:
            req.future.set_exception(exc)
        finally:
            self.active_counts[req.tool_name] -= 1
            self._dispatch(req.tool_name)
