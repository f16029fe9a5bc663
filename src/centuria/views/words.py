"""Numbers and untrusted text, as people read them. Every view speaks with these words."""

from __future__ import annotations

import unicodedata

from centuria.messages import DOLLAR, Pico

#: Unicode categories that steer a terminal, reorder a line or show nothing: controls, formats, surrogates...
_UNSHOWN = frozenset({"Cc", "Cf", "Cs", "Co", "Zl", "Zp"})


def clean(text: str, most: int = 200) -> str:
    """One line of untrusted text without anything that steers a terminal, at most `most` characters long."""
    shown = text[: most * 4]
    if not shown.isascii() or not shown.isprintable():
        shown = "".join(" " if unicodedata.category(char) in _UNSHOWN else char for char in shown)
    shown = " ".join(shown.split())
    return shown if len(shown) <= most and len(text) <= most * 4 else shown[: most - 1].rstrip() + "…"


def clean_text(text: str) -> str:
    """Untrusted text of any number of lines, without anything that steers a terminal."""
    return "".join(char for char in text if char in "\n\t" or unicodedata.category(char) not in _UNSHOWN)


def dollars(amount: Pico) -> str:
    """$12.34; below a dollar as many digits as the amount needs, never $0.00 for more than nothing."""
    sign, amount = ("-", -amount) if amount < 0 else ("", amount)
    value = amount / DOLLAR
    if amount == 0 or value >= 0.995:
        return f"{sign}${value:,.2f}"
    if value >= 0.01:
        return f"{sign}${value:.3f}"
    return f"{sign}${value:.6f}" if value >= 0.000_001 else f"{sign}<$0.000001"


def spending(amount: Pico, *, paid: bool, priced: bool, of: str = "", brief: bool = False) -> str:
    """`$2.47 spent of $5.00`. What a rehearsal or a replay took is no money: `$0 spent (would cost $2.47 of $5.00)`.

    `of` is the cap as it follows the amount; `priced` False: nobody knows what the model costs; `brief`: without the
    $0, where there is little room.
    """
    said = dollars(amount) if priced or amount else "an unknown amount"
    if paid:
        return f"{said} spent{of}"
    return f"would cost {said}{of}" if brief else f"$0 spent (would cost {said}{of})"


def seconds(value: float | None) -> str:
    """420 ms, 1.9 s, 48 s, 3 min 05 s, 2 h 04 min; a dash for None."""
    if value is None:
        return "–"
    if value < 0.9995:
        return f"{value * 1000:.0f} ms"
    if value < 9.95:
        return f"{value:.1f} s"
    whole = round(value)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def short(number: float) -> str:
    """950, 12.3k, 4.5M."""
    for size, mark in ((1_000_000_000, "G"), (1_000_000, "M"), (1_000, "k")):
        if number >= size * 0.9995:
            scaled = number / size
            return f"{scaled:.0f}{mark}" if scaled >= 99.95 else f"{scaled:.1f}{mark}"
    return f"{number:.0f}"


def percent(share: float | None) -> str:
    return "–" if share is None else f"{share * 100:.0f} %"


def counted(number: int, one: str, many: str = "") -> str:
    """1 call, 2 calls."""
    return f"{number:,} {one if number == 1 else many or one + 's'}"
