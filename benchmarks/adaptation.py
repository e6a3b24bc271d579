"""Does an episode help (EFSA)? A strong locked base, one pool of emoji, aerial and everyday photographs, all texts.

    for seed in 0 1; do
      recollect train siglip-locked --seed $seed --model.dropout 0.5 --batch-size 1024 --steps 400 \\
          --out runs/base-$seed \\
          --captions 'emoji.parquet?domain!=noto,fluent_flat,openmoji_line&without=0/6' rsicd_captions.parquet \\
          flickr8k.parquet coco_captions.parquet fashion.parquet
    done
    python benchmarks/adaptation.py --models runs/base-0/model runs/base-1/model --split validation \\
        --out results/efsa/adaptation-validation.json

`--grid steps` tries larger steps, `--split test --settings NAME...` tests what was chosen. Names are asked, and an
episode learns from captions of what was found: of photographs a sentence that is not asked, of emoji their tags, their
names (a ceiling: what is asked stands there), or names with words left out and wrong ones.
Validation asks for emoji of one part of six of the training concepts, which no base was trained on, in styles that none
was trained on; test for those of the test concepts in these styles. The towers' locked features are computed once, so
that an episode costs the heads alone. Differences are paired by query, in the mean over base models and random starts
of the adapters; intervals resample pictures.
"""

import argparse
import copy
import hashlib
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from recollect.core.files import atomic_path
from recollect.data.sources import open_source
from recollect.efsa.batch import EpisodeBatch, EpisodeQuery, number_texts
from recollect.efsa.episodes import Episodes
from recollect.efsa.options import EpisodeOptions
from recollect.evaluation.intervals import Kinds, percentiles
from recollect.evaluation.pools import held_out
from recollect.evaluation.retrieval import merged_tasks
from recollect.evaluation.tasks.retrieval import RetrievalTask, retrieval_task
from recollect.models import load_model
from recollect.training.locked import lock_source
from recollect_papers.efsa.options import CaptionCorruption
from recollect_papers.efsa.rewording import content_words, corrupted_captions
from recollect_papers.towers.patches import PatchEncoder
from recording import this_command

STYLES = "domain=noto,fluent_flat,openmoji_line&ambiguous=false"
EMOJI = {"validation": f"emoji.parquet?{STYLES}&only=0/6&split=train", "test": f"emoji.parquet?{STYLES}&split=test"}
PHOTOS = ("rsicd_captions.parquet", "flickr8k.parquet")
DOMAINS = ("emoji", "aerial", "photo")
CAPTIONS = ("tags", "names", "reworded names")
TOGETHER = 32
PAPER = EpisodeOptions.paper()


@dataclass(frozen=True)
class Pool:
    """What is searched, by whom, and what is known of it.

    Attributes:
        features: of each picture, by the locked tower.
        task: the merged task.
        captions: of each picture, by kind.
        texts: numbers of the texts that are asked.
        domains: of each of these texts, a number.
        pictures: of each of these texts the first that it describes: what is resampled.
    """

    features: Tensor
    task: RetrievalTask
    captions: Mapping[str, Sequence[str]]
    texts: np.ndarray
    domains: np.ndarray
    pictures: np.ndarray


def open_pool(model: PatchEncoder, data: Path, split: str, most: int | None) -> Pool:
    """The pool of a split; the features are kept in the feature cache."""
    specs = [EMOJI[split], *(f"{name}?split={'val' if split == 'validation' else split}" for name in PHOTOS)]
    sources = [open_source(str(data / spec), kind="caption") for spec in specs]
    tasks = [retrieval_task(str(data / spec)) for spec in specs]
    task = merged_tasks(tasks, "one pool")
    features = torch.cat([lock_source(model, source).features[:, 0] for source in sources])
    assert len(features) == len(task.images), "a picture could not be read"
    sentences = [held_out(source) for source in sources[1:]]
    reserved = frozenset().union(*(each.reserved for each in sentences))
    emoji = {
        "tags": [", ".join(tags or ()) for tags in sources[0].values("tags")],
        "names": [sources[0].texts(row)[0] for row in range(len(sources[0]))],
        "reworded names": corrupted_captions(_Names(sources[0]), CaptionCorruption(0.5, 0.1)).captions,
    }
    photos = [caption or "" for each in sentences for caption in each.captions]
    names = {" ".join(name.split()) for name in emoji["names"]}
    starts = np.cumsum([0, *(len(source) for source in sources)])
    asked, domains = [], []
    for number, (text, found) in enumerate(zip(task.texts, task.matches, strict=True)):
        domain = int(np.searchsorted(starts, found[0], side="right")) - 1
        if (text in names) if domain == 0 else (text not in reserved):  # of emoji the names alone
            asked.append(number)
            domains.append(domain)
    chosen = np.arange(len(asked))
    if most is not None:
        order = np.random.default_rng(0).permutation(len(asked))
        chosen = np.sort(np.concatenate([order[np.array(domains)[order] == one][:most] for one in range(len(DOMAINS))]))
    texts = np.array(asked)[chosen]
    pictures = np.array([task.matches[text][0] for text in texts])
    captions = {kind: [*map(_or_nothing, each), *photos] for kind, each in emoji.items()}
    return Pool(features, task, captions, texts, np.array(domains)[chosen], pictures)


class _Names:
    """The first texts of a source alone."""

    def __init__(self, source: Any) -> None:
        self.source = source

    def __len__(self) -> int:
        return len(self.source)

    def texts(self, index: int) -> tuple[str, ...]:
        return self.source.texts(index)[:1]


def _or_nothing(caption: str | None) -> str:
    return caption or ""


def heads_of(place: str) -> tuple[PatchEncoder, PatchEncoder]:
    """A model, and the same as it reads the features of its locked tower."""
    model = load_model(place, "cpu")
    assert isinstance(model, PatchEncoder), "a model of the preset patches"
    heads = copy.deepcopy(model)
    assert isinstance(heads.image_tower, nn.Sequential)
    heads.image_tower[0] = nn.Identity()
    return model.eval(), heads.eval()


@torch.no_grad()
def found_first(heads: PatchEncoder, pool: Pool, k: int) -> tuple[Tensor, Tensor]:
    """What each text finds among the pictures: rows and cosines, best first."""
    images = functional.normalize(heads.encode_images(pool.features), dim=1)
    asked = heads.embed_texts([pool.task.texts[text] for text in pool.texts])
    scores, rows = (asked @ images.T).topk(k, dim=1)
    return rows, scores


def episodes(heads: PatchEncoder, pool: Pool, rows: Tensor, kind: str, options: EpisodeOptions) -> Tensor:
    """Cosines of what was found by the models adapted to each query; NaN where there was no episode."""
    made, parts = Episodes(heads, options), []
    captions = pool.captions[kind]
    for start in range(0, len(rows), TOGETHER):
        some = rows[start : start + TOGETHER]
        pictures, places = some.unique(return_inverse=True)
        wordings, numbers = number_texts([captions[row] for row in pictures.tolist()])
        asked = [EpisodeQuery(((pool.task.texts[text], 1.0),)) for text in pool.texts[start : start + TOGETHER]]
        texts = torch.tensor(numbers)[places]
        batch = EpisodeBatch(tuple(asked), pool.features[pictures], places, wordings, texts)
        parts.append(made.rerank(batch).scores)
    return torch.cat(parts)


def kept(
    options: argparse.Namespace, heads: PatchEncoder, pool: Pool, rows: Tensor, kind: str,
    setting: EpisodeOptions,
) -> Tensor:  # fmt: skip
    """What `episodes` gives, made once for the same model, texts, captions and setting."""
    texts = [pool.task.texts[text] for text in pool.texts]
    key = repr((heads.fingerprint, texts, list(pool.captions[kind]), rows.tolist(), asdict(setting)))
    path = options.work / f"{hashlib.blake2b(key.encode(), digest_size=10).hexdigest()}.npy"
    if not path.exists():
        options.work.mkdir(parents=True, exist_ok=True)
        with atomic_path(path) as unfinished, unfinished.open("wb") as file:
            np.save(file, episodes(heads, pool, rows, kind, setting).numpy())
    return torch.from_numpy(np.load(path))


def hits(pool: Pool, rows: Tensor, scores: Tensor, depth: int = 1) -> np.ndarray:
    """Whether each text finds a picture that it describes among the first; of equal scores the wrong come first."""
    right = np.zeros(rows.shape, dtype=bool)
    for number, (text, found) in enumerate(zip(pool.texts, rows.tolist(), strict=True)):
        right[number] = np.isin(found, pool.task.matches[text])
    best = np.where(right, scores.double().numpy(), -np.inf).max(1)
    before = (np.where(right, -np.inf, scores.double().numpy()) >= best[:, None]).sum(1)
    return right.any(1) & (before < depth)


def mixed(before: Tensor, after: Tensor, share: float) -> Tensor:
    """What ranks again: the adapted score and the one before, or the one before where there was no episode."""
    return torch.where(after.isnan(), before.double(), share * after + (1 - share) * before.double())


# What is tried --------------------------------------------------------------------------------------------------------


def grid(name: str) -> dict[str, EpisodeOptions]:
    """Settings by name; mixing with the score before costs nothing and is measured of all."""
    made = {"as printed": PAPER}
    if name == "steps":
        for rank in (16, 64):
            for rate in LARGER:
                made[_step(rank, rate)] = EpisodeOptions(rank=rank, learning_rate=rate)
        return made | {
            "both ways, temperature 1, 1e-2": EpisodeOptions(temperature=1.0, learning_rate=1e-2),
            "both ways, soft negatives 0.5, 1e-2": EpisodeOptions(soft=0.5, learning_rate=1e-2),
            "as printed, 1e-2": EpisodeOptions.paper(learning_rate=1e-2),
        }
    for rank in (16, 64):
        for rate in (5e-4, 1.5e-3, 5e-3):
            made[_step(rank, rate)] = EpisodeOptions(rank=rank, learning_rate=rate)
    made["both ways, temperature 1, 1.5e-3"] = EpisodeOptions(temperature=1.0, learning_rate=1.5e-3)
    for soft in (0.5, 1.0):
        made[f"both ways, soft negatives {soft:g}, 1.5e-3"] = EpisodeOptions(soft=soft, learning_rate=1.5e-3)
    made["both ways, 4 steps, 5e-4"] = EpisodeOptions(learning_rate=5e-4, steps=4)
    return made


LARGER = (1.5e-3, 5e-3, 1e-2, 2e-2, 5e-2, 1e-1)
"""Learning rates of the grid ``steps``, from the default on."""


def _step(rank: int, rate: float) -> str:
    return f"both ways, rank {rank}, {rate:g}"


def chosen(options: argparse.Namespace) -> dict[str, EpisodeOptions]:
    """The settings of the grid, or of both grids those that are named."""
    if not options.settings:
        return grid(options.grid)
    both = grid("first") | grid("steps")
    if unknown := [name for name in options.settings if name not in both]:
        raise SystemExit(f"no setting {unknown[0]!r}; there are: {'; '.join(both)}")
    return {name: both[name] for name in options.settings}


MIXES = (0.3, 0.5, 1.0)
CONTROLS = ("no episode: captions alone rank", "no episode: captions and pictures rank, half each")
"""What the captions give without learning: the cosine of the query and what was found, in place of an episode."""


def kinds_of(differences: np.ndarray, pool: Pool) -> dict[str, Kinds]:
    """Paired differences by domain, picture by picture.

    Args:
        differences: of each query, in the mean over runs.
    """
    mine = {name: pool.domains == domain for domain, name in enumerate(DOMAINS)}
    return {name: Kinds.of(differences[rows], pool.pictures[rows]) for name, rows in mine.items()}


def gain(kinds: Mapping[str, Kinds]) -> dict[str, list[float]]:
    """Mean of domains of paired differences in points, with the 95 % interval over resampled pictures."""
    draws = {name: each.resampled(name) for name, each in kinds.items()}
    means = {name: each.mean() for name, each in kinds.items()}
    told = {"mean": (float(np.mean(list(means.values()))), np.mean(list(draws.values()), axis=0))}
    told |= {name: (means[name], draws[name]) for name in kinds}
    return {
        name: [round(100 * value, 2) for value in (mean, *percentiles(drawn))] for name, (mean, drawn) in told.items()
    }


def gained(kinds: Mapping[str, Kinds], depth: int) -> dict[str, Any]:
    """A gain, and of how many pictures it is which: what `gain` computes the interval from."""
    return {
        f"gain in R@{depth}": gain(kinds),
        f"pictures, R@{depth}": {name: each.as_text() for name, each in kinds.items()},
    }


def recall(pool: Pool, hit: np.ndarray) -> dict[str, float]:
    """Recall in percent, by domain and in their mean."""
    each = {name: 100 * float(hit[pool.domains == domain].mean()) for domain, name in enumerate(DOMAINS)}
    return {name: round(value, 2) for name, value in (each | {"mean": float(np.mean(list(each.values())))}).items()}


@torch.no_grad()
def said_of_it(heads: PatchEncoder, pool: Pool, rows: Tensor, kind: str) -> Tensor:
    """Cosines of each query and the captions of what it found."""
    asked = heads.embed_texts([pool.task.texts[text] for text in pool.texts])
    return torch.einsum("qd,qkd->qk", asked, _captions(heads, pool, rows, kind)[0])


def _captions(heads: PatchEncoder, pool: Pool, rows: Tensor, kind: str) -> tuple[Tensor, Tensor]:
    """The embedded caption of each found picture, and the number of its wording."""
    distinct = list(dict.fromkeys(pool.captions[kind]))
    place = {caption: number for number, caption in enumerate(distinct)}
    numbers = torch.tensor([place[caption] for caption in pool.captions[kind]])[rows]
    return heads.embed_texts(distinct)[numbers], numbers


@torch.no_grad()
def diagnosis(heads: PatchEncoder, pool: Pool, rows: Tensor, scores: Tensor, kind: str) -> dict[str, Any]:
    """What episodes can learn from: how much captions say of what is asked, and how alike the wrong ones are."""
    found, numbers = _captions(heads, pool, rows, kind)
    said = said_of_it(heads, pool, rows, kind)
    alike = torch.einsum("qid,qjd->qij", found, found)
    different = numbers[:, :, None] != numbers[:, None]
    share, named, told = [], [], []
    for number, text in enumerate(pool.texts):
        words = set(content_words(pool.task.texts[text]))
        true = set(pool.task.matches[text])
        overlap = [
            len(words & set(content_words(pool.captions[kind][row]))) / max(1, len(words))
            for row in rows[number].tolist()
        ]
        of_true = [value for value, row in zip(overlap, rows[number].tolist(), strict=True) if row in true]
        of_wrong = [value for value, row in zip(overlap, rows[number].tolist(), strict=True) if row not in true]
        named.append(np.mean(of_true) if of_true else np.nan)
        share.append(np.mean(of_wrong) if of_wrong else np.nan)
        told.append(float((alike[number][different[number]] > 0.8).float().mean()) if different[number].any() else 0.0)
    return {
        "query words in the captions of right candidates": _by_domain(pool, named),
        "query words in the captions of wrong candidates": _by_domain(pool, share),
        "wrong captions with a cosine above 0.8": _by_domain(pool, told),
        "R@1 if captions alone rank what was found": recall(pool, hits(pool, rows, said)),
        "R@1 if captions and pictures rank it, half each": recall(pool, hits(pool, rows, (said + scores) / 2)),
    }


def _by_domain(pool: Pool, values: Sequence[float]) -> dict[str, float | None]:
    """Mean in percent over the queries of which something is known; None where there are none."""
    each = {name: np.array(values)[pool.domains == domain] for domain, name in enumerate(DOMAINS)}
    known = {name: part[np.isfinite(part)] for name, part in each.items()}
    return {name: round(100 * float(part.mean()), 1) if len(part) else None for name, part in known.items()}


def _mean_of_domains(pool: Pool, values: np.ndarray) -> float:
    return round(100 * float(np.mean([values[pool.domains == domain].mean() for domain in range(len(DOMAINS))])), 2)


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Everything that is tried, for every base and start."""
    settings = chosen(options)
    totals: dict[tuple[str, str, float], list[np.ndarray]] = {}
    deeper: dict[tuple[str, str, float], list[np.ndarray]] = {}
    bases, told = [], {kind: [] for kind in options.captions}  # type: ignore[var-annotated]
    for place in options.models:
        model, heads = heads_of(place)
        pool = open_pool(model, options.data, options.split, options.queries)
        rows, scores = found_first(heads, pool, PAPER.k)
        before = {depth: hits(pool, rows, scores, depth) for depth in (1, 5, PAPER.k)}
        bases.append({f"R@{depth}": recall(pool, hit) for depth, hit in before.items()})
        print(place, bases[-1], flush=True)
        for kind in options.captions:
            told[kind].append(diagnosis(heads, pool, rows, scores, kind))
            said = said_of_it(heads, pool, rows, kind)
            for name, ranked in {CONTROLS[0]: said, CONTROLS[1]: (said + scores) / 2}.items():
                totals.setdefault((kind, name, 1.0), []).append(hits(pool, rows, ranked).astype(float) - before[1])
                deeper.setdefault((kind, name, 1.0), []).append(hits(pool, rows, ranked, 5).astype(float) - before[5])
            for name, setting in settings.items():
                start = time.perf_counter()
                for seed in range(options.adapter_seeds):
                    after = kept(options, heads, pool, rows, kind, replace(setting, seed=seed))
                    for mix in MIXES:
                        ranked = mixed(scores, after, mix)
                        key = (kind, name, mix)
                        totals.setdefault(key, []).append(hits(pool, rows, ranked).astype(float) - before[1])
                        deeper.setdefault(key, []).append(hits(pool, rows, ranked, 5).astype(float) - before[5])
                gains = [_mean_of_domains(pool, totals[kind, name, mix][-1]) for mix in MIXES]
                print(f"{kind:15s} {name:45s} {gains} {time.perf_counter() - start:.0f} s", flush=True)
    queries = {name: int((pool.domains == domain).sum()) for domain, name in enumerate(DOMAINS)}
    arms = [
        {
            "captions": kind, "setting": name, "mix": mix, **gained(kinds_of(np.mean(each, 0), pool), 1),
            "over runs": [_mean_of_domains(pool, one) for one in each],
            **gained(kinds_of(np.mean(deeper[kind, name, mix], 0), pool), 5),
        }
        for (kind, name, mix), each in totals.items()
    ]  # fmt: skip
    return {
        "pictures": len(pool.task.images), "queries": queries, "zero-shot, each base": bases, "diagnosis": told,
        "settings": {name: asdict(setting) for name, setting in settings.items()}, "arms": arms,
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", required=True, help="base models of the preset patches, one a seed")
    parser.add_argument("--data", type=Path, default=Path("data"), help="folder of the Parquet files")
    parser.add_argument("--split", choices=["validation", "test"], default="validation")
    parser.add_argument("--captions", nargs="+", choices=CAPTIONS, default=list(CAPTIONS))
    parser.add_argument("--grid", choices=["first", "steps"], default="first")
    parser.add_argument("--settings", nargs="+", help="only these of both grids, by name")
    parser.add_argument("--queries", type=int, help="at most so many texts of a domain; all by default")
    parser.add_argument("--adapter-seeds", type=int, default=2)
    parser.add_argument("--work", type=Path, default=Path("runs/adaptation-benchmark"), help="kept scores")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    torch.set_num_threads(1)
    command = this_command()
    made = {"command": command} | run(options)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(made, indent=1) + "\n")


if __name__ == "__main__":
    main()
