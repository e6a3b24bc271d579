"""What `recollect train` measures while it trains."""

from collections.abc import Callable, Mapping

from recollect.core.validation import check_choice, refuse
from recollect.evaluation.protocols import PROTOCOLS
from recollect.training.step import Towers


def measuring_hooks(wanted: tuple[str, ...]) -> Callable[[Towers], Mapping[str, float]]:
    """A measurement of a model in training by each ``PROTOCOL=SOURCE``: figures in percent, by protocol, task and name.

    Sources are opened here, so that a wrong one stops the run before its first step.

    Raises:
        UserError: an unknown protocol, or a source that cannot be opened.
    """
    asked = []
    for word in wanted:
        name, _, source = word.partition("=")
        refuse((not source, f"--evaluate {word}: write PROTOCOL=SOURCE"))
        check_choice(name, PROTOCOLS, f"--evaluate {word}: protocol")
        asked += [(name, task) for task in PROTOCOLS[name].open(source)]

    def measure(model: Towers) -> dict[str, float]:
        encoder = model.encoder
        assert encoder is not None, "recipes train encoders"
        return {
            f"{name}/{task.name}/{figure}": value
            for name, task in asked
            for figure, value in PROTOCOLS[name].figures(encoder, task).items()
        }

    return measure
