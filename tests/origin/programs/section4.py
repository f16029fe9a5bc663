import asyncio
import aiohttp
from typing import List, Dict, Any

HOLYSHEEP_BASE_URL = "https://api.holysheep.ai/v1"
HOLYSHEEP_API_KEY = "YOUR_HOLYSHEEP_API_KEY"
MODEL_NAME = "kimi-k2.5"

class KimiSwarmOrchestrator:
    """100개 병렬 서브에이전트를 스폰하는 오케스트레이터"""

    def __init__(self, max_agents: int = 100):
        self.max_agents = max_agents
        self.semaphore = asyncio.Semaphore(max_agents)
        self.registered_tools: Dict[str, str] = {}

    async def spawn_subagent(
        self,
        session: aiohttp.ClientSession,
        task_slice: Dict[str, Any],
        mcp_tools: List[str],
    ) -> Dict[str, Any]:
        async with self.semaphore:
            payload = {
                "model": MODEL_NAME,
                "messages": [
                    {
                        "role": "system",
                        "content": (
                            "You are a subagent in a Kimi K2.5 Swarm. "
                            "You must only use the registered MCP tools."
                        ),
                    },
                    {"role": "user", "content": task_slice["prompt"]},
                ],
                "mcp_tools": mcp_tools,
                "stream": False,
                "max_tokens": 4096,
            }
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
                resp.raise_for_status()
                data = await resp.json()
                return {
                    "agent_id": task_slice["id"],
                    "result": data["choices"][0]["message"]["content"],
                    "usage": data.get("usage", {}),
                }

    async def run_swarm(
        self,
        task_slices: List[Dict[str, Any]],
        mcp_tools: List[str],
    ) -> List[Dict[str, Any]]:
        connector = aiohttp.TCPConnector(limit=self.max_agents)
        async with aiohttp.ClientSession(connector=connector) as session:
            tasks = [
                self.spawn_subagent(session, slice_, mcp_tools)
                for slice_ in task_slices
            ]
            results = await asyncio.gather(*tasks, return_exceptions=True)
            return results

async def main():
    orchestrator = KimiSwarmOrchestrator(max_agents=100)
    task_slices = [
        {"id": f"agent-{i:03d}", "prompt": f"분석 작업 #{i}"}
        for i in range(100)
    ]
    mcp_tools = ["web_search", "code_exec", "file_read"]
    results = await orchestrator.run_swarm(task_slices, mcp_tools)
    print(f"완료: {sum(1 for r in results if not isinstance(r, Exception))}/100")

if __name__ == "__main__":
    asyncio.run(main())
