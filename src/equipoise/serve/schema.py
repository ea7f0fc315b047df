"""Requests and answers of the API; a step has the schema of ``steps.json``."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

from equipoise.serve.limits import FILES, NAME, PICTURES

ClassName = Annotated[str, StringConstraints(min_length=1, max_length=NAME, strip_whitespace=True)]
Key = Annotated[str, StringConstraints(min_length=1, max_length=NAME)]
"""A class name as it was sent: names that are the same without surrounding spaces are learned together."""
Id = Annotated[str, StringConstraints(pattern="^[0-9a-f]{32}$")]
Ids = Annotated[list[Id], Field(min_length=1, max_length=PICTURES)]
Names = Annotated[list[ClassName], Field(min_length=1, max_length=1000)]


class Request(BaseModel):
    """Rejects fields that do not exist: a misspelt one would be ignored."""

    model_config = ConfigDict(extra="forbid")


class Learn(Request):
    """Learn pictures of one or more classes in one step."""

    kind: Literal["learn"]
    classes: Annotated[dict[Key, Ids], Field(min_length=1, max_length=1000)]
    """Names of classes, and uploaded pictures of each."""
    extend: bool = False
    """Whether known classes may get more pictures."""


class Correct(Request):
    """Teach one picture; if the model learned it in another class, it is moved."""

    kind: Literal["correct"]
    picture: Id
    to: ClassName


class Rename(Request):
    """Rename a class."""

    kind: Literal["rename"]
    name: ClassName
    to: ClassName


class Merge(Request):
    """Merge classes into another one."""

    kind: Literal["merge"]
    names: Names
    to: ClassName


class Move(Request):
    """Move images of the model to another class, which may be new."""

    kind: Literal["move"]
    images: Ids
    to: ClassName


class Forget(Request):
    """Remove classes for good."""

    kind: Literal["forget"]
    names: Names


class Undo(Request):
    """Undo the last step."""

    kind: Literal["undo"]
    version: str | None = Field(None, min_length=1, max_length=40)
    """The version to go back from; refused if the model has changed since."""


class StartAgain(Request):
    """Delete the model, with all its classes, pictures and versions; it cannot be undone."""

    kind: Literal["start_again"]


class Export(Request):
    """Create a file to download: ONNX, or a ZIP file of the model directory."""

    kind: Literal["export"]
    format: Literal["onnx", "directory"] = "onnx"


Task = Annotated[
    Learn | Correct | Rename | Merge | Move | Forget | Undo | StartAgain | Export,
    Field(discriminator="kind", title="Task"),
]


class KeptPictures(Request):
    """Pictures that the server has kept."""

    pictures: Annotated[list[Id], Field(min_length=1, max_length=FILES)]


class Session(Request):
    """Exchange the token for a cookie."""

    token: str = Field(max_length=1000)


class Error(BaseModel):
    """What went wrong, in a sentence with the remedy."""

    detail: str


class Progress(BaseModel):
    """Progress of a job."""

    text: str
    done: int = 0
    total: int = 0
    seconds_left: float | None = None


class PictureProblem(BaseModel):
    """Why a picture was not learned."""

    picture: str
    reason: str


class Job(BaseModel):
    """A change of the model, or an export."""

    id: str
    kind: str
    title: str
    state: Literal["queued", "running", "done", "failed", "cancelled"] = "queued"
    progress: Progress | None = None
    error: str | None = None
    message: str | None = None
    """What was done."""
    problems: list[PictureProblem] = []
    version: str | None = None
    """The model's version after the job."""
    file: bool = False
    """Whether there is a file to download."""

    @property
    def finished(self) -> bool:
        return self.state in ("done", "failed", "cancelled")


class Probability(BaseModel):
    """How probable a class is."""

    label: str = Field(alias="class")
    probability: float


class Answer(BaseModel):
    """The prediction for one file, or what is wrong with it."""

    unknown: bool | None = None
    predictions: list[Probability] = []
    picture: str | None = None
    """The picture's name, if it was kept."""
    error: str | None = None


class Answers(BaseModel):
    version: str
    predictions: list[Answer]


class Uploaded(BaseModel):
    id: str | None = None
    problem: str | None = None


class UploadedPictures(BaseModel):
    pictures: list[Uploaded]


class TrayPicture(BaseModel):
    id: str
    nearest: str
    probability: float


class TrayGroup(BaseModel):
    pictures: list[TrayPicture]


class TrayContent(BaseModel):
    version: str | None
    groups: list[TrayGroup]


class ClassInfo(BaseModel):
    number: int
    name: str
    step: int | None
    """The step that taught it."""
    images: int
    accuracy: float | None
    correct: int | None
    total: int | None
    thumbnails: list[str]
    """Names of a few of its images."""
    advice: str | None


class Balance(BaseModel):
    """Accuracy of the classes of the last step, and of those before."""

    old: float
    new: float
    old_classes: int
    new_classes: int
    message: str


class HistoryEntry(BaseModel):
    step: int
    kind: str
    text: str
    finished: str
    accuracy: float | None
    images: int | None
    """Pictures that were learned; None if it is not their number that matters."""


class Limits(BaseModel):
    file_bytes: int
    request_bytes: int
    files_per_request: int
    pictures: int


class ModelInfo(BaseModel):
    """Everything that the page shows."""

    version: str | None
    name: str
    method: str | None = None
    backbone: str | None = None
    size: int
    classes: list[ClassInfo] = []
    accuracy: float | None = None
    evaluated_on: str | None = None
    balance: Balance | None = None
    advice: str | None = None
    warning: str | None = None
    history: list[HistoryEntry] = []
    can_extend: bool = True
    can_undo: bool = False
    problem: str | None = None
    demo: bool
    limits: Limits
    jobs: list[Job]


class StoredImages(BaseModel):
    version: str
    total: int
    images: list[str]
    pictures: bool
    """Whether there are pictures of them."""


class DemoKind(BaseModel):
    name: str
    pictures: int


class Demo(BaseModel):
    kinds: list[DemoKind]


class Health(BaseModel):
    status: Literal["ok", "problem"]
    model: bool
    """Whether there is a model yet."""
