"""Which split of a source is read, where its address may name one too."""

from recollect.cli.parser import warn


def split_for(spec: str, split: str | None, usual: str | None = None) -> str | None:
    """The split to open a source with; None where its address names one (``photos.csv?split=val``), which goes first.

    Args:
        spec: the source's address.
        split: the value of --split.
        usual: the default of --split.
    """
    from recollect.data.sources.opening import split_of

    named = split_of(spec)
    if named is None:
        return split
    if split not in (None, named, usual):
        warn(f"--split {split} has no effect on {spec}, whose address names its split")
    return None
