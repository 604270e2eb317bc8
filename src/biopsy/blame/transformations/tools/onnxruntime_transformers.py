"""``onnxruntime.transformers.optimizer``: fusions written in Python, each with a switch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import ClassVar

from biopsy.blame.transformations.tool import Omission, Setting, Tool, TransformOrder, left_out, write_model


class OnnxRuntimeTransformers(Tool):
    """``optimize_model`` with ONNX Runtime's own optimizer off: that is the tool ``onnxruntime``."""

    summary = "onnxruntime.transformers.optimizer"
    package = "onnxruntime"
    module = "onnxruntime.transformers.optimizer"
    needs = ("onnx", "sympy", "coloredlogs")
    declared: ClassVar[Mapping[str, Setting]] = {
        "model_type": Setting(default="bert", meaning="what kind of model it is"),
        "num_heads": Setting(default="0", meaning="heads of the attention; 0 to find out"),
        "hidden_size": Setting(default="0", meaning="size of hidden states; 0 to find out"),
        "opt_level": Setting(
            default="0", meaning="ONNX Runtime's optimizer before the fusions", choices=("0", "1", "2", "99")
        ),
    }

    def passes(self, source: str) -> list[str]:
        """Fusions that are on by themselves."""
        del source
        options = self._options()
        return [name for name, value in vars(options).items() if name.startswith("enable_") and value is True]

    def transform(self, order: TransformOrder) -> None:
        """Fuse; in the control, the model goes through the tool's own load and save."""
        optimizer = import_module(self.module)
        if order.passes == ():
            model = import_module("onnxruntime.transformers.onnx_model").OnnxModel(
                import_module("onnx").load(order.source)
            )
            write_model(model.model, order.target)
            return
        options = self._options()
        for name in left_out(self.passes(order.source), order):
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
