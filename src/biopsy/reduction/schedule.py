"""The table of passes in their order, and the passes of each mode."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import takewhile
from typing import Literal

from biopsy import errors
from biopsy.reduction.passes.bodies import bodies
from biopsy.reduction.passes.common import NamedModelPass, NamedPass
from biopsy.reduction.passes.inlining import hoist, inline, not_inlined
from biopsy.reduction.passes.names import names, names_left
from biopsy.reduction.passes.nodes import bisect, bypass, forms, linear, ranked, sets, suspects
from biopsy.reduction.passes.removal import attributes, exporter_notes, inputs, optional_inputs, outputs, tidy
from biopsy.reduction.passes.weights import sizes, weights, weights_left
from biopsy.text import did_you_mean

Mode = Literal["minimal", "bisect", "linear"]

PASSES: tuple[NamedPass, ...] = (
    NamedPass(
        name="ranked",
        summary="the layers that a report of debug layers names (--order-by)",
        search=ranked,
        usual=lambda nodes: 2,
    ),
    NamedPass(
        name="suspects",
        summary="where the check itself says that errors begin",
        search=suspects,
        usual=lambda nodes: 3,
    ),
    NamedPass(
        name="bisect",
        summary="the earliest failing outputs, then the latest failing inputs, by halves",
        search=bisect,
        halves=True,
        can_be_foreseen=True,
    ),
    NamedPass(
        name="sets",
        summary="keep the nodes that matter, cut those between them",
        search=sets,
        halves=True,
        leaves_out=True,
        can_be_foreseen=True,
    ),
    NamedPass(
        name="bypass",
        summary="skip nodes: their consumers read the nodes' input (where values may change)",
        search=bypass,
        can_be_foreseen=True,
    ),
    NamedPass(
        name="linear",
        summary="one node at a time, from the end",
        search=linear,
        usual=lambda nodes: nodes,
        leaves_out=True,
        can_be_foreseen=True,
    ),
    NamedPass(
        name="forms",
        summary="one node at a time, in the other form: fed, not frozen, or frozen, not fed",
        search=forms,
        usual=lambda nodes: nodes,
    ),
)

MODEL_PASSES: tuple[NamedModelPass, ...] = (
    NamedModelPass(
        name="tidy",
        summary="what no node needs: weights, functions, documentation, stale types",
        search=tidy,
        keeps_values=True,
    ),
    NamedModelPass(
        name="notes",
        summary="what exporters noted of nodes: stack traces, names of modules",
        search=exporter_notes,
        keeps_values=True,
        only_with=("anonymize",),
    ),
    NamedModelPass(
        name="inputs", summary="inputs that nothing reads", search=inputs, keeps_values=True, changes_inputs=True
    ),
    NamedModelPass(
        name="outputs", summary="outputs that are not needed", search=outputs, keeps_values=True, changes_outputs=True
    ),
    NamedModelPass(name="optional", summary="inputs that an operator can do without", search=optional_inputs),
    NamedModelPass(
        name="bodies", summary="outputs and nodes inside If, Loop and Scan", search=bodies, changes_inputs=True
    ),
    NamedModelPass(
        name="hoist",
        summary="one branch, one trip or one function in place of the node that runs it",
        search=hoist,
        changes_inputs=True,
        changes_outputs=True,
    ),
    NamedModelPass(
        name="inline",
        summary="the nodes of functions in place of calls",
        search=inline,
        keeps_values=True,
        remarks=not_inlined,
    ),
    NamedModelPass(
        name="attributes",
        summary="attributes that an operator can do without",
        search=attributes,
        only_with=("simplify",),
    ),
    NamedModelPass(
        name="sizes",
        summary="batch, length, channels and other sizes",
        search=sizes,
        changes_inputs=True,
        changes_outputs=True,
        only_with=("simplify",),
    ),
    NamedModelPass(
        name="weights",
        summary="weights filled with ones or small values: the file holds no secret",
        search=weights,
        only_with=("simplify", "anonymize"),
        remarks=weights_left,
    ),
    NamedModelPass(
        name="names",
        summary="neutral names of tensors, nodes, graphs, functions and symbols",
        search=names,
        keeps_values=True,
        changes_inputs=True,
        changes_outputs=True,
        only_with=("anonymize",),
        remarks=names_left,
    ),
)
"""The passes over the model, in their order; they run once few nodes are left."""

_BY_NAME = {named.name: named for named in PASSES}


@dataclass(frozen=True)
class Schedule:
    """The passes that run ``once``, and those that are ``repeated`` until none of them makes the candidate smaller.

    If these try each single node fed, frozen and bypassed, the result is 1-minimal: no single remaining node can be
    removed. The passes ``afterwards`` work on the model itself; they are repeated, too.
    """

    once: tuple[NamedPass, ...]
    repeated: tuple[NamedPass, ...] = ()
    afterwards: tuple[NamedModelPass, ...] = ()

    @property
    def hides_origins(self) -> bool:
        """Whether the result must hide its origin, so that nothing noted in the original may be shown for it."""
        return any(named.name in ("names", "notes") for named in self.afterwards)

    def foreseeable_after(self, named: NamedPass) -> tuple[NamedPass, ...]:
        """The passes that follow a pass, up to the first that cannot be foreseen."""
        order = (*self.once, *self.repeated)
        return tuple(takewhile(lambda later: later.can_be_foreseen, order[order.index(named) + 1 :]))


@dataclass(frozen=True, kw_only=True)
class Passes:
    """The choice of passes: none of ``skip``, and if ``only`` is not empty, only those.

    ``simplify`` also tries to remove attributes, make sizes smaller and fill weights; ``anonymize`` replaces names and
    fills weights. Passes named in ``only`` need neither. ``biopsy debug reduce --list-passes`` lists all passes.
    """

    simplify: bool = False
    anonymize: bool = False
    skip: tuple[str, ...] = ()
    only: tuple[str, ...] = ()

    def takes(self, named: NamedPass | NamedModelPass) -> bool:
        """Whether a pass of the mode runs."""
        return named.name not in self.skip and (not self.only or named.name in self.only)


def schedule_of(
    mode: Mode, passes: Passes = Passes(), *, keep_inputs: bool = False, keep_outputs: bool = False
) -> Schedule:
    """The passes that a mode runs, without those not chosen and those that change inputs or outputs to keep.

    Raises UsageError for unknown names, and for options that contradict each other.
    """
    known = [*(named.name for named in PASSES), *(named.name for named in MODEL_PASSES)]
    for name in (*passes.skip, *passes.only):
        if name not in known:
            raise errors.UsageError(
                f"there is no pass {name!r}",
                next_steps=[
                    *did_you_mean(name, known, most=1),
                    f"passes: {', '.join(known)}",
                    "biopsy debug reduce --list-passes says what they do",
                ],
            )
    options = {"simplify": passes.simplify, "anonymize": passes.anonymize}
    for option, is_given in options.items():
        if is_given and mode != "minimal":
            raise errors.UsageError(f"--{option} needs --mode=minimal, not {mode}", next_steps=["--mode=minimal"])
    if passes.anonymize and (keep_inputs or keep_outputs):
        kept = "--no-reduce-inputs" if keep_inputs else "--no-reduce-outputs"
        raise errors.UsageError(f"--anonymize cannot be combined with {kept}, which keeps names of the original")
    once, repeated = _OF_MODE[mode]
    return Schedule(
        tuple(_BY_NAME[name] for name in once if passes.takes(_BY_NAME[name])),
        tuple(_BY_NAME[name] for name in repeated if passes.takes(_BY_NAME[name])),
        tuple(
            named
            for named in MODEL_PASSES
            if mode == "minimal"
            and passes.takes(named)
            and (not named.only_with or named.name in passes.only or any(options[name] for name in named.only_with))
            and not (keep_inputs and named.changes_inputs)
            and not (keep_outputs and named.changes_outputs)
        ),
    )


_OF_MODE: dict[Mode, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "minimal": (("ranked", "suspects", "bisect"), ("sets", "bypass", "linear", "forms")),
    "bisect": (("ranked", "bisect"), ()),
    "linear": (("linear",), ()),
}
"""Mode -> the passes over nodes that run once, and those that are repeated."""
