"""What a search computed."""

from dataclasses import asdict, dataclass


@dataclass
class CostCounters:
    """Rows that went through each tower, forwards and backwards."""

    images_forward: int = 0
    texts_forward: int = 0
    images_backward: int = 0
    texts_backward: int = 0

    def forward(self, *, images: int = 0, texts: int = 0) -> None:
        """Count rows of a forward pass."""
        self.images_forward += images
        self.texts_forward += texts

    def backward(self, *, images: int = 0, texts: int = 0) -> None:
        """Count rows of a backward pass."""
        self.images_backward += images
        self.texts_backward += texts

    def as_dict(self) -> dict[str, int]:
        """The counts by name."""
        return asdict(self)
