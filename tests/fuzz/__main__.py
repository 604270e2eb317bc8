"""``python -m fuzz --minutes 30``: random reductions until the time is over; status 1 if any result breaks a rule."""

from __future__ import annotations

import argparse
import itertools
import sys
import time
import warnings
from collections import Counter

from fuzz.campaign import Reduced, campaign, rules_broken


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m fuzz", description=__doc__)
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--seed", type=int, default=0, help="the first seed; the others follow it")
    parser.add_argument("--count", type=int, help="so many reductions and no more")
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    end = time.monotonic() + 60 * args.minutes
    seeds = itertools.count(args.seed) if args.count is None else iter(range(args.seed, args.seed + args.count))
    broken: list[Reduced] = []
    nodes: Counter[str] = Counter()
    for one in campaign(itertools.takewhile(lambda seed: time.monotonic() < end, seeds)):
        nodes["models"] += 1
        nodes["before"] += len(one.original.graph.node)
        nodes["after"] += len(one.result.graph.node) if one.result is not None else 0
        nodes["checks"] += one.checks
        if one.breaches:
            broken.append(one)
            print(one, flush=True)
    print(
        f"{nodes['models']} models of {nodes['before']} nodes, {nodes['after']} nodes left, {nodes['checks']} checks:"
        f" {len(broken)} results break a rule {dict(rules_broken(broken)) or ''}"
    )
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
