"""The few-shot methods of this package by name; `recollect evaluate few-shot` and `recollect classify` read them."""

from collections.abc import Mapping

from recollect.classifiers.heads.methods import MakeEstimator
from recollect_papers.peers.ape import ApeClassifier, ApeTrained
from recollect_papers.peers.timo import Timo
from recollect_papers.peers.tip_x import TipX
from recollect_papers.peers.trained import ClipAdapter, LinearProbePlusPlus, TipAdapterF

FEW_SHOT_METHODS: Mapping[str, MakeEstimator] = {
    "tip-x": lambda texts, scale: TipX(texts, scale=scale),
    "tip-x-published": lambda texts, scale: TipX(texts, scale=scale, preset="published"),
    "ape": lambda texts, scale: ApeClassifier(texts, scale=scale),
    "ape-published": lambda texts, scale: ApeClassifier(texts, scale=scale, preset="published"),
    "timo": lambda texts, scale: Timo(texts),
    "lp++": lambda texts, scale: LinearProbePlusPlus(texts),
    "clip-adapter": lambda texts, scale: ClipAdapter(texts, scale=scale),
    "ape-t": lambda texts, scale: ApeTrained(texts, scale=scale),
    "tip-adapter-f": lambda texts, scale: TipAdapterF(texts, scale=scale),
}
