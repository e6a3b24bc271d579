"""Pictures for the demo: crops of photographs included in scikit-image."""

from pathlib import Path

import numpy as np
from PIL import Image, ImageEnhance

from recollect.core.errors import UserError
from recollect.core.files import fresh_folder
from recollect.core.seeding import numpy_generator

CROPS = 24
_SIDE = 320
_AREA_SHARES = (0.35, 0.9)
_MAX_ROTATION = 12  # degrees

QUERIES = ("a cat", "a rocket at night", "a cup of coffee", "a person with a helmet")

PHOTOGRAPHS = (
    # file in scikit-image's data folder, content, source and license according to scikit-image's documentation
    ("astronaut.png", "astronaut", "Eileen Collins, NASA; public domain"),
    ("camera.png", "photographer with a tripod", "Lav Varshney; CC0"),
    ("chelsea.png", "cat", "Stefan van der Walt; CC0"),
    ("coffee.png", "cup of coffee", "Rachel Michetti, courtesy of Pikolo Espresso Bar; CC0"),
    ("coins.png", "old coins", "Brooklyn Museum; no known copyright restrictions"),
    ("rocket.jpg", "rocket launch", "SpaceX; public domain"),
)


def make_pictures(folder: Path) -> Path:
    """Write ``CROPS`` crops of each photograph to its own subfolder; the crops are the same in every run.

    An existing folder is returned unchanged.

    Raises:
        UserError: scikit-image is not installed, or ``folder`` is a file.
    """
    if folder.is_dir():
        return folder
    try:
        import skimage
    except ImportError:
        raise UserError(
            "the demo's photographs are part of scikit-image: pip install 'recollect[demo]', or give a folder of your "
            "own pictures with --pictures."
        ) from None
    data = Path(skimage.__file__).parent / "data"
    with fresh_folder(folder, "folder of pictures") as unfinished:
        for file, words, _ in PHOTOGRAPHS:
            (unfinished / words).mkdir()
            whole = Image.open(data / file).convert("RGB")
            for number in range(CROPS):
                generator = numpy_generator("demo", words, number)
                crop(whole, generator).save(unfinished / words / f"{number:02}.jpg", quality=90)
    return folder


def crop(picture: Image.Image, generator: np.random.Generator) -> Image.Image:
    """Return a random crop, slightly rotated, flipped half of the time, with jittered brightness and color."""
    turned = picture.rotate(generator.uniform(-_MAX_ROTATION, _MAX_ROTATION), Image.Resampling.BICUBIC)
    shorter = min(picture.size)
    side = int(shorter * generator.uniform(*_AREA_SHARES) ** 0.5)
    left, top = (int(generator.uniform(0, length - side)) for length in picture.size)
    part = turned.crop((left, top, left + side, top + side)).resize((_SIDE, _SIDE), Image.Resampling.BICUBIC)
    if generator.random() < 0.5:
        part = part.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    part = ImageEnhance.Brightness(part).enhance(generator.uniform(0.7, 1.3))
    return ImageEnhance.Color(part).enhance(generator.uniform(0.5, 1.4))
