"""Other words for the words of Unicode names, for a shift of class names (prefix conditioning, appendix B)."""

import re

SYNONYMS: dict[str, str] = {
    "arrow": "pointer",
    "arrows": "pointers",
    "leftwards": "westward",
    "rightwards": "eastward",
    "upwards": "northward",
    "downwards": "southward",
    "left": "port",
    "right": "starboard",
    "up": "ascending",
    "down": "descending",
    "north": "upper",
    "south": "lower",
    "west": "lefthand",
    "east": "righthand",
    "double": "twin",
    "two": "dual",
    "headed": "tipped",
    "open": "unfilled",
    "paired": "coupled",
    "zigzag": "lightning",
    "squiggle": "wavy",
    "dashed": "broken",
    "electric": "charged",
    "with": "bearing",
    "stroke": "slash",
    "bar": "wall",
    "base": "footing",
    "loop": "curl",
    "corner": "angle",
    "vertical": "upright",
    "horizontal": "flat",
    "pedestal": "stand",
    "to": "toward",
    "over": "above",
    "on": "upon",
    "from": "off",
    "white": "hollow",
    "black": "solid",
    "circled": "ringed",
    "squared": "boxed",
    "plus": "cross",
    "minus": "rule",
    "times": "saltire",
    "dot": "point",
    "ring": "annulus",
    "dash": "line",
    "notch": "nick",
    "operator": "function",
    "diamond": "rhombus",
    "square": "quadrate",
    "circle": "disc",
    "triangle": "wedge",
    "star": "asterism",
    "cup": "vessel",
    "bracket": "clasp",
    "top": "head",
    "bottom": "foot",
    "latin": "roman",
    "letter": "character",
    "capital": "uppercase",
    "small": "lowercase",
    "digit": "numeral",
    "number": "count",
}
"""One for each word; none is another word's name here."""


def in_other_words(name: str) -> str | None:
    """The name with every word replaced; None where a word has no synonym."""
    words = re.sub(r"[^a-z0-9 ]", " ", name).split()
    others = [SYNONYMS.get(word) for word in words]
    known = [other for other in others if other is not None]
    return " ".join(known) if len(known) == len(words) else None
