"""EFSA (Huzaifa and Kementchedjhieva, "Episodic Few-Shot Adaptation"): Tables 2 to 7 and Figures 1 and 3 to 6.

``smoke`` and ``small`` search look-alike scenes of the glyph world; ``full`` takes the paper's models (or ``--search.models``)
and settings, the user's pools (``--data``) and their captions (``--search.captions``).
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from recollect.evaluation.pools import PoolKind
from recollect.evaluation.results import Result, Summary, summarise
from recollect.evaluation.retrieval import DIRECTIONS
from recollect.retrieval.options import EpisodeOptions
from recollect.studies import efsa_paper as paper
from recollect.studies.efsa_setting import TRUE, Captions, Search, Setting, searched, setting
from recollect.studies.study import StudyOptions, StudyReport, StudyTable

DEPTHS = (1, 5, 10)
AVERAGE = "average"
PAPER_METHODS = ("zero-shot", "fine-tuning", "text-to-text", "rlcf", "episode")
NAMES = paper.METHODS | {"episode-full": "full parameters"}
_ABLATED = ("zero-shot", "episode")


@dataclass(frozen=True)
class Recalls:
    """Text to image, in percent, of each method on each domain: one value for each base model.

    Attributes:
        values: by (method, domain, k).
        domains: in the order of the pool, the average last.
        costs: by (method, what), mean over base models and pools.
    """

    values: Mapping[tuple[str, str, int], tuple[float, ...]]
    domains: tuple[str, ...]
    costs: Mapping[tuple[str, str], float]

    @classmethod
    def of(cls, found: Sequence[Sequence[Result]]) -> "Recalls":
        """Read the results of every base model."""
        values: dict[tuple[str, str, int], list[float]] = {}
        costs: dict[tuple[str, str], list[float]] = {}
        for results in found:
            each: dict[tuple[str, int], list[float]] = {}
            for result in results:
                for method, domain, k, value in _recall_rows(result):
                    values.setdefault((method, domain, k), []).append(value)
                    each.setdefault((method, k), []).append(value)
                for row in result.rows:
                    if row["metric"] != "recall":
                        costs.setdefault((row["method"], row["metric"]), []).append(row["value"])
            for (method, k), mine in each.items():
                values.setdefault((method, AVERAGE, k), []).append(float(np.mean(mine)))
        domains = dict.fromkeys(domain for _, domain, _ in values if domain != AVERAGE)
        return cls(
            {key: tuple(each) for key, each in values.items()},
            (*domains, AVERAGE),
            {key: float(np.mean(each)) for key, each in costs.items()},
        )

    def at(self, method: str, domain: str, k: int) -> Summary:
        """Mean ± std over base models."""
        return summarise(self.values[method, domain, k])

    def gain(self, method: str, k: int = 1, domain: str = AVERAGE, over: str = "zero-shot") -> Summary:
        """Of one method over another, paired by base model."""
        mine, other = self.values[method, domain, k], self.values[over, domain, k]
        return summarise(np.subtract(mine, other))


def _recall_rows(result: Result) -> Iterable[tuple[str, str, int, float]]:
    """Method, domain, k and value of every row from text to image; a pool of one domain is called by it."""
    rows = [row for row in result.rows if row["metric"] == "recall" and row["direction"] == DIRECTIONS[0]]
    domains = list(dict.fromkeys(row["domain"] for row in rows if row["domain"] not in {"all", "mean of domains"}))
    for row in rows:
        if row["domain"] in domains:
            yield row["method"], row["domain"], row["k"], row["value"]


def _ask(
    options: StudyOptions,
    where: Setting,
    pool: PoolKind = "merged",
    methods: Sequence[str] = _ABLATED,
    *,
    changed: EpisodeOptions | None = None,
    captions: Captions | None = None,
    data: tuple[str, ...] | None = None,
    depths: Sequence[int] = DEPTHS,
) -> Recalls:
    settings = where.methods if changed is None else replace(where.methods, episode=changed)
    search = Search(tuple(methods), settings, captions or where.captions[0], pool, data or where.data, tuple(depths))
    return Recalls.of(searched(search, where, options))


def _columns(domains: Sequence[str]) -> tuple[str, ...]:
    return tuple(f"{domain} R@{k}" for domain in domains for k in DEPTHS)


def _cells(recalls: Recalls, method: str) -> tuple[str, ...]:
    return tuple(str(recalls.at(method, domain, k)) for domain in recalls.domains for k in DEPTHS)


def _notes(where: Setting) -> tuple[str, ...]:
    episode = where.methods.episode
    asked = "all texts" if where.queries is None else f"at most {where.queries} texts a domain"
    return (
        f"mean ± std over {len(where.models)} base models; gains are in average R@1, paired by base model; {asked} are "
        f"asked; captions of the pool: {where.captions[0].label}",
        f"episodes: k {episode.k}, learning rate {episode.learning_rate:g}, scale {episode.scale:g}, temperature "
        f"{'of the model' if episode.temperature is None else f'{episode.temperature:g}'}, {episode.direction}",
        "paper: as printed there",
    )


def _report(name: str, options: StudyOptions, where: Setting, tables: Sequence[StudyTable], *notes: str) -> StudyReport:
    return StudyReport(f"efsa/{name}", options.scale, where.world, tables, notes=notes)


# --- Tables 2, 3 and 7: every method on every domain ------------------------------------------------------------------


def _every_method(
    options: StudyOptions, where: Setting, number: int, pool: PoolKind, printed: Mapping[str, tuple[paper.Triple, ...]]
) -> StudyReport:
    methods = [name for name in PAPER_METHODS if name != "rlcf" or where.teacher is not None]
    k = where.methods.episode.k
    recalls = _ask(options, where, pool, [*methods, "episode-full"], depths=(*DEPTHS, k))
    rows = []
    for method in (*methods, "episode-full"):
        known = printed.get(method)
        gain = "" if method == "zero-shot" else recalls.gain(method).signed()
        beside = [cell for place in _printed_places(recalls.domains) for cell in (known[place] if known else ("",) * 3)]
        rows.append((NAMES[method], *_cells(recalls, method), gain, *beside))
    heads = [paper.DOMAINS[place] for place in _printed_places(recalls.domains)]
    columns = ("method", *_columns(recalls.domains), "gain", *(f"paper: {cell}" for cell in _columns(heads)))
    kind = {"single": "every domain is a pool by itself", "merged": "all domains are one pool"}[pool]
    table = StudyTable(f"Table {number}. Text to image, {kind}", columns, tuple(rows), _notes(where))
    ceiling = ", ".join(f"{domain} {recalls.at('zero-shot', domain, k)}" for domain in recalls.domains)
    left_out = () if where.teacher else ("RLCF is left out: name a larger model with --search.teacher",)
    return _report(
        f"table-{number}", options, where, (table, _costs(recalls, [*methods, "episode-full"])),
        f"what an episode can reach at best, zero-shot R@{k}: {ceiling}", *left_out,
    )  # fmt: skip


def _printed_places(domains: Sequence[str]) -> list[int]:
    """The columns of the paper that stand beside ours: sets of the same name, and the average."""
    return [
        place for place, name in enumerate(paper.DOMAINS) if any(name in domain.lower() for domain in domains)
    ]  # fmt: skip


def _costs(recalls: Recalls, methods: Sequence[str]) -> StudyTable:
    columns = ("method", "ms", "images forward", "images back", "M products forward", "M products back", "MiB at once")
    rows = []
    for method in methods:

        def cost(what: str, method: str = method) -> float:
            return recalls.costs[method, what]

        rows.append((
            NAMES[method],
            f"{1000 * cost('seconds per query'):.1f}",
            f"{cost('images_forward per query'):.1f}",
            f"{cost('images_backward per query'):.1f}",
            f"{cost('forward_products per query') / 1e6:,.1f}",
            f"{cost('backward_products per query') / 1e6:,.1f}",
            f"{cost('memory') / 2**20:.1f}",
        ))  # fmt: skip
    notes = ("of a query, after what is done once for a pool (fine-tuning, embedding captions)",)
    return StudyTable("Cost of a query", columns, tuple(rows), notes)


def table_2(options: StudyOptions) -> StudyReport:
    """Every method, each domain a pool by itself."""
    return _every_method(options, setting(options), 2, "single", paper.TABLE_2)


def table_3(options: StudyOptions) -> StudyReport:
    """Every method, all domains in one pool."""
    return _every_method(options, setting(options), 3, "merged", paper.TABLE_3)


def table_7(options: StudyOptions) -> StudyReport:
    """Every method, all domains in one pool, base models trained with SigLIP's loss."""
    return _every_method(options, setting(options, "sigmoid"), 7, "merged", paper.TABLE_7)


# --- Tables 4, 5 and 6: ablations, all domains in one pool ------------------------------------------------------------


@dataclass(frozen=True)
class _Arm:
    """One row of an ablation: its name, what it found, and what the paper printed."""

    name: str
    recalls: Recalls
    printed: Sequence[paper.Triple] = ()


def _ablation(
    options: StudyOptions, where: Setting, title: str, head: str, arms: Sequence[_Arm], domains: Sequence[str]
) -> StudyReport:
    first = arms[0].recalls
    columns = (head, *_columns(first.domains), "gain", *(f"paper: {cell}" for cell in _columns(domains)))
    rows = [("zero-shot", *_cells(first, "zero-shot"), "", *("",) * 3 * len(domains))]
    for arm in arms:
        beside = [cell for triple in arm.printed for cell in triple] or [""] * 3 * len(domains)
        rows.append((arm.name, *_cells(arm.recalls, "episode"), arm.recalls.gain("episode").signed(), *beside))
    number = title.split(".")[0].removeprefix("Table ")
    return _report(f"table-{number}", options, where, (StudyTable(title, columns, tuple(rows), _notes(where)),))


def table_4(options: StudyOptions) -> StudyReport:
    """Loss functions."""
    where = setting(options)
    start = where.methods.episode
    one = replace(start, temperature=1.0)
    losses = {
        "Hinge": ("hinge", replace(start, contrastive=0.0)),
        "Contrastive": ("contrastive", replace(start, hinge=0.0)),
        "Combined": ("combined", start),
        "Contrastive, temperature 1": ("", replace(one, hinge=0.0)),
        "Combined, temperature 1": ("", one),
        "Combined, both ways": ("", replace(start, direction="symmetric")),
    }
    arms = [
        _Arm(name, _ask(options, where, changed=changed), paper.TABLE_4.get(key, ()))
        for name, (key, changed) in losses.items()
    ]
    return _ablation(options, where, "Table 4. Loss of an episode", "loss", arms, paper.TABLE_4_DOMAINS)


def table_5(options: StudyOptions) -> StudyReport:
    """Candidates that an episode learns from and ranks again."""
    where = setting(options)
    arms = []
    for k in (2, 4, 8) if options.scale == "smoke" else (8, 16, 32, 64):
        found = _ask(options, where, changed=replace(where.methods.episode, k=k), depths=(*DEPTHS, k))
        arms.append(_Arm(f"{k} (zero-shot R@{k} {found.at('zero-shot', AVERAGE, k)})", found, paper.TABLE_5.get(k, ())))
    return _ablation(options, where, "Table 5. Candidates", "top k", arms, paper.TABLE_5_DOMAINS)


def table_6(options: StudyOptions) -> StudyReport:
    """Captions from several captioners, and the truth."""
    where = setting(options)
    kinds = (TRUE, *(kind for kind in where.captions if kind.kind != TRUE.kind))
    printed = dict(zip((kind.label for kind in kinds), paper.TABLE_6.values(), strict=False))
    if options.scale != "full":  # our stand-ins are none of the paper's captioners
        printed = {TRUE.label: paper.TABLE_6[TRUE.label]}
    arms = [_Arm(kind.label, _ask(options, where, captions=kind), printed.get(kind.label, ())) for kind in kinds]
    return _ablation(options, where, "Table 6. Captioners", "captions from", arms, paper.TABLE_6_DOMAINS)
