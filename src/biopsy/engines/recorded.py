"""Golden values as an engine: it computes nothing and returns the tensors of a file that fit the model."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path

import numpy as np

from biopsy import errors
from biopsy.engines.base import BuiltModel, Capabilities, Engine, GivenTensors, ModelInput, Option, Session, indexed
from biopsy.model import parts
from biopsy.model.index import ModelIndex
from biopsy.model.infer import infer_value_infos
from biopsy.model.slice import without_weights
from biopsy.model.tensor_type import ELEM_OF_DTYPE, FLOATS, TensorType
from biopsy.tensors import files
from biopsy.tensors.results import Array, Feed, RunnerResult, form_of, same_values
from biopsy.text import first_of

_MOST_NAMED = 4


class GoldenValues(Engine):
    """Returns the tensors of a file by their names in the model."""

    name = "recorded"
    summary = "golden values: gives the tensors of a file and computes nothing"
    package = "biopsy"
    capabilities = Capabilities(computes=False, own_memory=1_500_000_000)
    forks_warm = True
    options_declared = (
        Option("file", "the file of golden values: .safetensors, .npz, .json, or a folder", parse=Path, takes="file"),
        Option("inputs", "the file of the inputs that they belong to, if it is another one", parse=Path, takes="file"),
        Option("runner", "whose values to take, by name, where the file has those of several"),
    )

    @classmethod
    def version(cls) -> str:
        """The version of biopsy."""
        from importlib.metadata import version

        return version("biopsy")

    def build(self, model: ModelInput) -> Session:
        """Find golden values for the model's outputs.

        Raises EngineFailure with stage "load" if an output has none, UsageError and DataError as ``read_results``.
        """
        index = indexed(model)
        outputs = [index.names[tensor] for tensor in index.outputs]
        missing = [name for name in outputs if not self._has(name)]
        if missing:
            message = f"{self.options['file']} has no golden value of {first_of(list(map(repr, missing)), _MOST_NAMED)}"
            raise self.failure(message, "load", "NoGoldenValue")
        return _RecordedSession(index, outputs, self._samples)

    @property
    def keeps_types(self) -> bool:
        """A file may hold values of other types than the model's."""
        return False

    def warm_up(self) -> None:
        """Read the file, so that forks of this process need not."""
        files.keep(self._path("file"))

    def tensors_given(self, model: ModelInput) -> GivenTensors:
        """The tensors of the main graph with a golden value in every sample, and the bytes of the largest of these.

        Those whose type or shape does not fit the model are refused.
        """
        index = indexed(model)
        names = [index.names[tensor] for tensor in index.producer if self._has(index.names[tensor])]
        fit = GoldenFit(index, self._samples)
        refused = {name: why for name in names if (why := fit.misfit(name)) is not None}
        fitting = [name for name in names if name not in refused]
        sizes = {name: max(form_of(sample, name).nbytes for sample in self._samples) for name in fitting}
        return GivenTensors(sizes, refused)

    def _has(self, name: str) -> bool:
        return all(name in sample for sample in self._samples)

    def _path(self, option: str) -> Path:
        path: Path | None = self.options[option]
        if path is None:
            raise errors.UsageError(
                f"engine {self.label!r} has no {option}", next_steps=["recorded:file=golden.safetensors"]
            )
        return path

    @cached_property
    def _samples(self) -> Sequence[Feed]:
        """The tensors of each sample, each read when it is accessed."""
        golden = [iteration.outputs for iteration in self._runner().iterations]
        if self.options["inputs"] is None:
            return golden
        inputs = files.read_feeds(self._path("inputs"))
        if len(inputs) != len(golden):
            raise errors.UsageError(
                f"{self._path('file')} holds golden values of {len(golden)} samples, and {self._path('inputs')} has "
                f"{len(inputs)}"
            )
        return files.merge_feeds([inputs, golden])

    def _runner(self) -> RunnerResult:
        path, name = self._path("file"), self.options["runner"]
        results = [result for result in files.read_results(path) if name in (None, result.runner)]
        if len(results) == 1 and results[0].iterations:
            return results[0]
        if name is not None:
            raise errors.UsageError(f"{path} has not one runner that is called {name!r}")
        if len(results) < 2:
            raise errors.DataError(f"{path} holds no values")
        raise errors.UsageError(
            f"{path} holds values of {len(results)} runners: whose are golden?",
            next_steps=[f"recorded:file=FILE,runner={results[0].runner}"],
        )


class _RecordedSession(BuiltModel):
    """Returns golden values; each of the ``samples`` has tensors by name."""

    gives_new_arrays = True

    def __init__(self, index: ModelIndex, outputs: Sequence[str], samples: Sequence[Feed]) -> None:
        super().__init__(index.fed_types(), outputs)
        self._samples = samples

    def run(self, feed: Feed) -> dict[str, Array]:
        """The golden values for a feed. Raises CannotCompare if there are none, or several different ones."""
        known = [name for name in feed if all(name in sample for sample in self._samples)]
        if not known and len(self._samples) > 1 and feed:
            raise errors.CannotCompare(
                f"there are golden values of {len(self._samples)} samples, but none has the inputs that are fed: which "
                "sample belongs to them is not known",
                next_steps=["recorded:file=FILE,inputs=INPUTS    names the inputs that they were recorded with"],
            )
        with np.errstate(all="ignore"):
            fitting = [
                sample
                for sample in self._samples
                if all(same_values(feed[name], sample[name].astype(feed[name].dtype, copy=False)) for name in known)
            ]
        for name in self._outputs:
            values = [sample[name] for sample in fitting]
            if not all(same_values(values[0], value) for value in values[1:]):
                raise errors.CannotCompare(
                    f"{len(fitting)} samples have the same inputs and different golden values of {name!r}: which are "
                    "right is not known"
                )
        if fitting:
            return {name: fitting[0][name] for name in self._outputs}
        raise errors.CannotCompare(
            f"the golden values belong to other values of {', '.join(map(repr, known[:_MOST_NAMED]))} than those fed",
            next_steps=["--load-inputs FILE    the inputs that they were recorded with"],
        )


_BITS = {"float64": 64, "float32": 32, "float16": 16, "bfloat16": 16}
"""Bits of the floats that golden values may be wider in than the model; all other floats have at most 8."""


class GoldenFit:
    """Compares the types and shapes of golden values with those that a model declares or shape inference finds.

    Values that do not fit belong to another model or have a wrong name. Wider floats than the model's fit, since exact
    values may be recorded in them. Open dimensions have the sizes of the inputs in the same sample.
    """

    def __init__(self, index: ModelIndex, samples: Sequence[Feed]) -> None:
        self._samples = samples
        self._types: dict[str, TensorType] = {}
        infos = infer_value_infos(without_weights(index))
        for tensor in (*index.producer, *index.fed_inputs()):
            name = index.names[tensor]
            declared = index.value_type(tensor)
            inferred = parts.tensor_type(infos[name]) if name in infos else None
            kind = declared if isinstance(declared, TensorType) and declared.shape is not None else inferred or declared
            if isinstance(kind, TensorType):
                self._types[name] = kind
        inputs = {name: kind for name in index.fed_types() if (kind := self._types.get(name)) and kind.shape}
        self._sizes: list[dict[str, int]] = []  # of each sample: open dimension -> size
        for sample in samples:
            shapes = (
                (kind.shape or (), form_of(sample, name).shape) for name, kind in inputs.items() if name in sample
            )
            pairs = (zip(dims, shape, strict=True) for dims, shape in shapes if len(dims) == len(shape))
            self._sizes.append({dim: size for pair in pairs for dim, size in pair if isinstance(dim, str)})

    def misfit(self, name: str) -> str | None:
        """Describe the first golden value of a tensor that does not fit, and the model's type; None if all fit."""
        kind = self._types.get(name)
        if kind is None:
            return None
        for number, (sample, sizes) in enumerate(zip(self._samples, self._sizes, strict=True)):
            form, open_shape = form_of(sample, name), kind.shape
            bound = open_shape and tuple(sizes.get(dim, dim) if isinstance(dim, str) else dim for dim in open_shape)
            wanted = TensorType(kind.elem, bound)
            elem = ELEM_OF_DTYPE.get(str(form.dtype))
            fits_type = not kind.elem or elem is None or elem == kind.elem
            if not fits_type and elem is not None and {elem, kind.elem} <= FLOATS:
                fits_type = _BITS.get(str(form.dtype), 8) > _BITS.get(kind.dtype, 8)
            if not (fits_type and wanted.fits(form.shape)):
                which = f"in sample {number} " if len(self._samples) > 1 else ""
                given_text = f"{form.dtype}[{','.join(map(str, form.shape))}]"
                return f"{which}it is {given_text}, and the model computes {wanted}"
        return None
