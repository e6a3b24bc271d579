"""The model card of a trained model."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from recollect.core.places import public_place
from recollect.objectives import OBJECTIVES


def model_card(recipe: Mapping[str, Any], seen: Mapping[str, int], last: Mapping[str, Any], plain: bool = True) -> str:
    """Text of a ``README.md``: the same for the same run (no dates), and safe to publish (no local paths).

    Args:
        recipe: as in ``recipe.json``.
        seen: samples seen of each source.
        last: last line of the metrics.
        plain: whether plain transformers opens the model.
    """
    recipe = _public(recipe)
    library, opened = ("transformers", "") if plain else ("recollect", _NOT_PLAIN)
    start, objective = recipe["model"]["start"], recipe["objective"]
    base = OBJECTIVES[objective["base"]]
    name = base.name if objective["context"] is None else base.name_with_context
    sources = "\n".join(
        f"- `{'/'.join(Path(source).parts[-2:])}`: {count:,} samples seen" for source, count in seen.items()
    )
    figures = "\n".join(
        f"| {key} | {value:.4g} |" for key, value in last.items() if isinstance(value, float) and key not in _CLOCK
    )
    return f"""---
library_name: {library}
tags: [recollect, contrastive, {name.lower().replace(" ", "-")}]
---

# {name}, from {start}

An image-text dual encoder, trained with recollect (`pip install recollect`): {recipe["steps"]:,} steps of
{recipe["batch_size"]:,} pairs.{opened}

```python
from recollect import load_model

model = load_model("THIS-FOLDER")
model.embed_images(pictures), model.embed_texts(["a photo of a cat"])
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
    """A recipe without local paths, user names or keys."""
    if isinstance(value, Mapping):
        return {name: _public(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [_public(inner) for inner in value]
    if not isinstance(value, str):
        return value
    return public_place(value)


_NOT_PLAIN = " It has parts that plain transformers does not know;\nopen it with recollect."

_CLOCK = frozenset({"examples_per_second"})
