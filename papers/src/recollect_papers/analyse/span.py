"""``recollect-papers analyse span``: how much of the image embeddings no caption describes."""

from rich.table import Table

from recollect.cli.split import split_for
from recollect.core.files import write_json
from recollect.core.paths import check_writable
from recollect.core.places import model_name, public_names
from recollect.core.progress import output
from recollect.core.validation import refuse
from recollect.data.sources import open_source
from recollect.data.sources.derived import corpus
from recollect.evaluation.features import image_features
from recollect.models import load_model
from recollect_papers.analyse.commands import Span
from recollect_papers.analyse.energy import energy_outside, text_span

MAX_CAPTIONS = 2000


def run_span(options: Span) -> None:
    """Measure, print and write."""
    missing = not options.models or not options.captions or not options.data
    refuse((missing, "name a model, --captions SOURCE ... and --data SOURCE ..."))
    check_writable(options.out, "--out")
    texts = [
        text
        for spec in options.captions
        for text in list(corpus(open_source(spec, kind="caption"), MAX_CAPTIONS))[:MAX_CAPTIONS]
    ]
    data = public_names(options.data)
    table = Table("model", "width", "rank of the span", *(f"outside, {called}" for called in data.values()))
    rows = []
    for name in options.models:
        model = load_model(name)
        span = text_span(model.embed_texts(list(dict.fromkeys(texts))).numpy(), options.share)
        outside = {
            called: energy_outside(
                image_features(model, open_source(spec, split=split_for(spec, options.split, "test"))).images, span
            )
            for spec, called in data.items()
        }
        called = model_name(name, model.fingerprint)
        rows.append({"model": called, "width": model.width, "rank": len(span), "outside": outside})
        table.add_row(called, str(model.width), str(len(span)), *(f"{100 * each:.1f} %" for each in outside.values()))
    output().print(table)
    if options.out:
        write_json(options.out, rows)
