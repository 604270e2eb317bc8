"""What a question about a tool must say, or its answer would be the same whatever the tool does."""

from __future__ import annotations

from biopsy import errors
from biopsy.blame.transformations.question import CommandQuestion, TransformationQuestion
from biopsy.blame.transformations.spec import PASSES, SOURCE
from biopsy.blame.transformations.transformer import Transformer
from biopsy.similar_names import ask_for, similar
from biopsy.text import some_of


def require_passes(question: TransformationQuestion, transformer: Transformer) -> None:
    """Raise UsageError for passes that would not run: without them the model is right whatever the tool does."""
    wanted = question.passes or ()
    assert question.index.path is not None
    known = transformer.passes(question.index.path)
    if question.tool.words and wanted and not known:
        raise errors.UsageError(
            f"--passes: the command has no {PASSES}, so it is not told which passes may run",
            next_steps=[f"--by '{question.tool.text} {PASSES}'"],
        )
    title = f"{question.tool.text} {transformer.release}".strip()
    strange = [name for name in wanted if known and name not in known]
    if strange:
        raise errors.UsageError(
            f"--passes: no pass {strange[0]!r} of {title} runs on {question.index.path}",
            next_steps=[*ask_for(similar(strange[0], known)), f"those that do: {some_of(known, 12)}"],
        )


def require_candidate(decides: CommandQuestion, question: TransformationQuestion) -> None:
    """Raise UsageError for a check that does not name the transformed model."""
    if not any(place in word for word in decides.words for place in (SOURCE, str(question.index.path))):
        raise errors.UsageError(
            f"--check: no word of it is {SOURCE}, the transformed model, so it says the same of every model"
        )
