def build_agent_scoped_tools(base_tools: list, agent_id: str) -> list:
    return [
        {
            "name": f"{tool['name']}__{agent_id}",
            "description": tool["description"],
            "parameters": tool["parameters"],
            "scope": agent_id,
        }
        for tool in base_tools
    ]
