"""The figures of the sub-industries and their comparison: what the rehearsal runs with code_exec.

A real model writes code of its own. This file keeps to what that sandbox has: no files, no class inheritance, no yield.
Figures come as JSON texts, one for each sub-industry, as the collectors answered them.
"""

import json
import statistics

FEWEST = 5
SIDES = [
    {"id": "valuation", "name": "valuation"},
    {"id": "dividend", "name": "dividend"},
    {"id": "size", "name": "size"},
    {"id": "range", "name": "place in the 52-week range"},
]
COLUMNS = {
    "valuation": [("price_earnings", "P/E"), ("price_sales", "P/S"), ("price_book", "P/B")],
    "dividend": [("dividend_yield", "Yield %")],
    "size": [("market_cap", "Market cap, $bn")],
    "place in the 52-week range": [("position", "Place %")],
}


def number(text):
    """A cell as a number; None where it is empty, never 0."""
    return float(text) if text.strip() else None


def median(values):
    """The median of what is there, and how many that are."""
    there = [value for value in values if value is not None]
    return {"median": tenths(statistics.median(there)) if there else None, "n": len(there)}


def tenths(value):
    return float(f"{value:.1f}")


def above_zero(value):
    return value if value is not None and value > 0 else None


def plan(rows):
    """The sub-industries that are large enough, the sides, and the ids of the tasks."""
    counts = {}
    for row in rows:
        counts[row["Sector"]] = counts.get(row["Sector"], 0) + 1
    names = sorted(name for name in counts if counts[name] >= FEWEST)
    sectors = [{"name": name, "id": identity(name)} for name in names]
    ids = [side["id"] for side in SIDES]
    print(json.dumps({"count": len(sectors), "sectors": sectors, "sides": SIDES, "side_ids": ids}))


def identity(name):
    letters = "".join(char if char.isalnum() else "-" for char in name.lower())
    while "--" in letters:
        letters = letters.replace("--", "-")
    return letters.strip("-")


def position(row):
    """Where the price lies between the 52-week low (0) and high (100)."""
    price, low, high = number(row["Price"]), number(row["52 Week Low"]), number(row["52 Week High"])
    if price is None or low is None or high is None or high <= low:
        return None
    return 100 * (price - low) / (high - low)


def collect(sector, rows):
    """The figures of one sub-industry."""
    yields = [number(row["Dividend Yield"]) for row in rows]
    caps = [number(row["Market Cap"]) for row in rows]
    answer = {
        "sector": sector,
        "companies": len(rows),
        "price_earnings": median([above_zero(number(row["Price/Earnings"])) for row in rows]),
        "price_sales": median([above_zero(number(row["Price/Sales"])) for row in rows]),
        "price_book": median([above_zero(number(row["Price/Book"])) for row in rows]),
        "dividend_yield": median([100 * value if value is not None else None for value in yields]),
        "market_cap": median([value / 1e9 if value is not None else None for value in caps]),
        "position": median([position(row) for row in rows]),
    }
    print(json.dumps(answer))


def compare(side, texts):
    """A table of all sub-industries from one side, the highest first."""
    figures = parsed(texts)
    columns = COLUMNS[side]
    first = columns[0][0]
    known = [one for one in figures if one[first]["median"] is not None]
    known = sorted(known, key=lambda one: -one[first]["median"])
    lines = [f"## By {side}", ""]
    lines.append("| Sub-industry | " + " | ".join(f"{title} (n)" for _, title in columns) + " |")
    lines.append("| --- |" + " ---: |" * len(columns))
    for one in known:
        cells = [f"{one[key]['median']} ({one[key]['n']})" for key, _ in columns]
        lines.append(f"| {one['sector']} | " + " | ".join(cells) + " |")
    top, last = [f"{one['sector']} ({one[first]['median']})" for one in (known[0], known[-1])]
    lines.append("")
    lines.append(f"Highest: {top}. Lowest: {last}.")
    print(json.dumps({"markdown": "\n".join(lines)}))


def review(texts):
    """Which medians rest on few companies."""
    doubts = []
    for one in parsed(texts):
        for key, title in [pair for columns in COLUMNS.values() for pair in columns]:
            if one[key]["n"] < FEWEST:
                doubts.append(f"- {one['sector']}: {title} rests on {one[key]['n']} of {one['companies']} companies.")
    print(json.dumps({"markdown": "\n".join(doubts) or "No median rests on fewer than five companies."}))


def parsed(texts):
    """The collectors' answers; what is no JSON is one that failed, and is left out."""
    listed = json.loads(texts) if isinstance(texts, str) else texts
    return [one for one in listed if isinstance(one, dict)]
