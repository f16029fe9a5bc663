"""One company's market report, from its row and the rows of its sector: `analyse(row, rows)`.

The rehearsal reads this file, puts the two tables behind it and runs it with code_exec, where a real model writes code
of its own. It keeps to what that sandbox has: no files, no class inheritance, no yield, no round(x, n).
"""

import json
import statistics

DATA = "S&P 500 Companies with Financial Information, August 2026 (sp500-financials.csv)"
FEWEST = 3  # companies below which a median says nothing
ALIKE = 5  # per cent within which two figures are "in line"


def number(text):
    """A cell as a number; None where it is empty, never 0."""
    return float(text) if text.strip() else None


def quotient(a, b):
    return a / b if a is not None and b else None


def share_class(name):
    """ "Class A" of "Alphabet Inc. (Class A)"; "" for a company with one row."""
    inside = name.rpartition("(")[2].rstrip(")")
    return inside if inside.startswith("Class ") else ""


def company(name):
    """The name without the share class: two rows with the same one are one company."""
    return name.rpartition("(")[0].strip() if share_class(name) else name


def called(name):
    """A name as it is spoken: "Walt Disney Company (The)" is The Walt Disney Company."""
    before, _, inside = name.rstrip(")").rpartition("(")
    return f"{inside} {before.strip()}" if before and not share_class(name) else name


def one_per_company(row, rows):
    """The sector with each company once: this row for its own, for others their largest share class."""
    chosen = {company(row["Name"]): row}
    for other in rows:
        name = company(other["Name"])
        held = chosen.get(name)
        if held is None or (held is not row and (number(other["Market Cap"]) or 0) > (number(held["Market Cap"]) or 0)):
            chosen[name] = other
    return list(chosen.values())


def measures(row):
    """The figures that are compared with the sector; None where the data has none."""
    cap = number(row["Market Cap"])
    return {
        "Price/earnings": number(row["Price/Earnings"]),
        "Price/sales": number(row["Price/Sales"]),
        "Price/book": number(row["Price/Book"]),
        "Market cap/EBITDA": quotient(cap, number(row["EBITDA"])),
    }


def median_of(values):
    """(median, n) of the values above 0: a negative multiple is no price. No median of fewer than three."""
    usable = [value for value in values if value is not None and value > 0]
    return (statistics.median(usable) if len(usable) >= FEWEST else None), len(usable)


def premium(value, median):
    """How far a value lies above the median, in per cent; None where either is missing or means nothing."""
    return (value / median - 1) * 100 if value is not None and value > 0 and median is not None else None


def money(value):
    for unit, name, digits in ((1e12, "trillion", 2), (1e9, "billion", 1)):
        if abs(value) >= unit:
            return f"${value / unit:.{digits}f} {name}"
    return f"${value / 1e6:.0f} million"


def multiple(value):
    return "missing" if value is None else f"{value:,.1f}"


def per_cent(share):
    """A share such as 0.0175 as "1.75%"."""
    return "less than 0.01%" if 0 < share < 0.00005 else f"{share * 100:.2f}%"


def signed(difference):
    return "0%" if abs(difference) < 0.5 else f"{difference:+,.0f}%"


def against(difference):
    """A difference from the median in words, such as "at a discount of 23% to"."""
    if abs(difference) <= ALIKE:
        return "in line with"
    if difference > 100:
        return f"at {difference / 100 + 1:,.1f} times"
    return f"at a {'premium' if difference > 0 else 'discount'} of {abs(difference):.0f}% to"


def few(n, what):
    """Why there is no median."""
    have = "no company of the sector has" if n == 0 else f"only {n} of the sector {'has' if n == 1 else 'have'}"
    return f"too few peers: {have} {what} in the data"


def times(value):
    return f"{value:,.0f}" if value >= 10 else f"{value:.1f}"


def figures(row, rows):
    """All that is computed, as plain numbers."""
    peers = one_per_company(row, rows)
    cap, price = number(row["Market Cap"]), number(row["Price"])
    low, high = number(row["52 Week Low"]), number(row["52 Week High"])
    caps = [value for value in (number(peer["Market Cap"]) for peer in peers) if value is not None]
    own, all_measures = measures(row), [measures(peer) for peer in peers]
    medians = {name: median_of([each[name] for each in all_measures]) for name in own}
    yields = [number(peer["Dividend Yield"]) for peer in peers]
    revenue = quotient(cap, own["Price/sales"])
    ordered = sorted((peer for peer in peers if number(peer["Market Cap"])), key=lambda p: -number(p["Market Cap"]))
    return {
        "cap": cap,
        "price": price,
        "low": low,
        "high": high,
        "position": quotient(price - low, high - low) if None not in (price, low, high) else None,
        "rank": 1 + len([other for other in caps if other > cap]),
        "size": len(caps),
        "without_cap": len(peers) - len(caps),
        "share": cap / sum(caps),
        "ordered": ordered,
        "own": own,
        "medians": medians,
        "premiums": {name: premium(own[name], medians[name][0]) for name in own},
        "yield": number(row["Dividend Yield"]),
        "median_yield": median_of(yields),
        "revenue": revenue,
        "margin": quotient(number(row["EBITDA"]), revenue),
        "missing": [column for column in row if not row[column].strip()],
    }


def standing(f):
    return "largest" if f["rank"] == 1 else f"number {f['rank']}"


def headline(row, f):
    pe, (median, _) = f["own"]["Price/earnings"], f["medians"]["Price/earnings"]
    if pe is None:
        valued = "no P/E in the data"
    elif median is None:
        valued = f"{pe:.1f} times earnings"
    else:
        valued = f"{against(f['premiums']['Price/earnings'])} the sector's median P/E"
    place = "alone" if f["size"] == 1 else f"{standing(f)} of {f['size']}"
    return f"# {called(row['Name'])} ({row['Symbol']}): {place} in {row['Sector']}, {valued}"


def introduction(row, f):
    name, sector = called(row["Name"]), row["Sector"]
    if f["size"] == 1:
        known = " with a market capitalisation" if f["without_cap"] else ""
        return f"{name} is the only company of {sector}{known} in the data."
    which = "the " if f["rank"] == 1 else ""
    return (
        f"By market capitalisation {name} is {which}{standing(f)} of the {f['size']} companies of {sector} in the data."
    )


def in_the_range(position):
    if position >= 0.9:
        return "close to its 52-week high"
    if position <= 0.1:
        return "close to its 52-week low"
    third = "upper" if position > 2 / 3 else "lower" if position < 1 / 3 else "middle"
    return f"in the {third} third of its 52-week range"


def valuation(row, f):
    """Price/earnings against the sector, in one sentence."""
    pe, (median, n) = f["own"]["Price/earnings"], f["medians"]["Price/earnings"]
    if pe is None:
        loss = number(row["Earnings/Share"])
        why = f"; earnings per share are negative ({loss:,.2f})" if loss is not None and loss < 0 else ""
        there = f" The sector's median is {median:.1f} (n = {n})." if median is not None else ""
        return f"It has no P/E in the data{why}.{there}"
    if median is None:
        return f"It trades at {pe:.1f} times earnings; there is no sector median ({few(n, 'a P/E')})."
    relation = against(f["premiums"]["Price/earnings"])
    return f"At {pe:.1f} times earnings it trades {relation} the sector median P/E of {median:.1f} (n = {n})."


def dearness(f):
    """On how many of the measures it is dearer or cheaper than the median company."""
    known = [value for value in f["premiums"].values() if value is not None]
    if not known:
        return "The sector is too small in the data to compare any of these."
    above = len([value for value in known if value > ALIKE])
    below = len([value for value in known if value < -ALIKE])
    counts = [("dearer", above), ("cheaper", below), ("in line", len(known) - above - below)]
    parts = [f"{word} on {count}" for word, count in counts if count]
    if len(parts) == 1:
        only = "the only measure with a median" if len(known) == 1 else f"all {len(known)} measures with a median"
        parts = [parts[0].rpartition(" ")[0] + " " + only]
    else:
        parts[0] += f" of {len(known)} measures"
    return (
        f"Against the sector's median company it is {', '.join(parts[:-1])}{' and ' if parts[1:] else ''}{parts[-1]}."
    )


def size_lines(row, f):
    ordered, sector = f["ordered"], row["Sector"]
    lines = [f"- Market capitalisation {money(f['cap'])}, rank {f['rank']} of {f['size']} in {sector}."]
    if f["size"] > 1:
        lines.append(f"- That is {f['share'] * 100:.1f}% of the market capitalisation of the whole sector in the data.")
        other = ordered[1] if f["rank"] == 1 else ordered[0]
        ratio = f["cap"] / number(other["Market Cap"])
        named = f"{called(other['Name'])} ({other['Symbol']}, {money(number(other['Market Cap']))})"
        if f["rank"] == 1:
            lines.append(f"- The next largest is {named}; {row['Symbol']} is {times(ratio)} times its size.")
        else:
            lines.append(f"- The largest is {named}; {row['Symbol']} is {ratio * 100:.1f}% of its size.")
    if f["revenue"] is not None:
        margin = f", an EBITDA margin of {f['margin'] * 100:.0f}%" if f["margin"] is not None else ""
        lines.append(f"- Revenue implied by price/sales: {money(f['revenue'])}{margin} (derived, not reported).")
    return lines


def valuation_table(row, f):
    lines = [f"| Measure | {row['Symbol']} | Sector median | n | Difference |", "|---|--:|--:|--:|--:|"]
    for name, value in f["own"].items():
        median, n = f["medians"][name]
        shown = "too few peers" if median is None else multiple(median)
        difference = f["premiums"][name]
        lines.append(
            f"| {name} | {multiple(value)} | {shown} | {n} | {'' if difference is None else signed(difference)} |"
        )
    return lines


def range_lines(f):
    if f["position"] is None:
        return ["The data lacks the price or the range, so there is no position to give."]
    slot = min(20, max(0, int(f["position"] * 20 + 0.5)))
    bar = "-" * slot + "o" + "-" * (20 - slot)
    above, below = f["price"] / f["low"] - 1, 1 - f["price"] / f["high"]
    return [
        f"`{f['low']:,.2f} [{bar}] {f['high']:,.2f}`",
        "",
        f"At ${f['price']:,.2f} the share stands {in_the_range(f['position'])}, {f['position'] * 100:.0f}% of the way "
        f"up: {above * 100:.0f}% above the low and {below * 100:.0f}% below the high.",
    ]


def dividend_line(f):
    median, n = f["median_yield"]
    middle = "" if median is None else f"the sector's median of {per_cent(median)} (n = {n})"
    if f["yield"] is None:
        there = f" Compare {middle}." if middle else ""
        return f"The data has no dividend yield for it, and does not say that it pays none.{there}"
    if median is None:
        return f"The dividend yields {per_cent(f['yield'])}; there is no sector median ({few(n, 'one')})."
    difference = f["yield"] / median - 1
    relation = "about the same as" if abs(difference) * 100 <= ALIKE else "above" if difference > 0 else "below"
    return f"The dividend yields {per_cent(f['yield'])}, {relation} {middle}."


def care_lines(row, f):
    """What is missing, and what should be known before the figures are used."""
    lines = []
    if f["missing"]:
        lines.append(f"- Missing in the data: {', '.join(f['missing'])}. Nothing was put in their place.")
    if f["without_cap"]:
        n = f["without_cap"]
        lines.append(f"- {n} more of the sector {'has' if n == 1 else 'have'} no market capitalisation and no rank.")
    book = f["own"]["Price/book"]
    if book is not None and book < 0:
        lines.append("- Book value is negative, so price/book is not compared.")
    if share_class(row["Name"]):
        lines.append(
            f"- {share_class(row['Name'])} is one of two listed share classes; the market capitalisation is the whole "
            "company's at this class's price. In ranks and medians the company counts once."
        )
    eps, pe = number(row["Earnings/Share"]), f["own"]["Price/earnings"]
    if pe is not None and eps and f["price"] and abs(f["price"] / eps / pe - 1) > 0.02:
        lines.append(
            f"- Price divided by earnings per share gives {f['price'] / eps:.1f}, not the stated P/E of {pe:.1f}."
        )
    return lines or ["- Nothing is missing from this row."]


def report(row, f):
    """The page, as Markdown."""
    price = "no price" if f["price"] is None else f"${f['price']:,.2f} a share"
    in_range = "" if f["position"] is None else f" The share stands {in_the_range(f['position'])}."
    lines = [
        headline(row, f),
        "",
        f"*{row['Sector']} | {price} | market capitalisation {money(f['cap'])} | data of August 2026*",
        "",
        f"**In short.** {introduction(row, f)} {valuation(row, f)}{in_range}",
        "",
        "## Size",
        *size_lines(row, f),
        "",
        "## Valuation",
        *valuation_table(row, f),
        "",
        dearness(f),
        "",
        "## 52-week range",
        *range_lines(f),
        "",
        "## Dividend",
        dividend_line(f),
        "",
        "## What to know",
        *care_lines(row, f),
        "",
        "## Sources",
        f"- {DATA}: the row {row['Symbol']} and the rows of {row['Sector']}.",
        f"- [Filings at the SEC]({row['SEC Filings']})",
        "- Medians are over the companies of the sector that have the figure, this one included. No investment advice.",
    ]
    return "\n".join(lines) + "\n"


def tenths(value):
    return None if value is None else float(f"{value:.1f}")


def analyse(row, rows):
    """The answer for report.schema.json: the table's columns, and the page as `report`."""
    f = figures(row, rows)
    median, n = f["medians"]["Price/earnings"]
    return {
        "symbol": row["Symbol"],
        "name": row["Name"],
        "share_class": share_class(row["Name"]) or None,
        "sector": row["Sector"],
        "price": f["price"],
        "market_cap": int(f["cap"]),
        "rank_in_sector": f["rank"],
        "sector_size": f["size"],
        "price_earnings": tenths(f["own"]["Price/earnings"]),
        "sector_median_pe": tenths(median),
        "sector_median_pe_n": n,
        "pe_premium_percent": tenths(f["premiums"]["Price/earnings"]),
        "price_sales": tenths(f["own"]["Price/sales"]),
        "price_book": tenths(f["own"]["Price/book"]),
        "dividend_yield_percent": None if f["yield"] is None else float(f"{f['yield'] * 100:.2f}"),
        "position_in_52_week_range_percent": None if f["position"] is None else tenths(f["position"] * 100),
        "missing": ", ".join(f["missing"]),
        "report": report(row, f),
    }


def main(row, rows):
    print(json.dumps(analyse(row, rows), ensure_ascii=False))
