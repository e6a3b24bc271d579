"""The card of a kept classifier: what somebody who is handed the folder wants to know first."""

from collections.abc import Mapping
from typing import Any


def classifier_card(described: Mapping[str, Any]) -> str:
    """Markdown about a classifier.

    Args:
        described: what ``classifier.json`` holds of it.
    """
    classes, model, method = described["classes"], described["model"], described["method"]
    names = [_plain(each["name"]) for each in classes]
    told = ", ".join(f"`{name}`" for name in names[:12]) + (" and others" if len(names) > 12 else "")
    chosen = " (chosen on held-out examples)" if method["asked"] == "best" else ""
    lines = [
        f"# A classifier of {len(classes)} classes",
        "",
        f"It tells {told} apart, with the embeddings of `{_plain(model['name'] or 'a model')}` "
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
        "`classifier.json` says all of it; the numbers beside it are embeddings. The pictures themselves are not here.",
    ]
    return "\n".join(lines) + "\n"


def _trust(described: Mapping[str, Any]) -> str:
    held, unknown = described["held_out"], described["calibration"]["unknown_rate"]
    if not described["calibration"]["calibrated"]:
        return "No two examples of a class were there to hold out, so its confidence is not calibrated."
    right = f"{100 * held['accuracy']:.1f} % of {held['examples']} held-out examples are right"
    said = f"{right}, with a calibration error of {held['calibration_error']:.3f}"
    if unknown:
        said += f"; about {100 * unknown:.0f} % of pictures of the classes are called none of these by mistake"
    return f"{said}. Pictures of another kind than the examples are not covered by these figures."


def _plain(text: str) -> str:
    """A name as it can stand in a table."""
    return " ".join(text.replace("|", "/").replace("`", "'").split())
