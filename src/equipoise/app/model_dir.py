"""A model's directory.

config.json          what the model is and which version is current; replacing this file commits a change
versions/<name>/     one per step: config.json, steps.json (results), images.json (names of images), model.safetensors
backbone.safetensors the frozen backbone, if there is one; it never changes
memory/<class>/      exemplars, one file each, named by their pixels; with a frozen backbone, blocks of features
                     (and thumbnails, if they are kept)
holdout/<class>/     images that are never trained on
README.md            the model card
.step/               the step that is being learned

steps.json, images.json and model.safetensors are also linked at the top, for people and other tools. Readers take no
lock: they read config.json, then the version that it names.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar

from torch import Tensor

from equipoise.app import card, model_files
from equipoise.app.kept_images import load_images, store_images
from equipoise.app.model import Model, no_images
from equipoise.app.model_files import KINDS, ModelConfig, ModelImages
from equipoise.app.unused_files import delete_images, delete_versions, other_files
from equipoise.core import tensors
from equipoise.core.config import build
from equipoise.core.directory import RESTORE, TEMPORARY, Directory
from equipoise.core.files import digest
from equipoise.core.signals import defer_signals
from equipoise.data.augment import Augment
from equipoise.engine.checkpoint import OURS as CHECKPOINT_FILES
from equipoise.engine.learner import ROWS_AS_THEY_ARE, make_extractor, make_method
from equipoise.engine.results import FORMAT, StepResult
from equipoise.engine.settings import Settings, upgrade
from equipoise.errors import EquipoiseError, RunError, UsageError
from equipoise.learn.backbones.base import Backbone
from equipoise.learn.extractor import Extractor
from equipoise.learn.runtime import Runtime
from equipoise.learn.saved_state import compare_states
from equipoise.version import __version__

BACKBONE = "backbone.safetensors"
LINKED = ("steps.json", "images.json", "model.safetensors")
MAX_VALUES = 3 * 2048**2
"""Values of an image, or features of a row: as many as the largest image that can be learned has."""
MAX_CARD_BYTES = 8 << 20
KEPT_VERSIONS = 10
"""Steps that can be undone; earlier versions are deleted."""
PENDING = ".step"
"""Where the current step is checkpointed."""
VERSION_FILES = re.compile(rf"config\.json|{'|'.join(map(re.escape, LINKED))}|{TEMPORARY.pattern}", re.DOTALL)
OWNED: dict[str, Any] = {
    **dict.fromkeys(("config.json", *LINKED, BACKBONE, "README.md", ".lock"), "file"),
    **dict.fromkeys(("versions", *KINDS, PENDING), "dir"),
}
"""What equipoise writes into a model directory."""
INVALID = (EquipoiseError, LookupError, TypeError, ValueError, ArithmeticError, RuntimeError, AttributeError)
"""What wrong settings or weights raise when a model is loaded."""
T = TypeVar("T")


class ModelDir:
    """A model on disk. Reading needs no lock; to change it, enter ``writing()``.

    Parameters
    ----------
    path
        The directory, which need not exist yet.
    before_commit
        Called with the version that the model is about to have; it is None if the model is about to be deleted.
    on_commit
        Called after each change.
    """

    def __init__(
        self,
        path: Path,
        before_commit: Callable[[str | None], None] = lambda version: None,
        on_commit: Callable[[], None] = lambda: None,
    ) -> None:
        self.path, self.directory, self.before_commit, self.on_commit = path, Directory(path), before_commit, on_commit
        self._extractors: dict[str, Extractor] = {}
        self._version_files = self.directory.sub("", "restore it from a copy, or go back with `equipoise undo`")

    @property
    def exists(self) -> bool:
        return self.directory.is_file("config.json")

    def check(self) -> None:
        """Raise an error unless there is a model, and all of its files have the expected type and are not links."""
        if self._checked():
            return
        if self.directory.is_dir(PENDING):
            raise UsageError(
                f"{self.path} holds no model yet, only an interrupted first step: run the same `learn` again"
            )
        self._check_place()
        what = "holds no model" if self.directory.is_dir() else "does not exist"
        raise UsageError(f"{self.path} {what}: create a model with `equipoise learn MODEL FOLDER`")

    def _checked(self) -> bool:
        if self.directory.exists("config.json"):
            self.directory.check_owned(OWNED)
        return self.exists

    def check_free(self) -> None:
        """Raise an error if something else is stored here."""
        if self._checked():
            return
        if self.directory.is_dir():
            interrupted = self.directory.exists(".lock")  # an interrupted first step leaves this and our folders
            if others := other_files(self.directory, OWNED if interrupted else ()):
                raise UsageError(f"{self.path} holds {others[0]} but no model: choose an empty or new directory")
        self._check_place()

    def _check_place(self) -> None:
        """Raise an error if there is something that is not a directory, or one that cannot be opened."""
        if os.path.lexists(self.path) and not self.directory.is_dir():
            if not os.path.isdir(self.path):  # noqa: PTH112 - pathlib raises an error for a name that is too long
                raise UsageError(f"{self.path} is not a directory: choose another place for the model")
            raise UsageError(f"cannot open {self.path}: check its permissions")

    # ---- reading

    def config(self) -> ModelConfig:
        """Read config.json."""
        self.check()
        return model_files.read_config(self.directory.sub("", "restore it from versions/"), "config.json")

    def _file(self, config: ModelConfig, name: str) -> str:
        """Return the path of a version's file; a plain copy of a model has them only at the top."""
        folder = f"versions/{config.version}"
        return f"{folder}/{name}" if self.directory.exists(folder) else name

    def consistently(self, read: Callable[[ModelConfig], T]) -> T:
        """Return ``read(config)`` of the current version; tried again if a writer replaces it meanwhile."""
        for _ in range(50):
            config = self.config()
            try:
                found = read(config)
            except (EquipoiseError, OSError):
                if self.config().version == config.version:
                    raise
                continue
            if self.config().version == config.version:
                return found
        raise RunError(f"{self.path} changes faster than it can be read: try again")

    def load(self, runtime: Runtime | None = None, images: bool = False) -> Model:
        """Return the current model, with exemplars and held-out images if asked for."""
        return self.consistently(lambda config: self.load_version(config, runtime, images))

    def load_version(self, config: ModelConfig, runtime: Runtime | None = None, images: bool = False) -> Model:
        """Return the model of one version."""
        try:
            settings = Settings.from_identity(config.settings, runtime)
            memory = settings.make_memory()
            augment = build(Augment, upgrade({"augment": config.augment})["augment"], "augment")
            augment.check(config.shape)
            if math.prod(config.shape) > MAX_VALUES:
                raise ValueError(f"its images have more than {MAX_VALUES:,} values")
            extractor = self._load_extractor(config, settings, augment) if settings.net.frozen else None
            method = make_method(settings, extractor.shape if extractor else config.shape, memory, pretrained=False)
            none = no_images(extractor.shape if extractor else config.shape)
            model = Model(
                settings,
                ROWS_AS_THEY_ARE if extractor else augment,
                method.eval(),
                memory,
                extractor,
                config.shape,
                none,
                list(config.classes),
                keeps_thumbnails=config.thumbnails,
                bicubic=config.bicubic or extractor is not None,
            )
            model.load_state_dict(self._read_weights(config, model))
            model.check_predictions()
        except RunError:
            raise
        except INVALID as error:
            why = f"{error} is missing" if isinstance(error, KeyError) else (str(error) or repr(error)).splitlines()[0]
            remedy = "install what it needs, or restore it from a copy"
            raise RunError(f"cannot load the model in {self.path} ({why}): {remedy}") from error
        model.steps = self.steps_of(config)
        if images:
            load_images(self.directory, model, self.images_of(config))
        return model

    def _read_weights(self, config: ModelConfig, model: Model) -> dict[str, Tensor]:
        name = self._file(config, "model.safetensors")
        data = tensors.read_data(self.directory, name, model.check_layout)
        if digest(data).hex() != config.weights:
            raise RunError(f"{self.path / name} is damaged or belongs to another model: {RESTORE}")
        return tensors.parse(data, str(self.path / name), RESTORE)

    def _load_extractor(self, config: ModelConfig, settings: Settings, augment: Augment) -> Extractor:
        changed = self.directory.modified_ns(BACKBONE)
        known = f"{config.extractor} {settings.net} {settings.runtime} {config.shape} {augment} {changed}"
        if known not in self._extractors:  # versions share one, and it takes half a second to start
            extractor = make_extractor(settings, config.shape, augment, lambda net: self._read_backbone(config, net))
            self._extractors = {known: extractor}
        return self._extractors[known]

    def _read_backbone(self, config: ModelConfig, net: Backbone) -> dict[str, Tensor]:
        data = tensors.read_data(self.directory, BACKBONE, lambda layout: compare_states(net.state_dict(), layout))
        if digest(data).hex() != config.extractor:
            raise RunError(f"{self.path / BACKBONE} is damaged or belongs to another model: {RESTORE}")
        return tensors.parse(data, str(self.path / BACKBONE), RESTORE)

    def images_of(self, config: ModelConfig) -> ModelImages:
        """Return the names of a version's images."""
        return model_files.read_images(self._version_files, self._file(config, "images.json"), len(config.classes))

    def steps(self) -> list[StepResult]:
        """Return the results of all steps."""
        return self.consistently(self.steps_of)

    def steps_of(self, config: ModelConfig) -> list[StepResult]:
        """Return the results of all steps up to a version."""
        return model_files.read_steps(self._version_files, self._file(config, "steps.json"))

    # ---- changing

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Lock the directory and clean up after a killed writer."""
        self.directory.make_dir()
        self.directory.check_owned(OWNED)
        with self.directory.lock():
            if self.exists:
                self._tidy()
            yield

    def commit(self, model: Model, fresh: bool = False) -> None:
        """Make ``model`` the current version; ``fresh`` removes all earlier ones."""
        current = self.config() if self.exists else None
        images = store_images(self.directory, model)
        data = tensors.serialize(model.state_dict(), {"format": "pt"})
        weights = digest(data).hex()
        content = f"{weights} {model.classes}".encode()  # the same weights may have other names
        name = f"{len(model.steps):04d}-{digest(content).hex()[:8]}"
        previous = current.version if current and not fresh else None
        if current and previous == name:  # the same version again
            previous = current.previous
        config = ModelConfig(
            format=FORMAT,
            version=name,
            previous=previous,
            weights=weights,
            shape=model.shape,
            classes=model.classes,
            augment=asdict(model.extractor.augment if model.extractor else model.augment),
            settings=model.settings.identity(),
            extractor=self._store_extractor(model.extractor) if model.extractor else None,
            thumbnails=model.keeps_thumbnails,
            bicubic=model.bicubic,
            equipoise=__version__,
        )
        folder = self.directory.sub(f"versions/{name}")
        folder.make_dir()
        folder.write_bytes("model.safetensors", data, tensors.MAX_TENSOR_BYTES)
        folder.write_json("steps.json", [step.to_dict() for step in model.steps])
        folder.write_json("images.json", asdict(images))
        folder.write_json("config.json", asdict(config))
        self._make_current(name)
        self._tidy()

    def _make_current(self, version: str) -> None:
        content = self.directory.read_bytes(f"versions/{version}/config.json")
        with defer_signals():
            self.before_commit(version)
            self.directory.write_bytes("config.json", content)
            self.on_commit()

    def _store_extractor(self, extractor: Extractor) -> str:
        data = tensors.serialize(extractor.weights, {"format": "pt"})
        name = digest(data).hex()
        stored = self.directory.is_file(BACKBONE) and self.directory.size(BACKBONE) == len(data)
        if not stored or digest(self.directory.read_bytes(BACKBONE, len(data))).hex() != name:
            self.directory.write_bytes(BACKBONE, data, tensors.MAX_TENSOR_BYTES)
        return name

    def undo(self) -> StepResult | None:
        """Go back to the previous version; return the result of the undone step, None if it cannot be read."""
        config = self.config()
        before = self._before(config)
        try:
            undone = self.steps()[-1]
        except RunError:  # a damaged version is one more reason to go back
            undone = None
        if before is None:
            forgot = undone is not None and undone.kind == "forget"
            reason = ", because `equipoise forget` removes all earlier versions" if forgot else ""
            raise UsageError(f"{self.path} has no earlier version to go back to{reason}")
        self.load_version(before)  # check it before giving up the current one
        self.images_of(before)
        self._make_current(before.version)
        self.abandon_step()
        self._tidy()
        return undone

    def abandon_step(self) -> None:
        """Delete the checkpoint of an interrupted step."""
        self.directory.remove_tree(PENDING, CHECKPOINT_FILES)

    def history_of(self, config: ModelConfig) -> list[ModelConfig]:
        """Return a version's config and those of all versions before it."""
        configs = [config]
        while (before := self._before(configs[-1])) is not None and before not in configs:
            configs.append(before)
        return configs

    def _before(self, config: ModelConfig) -> ModelConfig | None:
        folder = f"versions/{config.previous}"
        if config.previous is None or not self.directory.exists(folder):  # a plain copy may not have it
            return None
        return model_files.read_config(self.directory, f"{folder}/config.json")

    def _tidy(self) -> None:
        """Update links and card, and delete files that no version names."""
        self.directory.remove_temporary()
        config = self.config()
        # A failure here comes after the commit, and is tried again before the next one. If a version is damaged,
        # nothing is deleted, and `undo` can still go back.
        with suppress(RunError, OSError):
            self._update_top(config)
        with suppress(RunError, OSError):
            history = self.history_of(config)[: KEPT_VERSIONS + 1]
            delete_versions(self.directory, {config.version for config in history}, VERSION_FILES)
            delete_images(self.directory, [(config.classes, self.images_of(config)) for config in history])

    def _update_top(self, config: ModelConfig) -> None:
        """Link the current version's files at the top and write the card."""
        for name in LINKED:
            source = self._file(config, name)
            if source != name:
                self.directory.link(source, name)
        old = self.directory.read_bytes("README.md", MAX_CARD_BYTES) if self.directory.exists("README.md") else b""
        text = card.render(old.decode(errors="surrogateescape"), config, self.steps_of(config), self.images_of(config))
        new = text.encode(errors="surrogateescape")
        if new != old:
            self.directory.write_bytes("README.md", new)

    def copy_to(self, target: Path, memory: bool = True) -> None:
        """Copy the current version into another directory, with or without its images."""
        other = ModelDir(target)
        other.check_free()
        if other.exists:
            raise UsageError(f"{target} already holds a model: choose a new directory")
        model = self.load(images=memory)
        with other.writing():
            other.commit(model, fresh=True)
