"""``recollect evaluate entities``: name pictures among all entities, those never trained on included."""

from dataclasses import dataclass, field

import tyro
from rich.table import Table

from recollect.cli.evaluate import DataOptions, ModelOptions
from recollect.cli.memory_reading import with_memory
from recollect.core.errors import UserError
from recollect.core.progress import output
from recollect.evaluation.entities import entities, final_score, open_entities
from recollect.evaluation.tasks.oven import oven_pairs


@dataclass(frozen=True)
class Entities:
    """Name pictures among all entities: top-1 on those trained on, on the others, and the harmonic mean.

    `--data oven:FOLDER` takes OVEN's published files, which say themselves what was trained on; `oven:FOLDER?set=query`
    the other set, `?part=test` another part; both sets of a part together give OVEN's final score. Name one template
    with it (--templates), not CLIP's 80.
    """

    model: tyro.conf.OmitArgPrefixes[ModelOptions]
    data: tyro.conf.OmitArgPrefixes[DataOptions] = field(default_factory=DataOptions)
    seen: str = "train"
    """Split whose classes the model was trained on."""
    unseen: str = "test"
    """Split of the others; images of both are tested, and the classes of both are candidates for each."""

    def run(self) -> None:
        """Evaluate, print and write."""
        self.data.refuse("entities", "suite", "copies", "support", "query", "within", "definitions")
        self.model.check("entities")
        console = output()
        if not self.data.data:
            raise UserError("no data was named. Name it with --data SOURCE ...")
        templates, columns = self.data.read_templates(), self.data.columns
        tasks = [open_entities(spec, self.seen, self.unseen, templates, columns) for spec in self.data.data]
        pairs = oven_pairs(self.data.data)
        results = []
        for name, encoder, cache, (task, seen) in self.model.each_on((both, both[0].query) for both in tasks):
            options = {"model": name, "seed": self.model.seed, "prefix": self.model.prefix_for(encoder), "cache": cache}
            found = entities(encoder, task, seen, **options)  # type: ignore[arg-type]
            results.append(with_memory(found, encoder))
        table = Table("model", "data", "entities", "images", "seen", "unseen", "harmonic mean", "calibration error")
        for result in results:
            counts = (f"{result.settings['classes']:,}", f"{result.settings['queries']:,}")
            values = (f"{row['value']:.1f}" for row in result.rows)
            table.add_row(result.model, result.data, *counts, *values, f"{result.rows[-1]['ece']:.1f}")
        console.print(table)
        several = len(tasks)  # results of a model lie together, in the order of the sets
        finals = [final_score(results[first + entity], results[first + query])
                  for first in range(0, len(results), several) for entity, query in pairs]  # fmt: skip
        for final in finals:
            said = f"final score {final.rows[-1]['value']:.1f}, the harmonic mean of the two sets'"
            console.print(f"{final.model} on {final.data}: {said}", highlight=False, soft_wrap=True)
        self.model.save([*results, *finals], console)
