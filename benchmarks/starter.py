"""Accuracy of the starter on datasets that played no part in its development.

python benchmarks/starter.py --data FOLDER --out results/starter/foreign.json

FOLDER holds Parquet files with the columns image, split and captions (flickr8k) or label and class_name (the others).
Retrieval searches 1,000 pictures by their first caption. Zero-shot uses one prompt, "a photo of a NAME."; for
imagenette, pictures are also classified among all 1,000 class names of the tower. Few-shot is the mean of prototypes
and softmax voting with 16 examples per class, in one draw.
"""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from recollect import __version__, load_model
from recollect.classifiers.heads.prototype import PrototypeClassifier
from recollect.classifiers.heads.voting import SoftmaxVoting
from recollect.core.files import write_json
from recollect.data.prompts import readable
from recollect.data.sources import open_source
from recollect.data.sources.subset import Subset
from recollect.models import TransformersEncoder
from recollect.models.starter import class_names
from recollect.training.locked import lock_source

CLASSIFICATION = ("imagenette", "flowers12", "butterfly10", "caltech101")
MAX_TESTED = {"caltech101": 3}
"""Maximum test pictures per class, to limit the run to minutes; no few-shot accuracy is measured on these sets."""
SHOTS, PICTURES = 16, 1000


def part(encoder: TransformersEncoder, place: Path, split: str, limit: int | None) -> tuple[Tensor, Subset]:
    """Return a split's features and samples, at most ``limit`` per class (or in total without classes)."""
    source = open_source(str(place), split=split)
    random = np.random.default_rng(0)
    labels = source.labels if source.class_names else np.zeros(len(source), dtype=np.int64)
    rows = [random.permutation(np.flatnonzero(labels == label))[:limit] for label in np.unique(labels)]
    chosen = Subset(source, np.sort(np.concatenate(rows)))
    return lock_source(encoder, chosen).features[:, 0], chosen


def embedded(encoder: TransformersEncoder, features: Tensor) -> Tensor:
    """Return unit-norm image embeddings of features."""
    with torch.no_grad():
        return torch.nn.functional.normalize(encoder.project_images(features), dim=1)


def share(hits: Tensor) -> float:
    """Return the share of hits in percent."""
    return round(100 * float(hits.float().mean()), 1)


def recall(queries: Tensor, gallery: Tensor, k: int) -> float:
    """Return the share of queries, in percent, whose own gallery row is among the first k."""
    nearest = (queries @ gallery.T).topk(k, dim=1).indices
    return share((nearest == torch.arange(len(queries))[:, None]).any(1))


def prompts(names: Sequence[str]) -> list[str]:
    """Return one prompt for each name."""
    return [f"a photo of a {readable(name)}." for name in names]


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, default=Path("results/starter/foreign.json"))
    parser.add_argument("--model", default="starter")
    parser.add_argument("--features", action="store_true", help="only compute and cache the features of all pictures")
    args = parser.parse_args()
    encoder = load_model(args.model, "cpu")
    assert isinstance(encoder, TransformersEncoder)
    measured = {}
    for name in CLASSIFICATION:
        place = args.data / f"{name}.parquet"
        features, test = part(encoder, place, "test", MAX_TESTED.get(name))
        examples = None if name in MAX_TESTED else part(encoder, place, "train", SHOTS)
        if not args.features:
            measured[name] = classify(encoder, features, test, examples)
    features, photos = part(encoder, args.data / "flickr8k.parquet", "test", PICTURES)
    if args.features:
        return
    images = embedded(encoder, features)
    texts = encoder.embed_texts([photos.texts(index)[0] for index in range(len(photos))])
    measured["flickr8k"] = {"R@1": recall(texts, images, 1), "R@10": recall(texts, images, 10), "pictures": len(photos)}
    about = {"model": args.model, "fingerprint": encoder.fingerprint, "version": __version__}
    write_json(args.out, about | {"measured": measured})
    print(json.dumps(measured, indent=1))


def classify(
    encoder: TransformersEncoder, features: Tensor, test: Subset, examples: tuple[Tensor, Subset] | None
) -> dict[str, float]:
    """Return zero-shot and few-shot accuracy, and for imagenette the accuracy among 1,000 class names."""
    images, labels = embedded(encoder, features), torch.from_numpy(test.labels)
    zero_shot = (images @ encoder.embed_texts(prompts(test.class_names)).T).argmax(1)
    found = {"zero-shot": share(zero_shot == labels), "pictures": len(test), "classes": len(test.class_names)}
    if examples is not None:
        support, support_labels = embedded(encoder, examples[0]).numpy(), examples[1].labels
        methods = (PrototypeClassifier().fit(support, support_labels), SoftmaxVoting().fit(support, support_labels))
        right = [float((fitted.predict(images.numpy()) == test.labels).mean()) for fitted in methods]
        found[f"{SHOTS} shots"] = round(100 * float(np.mean(right)), 1)
    by_name = {name.lower(): label for label, own in reversed(list(enumerate(class_names()))) for name in own}
    numbers = [by_name.get(readable(name).lower()) for name in test.class_names]
    if None not in numbers:
        every = encoder.embed_texts(prompts([own[0] for own in class_names()]))
        own = torch.tensor(numbers)[labels][:, None]
        ranks = (images @ every.T).topk(5, dim=1).indices
        found |= {
            "top-1 of 1,000 names": share(ranks[:, 0] == own[:, 0]),
            "top-5 of 1,000 names": share((ranks == own).any(1)),
        }
    return found


if __name__ == "__main__":
    main()
