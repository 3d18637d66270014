"""The look of all figures: of topologies, of measurements, and of the course's labs."""

from __future__ import annotations

INK, LANE, PAPER = "#1f2937", "#e5e7eb", "white"
PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#5B3A8C", "#8C6D31", "#E69F00", "#56B4E9")
"""Okabe and Ito's (2008) for colour-blind readers without its yellow and black, and a violet and a brown."""
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


def ink_on(colour: str) -> str:
    """The ink, or white, for text on a colour "#rrggbb": whichever has more contrast."""
    red, green, blue = (int(colour[at : at + 2], 16) for at in (1, 3, 5))
    return PAPER if 0.299 * red + 0.587 * green + 0.114 * blue < 140 else INK
