"""The tuning methods of this package by name; `recollect evaluate few-shot` reads them."""

from collections.abc import Mapping

from recollect.classifiers.tuning.weights import MakeTuning
from recollect_papers.peers.prompt_learners import CoOp, KgCoOp, MaPLe, PromptSRC

TUNING_METHODS: Mapping[str, MakeTuning] = {
    "coop": lambda effort, flip, seed: CoOp(effort=effort, flip=flip, seed=seed),
    "kgcoop": lambda effort, flip, seed: KgCoOp(effort=effort, flip=flip, seed=seed),
    "maple": lambda effort, flip, seed: MaPLe(effort=effort, flip=flip, seed=seed),
    "promptsrc": lambda effort, flip, seed: PromptSRC(effort=effort, flip=flip, seed=seed),
}
"""`CascadedPrompts` (CasPL) needs a larger model as well, and is not in the protocol."""
