"""Other words for the words of Unicode names, for a shift of class names (prefix conditioning, appendix B)."""

import re

_PAIRS = """
    arrow=pointer arrows=pointers leftwards=westward rightwards=eastward upwards=northward downwards=southward
    left=port right=starboard up=ascending down=descending north=upper south=lower west=lefthand east=righthand
    double=twin two=dual headed=tipped open=unfilled paired=coupled zigzag=lightning squiggle=wavy dashed=broken
    electric=charged with=bearing stroke=slash bar=wall base=footing loop=curl corner=angle vertical=upright
    horizontal=flat pedestal=stand to=toward over=above on=upon from=off white=hollow black=solid circled=ringed
    squared=boxed plus=cross minus=rule times=saltire dot=point ring=annulus dash=line notch=nick operator=function
    diamond=rhombus square=quadrate circle=disc triangle=wedge star=asterism cup=vessel bracket=clasp top=head
    bottom=foot latin=roman letter=character capital=uppercase small=lowercase digit=numeral number=count
"""
SYNONYMS: dict[str, str] = dict(pair.split("=") for pair in _PAIRS.split())
"""One for each word; none is another word's name here."""


def in_other_words(name: str) -> str | None:
    """The name with every word replaced; None where a word has no synonym."""
    words = re.sub(r"[^a-z0-9 ]", " ", name).split()
    return " ".join(SYNONYMS[word] for word in words) if all(word in SYNONYMS for word in words) else None
