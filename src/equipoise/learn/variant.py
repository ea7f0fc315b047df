"""Names of a method."""

from typing import Any


class Variant(dict[str, Any]):
    """Field values that a method's name stands for, and a description."""

    def __init__(self, about: str = "", **fields: Any) -> None:
        super().__init__(fields)
        self.about = about
