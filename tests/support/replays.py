"""Tactic replays as Polygraphy writes them."""

import json
from dataclasses import asdict
from pathlib import Path

from biopsy.questions.builds.record import TacticReplay
from biopsy.tensors.polygraphy_json import CLASS


def write_replay(replay: TacticReplay, path: Path) -> None:
    algorithms = {}
    for name, one in replay.algorithms.items():
        infos = {
            key: [{**asdict(info), CLASS: "TensorInfo"} for info in getattr(one, key)] for key in ("inputs", "outputs")
        }
        told = {"implementation": one.implementation, "tactic": one.tactic}
        algorithms[name] = {**told, **infos, CLASS: "Algorithm"}
    path.write_text(json.dumps({"replay": algorithms, CLASS: "TacticReplayData"}, indent=4))
