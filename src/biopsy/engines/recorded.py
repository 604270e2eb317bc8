"""Golden values as an engine: it computes nothing, and gives the tensors of a file, if they fit what the model
computes.
"""

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
    """The tensors of a file, by the names that they have in the model."""

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
        """Look for the model's outputs among the golden values.

        Raises EngineFailure with stage "load" where one has none, UsageError and DataError as ``read_results``.
        """
        index = indexed(model)
        outputs = [index.names[tensor] for tensor in index.outputs]
        missing = [name for name in outputs if not self._has(name)]
        if missing:
            message = f"{self.options['file']} has no golden value of {first_of(list(map(repr, missing)), _MOST_NAMED)}"
            raise self.failure(message, "load", "NoGoldenValue")
        return _RecordedSession(index, outputs, self._samples)

    def warm_up(self) -> None:
        """Read the file: what is in it is then known to forks of this process."""
        files.keep(self._path("file"))

    def tensors_given(self, model: ModelInput) -> GivenTensors:
        """The tensors of the model's graph that have a golden value in every sample, and the bytes of the largest.

        Refused are those whose type or shape is not what the model computes.
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
        """The tensors of each sample, read when they are asked for."""
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
        found = [result for result in files.read_results(path) if name in (None, result.runner)]
        if len(found) == 1 and found[0].iterations:
            return found[0]
        if name is not None:
            raise errors.UsageError(f"{path} has not one runner that is called {name!r}")
        if len(found) < 2:
            raise errors.DataError(f"{path} holds no values")
        raise errors.UsageError(
            f"{path} holds values of {len(found)} runners: whose are golden?",
            next_steps=[f"recorded:file=FILE,runner={found[0].runner}"],
        )


class _RecordedSession(BuiltModel):
    """Gives golden values. ``samples`` have the tensors by name."""

    gives_new_arrays = True

    def __init__(self, index: ModelIndex, outputs: Sequence[str], samples: Sequence[Feed]) -> None:
        super().__init__(index.fed_types(), outputs)
        self._samples = samples

    def run(self, feed: Feed) -> dict[str, Array]:
        """The golden values for a feed. Raises CannotCompare if there are none."""
        known = [name for name in feed if all(name in sample for sample in self._samples)]
        if not known and len(self._samples) > 1 and feed:
            raise errors.CannotCompare(
                f"there are golden values of {len(self._samples)} samples, and none of what is fed: nobody can tell "
                "which belong to it",
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
                    f"{len(fitting)} samples have the same inputs and other golden values of {name!r}: nobody can tell "
                    "which are right"
                )
        if fitting:
            return {name: fitting[0][name] for name in self._outputs}
        raise errors.CannotCompare(
            f"the golden values belong to other values of {', '.join(map(repr, known[:_MOST_NAMED]))} than are fed",
            next_steps=["--load-inputs FILE    the inputs that they were recorded with"],
        )


# Whether golden values are of the type and shape that a model computes: others are of another model, or misnamed.
#
# They may be wider floats than the model's, which is how somebody records who wants them exact. Dimensions that a
# model leaves open are as large as in the inputs that stand beside the values.

_BITS = {"float64": 64, "float32": 32, "float16": 16, "bfloat16": 16}
"""Of floats that may be wider than those that the model computes; what is narrower has 8 bits or fewer."""


class GoldenFit:
    """Holds golden values of ``samples`` against the types of a model, as it declares them or as inference tells."""

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
        # The sizes of open dimensions by their names, from the inputs that each sample holds.
        fed = {name: known for name in index.fed_types() if (known := self._types.get(name)) and known.shape}
        self._sizes: list[dict[str, int]] = []
        for sample in samples:
            shapes = ((known.shape or (), form_of(sample, name).shape) for name, known in fed.items() if name in sample)
            pairs = (zip(said, shape, strict=True) for said, shape in shapes if len(said) == len(shape))
            self._sizes.append({dim: size for pair in pairs for dim, size in pair if isinstance(dim, str)})

    def misfit(self, name: str) -> str | None:
        """What a tensor is in the first sample in which it does not fit, and in the model; None if it fits."""
        kind = self._types.get(name)
        if kind is None:
            return None
        for number, (sample, sizes) in enumerate(zip(self._samples, self._sizes, strict=True)):
            form, open_shape = form_of(sample, name), kind.shape
            bound = open_shape and tuple(sizes.get(dim, dim) if isinstance(dim, str) else dim for dim in open_shape)
            wanted = TensorType(kind.elem, bound)
            given = ELEM_OF_DTYPE.get(str(form.dtype))
            fits_type = not kind.elem or given is None or given == kind.elem
            if not fits_type and given is not None and {given, kind.elem} <= FLOATS:
                fits_type = _BITS.get(str(form.dtype), 8) > _BITS.get(kind.dtype, 8)
            if not (fits_type and wanted.fits(form.shape)):
                which = f"in sample {number} " if len(self._samples) > 1 else ""
                given_text = f"{form.dtype}[{','.join(map(str, form.shape))}]"
                return f"{which}it is {given_text}, and the model computes {wanted}"
        return None
