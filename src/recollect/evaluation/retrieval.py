"""Search both ways: recall at k with all true matches counted, for each domain and on average."""

from collections.abc import Sequence

import numpy as np

from recollect.core.seeding import numpy_generator
from recollect.core.types import Encoder, Kind
from recollect.data.tasks import RetrievalTask
from recollect.evaluation.features import FeatureCache, image_features
from recollect.evaluation.results import Result, Row
from recollect.retrieval.ranks import NO_RANK, hits, streaming_ranks

DIRECTIONS = ("text to image", "image to text")


def retrieval(
    encoder: Encoder,
    task: RetrievalTask,
    *,
    model: str,
    seed: int = 0,
    prefix: Kind | None = None,
    cache: FeatureCache | None = None,
    depths: Sequence[int] = (1, 5, 10),
) -> Result:
    """Recall at 1, 5 and 10 from text to image and from image to text.

    A query is a hit if any of its true matches is among the first k. Of equal scores the wrong ones come first. An
    image whose picture also stands for another text (``ambiguous``) is in the pool but is neither asked for nor asks,
    and so is a text all of whose images are ambiguous.

    Args:
        model: what to call the model in the result.
        seed: of the model's training.
        prefix: which prefix token the texts get, for models that have them.

    Returns:
        Rows with ``direction``, ``domain`` (of the text's first image or of the image; ``all`` and ``mean of domains``
        for the whole), ``k``, the number of ``queries``, and ``value`` in percent with its 95 % bootstrap interval,
        ``low`` and ``high``.
    """
    images = image_features(encoder, task.images, cache).images
    texts = encoder.embed_texts(task.texts, prefix).numpy()
    ranks = streaming_ranks(images, texts, task.matches)
    ambiguous = np.array(task.ambiguous, dtype=bool)
    domains = np.array(task.domains)
    first = np.array([found[0] for found in task.matches])
    certain = np.array([not ambiguous[list(found)].all() for found in task.matches])
    asked = {
        DIRECTIONS[0]: (np.where(certain, ranks.texts, NO_RANK), domains[first]),
        DIRECTIONS[1]: (np.where(ambiguous, NO_RANK, ranks.images), domains),
    }
    rows: list[Row] = []
    for direction, (found, of) in asked.items():
        names = sorted(set(of[found != NO_RANK].tolist()))
        for k in depths:
            values = []
            for name in names:
                rows.append(_row(direction, name, k, hits(found[of == name], k)))
                values.append(rows[-1]["value"])
            rows.append(_row(direction, "all", k, hits(found, k)))
            if len(names) > 1:
                rows.append(
                    {"direction": direction, "domain": "mean of domains", "k": k, "value": float(np.mean(values))}
                )
    settings = {"images": len(task.images), "texts": len(task.texts), "prefix": prefix}
    return Result("retrieval", model, task.name, seed, rows, settings)


def _row(direction: str, domain: str, k: int, hit: np.ndarray) -> Row:
    low, high = bootstrap_interval(hit)
    values = {"value": 100 * float(hit.mean()), "low": 100 * low, "high": 100 * high, "queries": len(hit)}
    return {"direction": direction, "domain": domain, "k": k, **values}


def bootstrap_interval(hit: np.ndarray, draws: int = 2000, level: float = 0.95) -> tuple[float, float]:
    """Percentile interval of the mean of ``hit`` under resampling of queries.

    Resampled means of zeros and ones are binomial, so no sample is drawn row by row.

    Args:
        hit: (queries,), boolean; at least one.
    """
    counts = numpy_generator("bootstrap", len(hit)).binomial(len(hit), hit.mean(), draws)
    low, high = np.quantile(counts / len(hit), [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)
