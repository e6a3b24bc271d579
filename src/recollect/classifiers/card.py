"""The README of a saved classifier: classes, method and measured accuracy."""

from collections.abc import Mapping
from typing import Any

from recollect.classifiers.heads.trust import TOO_FEW, share_text


def classifier_card(described: Mapping[str, Any]) -> str:
    """Markdown about a classifier.

    Args:
        described: the content of ``classifier.json``.
    """
    classes, model, method = described["classes"], described["model"], described["method"]
    names = [_plain(each["name"]) for each in classes]
    listed = ", ".join(f"`{name}`" for name in names[:12]) + (" and others" if len(names) > 12 else "")
    chosen = " (chosen on held-out examples)" if method["asked"] == "best" else ""
    lines = [
        f"# A classifier of {len(classes)} classes",
        "",
        f"It distinguishes {listed}, with the embeddings of `{_plain(model['name'] or 'a model')}` "
        f"({model['fingerprint'][:12]}).",
        "",
        "| class | examples |",
        "|---|---|",
        *(f"| {name} | {each['examples']} |" for name, each in zip(names, classes, strict=True)),
        "",
        f"**Method**: {method['used']}{chosen}. {_trust(described)}",
        "",
        "```",
        "recollect classify --with THIS_FOLDER --images new/",
        "```",
        "",
        "```python",
        "from recollect import Classifier, load_model",
        "",
        'classifier = Classifier.load("THIS_FOLDER")',
        "model = load_model(classifier.model.name)",
        "classifier.predict(model.embed_images(pictures))",
        "```",
        "",
        "`classifier.json` describes it; the safetensors file holds embeddings. The pictures are not included.",
    ]
    return "\n".join(lines) + "\n"


def _trust(described: Mapping[str, Any]) -> str:
    held, checked = described["held_out"], described["calibration"]
    if not described["calibration"]["calibrated"]:
        return "No class has two examples, so none could be held out, and its confidence is not calibrated."
    if "accuracy" not in held:
        return f"Accuracy on {held['examples']} held-out examples: {TOO_FEW}."
    right = f"{share_text(held['accuracy'], held['examples'])} held-out examples are right"
    said = f"{right}, with a calibration error of {held['calibration_error']:.3f}"
    said += f" (95 % interval {100 * held['low']:.0f} to {100 * held['high']:.0f} %)"
    if checked["unknown_rejected"] is not None:
        said += f"; {100 * checked['unknown_rejected']:.0f} % of pictures of the classes are called none of these"
    if checked["unknown_accepted"] is not None:
        said += (
            f", and {100 * checked['unknown_accepted']:.0f} % of pictures of other classes are taken for one of these"
        )
    return f"{said}. These figures only hold for pictures like the examples."


def _plain(text: str) -> str:
    """A name that is safe in a Markdown table."""
    return " ".join(text.replace("|", "/").replace("`", "'").split())
