import os

HOLYSHEEP_BASE_URL = "https://api.holysheep.ai/v1"
HOLYSHEEP_API_KEY = os.environ.get("HOLYSHEEP_API_KEY", "YOUR_HOLYSHEEP_API_KEY")

def validate_config():
    if not HOLYSHEEP_API_KEY or HOLYSHEEP_API_KEY == "YOUR_HOLYSHEEP_API_KEY":
        raise ValueError(
            "HOLYSHEEP_API_KEY가 설정되지 않았습니다. "
            "https://www.holysheep.ai/register 에서 발급받으세요."
        )
    if "api.openai.com" in HOLYSHEEP_BASE_URL or "api.anthropic.com" in HOLYSHEEP_BASE_URL:
        raise ValueError(
            "base_url은 반드시 https://api.holysheep.ai/v1 이어야 합니다."
        )
    if not HOLYSHEEP_BASE_URL.startswith("https://api.holysheep.ai"):
        raise ValueError("잘못된 게이트웨이 URL입니다.")
    return True
