"""A model's directory.

config.json          what it is, and which version is the current one: replacing this file is what commits a change
versions/<name>/     one a step: config.json, steps.json (what happened), images.json (which images), model.safetensors
memory/<class>/      exemplars, each a file named by its pixels; a version names those that are its own
holdout/<class>/     images that are never trained on
README.md            the card, after the custom of Hugging Face
.step/               a step that is being learned, epoch by epoch

steps.json, images.json and model.safetensors lie at the top too, linked to those of the current version, for people
and for tools that look there. A reader takes no lock: it reads config.json, then the version that it names.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar

import safetensors.torch
import torch
from safetensors import SafetensorError

from equipoise.app import card
from equipoise.app.model import Label, Model, make_method, nothing
from equipoise.app.pictures import ending, fetch, folder_name, store
from equipoise.data.augment import Augment
from equipoise.data.images import Images, TensorStore, digest
from equipoise.errors import EquipoiseError, RunError, UsageError
from equipoise.files import locked, read_json, write_bytes, write_json
from equipoise.learn.runtime import Runtime
from equipoise.settings import build
from equipoise.study.recipe import Settings
from equipoise.version import __version__

FORMAT = 1
LINKED = ("steps.json", "images.json", "model.safetensors")
KINDS = ("memory", "holdout")
KEYS: dict[str, Any] = {
    "version": str,
    "previous": str | None,
    "weights": str,
    "shape": list,
    "classes": list,
    "augment": dict,
    "settings": dict,
}
"""What config.json must hold."""
T = TypeVar("T")


class ModelDir:
    """Reading needs nothing; to change it, enter ``writing()``."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._config = path / "config.json"

    @property
    def exists(self) -> bool:
        return os.path.isfile(self._config)  # noqa: PTH113 - which never raises, whatever the path is

    def check(self) -> None:
        """Refuse a place that holds no model."""
        if self.exists:
            return
        if os.path.isdir(self.pending):  # noqa: PTH112 - os.path never raises
            raise UsageError(f"{self.path} holds no model yet, only a first step that was stopped: learn it to its end")
        what = "does not exist"
        if os.path.exists(self.path):  # noqa: PTH110
            what = "holds no model" if self.path.is_dir() else "is a file"
        raise UsageError(f"{self.path} {what}: make a model with `equipoise learn MODEL FOLDER`")

    def check_free(self) -> None:
        """Refuse a place where something else lies."""
        if self.path.is_dir() and not self.exists:
            names = [entry.name for entry in self.path.iterdir() if not entry.name.endswith(".tmp")]
            stopped = ".lock" in names  # a first step was stopped here, and this is what it leaves behind
            others = [name for name in names if not (stopped and name in (".lock", ".step", "versions", *KINDS))]
            if others:
                raise UsageError(f"{self.path} holds {others[0]}, but no model: name an empty directory or a new one")
        elif self.path.exists() and not self.exists:
            raise UsageError(f"{self.path} is a file: name a directory for the model")

    # ---- reading

    def config(self) -> dict[str, Any]:
        self.check()
        return self._read_config(self._config, "restore it from versions/")

    def _read_config(self, file: Path, cure: str) -> dict[str, Any]:
        found = read_json(file, cure)
        if not isinstance(found, dict) or not isinstance(found.get("format"), int):
            raise RunError(f"{file} is not a model's: {cure}")
        if found["format"] > FORMAT:
            raise RunError(f"{self.path} was written by a newer equipoise (format {found['format']}): update yours")
        for name, kind in KEYS.items():
            if not isinstance(found.get(name), kind):
                raise RunError(f"{file} is damaged ('{name}' is missing or wrong): {cure}")
        return found

    def version(self, config: dict[str, Any]) -> Path:
        """The directory of a version's files; a plain copy has them only at the top."""
        folder = self.path / "versions" / config["version"]
        return folder if folder.is_dir() else self.path

    def steadily(self, read: Callable[[dict[str, Any]], T]) -> T:
        """What ``read`` makes of the current version; tried again if a writer replaces it meanwhile."""
        for _ in range(50):
            config = self.config()
            try:
                found = read(config)
            except (EquipoiseError, OSError):
                if self.config()["version"] == config["version"]:
                    raise
                continue
            if self.config()["version"] == config["version"]:
                return found
        raise RunError(f"{self.path} changes faster than it can be read: try again")

    def load(self, runtime: Runtime | None = None, images: bool = False) -> Model:
        """The model as it is now; exemplars and held-out images come along if ``images``."""
        return self.steadily(lambda config: self.load_version(config, runtime, images))

    def load_version(self, config: dict[str, Any], runtime: Runtime | None = None, images: bool = False) -> Model:
        """The model of one version."""
        folder = self.version(config)
        weights = folder / "model.safetensors"
        try:
            data = weights.read_bytes()
        except OSError as error:
            raise RunError(f"{weights} cannot be read ({error.strerror}): restore it from a copy") from error
        if digest(data).hex() != config["weights"]:
            raise RunError(f"{weights} is damaged, or not this model's: restore it from a copy")
        try:
            settings = Settings.of(config["settings"], runtime)
            shape: tuple[int, int, int] = tuple(config["shape"])
            method = make_method(settings, shape)
            method.load_state_dict(safetensors.torch.load(data))
            augment = build(Augment, config["augment"], "augment")
            memory, steps = settings.make_memory(), self.steps_of(config)
        except (KeyError, TypeError, ValueError, RuntimeError, SafetensorError) as error:
            raise RunError(f"the model in {self.path} cannot be restored ({str(error).splitlines()[0]})") from error
        model = Model(settings, shape, augment, method.eval(), memory, nothing(shape), config["classes"], steps)
        if images:
            self._load_images(model, self.images_of(config))
        return model

    def _load_images(self, model: Model, names: dict[str, list[list[str]]]) -> None:
        """All images in one tensor; memory and hold-out are views of it."""
        places = [(kind, c, n) for kind in KINDS for c, mine in enumerate(names[kind]) for n in mine]
        if not places:
            return
        files = [self.image(kind, model.classes[c], name, model) for kind, c, name in places]
        pixels = TensorStore(torch.stack(fetch(files)))
        labels = torch.tensor([c for _, c, _ in places])
        exemplar = torch.tensor([kind == "memory" for kind, _, _ in places])
        everything = Images(pixels, torch.arange(len(labels)), labels)
        model.holdout = everything.select(~exemplar)
        for label in labels[exemplar].unique().tolist():
            model.memory.kept[label] = everything.select(exemplar & (labels == label))

    def image(self, kind: str, name: Label, identity: str, model: Model) -> Path:
        return self.path / kind / folder_name(name) / (identity + ending(model.shape, model.holdout.store.dtype))

    def images(self) -> dict[str, list[list[str]]]:
        return self.steadily(self.images_of)

    def images_of(self, config: dict[str, Any]) -> dict[str, list[list[str]]]:
        """Names of a version's exemplars and held-out images, by class."""
        file = self.version(config) / "images.json"
        found = read_json(file)
        lists = [found.get(kind) for kind in KINDS] if isinstance(found, dict) else []
        if not lists or not all(isinstance(mine, list) and len(mine) == len(config["classes"]) for mine in lists):
            raise RunError(f"{file} is damaged: restore it from a copy, or go back with `equipoise undo`")
        return found  # type: ignore[no-any-return]

    def steps(self) -> list[dict[str, Any]]:
        return self.steadily(self.steps_of)

    def steps_of(self, config: dict[str, Any]) -> list[dict[str, Any]]:
        """What happened, up to a version."""
        file = self.version(config) / "steps.json"
        found = read_json(file)
        if not isinstance(found, list) or not found or not all(isinstance(r, dict) and "step" in r for r in found):
            raise RunError(f"{file} is damaged: restore it from a copy, or go back with `equipoise undo`")
        return found

    # ---- changing

    @contextmanager
    def writing(self) -> Iterator[None]:
        """One writer at a time. What a killed one left half done is put in order first."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UsageError(f"cannot make {self.path} ({error.strerror}): choose another place") from error
        with locked(self.path):
            if self.exists:
                self._mend()
            yield

    def commit(self, model: Model, fresh: bool = False) -> None:
        """Make ``model`` the current version; ``fresh`` leaves no earlier one."""
        current = self.config() if self.exists else None
        images = {"memory": [self._store("memory", model, c) for c in range(len(model.classes))],
                  "holdout": [self._store("holdout", model, c) for c in range(len(model.classes))]}  # fmt: skip
        state = {name: value.detach().cpu().contiguous() for name, value in model.method.state_dict().items()}
        data = safetensors.torch.save(state, {"format": "pt"})
        weights = digest(data).hex()
        name = f"{len(model.steps):04d}-{weights[:8]}"
        previous = current["version"] if current and not fresh else None
        if current and previous == name:  # the same once more
            previous = current["previous"]
        config = {
            "format": FORMAT,
            "library": "equipoise",
            "equipoise": __version__,
            "version": name,
            "previous": previous,
            "weights": weights,
            "shape": list(model.shape),
            "classes": model.classes,
            "augment": asdict(model.augment),
            "settings": model.settings.identity(),
        }
        folder = self.path / "versions" / name
        folder.mkdir(parents=True, exist_ok=True)
        write_bytes(folder / "model.safetensors", data)
        write_json(folder / "steps.json", model.steps)
        write_json(folder / "images.json", images)
        write_json(folder / "config.json", config)
        write_json(self._config, config)  # from here on it is the current one
        self._mend()

    def _store(self, kind: str, model: Model, place: int) -> list[str]:
        images = model.memory.kept.get(place) if kind == "memory" else model.held(place)
        if images is None or not len(images):
            return []
        return store(self.path / kind / folder_name(model.classes[place]), images.read(torch.arange(len(images))))

    def undo(self) -> dict[str, Any]:
        """Back to the version before; returns the record of the step that is undone."""
        config = self.config()
        before = self._before(config)
        if before is None:
            raise UsageError(f"there is no earlier version in {self.path} to go back to")
        try:
            undone = self.steps()[-1]
        except RunError:  # a damaged version is one more reason to go back
            undone = {"step": "?", "kind": "learn", "classes": [], "extended": []}
        self.load_version(before)  # what cannot be gone back to is not worth losing this one
        self.images_of(before)
        write_json(self._config, before)
        self.abandon()
        self._mend()
        return undone

    @property
    def pending(self) -> Path:
        """Where a step is kept while it is being learned."""
        return self.path / ".step"

    def abandon(self) -> None:
        shutil.rmtree(self.pending, ignore_errors=True)

    def chain_of(self, config: dict[str, Any]) -> list[dict[str, Any]]:
        """The configurations of a version and of all before it."""
        configs = [config]
        while (before := self._before(configs[-1])) is not None and before not in configs:
            configs.append(before)
        return configs

    def _before(self, config: dict[str, Any]) -> dict[str, Any] | None:
        """The configuration of the version before; a plain copy may have left it behind."""
        folder = self.path / "versions" / str(config["previous"])
        return self._read_config(folder / "config.json", "restore it from a copy") if folder.is_dir() else None

    def _mend(self) -> None:
        """Make everything beside config.json what it should be: links, card, and nothing that no version names."""
        for file in self.path.rglob(".*.tmp"):
            with suppress(OSError):
                file.unlink()  # a killed writer's; we hold the lock
        config = self.config()
        # What fails here, fails after a change has been committed, and is tried again before the next one. Where a
        # version is damaged nothing is thrown away, and `undo` can still go back.
        with suppress(RunError, OSError):
            self._show(config)
            chain = self.chain_of(config)
            self._remove_all_but({config["version"] for config in chain}, self._named(chain))

    def _show(self, config: dict[str, Any]) -> None:
        """What lies at the top for people and for tools: links to the current version, and the card."""
        folder = self.version(config)
        if folder != self.path:
            for name in LINKED:
                _link(folder / name, self.path / name)
        text = card.render(self.path, config, self.steps_of(config), self.images_of(config))
        _write_if_changed(self.path / "README.md", text.encode(errors="surrogateescape"))

    def _remove_all_but(self, versions: set[str], images: set[tuple[str, str, str]]) -> None:
        for version in _children(self.path / "versions"):
            if version.name not in versions:
                shutil.rmtree(version, ignore_errors=True)
        for kind in KINDS:
            for folder in _children(self.path / kind):
                for file in _children(folder):
                    if file.is_file() and (kind, folder.name.casefold(), file.stem) not in images:
                        file.unlink()
                with suppress(OSError):
                    folder.rmdir()  # only if nothing is left in it

    def _named(self, chain: list[dict[str, Any]]) -> set[tuple[str, str, str]]:
        """Kind, folder and name of every image of the versions in ``chain``; some file systems do not tell a from A."""
        named = set()
        for config in chain:
            images = self.images_of(config)
            for kind in KINDS:
                for label, mine in zip(config["classes"], images[kind], strict=True):
                    named |= {(kind, folder_name(label).casefold(), identity) for identity in mine}
        return named

    def copy_to(self, target: Path, memory: bool = True) -> None:
        """The current version alone, in another directory; without exemplars and held-out images if asked."""
        other = ModelDir(target)
        other.check_free()
        if other.exists:
            raise UsageError(f"{target} holds a model already: name a new directory")
        model = self.load(images=memory)
        with other.writing():
            other.commit(model, fresh=True)


def _children(folder: Path) -> list[Path]:
    return sorted(folder.iterdir()) if folder.is_dir() else []


def _link(source: Path, target: Path) -> None:
    """``target`` becomes another name of ``source``, or a copy where the file system has no such links."""
    with suppress(FileNotFoundError):
        if target.samefile(source):
            return
    temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    temporary.unlink(missing_ok=True)
    try:
        os.link(source, temporary)
    except OSError:
        shutil.copyfile(source, temporary)
    temporary.replace(target)


def _write_if_changed(path: Path, data: bytes) -> None:
    if not path.exists() or path.read_bytes() != data:
        write_bytes(path, data)
