"""The known tools: how to call each in the interpreter that has it, the names of its passes, and how to omit one.

Only the standard library is imported here: that interpreter may have neither NumPy nor onnx.
"""

from __future__ import annotations

import os
import sys
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module, metadata
from typing import Any, ClassVar, Literal

from biopsy.engines.onnxrt_optimizers import KNOWN_RULES, RULES, optimizers_in_log

Rounds = Literal["float32", "float16", "int8"]
"""The type to which a correct tool may round the values that a model computes."""


class WrongSettingError(Exception):
    """A setting that a tool does not have, or a value that the setting cannot have."""


@dataclass(frozen=True, kw_only=True)
class TransformOrder:
    """One transformation: the file to read, the file to write, and the passes.

    ``passes`` are the names of those that may run; None: the default ones; empty: the control, which only loads and
    saves. ``samples`` are .npz files of inputs, one for each sample, with the tensors of ``names`` as ``arr_0`` and so
    on.
    """

    source: str
    target: str
    passes: tuple[str, ...] | None = None
    samples: tuple[str, ...] = ()
    names: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Omission:
    """How a user of the tool omits passes: on its command line (``command``) and in a script (``python``).

    Either is empty if the tool has no way to do it.
    """

    command: str = ""
    python: str = ""


@dataclass(frozen=True, kw_only=True)
class Setting:
    """A setting of a tool, as in ``onnxruntime:level=extended``."""

    default: str
    choices: tuple[str, ...] = ()


class Tool(ABC):
    """A tool with its ``settings``, which have every declared one."""

    package: ClassVar[str]
    """The name of its distribution."""
    needs: ClassVar[tuple[str, ...]] = ()
    """Other distributions that it imports and does not require."""
    module: ClassVar[str]
    """The module to import."""
    declared: ClassVar[Mapping[str, Setting]] = {}
    rounds_to: ClassVar[Rounds] = "float32"
    wants_samples: ClassVar[bool] = False
    """Whether it uses input samples, for example for a calibration."""

    def __init__(self, settings: Mapping[str, str] | None = None) -> None:
        """Raises WrongSettingError for an unknown setting, or a value that is none of its choices."""
        settings = settings or {}
        for name, value in settings.items():
            if name not in self.declared:
                known = ", ".join(self.declared) or "it has none"
                raise WrongSettingError(f"no setting {name!r} ({known})")
            choices = self.declared[name].choices
            if choices and value not in choices:
                raise WrongSettingError(f"{name}={value}: it must be one of {', '.join(choices)}")
        self.settings = {name: settings.get(name, setting.default) for name, setting in self.declared.items()}

    def warm_up(self) -> None:
        """Import what every transformation needs. Raises what the import raises."""
        import_module(self.module)

    def version(self) -> str:
        """The release of the tool."""
        return metadata.version(self.package)

    def passes(self, source: str) -> list[str]:
        """The names of the passes that may run on a model, in order; empty if they have no names."""
        return []

    @abstractmethod
    def transform(self, order: TransformOrder) -> None:
        """Write the transformed model. Raises what the tool raises."""

    def omission(self, passes: Sequence[str]) -> Omission:
        """How a user omits these passes."""
        return Omission()


def omitted_passes(all_passes: Sequence[str], order: TransformOrder) -> list[str]:
    """The passes that must not run."""
    return [] if order.passes is None else [name for name in all_passes if name not in order.passes]


def write_model(model: Any, target: str) -> None:
    """Write a ModelProto."""
    import_module("onnx").save(model, target)


_FUSION = "graph_fusion"
_SHAPES = "shape_inference"


class OnnxSlim(Tool):
    """``onnxslim.slim``; its passes are optimizations and fusion patterns."""

    package = "onnxslim"
    module = "onnxslim"

    def passes(self, source: str) -> list[str]:
        """The optimizations without fusion, shape inference, and the patterns of fusion."""
        return [*(name for name in _optimizations() if name != _FUSION), _SHAPES, *_patterns()]

    def transform(self, order: TransformOrder) -> None:
        """Slim a model; in the control, everything that has a switch is off."""
        off = omitted_passes(self.passes(order.source), order)
        skipped = [name for name in off if name in _optimizations()]
        if order.passes is not None and not set(order.passes) & set(_patterns()):
            skipped.append(_FUSION)
        # not empty lists, but None: releases before 0.1.50 need it
        model = import_module("onnxslim").slim(
            order.source,
            no_shape_infer=_SHAPES in off,
            skip_optimizations=skipped or None,
            skip_fusion_patterns=[name for name in off if name in _patterns()] or None,
        )
        write_model(model, order.target)

    def omission(self, passes: Sequence[str]) -> Omission:
        """Three options."""
        patterns = [name for name in passes if name not in {*_OPTIMIZATIONS, _SHAPES}]
        optimizations = [name for name in passes if name in _OPTIMIZATIONS]
        return _with_options(
            "onnxslim model.onnx out.onnx",
            "onnxslim.slim",
            (_SHAPES in passes, "--no-shape-infer", "no_shape_infer"),
            (optimizations, "--skip-optimizations", "skip_optimizations"),
            (patterns, "--skip-fusion-patterns", "skip_fusion_patterns"),
        )


def _with_options(command: str, function: str, *options: tuple[bool | list[str], str, str]) -> Omission:
    """The omission by ``options``: each a switch or a list of names, its command line option, and its argument."""
    used = [each for each in options if each[0]]
    words = [" ".join([option, *(names if isinstance(names, list) else [])]) for names, option, _ in used]
    arguments = ", ".join(["model", *(f"{argument}={names}" for names, _, argument in used)])
    return Omission(command=" ".join([command, *words]), python=f"{function}({arguments})")


_OPTIMIZATIONS = ("constant_folding", "dead_node_elimination", "subexpression_elimination", "weight_tying")


def _optimizations() -> list[str]:
    settings = import_module("onnxslim.core.optimization").OptimizationSettings
    return list(settings.keys())


def _patterns() -> list[str]:
    return list(import_module("onnxslim.core.pattern.registry").DEFAULT_FUSION_PATTERNS)


_FOLDING = "constant_folding"

_OPTIMIZERS = (
    "nop", "eliminate_nop_cast", "eliminate_nop_dropout", "eliminate_nop_flatten", "extract_constant_to_initializer",
    "eliminate_consecutive_idempotent_ops", "eliminate_if_with_const_cond", "eliminate_nop_monotone_argmax",
    "eliminate_nop_pad", "eliminate_nop_concat", "eliminate_nop_split", "eliminate_nop_expand",
    "eliminate_shape_gather", "eliminate_slice_after_shape", "eliminate_nop_transpose", "fuse_add_bias_into_conv",
    "fuse_bn_into_conv", "fuse_consecutive_concats", "fuse_consecutive_log_softmax",
    "fuse_consecutive_reduce_unsqueeze", "fuse_consecutive_squeezes", "fuse_consecutive_squeeze_unsqueeze",
    "fuse_consecutive_transposes", "fuse_matmul_add_bias_into_gemm", "fuse_pad_into_conv", "fuse_pad_into_pool",
    "fuse_transpose_into_gemm", "fuse_concat_into_reshape", "eliminate_nop_reshape", "eliminate_nop_with_unit",
    "eliminate_common_subexpression", "fuse_qkv", "fuse_consecutive_unsqueezes", "eliminate_deadend",
    "eliminate_identity", "eliminate_shape_op", "fuse_consecutive_slices", "eliminate_unused_initializer",
    "eliminate_duplicate_initializer", "rewrite_where",
)  # fmt: skip
"""The optimizers of onnxsim 0.8.1. Other releases ignore names that they do not know."""


class OnnxSim(Tool):
    """``onnxsim.simplify``, without its own check."""

    package = "onnxsim"
    module = "onnxsim"
    needs = ("onnxruntime",)

    def passes(self, source: str) -> list[str]:
        """Constant folding, shape inference, and the optimizers of the release."""
        compiled = import_module("onnxsim.onnxsim_cpp2py_export")
        listed = getattr(compiled, "list_default_optimizers", None) or getattr(
            compiled, "_get_default_optimizers", None
        )
        return [_FOLDING, _SHAPES, *(listed() if callable(listed) else _OPTIMIZERS)]

    def transform(self, order: TransformOrder) -> None:
        """Simplify a model; in the control, without any optimizer, folding and inference."""
        passes = self.passes(order.source)
        off = omitted_passes(passes, order)
        optimizers = [name for name in passes if name not in {_FOLDING, _SHAPES}]
        model, _ = import_module("onnxsim").simplify(
            import_module("onnx").load(order.source),
            check_n=0,
            perform_optimization=not set(optimizers) <= set(off),
            skipped_optimizers=[name for name in off if name in optimizers] or None,
            skip_constant_folding=_FOLDING in off,
            skip_shape_inference=_SHAPES in off,
        )
        write_model(model, order.target)

    def omission(self, passes: Sequence[str]) -> Omission:
        """One option for the optimizers, and one each for the others."""
        return _with_options(
            "onnxsim model.onnx out.onnx",
            "onnxsim.simplify",
            ([name for name in passes if name not in {_FOLDING, _SHAPES}], "--skip-optimization", "skipped_optimizers"),
            (_FOLDING in passes, "--skip-constant-folding", "skip_constant_folding"),
            (_SHAPES in passes, "--skip-shape-inference", "skip_shape_inference"),
        )


class OnnxOptimizer(Tool):
    """``onnxoptimizer.optimize`` with its default passes."""

    package = "onnxoptimizer"
    module = "onnxoptimizer"

    def passes(self, source: str) -> list[str]:
        """The passes that fuse and eliminate, which are the default."""
        return list(import_module("onnxoptimizer").get_fuse_and_elimination_passes())

    def transform(self, order: TransformOrder) -> None:
        """Optimize a model; in the control, convert it to the tool's own graph and back."""
        model = import_module("onnx").load(order.source)
        passes = None if order.passes is None else list(order.passes)
        write_model(import_module("onnxoptimizer").optimize(model, passes), order.target)

    def omission(self, passes: Sequence[str]) -> Omission:
        """A list of all other passes, as the tool has no option to omit one."""
        others = f"[p for p in onnxoptimizer.get_fuse_and_elimination_passes() if p not in {list(passes)}]"
        return Omission(python=f"onnxoptimizer.optimize(model, {others})")


_LEVELS = {
    "basic": "ORT_ENABLE_BASIC", "extended": "ORT_ENABLE_EXTENDED", "layout": "ORT_ENABLE_LAYOUT",
    "all": "ORT_ENABLE_ALL",
}  # fmt: skip


_IDENTITY = (
    b'\x08\x07:9\n\x12\n\x01x\x12\x01y"\x08Identity:\x00\x12\x01gZ\x0f\n\x01x\x12\n\n\x08\x08\x01\x12\x04\n\x02\x08\x01'
    b"b\x0f\n\x01y\x12\n\n\x08\x08\x01\x12\x04\n\x02\x08\x01B\x04\n\x00\x10\r"
)
"""A model of one Identity node: the interpreter may not have onnx to make one."""


class OnnxRuntimeOffline(Tool):
    """ONNX Runtime's optimizer, which writes the model to ``SessionOptions.optimized_model_filepath``."""

    package = "onnxruntime"
    module = "onnxruntime"
    declared: ClassVar[Mapping[str, Setting]] = {"level": Setting(default="all", choices=tuple(_LEVELS))}

    def passes(self, source: str) -> list[str]:
        """The optimizers that run on the model at this level, as the log names them, and the rewrite rules."""
        sys.stderr.flush()
        before = os.dup(2)
        with tempfile.TemporaryFile() as log:
            os.dup2(log.fileno(), 2)  # the log goes to the file descriptor of stderr
            try:
                try:
                    _build(source, self._level, (), None, severity=0)
                except Exception:  # what it makes of the model cannot be built; the names are the same for any model
                    _build(_IDENTITY, self._level, (), None, severity=0)
            finally:
                os.dup2(before, 2)
                os.close(before)
            log.seek(0)
            ran = optimizers_in_log(log.read().decode("utf-8", "replace"))
        single = [name for name in ran if not name.endswith(RULES)]
        return [*single, *(KNOWN_RULES if len(single) < len(ran) else ())]

    def transform(self, order: TransformOrder) -> None:
        """Build a session that writes the optimized model; in the control, at the level "none"."""
        off = omitted_passes(self.passes(order.source), order) if order.passes else []
        _build(order.source, "ORT_DISABLE_ALL" if order.passes == () else self._level, off, order.target)

    def omission(self, passes: Sequence[str]) -> Omission:
        """An argument of the session."""
        return Omission(python=f"onnxruntime.InferenceSession(model, options, disabled_optimizers={list(passes)})")

    @property
    def _level(self) -> str:
        return _LEVELS[self.settings["level"]]


def _build(source: str | bytes, level: str, off: Sequence[str], target: str | None, *, severity: int = 3) -> Any:
    onnxruntime = import_module("onnxruntime")
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = getattr(onnxruntime.GraphOptimizationLevel, level)
    options.intra_op_num_threads = 1
    options.log_severity_level = severity
    if target is not None:
        options.optimized_model_filepath = target
    providers = ["CPUExecutionProvider"]
    return onnxruntime.InferenceSession(source, options, providers=providers, disabled_optimizers=list(off) or None)


class OnnxRuntimeTransformers(Tool):
    """``onnxruntime.transformers.optimizer.optimize_model``: fusions in Python, without ONNX Runtime's own."""

    package = "onnxruntime"
    module = "onnxruntime.transformers.optimizer"
    needs = ("onnx", "sympy", "coloredlogs")
    declared: ClassVar[Mapping[str, Setting]] = {
        "model_type": Setting(default="bert"),
        "num_heads": Setting(default="0"),
        "hidden_size": Setting(default="0"),
        "opt_level": Setting(default="0", choices=("0", "1", "2", "99")),
    }

    def passes(self, source: str) -> list[str]:
        """The fusions that are on by default."""
        options = self._options()
        return [name for name, value in vars(options).items() if name.startswith("enable_") and value is True]

    def transform(self, order: TransformOrder) -> None:
        """Fuse; in the control, only load and save the model with the tool's own class."""
        optimizer = import_module(self.module)
        if order.passes == ():
            model = import_module("onnxruntime.transformers.onnx_model").OnnxModel(
                import_module("onnx").load(order.source)
            )
            write_model(model.model, order.target)
            return
        options = self._options()
        for name in omitted_passes(self.passes(order.source), order):
            setattr(options, name, False)
        settings = self.settings
        fused = optimizer.optimize_model(
            order.source,
            model_type=settings["model_type"],
            num_heads=int(settings["num_heads"]),
            hidden_size=int(settings["hidden_size"]),
            optimization_options=options,
            opt_level=int(settings["opt_level"]),
        )
        write_model(fused.model, order.target)

    def omission(self, passes: Sequence[str]) -> Omission:
        """An option ``--disable_...`` for most, an attribute of FusionOptions for all."""
        switches = " ".join(name.replace("enable_", "--disable_", 1) for name in passes)
        model_type = self.settings["model_type"]
        changes = "; ".join(f"options.{name} = False" for name in passes)
        return Omission(
            command="python -m onnxruntime.transformers.optimizer --input model.onnx --output out.onnx "
            f"--model_type {model_type} {switches}",
            python=f"options = FusionOptions({model_type!r}); {changes}",
        )

    def _options(self) -> object:
        options: object = import_module("onnxruntime.transformers.fusion_options").FusionOptions(
            self.settings["model_type"]
        )
        return options


_INLINING = "inlining"


class OnnxScript(Tool):
    """``onnxscript.optimizer.optimize``; its passes are constant folding, inlining, and rewrite rules."""

    package = "onnxscript"
    module = "onnxscript.optimizer"

    def passes(self, source: str) -> list[str]:
        """Folding, inlining, and the names of the rules."""
        return [_FOLDING, _INLINING, *dict.fromkeys(_names_of_rules())]

    def transform(self, order: TransformOrder) -> None:
        """Optimize; in the control, convert the model to the tool's own graph and back."""
        onnx, ir = import_module("onnx"), import_module("onnxscript").ir
        if order.passes == ():
            model = ir.serde.serialize_model(ir.serde.deserialize_model(onnx.load(order.source)))
            write_model(model, order.target)
            return
        off = set(omitted_passes(self.passes(order.source), order))
        rules = [rule for rule, name in zip(_rules(), _names_of_rules(), strict=True) if name not in off]
        vars(import_module("onnxscript.rewriter"))["_DEFAULT_REWRITE_RULES"] = tuple(rules)
        model = ir.serde.deserialize_model(onnx.load(order.source))
        folding = {"should_fold": lambda node: False} if _FOLDING in off else {}
        import_module(self.module).optimize_ir(model, inline=_INLINING not in off, **folding)
        write_model(ir.serde.serialize_model(model), order.target)

    def omission(self, passes: Sequence[str]) -> Omission:
        """Arguments, and for rules, which have none, a change of the list that the tool reads."""
        rules = [name for name in passes if name not in {_FOLDING, _INLINING}]
        arguments = ["should_fold=lambda node: False"] * (_FOLDING in passes) + ["inline=False"] * (_INLINING in passes)
        call = f"onnxscript.optimizer.optimize_ir({', '.join(['model', *arguments])})"
        if not rules:
            return Omission(python=call)
        kept = f"[rule for rule in rewriter._DEFAULT_REWRITE_RULES if rule.name not in {rules}]"
        return Omission(python=f"rewriter._DEFAULT_REWRITE_RULES = {kept}; {call}")


def _rules() -> list[Any]:
    return list(import_module("onnxscript.rewriter")._DEFAULT_REWRITE_RULES)


def _names_of_rules() -> list[str]:
    """The name of each rule: its own, or that of the variable that holds it."""
    known: dict[int, str] = {}
    for module in [name for name in sys.modules if name.startswith("onnxscript.rewriter.")]:
        for name, value in vars(sys.modules[module]).items():
            if hasattr(value, "try_rewrite"):
                known.setdefault(id(value), name)
    own = [getattr(rule, "name", None) for rule in _rules()]
    return [
        name if name and isinstance(name, str) else known.get(id(rule), f"rule_{number}")
        for number, (rule, name) in enumerate(zip(_rules(), own, strict=True))
    ]


class QuantizeStatic(Tool):
    """``onnxruntime.quantization.quantize_static``, calibrated with the samples; its passes are the operator types."""

    package = "onnxruntime"
    module = "onnxruntime.quantization"
    needs = ("onnx", "sympy")
    rounds_to = "int8"
    wants_samples = True
    declared: ClassVar[Mapping[str, Setting]] = {
        "format": Setting(default="QDQ", choices=("QDQ", "QOperator")),
        "activations": Setting(default="QInt8", choices=("QInt8", "QUInt8")),
        "weights": Setting(default="QInt8", choices=("QInt8", "QUInt8")),
        "per_channel": Setting(default="no", choices=("yes", "no")),
    }

    def passes(self, source: str) -> list[str]:
        """The operator types of the model that it can quantize."""
        registry = import_module("onnxruntime.quantization.registry")
        known = {*registry.QLinearOpsRegistry, *registry.QDQRegistry}  # its default for both formats
        model = import_module("onnx").load(source, load_external_data=False)
        return list(dict.fromkeys(node.op_type for node in model.graph.node if node.op_type in known))

    def transform(self, order: TransformOrder) -> None:
        """Quantize; in the control, only load the model as the tool does, with inferred shapes, and save it."""
        quantization = import_module(self.module)
        if order.passes == ():
            load = import_module("onnxruntime.quantization.quant_utils").load_model_with_shape_infer
            write_model(load(import_module("pathlib").Path(order.source)), order.target)
            return
        types, settings = quantization.QuantType, self.settings
        quantization.quantize_static(
            order.source,
            order.target,
            _reader(quantization, order),
            quant_format=quantization.QuantFormat[settings["format"]],
            op_types_to_quantize=None if order.passes is None else list(order.passes),
            per_channel=settings["per_channel"] == "yes",
            activation_type=types[settings["activations"]],
            weight_type=types[settings["weights"]],
        )

    def omission(self, passes: Sequence[str]) -> Omission:
        """A list of all other operator types."""
        others = f"[op for op in QDQRegistry if op not in {list(passes)}]"
        return Omission(python=f"quantize_static(model, out, reader, op_types_to_quantize={others})")


def _reader(quantization: Any, order: TransformOrder) -> Any:
    """A CalibrationDataReader of the samples."""

    def samples() -> Iterator[Mapping[str, Any]]:
        for path in order.samples:
            with import_module("numpy").load(path, allow_pickle=False) as arrays:
                yield {name: arrays[f"arr_{number}"] for number, name in enumerate(order.names)}

    remaining = samples()

    class SampleReader(quantization.CalibrationDataReader):  # type: ignore[misc]
        def get_next(self) -> Mapping[str, Any] | None:
            return next(remaining, None)

    return SampleReader()


class Float16(Tool):
    """``convert_float_to_float16`` of onnxconverter-common; its passes are the operator types that it converts.

    Inputs and outputs of the model keep their types.
    """

    package = "onnxconverter-common"
    module = "onnxconverter_common.float16"
    needs: ClassVar[tuple[str, ...]] = ("onnx",)
    rounds_to = "float16"

    def passes(self, source: str) -> list[str]:
        """The operator types of the model that it may convert."""
        model = import_module("onnx").load(source, load_external_data=False)
        blocked = set(import_module(self.module).DEFAULT_OP_BLOCK_LIST)
        return list(dict.fromkeys(node.op_type for node in model.graph.node if node.op_type not in blocked))

    def transform(self, order: TransformOrder) -> None:
        """Convert; in the control, load and save with onnx, as the tool does."""
        model, float16 = import_module("onnx").load(order.source), import_module(self.module)
        if order.passes != ():
            blocked = [*float16.DEFAULT_OP_BLOCK_LIST, *omitted_passes(self.passes(order.source), order)]
            model = float16.convert_float_to_float16(model, keep_io_types=True, op_block_list=blocked)
        write_model(model, order.target)

    def omission(self, passes: Sequence[str]) -> Omission:
        """A list of operator types that stay float32."""
        blocked = f"[*DEFAULT_OP_BLOCK_LIST, {', '.join(map(repr, passes))}]"
        return Omission(python=f"convert_float_to_float16(model, keep_io_types=True, op_block_list={blocked})")


class OnnxRuntimeFloat16(Float16):
    """ONNX Runtime's changed copy of ``convert_float_to_float16``."""

    package = "onnxruntime"
    module = "onnxruntime.transformers.float16"
    needs = ("onnx", "sympy", "coloredlogs")


TOOLS: Mapping[str, type[Tool]] = {
    "onnxslim": OnnxSlim,
    "onnxsim": OnnxSim,
    "onnxoptimizer": OnnxOptimizer,
    "onnxruntime": OnnxRuntimeOffline,
    "onnxruntime.transformers": OnnxRuntimeTransformers,
    "onnxscript": OnnxScript,
    "quantize-static": QuantizeStatic,
    "fp16": Float16,
    "onnxruntime.float16": OnnxRuntimeFloat16,
}
