"""The model card that lies beside a trained model: what it is, what it was made of, how to open it."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from recollect.core.places import public_place
from recollect.objectives import OBJECTIVES


def model_card(recipe: Mapping[str, Any], seen: Mapping[str, int], last: Mapping[str, Any], plain: bool = True) -> str:
    """A ``README.md``; the same for the same run, so no dates and no clock, and fit to be shown to strangers.

    Args:
        recipe: as in ``recipe.json``.
        seen: samples seen of each source.
        last: the last line of the metrics.
        plain: whether transformers opens it by itself.
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

It knows what these hold, with their errors and their one-sidedness; evaluate it on your own data before you rely on it.
State their licence with the model's.

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
    """A recipe without what is nobody else's: of paths of this machine the names, of addresses no user and no key."""
    if isinstance(value, Mapping):
        return {name: _public(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [_public(inner) for inner in value]
    if not isinstance(value, str):
        return value
    return public_place(value)


_NOT_PLAIN = " It has parts of recollect's own:\nrecollect opens it, and not transformers alone."

_CLOCK = frozenset({"examples_per_second"})
