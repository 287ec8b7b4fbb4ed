"""The command line of the fuzz test; exit code 1 if an input is a fault."""

import argparse
import sys
import tempfile
from collections import Counter
from pathlib import Path

from tests.fuzz.kinds import make_kinds
from tests.fuzz.trial import fuzz

parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
parser.add_argument("--inputs", type=int, default=10_000)
parser.add_argument("--seed", type=int, default=0)
parser.add_argument("--only", default="", help="kinds whose name contains this")
given = parser.parse_args()
with tempfile.TemporaryDirectory() as folder:
    kinds = [kind for kind in make_kinds(Path(folder)) if given.only in kind.name]
    found, faults = Counter[str](), 0
    for result in fuzz(kinds, given.inputs, given.seed):
        found[result.what if not result.is_fault else "fault"] += 1
        if result.is_fault:
            faults += 1
            print(f"{result.name}: {result.what}", flush=True)
print(f"{given.inputs} inputs of {len(kinds)} kinds: {dict(found)}")
sys.exit(1 if faults else 0)
