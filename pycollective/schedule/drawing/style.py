"""The look of all figures: of topologies, of measurements, and of the course's labs."""

from __future__ import annotations

import functools
import math
from typing import Any

INK, LANE, PAPER = "#1f2937", "#e5e7eb", "white"
PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#5B3A8C", "#8C6D31", "#E69F00", "#56B4E9")
"""Okabe and Ito's (2008) for colour-blind readers without its yellow and black, and a violet and a brown."""
_LIGHTNESS = (0.45, 0.72, 0.58)
"""For further colours, in OKLab: neighbouring hues also differ in lightness and chroma."""
_LINES = ["-", "--", "-.", ":"] * 2

STYLE = {
    "font.size": 10,
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "axes.prop_cycle": f"cycler(color={list(PALETTE)}) + cycler(linestyle={_LINES})",
    "axes.titlesize": 10,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": LANE,
    "grid.linewidth": 0.7,
    "legend.frameon": False,
    "legend.fontsize": 9,
    "figure.dpi": 150,
}
"""matplotlib's settings for axes with scales. Lines differ in more than colour, for print in grey."""


def make_logarithmic(axis: Any) -> None:
    """Give matplotlib's axes a logarithmic y axis with plain numbers: 1, 2 and 5 in a decade where it has few."""
    from matplotlib.ticker import FuncFormatter, LogLocator

    axis.set_yscale("log")
    low, high = axis.get_ylim()
    axis.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if high < 1000 * low else (1,)))
    axis.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.12g}"))


def ink_on(colour: str) -> str:
    """The ink, or white, for text on a colour "#rrggbb": whichever has more contrast."""
    red, green, blue = (int(colour[at : at + 2], 16) for at in (1, 3, 5))
    return PAPER if 0.299 * red + 0.587 * green + 0.114 * blue < 140 else INK


def chunk_colour(chunk: int, chunks: int) -> str:
    """The colour of one of `chunks` chunks, as "#rrggbb"; all are distinct."""
    return PALETTE[chunk] if chunks <= len(PALETTE) else colours(chunks)[chunk]


@functools.lru_cache(maxsize=16)
def colours(count: int) -> tuple[str, ...]:
    """`count` colours with hues all around the circle, and lightness as different as possible between neighbours."""
    found: dict[str, None] = {}
    for number in range(count):
        hue, lightness, chroma = math.tau * number / count, _LIGHTNESS[number % len(_LIGHTNESS)], 0.17
        while (colour := _hex(lightness, chroma, hue)) in found:  # identical when rounded to 8 bits
            chroma -= 0.004
            if chroma < 0.02:
                lightness, chroma = lightness + 0.002, 0.17
        found[colour] = None
    return tuple(found)


def _hex(lightness: float, chroma: float, hue: float) -> str:
    """A colour of OKLab (Ottosson 2020) in sRGB, with less chroma if it is outside sRGB."""
    while True:
        rgb = _linear_rgb(lightness, chroma * math.cos(hue), chroma * math.sin(hue))
        if all(-0.0005 <= value <= 1.0005 for value in rgb):
            return "#" + "".join(f"{round(255 * _gamma(min(max(value, 0.0), 1.0))):02x}" for value in rgb)
        chroma -= 0.004


def _linear_rgb(lightness: float, a: float, b: float) -> tuple[float, float, float]:
    long = (lightness + 0.3963377774 * a + 0.2158037573 * b) ** 3
    medium = (lightness - 0.1055613458 * a - 0.0638541728 * b) ** 3
    short = (lightness - 0.0894841775 * a - 1.2914855480 * b) ** 3
    return (
        4.0767416621 * long - 3.3077115913 * medium + 0.2309699292 * short,
        -1.2684380046 * long + 2.6097574011 * medium - 0.3413193965 * short,
        -0.0041960863 * long - 0.7034186147 * medium + 1.7076147010 * short,
    )


def _gamma(value: float) -> float:
    return 12.92 * value if value <= 0.0031308 else 1.055 * value ** (1 / 2.4) - 0.055
