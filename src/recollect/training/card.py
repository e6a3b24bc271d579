"""The model card of a trained model."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from recollect.core.places import public_place
from recollect.objectives import OBJECTIVES


@dataclass(frozen=True)
class Subject:
    """Subject of a model card.

    Attributes:
        kind: description of the model, as the start of a sentence.
        opening: Python code that opens and uses it.
        library: library that opens it; transformers for models that both libraries open.
    """

    kind: str
    opening: str
    library: str = "recollect"


_OPENING = """from recollect import load_model

model = load_model("THIS-FOLDER")
model.embed_images(pictures), model.embed_texts(["a photo of a cat"])"""
DUAL_ENCODER = Subject("An image-text dual encoder", _OPENING, "transformers")


def model_card(
    recipe: Mapping[str, Any],
    seen: Mapping[str, int],
    last: Mapping[str, Any],
    name: str | None = None,
    subject: Subject = DUAL_ENCODER,
) -> str:
    """Return the text of a ``README.md``: reproducible (no dates) and safe to publish (no local paths).

    Args:
        recipe: as in ``recipe.json``.
        seen: number of samples seen from each source.
        last: last line of the metrics.
        name: name of the objective (default: the recipe's).
        subject: subject of the card.
    """
    recipe = _public(recipe)
    start, objective = recipe["model"]["start"], recipe["objective"]
    base = OBJECTIVES[objective["base"]]
    name = name or (base.name if objective["context"] is None else base.name_with_context)
    sources = "\n".join(
        f"- `{'/'.join(Path(source).parts[-2:])}`: {count:,} samples seen" for source, count in seen.items()
    )
    figures = "\n".join(
        f"| {key} | {value:.4g} |" for key, value in last.items() if isinstance(value, float) and key not in _CLOCK
    )
    return f"""---
library_name: {subject.library}
tags: [recollect, contrastive, {name.lower().replace(" ", "-")}]
---

# {name}, from {start}

{subject.kind}, trained with recollect: {recipe["steps"]:,} steps of
{recipe["batch_size"]:,} pairs.

```python
{subject.opening}
```

## Trained on

{sources}

The model reflects the errors and biases of this data. Evaluate it on your own data before relying on it. The data's
licenses apply.

## The last step

| | |
|---|---|
{figures}

## Recipe

```json
{json.dumps(recipe, indent=2, ensure_ascii=False)}
```
"""


def _public(value: Any) -> Any:
    """Return the recipe without local paths, user names or keys."""
    if isinstance(value, Mapping):
        return {name: _public(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [_public(inner) for inner in value]
    if not isinstance(value, str):
        return value
    return public_place(value)


_CLOCK = frozenset({"examples_per_second"})
