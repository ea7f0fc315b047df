"""Names of a method."""

from typing import Any


class Variant(dict[str, Any]):
    """Field values that a name of a method stands for, and what the name means."""

    def __init__(self, about: str = "", **fields: Any) -> None:
        super().__init__(fields)
        self.about = about
