"""Table of characters for the glyph world, with fonts from matplotlib and names from Unicode.

Drawing takes a few seconds; the table is cached in the user's cache folder (``RECOLLECT_CACHE`` or the system's).
"""

import re
import unicodedata
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

import numpy as np
import PIL
from PIL import Image, ImageDraw, ImageFont
from rich.progress import track
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file
from scipy import ndimage

from recollect.core.errors import UserError
from recollect.core.files import atomic_path
from recollect.core.paths import cache_folder
from recollect.core.progress import console
from recollect.core.seeding import derive_seed

SIZE = 28
"""Edge of a mask in pixels."""

FACES = (
    "DejaVuSans",
    "DejaVuSans-Bold",
    "DejaVuSans-Oblique",
    "DejaVuSerif",
    "DejaVuSerif-Bold",
    "DejaVuSansMono",
    "DejaVuSansMono-Bold",
    "DejaVuSerif-Italic",
    "STIXGeneral",
    "DejaVuSans-BoldOblique",
    "DejaVuSansMono-Oblique",
    "DejaVuSerif-BoldItalic",
    "STIXGeneralBol",
)
HELD_OUT_FACES = FACES[9:]
"""Font faces held out from training: a shifted domain."""

# Scripts as named in captions; the first pattern that matches a character's Unicode name determines its script.
SCRIPTS = (
    ("latin letter", "LATIN (SMALL|CAPITAL) LETTER"),
    ("greek letter", "GREEK (SMALL|CAPITAL) LETTER"),
    ("cyrillic letter", "CYRILLIC (SMALL|CAPITAL) LETTER"),
    ("arabic letter", "ARABIC LETTER"),
    ("canadian syllabics", "CANADIAN SYLLABICS"),
    ("armenian letter", "ARMENIAN (SMALL|CAPITAL)"),
    ("georgian letter", "GEORGIAN"),
    ("hebrew letter", "HEBREW LETTER"),
    ("tifinagh letter", "TIFINAGH LETTER"),
    ("nko letter", "NKO"),
    ("lisu letter", "LISU"),
    ("lao letter", "LAO"),
    ("arrow", ".*ARROW"),
    ("box drawings", "BOX DRAWINGS"),
    ("block element", "(QUADRANT|.* BLOCK|UPPER |LOWER |LEFT |RIGHT )"),
    ("domino tile", "DOMINO TILE"),
    ("hexagram lines", "HEXAGRAM|DIGRAM|TRIGRAM|TETRAGRAM"),
    ("playing card", "PLAYING CARD"),
    ("braille pattern", "BRAILLE"),
    ("mathematical letter", "MATHEMATICAL|DOUBLE-STRUCK"),
    ("face emoji", ".*FACE"),
    ("math operator",
     ".*(EQUAL|TILDE|LESS-THAN|GREATER-THAN|INTEGRAL|SUBSET|SUPERSET|PRECEDES|SUCCEEDS|UNION|INTERSECTION)"),
    ("geometric shape", ".*(CIRCLE|SQUARE|TRIANGLE|DIAMOND|STAR|ASTERISK)"),
    ("symbol", ".*"),
)  # fmt: skip

ATTRIBUTES = (
    ("narrow", "middling", "wide"),
    ("sparse", "moderate", "dense"),
    ("single", "twofold", "manifold"),
    ("unholed", "holed", "multiholed"),
    ("lopsided", "leaning", "mirrored"),
    ("unflipped", "tilting", "flipped"),
    ("topheavy", "level", "bottomheavy"),
    ("leftheavy", "central", "rightheavy"),
)
"""Words for the three values of each attribute measured from a mask: width to height, ink, pieces, holes, symmetry left
to right and top to bottom, center of mass down and across."""


@dataclass(frozen=True)
class GlyphTable:
    """Masks of every character in every face that has it.

    Attributes:
        code_points: (characters,).
        scripts: (characters,), indices of `SCRIPTS`.
        first: (characters + 1,), row of each character's first mask.
        faces: (masks,), indices of `FACES`.
        masks: uint8 (masks, SIZE, SIZE).
        attributes: (masks, 8), values of `ATTRIBUTES`.
    """

    code_points: np.ndarray
    scripts: np.ndarray
    first: np.ndarray
    faces: np.ndarray
    masks: np.ndarray
    attributes: np.ndarray

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Unicode names in lowercase."""
        return tuple(unicodedata.name(chr(code)).lower() for code in self.code_points)

    def masks_of(self, character: int, held_out: bool) -> np.ndarray:
        """Return the rows of a character's masks in the held-out faces, or in the others."""
        rows = np.arange(self.first[character], self.first[character + 1])
        return rows[(self.faces[rows] >= len(FACES) - len(HELD_OUT_FACES)) == held_out]


@cache
def glyph_table() -> GlyphTable:
    """Load the table from the cache, or draw it."""
    path, names = _cache_file(), GlyphTable.__dataclass_fields__
    with suppress(Exception):  # missing, damaged, or from another version: drawing again is cheap
        return GlyphTable(**load_file(path))
    table = _draw_table()
    with suppress(OSError, UserError, SafetensorError), atomic_path(path) as temporary:  # e.g. a read-only home
        save_file({name: np.ascontiguousarray(getattr(table, name)) for name in names}, temporary)
    return table


def _cache_file() -> Path:
    import matplotlib

    key = derive_seed("glyphs", 1, matplotlib.__version__, PIL.__version__, unicodedata.unidata_version, repr(SCRIPTS))
    return cache_folder() / f"glyphs-{key:016x}.safetensors"


def _draw_table() -> GlyphTable:
    import matplotlib
    from matplotlib.ft2font import FT2Font

    folder = Path(matplotlib.get_data_path()) / "fonts" / "ttf"
    fonts = [ImageFont.truetype(folder / f"{face}.ttf", 22, layout_engine=ImageFont.Layout.BASIC) for face in FACES]
    present = [set(FT2Font(str(folder / f"{face}.ttf")).get_charmap()) for face in FACES]
    trained = len(FACES) - len(HELD_OUT_FACES)
    candidates = sorted(present[0] | {code for codes in present[1:] for code in codes if code < 0x20000})
    codes, scripts, first, faces, masks = [], [], [0], [], []
    seen: set[bytes] = set()
    for code in track(candidates, "draw characters", console=console, disable=not console.is_terminal):
        if not _wanted(code):
            continue
        drawn = [(face, mask) for face, font in enumerate(fonts) if code in present[face]
                 and (mask := _mask(chr(code), font)) is not None]  # fmt: skip
        # Some characters look identical (A and Alpha): keep the first, or labels would contradict each other.
        if not drawn or drawn[0][0] >= trained or drawn[0][1].tobytes() in seen:
            continue
        seen.add(drawn[0][1].tobytes())
        codes.append(code)
        name = unicodedata.name(chr(code))
        scripts.append(next(number for number, (_, pattern) in enumerate(SCRIPTS) if re.match(pattern, name)))
        faces += [face for face, _ in drawn]
        masks += [mask for _, mask in drawn]
        first.append(len(masks))
    stack = np.stack(masks)
    characters, blocks, starts, styles = (np.array(values) for values in (codes, scripts, first, faces))
    return GlyphTable(characters, blocks, starts, styles, stack, measure_glyphs(stack))


def _wanted(code: int) -> bool:
    name = unicodedata.name(chr(code), "")
    if not name or unicodedata.category(chr(code))[0] in "MCZ" or (code > 0x2FFF and name.startswith("CJK")):
        return False
    return not name.startswith(("ARABIC LIGATURE", "MODIFIER", "COMBINING"))


def _mask(character: str, font: ImageFont.FreeTypeFont) -> np.ndarray | None:
    """Draw a character centered in SIZE × SIZE pixels, shrunk to fit; None if it is almost empty."""
    left, top, right, bottom = font.getbbox(character)
    width, height = right - left, bottom - top
    if width < 3 or height < 2:
        return None
    canvas = Image.new("L", (48, 48))
    ImageDraw.Draw(canvas).text((24 - (left + right) / 2, 24 - (top + bottom) / 2), character, 255, font=font)
    edge = SIZE if max(width, height) <= SIZE else min(48, int(max(width, height)) + 1)
    border = (48 - edge) // 2
    picture = canvas.crop((border, border, border + edge, border + edge))
    mask = np.asarray(picture if edge == SIZE else picture.resize((SIZE, SIZE), Image.Resampling.BILINEAR))
    return mask if mask.max() >= 60 and (mask > 100).sum() >= 8 else None


def measure_glyphs(masks: np.ndarray) -> np.ndarray:
    """Measure the `ATTRIBUTES` of each mask: int64 (masks, 8), values 0 to 2; tertiles for continuous attributes."""
    ink = masks > 110
    rows, columns = ink.any(axis=2), ink.any(axis=1)
    height, width = rows.sum(axis=1).clip(1), columns.sum(axis=1).clip(1)
    area = ink.sum(axis=(1, 2)).clip(1)
    line = np.arange(SIZE)
    center_y, center_x = (ink.sum(axis=2) * line).sum(axis=1) / area, (ink.sum(axis=1) * line).sum(axis=1) / area
    middle_y, middle_x = (rows * line).sum(axis=1) / height, (columns * line).sum(axis=1) / width
    eight = np.ones((3, 3))
    pieces = np.array([ndimage.label(mask, eight)[1] for mask in ink])
    holes = np.array([ndimage.label(np.pad(~mask, 1))[1] - 1 for mask in ink])
    return np.stack(
        [
            _tertile(width / height),
            _tertile(area / (height * width)),
            (pieces - 1).clip(0, 2),
            holes.clip(0, 2),
            _tertile(_symmetry(ink, 2)),
            _tertile(_symmetry(ink, 1)),
            _tertile(center_y - middle_y),
            _tertile(center_x - middle_x),
        ],
        axis=1,
    ).astype(np.int64)


def _tertile(values: np.ndarray) -> np.ndarray:
    return (values > np.quantile(values, 0.33)).astype(int) + (values > np.quantile(values, 0.67))


def _symmetry(ink: np.ndarray, axis: int) -> np.ndarray:
    """Return the overlap with the mirror image (intersection over union), the best of shifts by -1, 0 and 1 pixels."""
    mirrored = np.flip(ink, axis)
    best = np.zeros(len(ink))
    for shift in (-1, 0, 1):
        moved = np.roll(mirrored, shift, axis)
        best = np.maximum(best, (ink & moved).sum(axis=(1, 2)) / (ink | moved).sum(axis=(1, 2)).clip(1))
    return best
