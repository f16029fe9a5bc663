"""The figures of the example, computed straight from the CSV and independently of the example's own code.

`expected()` gives, by symbol, what each of the 100 answers must say.
"""

from __future__ import annotations

import csv
import re
import statistics
from collections import defaultdict
from functools import cache
from pathlib import Path
from typing import Any

EXAMPLE = Path(__file__).parents[2] / "examples" / "market-reports"

Row = dict[str, str]


@cache
def table() -> list[Row]:
    with (EXAMPLE / "sp500-financials.csv").open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def largest(count: int = 100) -> list[Row]:
    return sorted((row for row in table() if row["Market Cap"]), key=lambda row: float(row["Market Cap"]))[::-1][:count]


def left_out() -> set[str]:
    return {row["Symbol"] for row in table() if not row["Market Cap"]}


@cache
def classes() -> dict[str, list[str]]:
    """Companies with more than one row, and the symbols of these."""
    found: dict[str, list[str]] = defaultdict(list)
    for row in table():
        found[re.sub(r" \(Class [A-Z]\)$", "", row["Name"])].append(row["Symbol"])
    return {name: symbols for name, symbols in found.items() if len(symbols) > 1}


@cache
def expected() -> dict[str, dict[str, Any]]:
    everything = table()
    return {row["Symbol"]: _expected(row, everything) for row in largest()}


def _expected(row: Row, everything: list[Row]) -> dict[str, Any]:
    sector = [other for other in everything if other["Sector"] == row["Sector"]]
    twins = {symbol for symbols in classes().values() if row["Symbol"] in symbols for symbol in symbols} - {
        row["Symbol"]
    }
    for symbols in classes().values():
        if row["Symbol"] not in symbols:
            held = [other for other in sector if other["Symbol"] in symbols]
            twins |= {other["Symbol"] for other in sorted(held, key=lambda r: float(r["Market Cap"] or 0))[:-1]}
    peers = [other for other in sector if other["Symbol"] not in twins]
    caps = sorted((float(peer["Market Cap"]) for peer in peers if peer["Market Cap"]), reverse=True)
    cap, price = float(row["Market Cap"]), float(row["Price"])
    low, high = float(row["52 Week Low"]), float(row["52 Week High"])
    multiples = {
        "Price/earnings": _median(peers, lambda r: r["Price/Earnings"]),
        "Price/sales": _median(peers, lambda r: r["Price/Sales"]),
        "Price/book": _median(peers, lambda r: r["Price/Book"]),
        "Market cap/EBITDA": _median(
            peers, lambda r: float(r["Market Cap"]) / float(r["EBITDA"]) if r["Market Cap"] and r["EBITDA"] else ""
        ),
    }
    median_pe, n = multiples["Price/earnings"]
    pe = float(row["Price/Earnings"]) if row["Price/Earnings"] else None
    in_class = re.search(r"\((Class [A-Z])\)$", row["Name"])
    return {
        "symbol": row["Symbol"],
        "name": row["Name"],
        "share_class": in_class[1] if in_class else None,
        "sector": row["Sector"],
        "price": price,
        "market_cap": cap,
        "rank_in_sector": caps.index(cap) + 1,
        "sector_size": len(caps),
        "price_earnings": pe,
        "sector_median_pe": median_pe,
        "sector_median_pe_n": n,
        "pe_premium_percent": None if pe is None or median_pe is None else 100 * (pe - median_pe) / median_pe,
        "price_sales": float(row["Price/Sales"]),
        "price_book": float(row["Price/Book"]) if row["Price/Book"] else None,
        "dividend_yield_percent": float(row["Dividend Yield"]) * 100 if row["Dividend Yield"] else None,
        "position_in_52_week_range_percent": 100 * (price - low) / (high - low),
        "missing": ", ".join(column for column, cell in row.items() if cell == ""),
        # Not columns of the table, but said in the report:
        "multiples": multiples,
        "median_yield": _median(peers, lambda r: r["Dividend Yield"]),
        "without_cap": sum(not peer["Market Cap"] for peer in peers),
    }


def _median(rows: list[Row], of: Any) -> tuple[float | None, int]:
    values = [float(value) for value in map(of, rows) if value != "" and float(value) > 0]
    return (statistics.median(values) if len(values) >= 3 else None), len(values)
